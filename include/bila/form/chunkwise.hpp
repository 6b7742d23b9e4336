// SPDX-License-Identifier: Apache-2.0
// The chunkwise form: one dense block inside each chunk, one carried state per direction between chunks; linear in L.
// (LION's code calls "chunk" what visits all pairs of blocks; here that is form::full.)
#pragma once

#include <bila/form/chunkwise_gradient.hpp>
#include <bila/form/decays.hpp>
#include <bila/form/global_state.hpp>
#include <bila/form/head.hpp>

namespace bila::inline v0_1::form {

/// For a chunk of C tokens with H the forward state before it and G the backward state after it,
///
///     [N_i, Z_i] = alpha_i q_i H + beta_i q_i G + sum_j M_ij (q_i . k_j) [v_j, 1]
///     H <- alpha_last H + sum_j omega_j k_j [v_j, 1],   G <- beta_first G + sum_j psi_j k_j [v_j, 1]
///
/// Time O(L C (Dk + Dv) + L Dk Dv), memory O(C (C + Dk + Dv) + Dk Dv) and one number per token. Two sweeps: the backward one leaves
/// q G in y, the forward one adds the rest and normalises; no state is stored.
/// Source: LION (arXiv 2502.16249), the chunkwise form, with carried states as in Mamba-2 (arXiv 2405.21060).
struct chunkwise {
  index_t size = 32;       // tokens per chunk, >= 1; within 5 % of the best at D = 32 to 128 (bench/chunk_size.bench.cpp)
  bool recompute = false;  // the gradient keeps one state per sqrt(L / size) chunks instead of one per chunk, and computes more

  complaint check() const { return size >= 1 ? complaint() : sentence("chunkwise.size = ", size, ", it must be >= 1"); }

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size head, index_t C, bool narrow_storage)
        : q(memory.padded<Kernel, Real>(C, head.Dk)),
          k(memory.padded<Kernel, Real>(C, head.Dk)),
          weighted(memory.padded<Kernel, Real>(C, head.Dk)),
          kt(memory.padded<Kernel, Real>(head.Dk, C)),
          v(memory.padded<Kernel, Real>(C, head.Dv)),
          N(memory.padded<Kernel, Real>(C, head.Dv)),
          A(memory.padded<Kernel, Real>(C, C)),
          M(memory.padded<Kernel, Real>(C, C)),
          S(memory.padded<Kernel, Real>(head.Dk, head.Dv)),
          s(memory.numbers<Kernel, Real>(head.Dk)),
          z(memory.numbers<Kernel, Real>(head.L)),
          left(narrow_storage ? memory.padded<Kernel, Real>(head.L, head.Dv) : kernel::tile<Real>{}),
          border{memory.numbers<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)},
          lambda(memory.numbers<Kernel, double>(C + 1)),
          row(memory.numbers<Kernel, double>(C)) {}

    kernel::tile<Real> q, k, weighted, kt, v, N;  // (C, Dk) (C, Dk) (C, Dk) (Dk, C) (C, Dv) (C, Dv)
    kernel::tile<Real> A, M;                      // (C, C)
    kernel::tile<Real> S;                         // (Dk, Dv)
    Real *s, *z;                                  // (Dk) (L)
    kernel::tile<Real> left;                      // (L, Dv) what one sweep leaves for the other, where y would round it
    kernel::border_weights<Real> border;          // (C)
    double *lambda, *row;                         // (C + 1) (C)
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    kernel::arena other;
    typename global_state::scratch<Kernel, real_of<T>>(other, largest);
    scratch<Kernel, real_of<T>>(memory, largest, (std::min)(size, std::max<index_t>(largest.L, 1)), is_narrow<T>);
    if (other.used() > memory.used()) memory = other;
  }

  index_t shares(head_size largest, index_t wanted) const { return shares_by_column(largest.Dv, wanted); }

  template <class Kernel, class T, gapped Mask, class Norm>
  void run(const head<T, Mask>& whole, const Norm& norm, share part, kernel::arena& memory) const {
    const head<T, Mask> x = columns_of(whole, part);
    if (x.v.width == 0) return;
    if constexpr (Mask::gaps == gap::none)
      if (global_state::serves(x.direction, x.diagonal)) return global_state::run<Kernel>(x, norm, memory);

    scratch<Kernel, real_of<T>> w(memory, {x.q.count, x.q.width, x.v.width}, (std::min)(size, x.q.count), is_narrow<T>);
    switch (x.direction) {
      case direction::both:
        sweep<Kernel, direction::backward>(x, norm, w, {.dense = false, .other_left = false});
        sweep<Kernel, direction::forward>(x, norm, w, {.dense = true, .other_left = true});
        break;
      case direction::forward:
        sweep<Kernel, direction::forward>(x, norm, w, {.dense = true, .other_left = false});
        break;
      case direction::backward:
        sweep<Kernel, direction::backward>(x, norm, w, {.dense = true, .other_left = false});
        break;
    }
  }

  chunkwise_gradient gradient() const { return {size, recompute}; }

 private:
  struct duties {
    bool dense;       // adds the block inside each chunk, and normalises: the last sweep
    bool other_left;  // y and z hold what the other sweep left
  };

  template <class Kernel, direction Way, class T, class Mask, class Norm, class Real>
  void sweep(const head<T, Mask>& x, const Norm& norm, scratch<Kernel, Real>& w, duties duty) const {
    const index_t L = x.q.count, C = w.q.rows, chunks = (L + C - 1) / C;
    Real* const s = Norm::uses_row_sum ? w.s : nullptr;
    kernel::carried_decay<Real> carried;
    const rows<Real> left = left_by_a_sweep(x, w.left);
    start(w.S, w.s, x.template initial<Way>());

    index_t scanned = 0;         // tokens of the chunk whose weights are at hand
    bool scanned_inner = false;  // and whether it is one like any other
    for (index_t step = 0; step < chunks; ++step) {
      const index_t first = (Way == direction::forward ? step : chunks - 1 - step) * C, n = (std::min)(C, L - first);
      const auto q = kernel::elements(x.q.slice(first, n), w.q);               // (n, Dk)
      const auto k = kernel::elements(x.k.slice(first, n), w.k);               // (n, Dk)
      const auto v = kernel::whole_packets<Kernel>(x.v.slice(first, n), w.v);  // (n, Dv)
      const auto N = w.N.top(n);                                               // (n, Dv)
      Real* const z = Norm::uses_row_sum ? w.z + first : nullptr;

      const bool inner = first > 0 && first + n < L;
      if (Mask::gaps == gap::per_token || !inner || !scanned_inner) {
        scan_border<Way>(x, first, n, w.lambda, w.border);
        if (duty.dense) scan_block(x, first, w.M.top(n), w.lambda, w.row, n != scanned);
        scanned = n;
        scanned_inner = inner;
      }
      if (duty.other_left) {
        kernel::load(N, rows<const Real>(left.slice(first, n)));
      } else {
        kernel::clear(N);
        std::fill_n(w.z + first, n, Real(0));
      }
      if (duty.dense) {
        const kernel::tile<Real> kt{w.kt.data, x.k.width, n, w.kt.stride};  // (Dk, n)
        const kernel::tile<Real> A{w.A.data, n, n, w.A.stride};             // (n, n)
        Kernel::transpose(kt, k);
        Kernel::score(A, q, kt);
        Kernel::weigh(A, w.M, z);
        Kernel::apply(N, A, v);
      }
      Kernel::read(N, z, w.border.read, q, w.S, s);
      Kernel::accumulate(w.S, s, carried(w.border.total), k, w.border.write, v, w.weighted);
      if (duty.dense)
        finish<Kernel>(x, first, N, z, norm);
      else
        kernel::store(left.slice(first, n), N);
    }
    keep(x.template final<Way>(), w.S, s);
  }
};

}  // namespace bila::inline v0_1::form
