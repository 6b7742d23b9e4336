// SPDX-License-Identifier: Apache-2.0
// The mask of all ones in both directions: one state serves all queries. There are no chunks and no second sweep, and keys need not
// be the queries' tokens. The recurrent and the chunkwise form take this path for masks without decay (MATH.md 2.5).
#pragma once

#include <bila/config.hpp>
#include <bila/form/two_sided_sweep.hpp>

#include <algorithm>
#include <functional>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Computes T = K^T [V, 1],  [N, Z] = Q T, in O(L Dk Dv) time and O(Dk Dv) memory.
struct global_state {
  /// The diagonal weight must be 1: adding (diagonal - 1) (q . k) v would cancel digits if one token outweighs all others.
  static bool serves(gap gaps, direction way, double diagonal) {
    return gaps == gap::none && way == direction::both && detail::is_exactly(diagonal, 1);
  }

  static constexpr index_t block = 64;  // tokens per block

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : S(memory.padded<Kernel, Real>(size.Dk, size.Dv)),
          q(memory.padded<Kernel, Real>(block, size.Dk)),
          k(memory.padded<Kernel, Real>(block, size.Dk)),
          v(memory.padded<Kernel, Real>(block, size.Dv)),
          N(memory.padded<Kernel, Real>(block, size.Dv)),
          s(memory.numbers<Kernel, Real>(size.Dk)),
          z(memory.zeros<Kernel, Real>(block)),
          out(memory.numbers<Kernel, Real>(block)),
          ones(memory.numbers<Kernel, Real>(block)) {}

    kernel::tile<Real> S, q, k, v, N;  // (Dk, Dv) (block, Dk) (block, Dk) (block, Dv) (block, Dv)
    Real *s, *z, *out, *ones;          // (Dk) the column for row sums, sum_j k_j; (block) row sums Z_i, factors of the rows, ones
  };

  /// Each half sums the state of its own keys, and then its queries read the states of both halves.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void run(const head<T>& x, const norm_view<Real>& norm, split part, kernel::arena& memory,
                                two_sided_sweep<Kernel, Real>& m) {
    scratch<Kernel, Real> w(memory, {x.q.count, x.q.width, x.v.width});
    std::fill_n(w.ones, block, Real(1));
    const auto half_of = [](index_t L, index_t half) { return half == 0 ? 0 : half == 1 ? L / block / 2 * block : L; };
    if (part.at != sweep_pass::second)
      for (index_t half = 0; half < 2; ++half)
        if (part.has_half(half))
          gather(x, norm, w, half == 0 ? m.forward : m.backward, half_of(x.k.count, half), half_of(x.k.count, half + 1));
    if (part.at == sweep_pass::first) return;

    Real* const s = norm.uses_row_sum ? w.s : nullptr;
    std::fill_n(w.s, kernel::round_up(x.q.width, Kernel::template lanes<Real>), Real(0));
    for (index_t c = 0; c < x.q.width; ++c) {
      std::transform(m.forward.S.row(c), m.forward.S.row(c) + w.S.stride, m.backward.S.row(c), w.S.row(c), std::plus<>());
      w.s[c] = m.forward.s[c] + m.backward.s[c];
      if (x.has_states()) join_states(x, c, w.S.row(c), s == nullptr ? s : s + c);
    }
    for (index_t half = 0; half < 2; ++half)
      if (part.has_half(half)) answer(x, norm, w, half_of(x.q.count, half), half_of(x.q.count, half + 1));
  }

 private:
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void gather(const head<T>& x, const norm_view<Real>& norm, scratch<Kernel, Real>& w,
                                   typename two_sided_sweep<Kernel, Real>::state& to, index_t first, index_t last) {
    to.load(head_state<const Real>{});
    const kernel::state<Real> S{to.S, norm.uses_row_sum ? to.s : nullptr};
    for (index_t at = first; at < last; at += block) {
      const index_t n = (std::min)(block, last - at);
      const auto k = kernel::whole_packets<Kernel>(x.k.slice(at, n), w.k);  // (n, Dk)
      const auto v = kernel::whole_packets<Kernel>(x.v.slice(at, n), w.v);  // (n, Dv)
      kernel::prefetch_queue next;
      if (at + block < last) {
        next.add(x.k, at + block, (std::min)(block, last - at - block));
        next.add(x.v, at + block, (std::min)(block, last - at - block));
      }
      Kernel::accumulate(S, {.from = S, .k = k, .v = v, .rest = to.rest.after(1, 1)}, &next);
    }
  }

  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void answer(const head<T>& x, const norm_view<Real>& norm, scratch<Kernel, Real>& w, index_t first,
                                   index_t last) {
    for (index_t at = first; at < last; at += block) {
      const index_t n = (std::min)(block, last - at);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(at, n), w.q);  // (n, Dk)
      const auto y = kernel::results<Kernel>(x.y.slice(at, n), w.N);        // (n, Dv)
      std::fill_n(w.z, n, Real(0));
      if (norm.uses_row_sum) Kernel::project(w.z, w.ones, q, w.s);
      kernel::prefetch_queue next;
      if (at + block < last) {
        next.add(x.q, at + block, (std::min)(block, last - at - block));
        next.add(x.y, at + block, (std::min)(block, last - at - block));
      }
      finish<Kernel>(x, at, y, w.z, w.out, norm,
                     [&] { Kernel::read(y, {.q = q, .S = w.S, .weights = w.ones, .row_scales = w.out}, &next); });
    }
  }

  /// Makes row c of the tokens' state S into the state that all queries see: S plus both initial states. Also writes the final
  /// states: S plus the initial state of the same direction.
  template <class T, class Real>
  static BILA_NOINLINE void join_states(const head<T>& x, index_t c, Real* S, Real* s) {
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

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
