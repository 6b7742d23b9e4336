// SPDX-License-Identifier: Apache-2.0
// The all-ones mask in both directions: one state for every query. No chunks, no second direction, and keys need not be the
// queries' tokens. The recurrent and the chunkwise form take this path for masks without gaps (math: section 2.4).
#pragma once

#include <bila/form/head.hpp>

namespace bila::inline v0_1::form {

/// T = K^T [V, 1],  [N, Z] = Q T; O(L Dk Dv) time, O(Dk Dv) memory.
struct global_state {
  /// Only with the diagonal weight 1: adding (diagonal - 1) (q . k) v would cancel where a token outweighs all others.
  static bool serves(direction way, double diagonal) { return way == direction::both && diagonal == 1; }

  static constexpr index_t block = 64;  // tokens at a time

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : S(memory.padded<Kernel, Real>(size.Dk, size.Dv)),
          q(memory.padded<Kernel, Real>(block, size.Dk)),
          k(memory.padded<Kernel, Real>(block, size.Dk)),
          weighted(memory.padded<Kernel, Real>(block, size.Dk)),
          v(memory.padded<Kernel, Real>(block, size.Dv)),
          N(memory.padded<Kernel, Real>(block, size.Dv)),
          s(memory.numbers<Kernel, Real>(size.Dk)),
          z(memory.numbers<Kernel, Real>(block)),
          ones(memory.numbers<Kernel, Real>(block)) {}

    kernel::tile<Real> S, q, k, weighted, v, N;  // (Dk, Dv) (block, Dk) (block, Dk) (block, Dk) (block, Dv) (block, Dv)
    Real *s, *z, *ones;                          // (Dk) (block) (block)
  };

  template <class Kernel, class T, class Mask, class Norm>
  static void run(const head<T, Mask>& x, const Norm& norm, kernel::arena& memory) {
    using Real = real_of<T>;
    scratch<Kernel, Real> w(memory, {x.q.count, x.q.width, x.v.width});
    Real* const s = Norm::uses_row_sum ? w.s : nullptr;
    Real* const z = Norm::uses_row_sum ? w.z : nullptr;
    kernel::clear(w.S);
    std::fill_n(w.s, x.q.width, Real(0));
    std::fill_n(w.ones, block, Real(1));
    for (index_t first = 0; first < x.k.count; first += block) {
      const index_t n = (std::min)(block, x.k.count - first);
      const auto k = kernel::elements(x.k.slice(first, n), w.k);               // (n, Dk)
      const auto v = kernel::whole_packets<Kernel>(x.v.slice(first, n), w.v);  // (n, Dv)
      Kernel::accumulate(w.S, s, Real(1), k, w.ones, v, w.weighted);
    }
    for (index_t c = 0; c < x.q.width; ++c) join_states(x, c, w.S.row(c), s == nullptr ? s : s + c);

    for (index_t first = 0; first < x.q.count; first += block) {
      const index_t n = (std::min)(block, x.q.count - first);
      const auto q = kernel::elements(x.q.slice(first, n), w.q);  // (n, Dk)
      const auto N = w.N.top(n);                                  // (n, Dv)
      kernel::clear(N);
      std::fill_n(w.z, n, Real(0));
      Kernel::read(N, z, w.ones, q, w.S, s);
      finish<Kernel>(x, first, N, z, norm);
    }
  }

 private:
  /// Row c of the state that all queries see: the tokens' own, and what comes before and after. Each final state is what lies on
  /// its side, the tokens included.
  template <class T, class Mask, class Real>
  static void join_states(const head<T, Mask>& x, index_t c, Real* S, Real* s) {
    const auto entering = [c](const head_state<const Real>& from, index_t d) {
      return from.S.data == nullptr ? Real(0) : static_cast<Real>(from.decay) * from.S(c, d);
    };
    const auto entering_sum = [c](const head_state<const Real>& from) {
      return from.z.data == nullptr ? Real(0) : static_cast<Real>(from.decay) * from.z(c, 0);
    };
    for (index_t d = 0; d < x.v.width; ++d) {
      const Real before = entering(x.initial_forward, d), after = entering(x.initial_backward, d);
      if (x.final_forward.S.data != nullptr) x.final_forward.S(c, d) = S[d] + before;
      if (x.final_backward.S.data != nullptr) x.final_backward.S(c, d) = S[d] + after;
      S[d] += before + after;
    }
    if (s == nullptr) return;
    const Real before = entering_sum(x.initial_forward), after = entering_sum(x.initial_backward);
    if (x.final_forward.z.data != nullptr) x.final_forward.z(c, 0) = *s + before;
    if (x.final_backward.z.data != nullptr) x.final_backward.z(c, 0) = *s + after;
    *s += before + after;
  }
};

}  // namespace bila::inline v0_1::form
