// SPDX-License-Identifier: Apache-2.0
// The recurrent form: two sweeps of one state, token by token; for streaming, small heads and tight memory.
#pragma once

#include <bila/form/chunkwise_gradient.hpp>
#include <bila/form/global_state.hpp>
#include <bila/form/head.hpp>
#include <bila/kernel/scan.hpp>

namespace bila::inline v0_1::form {

/// Exclusive states and one explicit diagonal,
///
///     P_i = e^{f_i} (P_{i-1} + k_{i-1} [v_{i-1}, 1]),   R_i = e^{b_{i+1}} (R_{i+1} + k_{i+1} [v_{i+1}, 1])
///     [N_i, Z_i] = q_i P_i + q_i R_i + diagonal (q_i . k_i) [v_i, 1]
///
/// the same numbers as LION's S_i minus half the diagonal in each direction, without its cancellation.
/// Time O(L Dk Dv), memory O(Dk Dv) and one number per token. The backward sweep leaves its part in y.
/// Source: LION (arXiv 2502.16249), the bidirectional RNN.
struct recurrent {
  static constexpr index_t block = 32;  // tokens that are read from the user's memory at a time

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size, bool narrow_storage)
        : q(memory.padded<Kernel, Real>(block, size.Dk)),
          k(memory.padded<Kernel, Real>(block, size.Dk)),
          v(memory.padded<Kernel, Real>(block, size.Dv)),
          N(memory.padded<Kernel, Real>(block, size.Dv)),
          S(memory.padded<Kernel, Real>(size.Dk, size.Dv)),
          s(memory.numbers<Kernel, Real>(size.Dk)),
          z(memory.numbers<Kernel, Real>(size.L)),
          left(narrow_storage ? memory.padded<Kernel, Real>(size.L, size.Dv) : kernel::tile<Real>{}) {}

    kernel::tile<Real> q, k, v, N, S;  // (block, Dk) (block, Dk) (block, Dv) (block, Dv) (Dk, Dv)
    Real *s, *z;                       // (Dk) (L)
    kernel::tile<Real> left;           // (L, Dv) what one sweep leaves for the other, where y would round it
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    kernel::arena other;
    typename global_state::scratch<Kernel, real_of<T>>(other, size);
    scratch<Kernel, real_of<T>>(memory, size, is_narrow<T>);
    if (other.used() > memory.used()) memory = other;
  }

  index_t shares(head_size size, index_t wanted) const { return shares_by_column(size.Dv, wanted); }

  template <class Kernel, class T, gapped Mask, class Norm>
  void run(const head<T, Mask>& whole, const Norm& norm, share part, kernel::arena& memory) const {
    const head<T, Mask> x = columns_of(whole, part);
    if (x.v.width == 0) return;
    if constexpr (Mask::gaps == gap::none)
      if (global_state::serves(x.direction, x.diagonal)) return global_state::run<Kernel>(x, norm, memory);

    scratch<Kernel, real_of<T>> w(memory, {x.q.count, x.q.width, x.v.width}, is_narrow<T>);
    switch (x.direction) {
      case direction::both:
        sweep<Kernel, direction::backward>(x, norm, w, {.last = false, .other_left = false});
        sweep<Kernel, direction::forward>(x, norm, w, {.last = true, .other_left = true});
        break;
      case direction::forward:
        sweep<Kernel, direction::forward>(x, norm, w, {.last = true, .other_left = false});
        break;
      case direction::backward:
        sweep<Kernel, direction::backward>(x, norm, w, {.last = true, .other_left = false});
        break;
    }
  }

  /// In blocks of tokens, pairs inside a block directly; states are computed again from one per sqrt(L / block) blocks.
  chunkwise_gradient gradient() const { return {.size = 16, .recompute = true}; }

 private:
  struct duties {
    bool last;        // adds the diagonal, and normalises
    bool other_left;  // y and z hold what the other sweep left
  };

  template <class Kernel, direction Way, class T, class Mask, class Norm, class Real>
  void sweep(const head<T, Mask>& x, const Norm& norm, scratch<Kernel, Real>& w, duties duty) const {
    const index_t L = x.q.count, blocks = (L + block - 1) / block;
    Real* const s = Norm::uses_row_sum ? w.s : nullptr;
    kernel::held_decay state;
    const rows<Real> left = left_by_a_sweep(x, w.left);
    start(w.S, w.s, x.template initial<Way>());
    scale(w.S, w.s, static_cast<Real>(x.template initial<Way>().decay));  // a given state crosses the gap before the sequence

    for (index_t turn = 0; turn < blocks; ++turn) {
      const index_t first = (Way == direction::forward ? turn : blocks - 1 - turn) * block, n = (std::min)(block, L - first);
      const auto q = kernel::elements(x.q.slice(first, n), w.q);               // (n, Dk)
      const auto k = kernel::elements(x.k.slice(first, n), w.k);               // (n, Dk)
      const auto v = kernel::whole_packets<Kernel>(x.v.slice(first, n), w.v);  // (n, Dv)
      const auto N = w.N.top(n);                                               // (n, Dv)
      Real* const z = Norm::uses_row_sum ? w.z + first : nullptr;
      if (duty.other_left) {
        kernel::load(N, rows<const Real>(left.slice(first, n)));
      } else {
        kernel::clear(N);
        std::fill_n(w.z + first, n, Real(0));
      }
      for (index_t m = 0; m < n; ++m) {
        const index_t i = Way == direction::forward ? m : n - 1 - m;
        const index_t t = Way == direction::forward ? first + i + 1 : first + i;  // the gap by which the state leaves token i
        const Real read = static_cast<Real>(state.held()), write = static_cast<Real>(1 / state.held());
        const Real settle = static_cast<Real>(state.decay(t == 0 || t == L ? 1.0 : x.mask.template decay<Way>(t)));
        Real* const z_i = z == nullptr ? z : z + i;
        if (duty.last)
          Kernel::diagonal(N.row(i), z_i, static_cast<Real>(x.diagonal), q.row(i), k.row(i), k.columns, v.row(i), v.columns);
        Kernel::step(N.row(i), z_i, read, q.row(i), w.S, s, settle, write, k.row(i), v.row(i));
      }
      if (duty.last)
        finish<Kernel>(x, first, N, z, norm);
      else
        kernel::store(left.slice(first, n), N);
    }
    scale(w.S, w.s, static_cast<Real>(state.held()));
    keep(x.template final<Way>(), w.S, s);
  }

  template <class Real>
  static void scale(kernel::tile<Real> S, Real* s, Real decay) {
    for (index_t n = 0; n < S.rows * S.stride; ++n) S.data[n] *= decay;
    for (index_t c = 0; c < S.rows; ++c) s[c] *= decay;
  }
};

}  // namespace bila::inline v0_1::form
