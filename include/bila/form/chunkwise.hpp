// SPDX-License-Identifier: Apache-2.0
// The chunkwise form: one dense block inside each chunk, and one state per direction carried between chunks. Time is linear in L.
// (LION's code calls a loop over all pairs of blocks "chunk". Here this loop is form::full.)
#pragma once

#include <bila/config.hpp>
#include <bila/form/chunkwise_gradient.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/global_state.hpp>
#include <bila/form/two_sided_sweep.hpp>
#include <bila/form/weights.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Let H be the forward state before a chunk of C tokens, and G the backward state after the chunk. Then
///
///     [N_i, Z_i] = alpha_i q_i H + beta_i q_i G + sum_j M_ij (q_i . k_j) [v_j, 1]
///     H <- alpha_last H + sum_j omega_j k_j [v_j, 1],   G <- beta_first G + sum_j psi_j k_j [v_j, 1]
///
/// where alpha_i and beta_i are the decays to token i from the last token before the chunk and from the first token after it, and
/// omega_j and psi_j the decays from token j to the chunk's last and to its first token.
///
/// Time O(L C (Dk + Dv) + L Dk Dv), memory O(C (C + Dk + Dv) + Dk Dv) and one number per token. The form is a two-sided sweep: the
/// first pass over a chunk stores q H or q G in y, the second pass adds the other terms and normalises. No state is stored.
/// Source: LION (arXiv 2502.16249), the chunkwise form, with carried states as in Mamba-2 (arXiv 2405.21060).
struct chunkwise {
  index_t size = 0;        // tokens per chunk, at most 128; 0: the fastest that was measured, 16 forward and 32 for the gradient
  bool recompute = false;  // true: the gradient keeps about 3 sqrt(L / C) adjoints of states, not one per chunk, and computes more

  error_message validate() const { return size >= 0 ? error_message() : message("chunkwise.size = ", size, ", it must be >= 0"); }

  index_t tokens() const { return size > 0 ? (std::min)(size, most) : 16; }

  template <template <class, class> class Weights, index_t Most>
  struct engine;

  chunkwise_gradient gradient() const { return {size > 0 ? tokens() : 32, recompute}; }

  static constexpr index_t most = 128;  // a chunk's products are summed uncompensated, and longer chunks are slower everywhere
};

/// The chunkwise form in chunks of at most `Most` tokens, which are weighed by `Weights`.
template <template <class, class> class Weights, index_t Most>
struct chunkwise::engine : chunkwise {
  index_t tokens() const { return (std::min)(chunkwise::tokens(), Most); }

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size head, index_t C)
        : q(memory.padded<Kernel, Real>(C, head.Dk)),
          k(memory.padded<Kernel, Real>(C, head.Dk)),
          weighted(memory.padded<Kernel, Real>(C, head.Dk)),
          v(memory.padded<Kernel, Real>(C, head.Dv)),
          N(memory.padded<Kernel, Real>(C, head.Dv)),
          A(memory.padded<Kernel, Real>(C, C)),
          z(memory.zeros<Kernel, Real>(C)),
          out(memory.numbers<Kernel, Real>(C)),
          weights(memory, head, C) {}

    kernel::tile<Real> q, k, weighted, v, N, A;  // (C, Dk) (C, Dk) (C, Dk) (C, Dv) (C, Dv) (C, C)
    Real *z, *out;                               // (C) row sums; factors of the rows
    Weights<Kernel, Real> weights;
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    kernel::arena other;
    typename global_state::scratch<Kernel, real_of<T>>(other, largest);
    scratch<Kernel, real_of<T>>(memory, largest, (std::min)(tokens(), std::max<index_t>(largest.L, 1)));
    if (other.used() > memory.used()) memory = other;
  }

  template <class Kernel, class T>
  void plan_two_sided_sweep(kernel::arena& memory, head_size largest) const {
    two_sided_sweep<Kernel, real_of<T>>(memory, largest, is_narrow<T>, Weights<Kernel, real_of<T>>::pending(largest));
  }

  index_t halves(head_size largest) const { return largest.L / 2 >= tokens() ? 2 : 1; }
  index_t splits(head_size largest, index_t wanted) const { return splits_by_column(largest.Dv, wanted); }

  template <class Kernel, class T, class Real>
  void run(const head<T>& whole, const norm_view<Real>& norm, split part, kernel::arena memory, kernel::arena between) const {
    if (is_idle(whole.v.width, part)) return;
    const head<T> x = columns_of(whole, part);
    const head_size now{x.q.count, x.q.width, x.v.width};
    two_sided_sweep<Kernel, Real> m(between, now, is_narrow<T>, Weights<Kernel, Real>::pending(now));
    if (global_state::serves(x.mask.gaps, x.direction, x.diagonal)) return global_state::run<Kernel>(x, norm, part, memory, m);

    const index_t C = (std::min)(tokens(), now.L);
    scratch<Kernel, Real> w(memory, now, C);
    run_two_sided_sweep(x, part, now.L / C / 2 * C, [&](direction way, index_t first, index_t last, sweep_flags flags) {
      sweep(x, norm, w, m, way, first, last, flags);
    });
  }

 private:
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void sweep(const head<T>& x, const norm_view<Real>& norm, scratch<Kernel, Real>& w,
                                  two_sided_sweep<Kernel, Real>& m, direction way, index_t first, index_t last, sweep_flags flags) {
    const bool forwards = way == direction::forward;
    const index_t L = x.q.count, C = w.q.rows, chunks = (last - first + C - 1) / C;
    auto& passed = m.way(way);
    const kernel::state<Real> S{passed.S, norm.uses_row_sum ? passed.s : nullptr};
    Real* const z = norm.uses_row_sum ? w.z : nullptr;
    if (forwards ? first == 0 : last == L) passed.load(x.initial(way));
    typename Weights<Kernel, Real>::sweep weights(w.weights, passed, way, C, first, last, flags.finish,
                                                  flags.finish && x.direction == direction::both);
    for (index_t step = 0; step < chunks; ++step) {
      const index_t at = first + (forwards ? step : chunks - 1 - step) * C, n = (std::min)(C, last - at);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(at, n), w.q);  // (n, Dk)
      const auto k = kernel::whole_packets<Kernel>(x.k.slice(at, n), w.k);  // (n, Dk)
      const auto v = kernel::whole_packets<Kernel>(x.v.slice(at, n), w.v);  // (n, Dv)

      kernel::prefetch_queue next;
      if (step + 1 < chunks) {
        const index_t then = first + (forwards ? step + 1 : chunks - 2 - step) * C;
        prefetch_tokens(next, x, way, then, (std::min)(C, last - then));
      }
      weights.weigh(x, at, q, k);
      if (flags.has_partial)
        std::copy_n(m.z + at, z == nullptr ? 0 : n, w.z);
      else
        std::fill_n(w.z, n, Real(0));
      if (flags.finish) {
        const kernel::tile<Real> A{w.A.data, n, n, w.A.stride};  // (n, n)
        weights.score(A, z, S.s);
        const auto y = kernel::results<Kernel>(x.y.slice(at, n), w.N);  // (n, Dv)
        const kernel::tile<const Real> partial = flags.has_partial ? partial_rows(x, m, at, n, w.N) : kernel::tile<const Real>{};
        finish<Kernel>(x, at, y, w.z, w.out, norm, [&] {
          Kernel::read(
              y, {.q = weights.q(), .S = S.S, .weights = weights.read(), .A = A, .v = v, .partial = partial, .row_scales = w.out},
              &next);
        });
      } else {
        store_partial(x, m, at, n, w.N, [&](kernel::tile<Real> N) {
          Kernel::read(N, {.q = weights.q(), .S = S.S, .weights = weights.read()}, &next);
        });
        if (z != nullptr) {
          Kernel::project(z, weights.read(), weights.q(), S.s);
          std::copy_n(z, n, m.z + at);
        }
      }
      Kernel::accumulate(S,
                         {.from = S,
                          .decay = weights.decay(),
                          .k = weights.k(),
                          .v = v,
                          .weights = weights.write(),
                          .weighted = w.weighted,
                          .rest = weights.rest()},
                         &next);
    }
    weights.finish(forwards ? last == L : first == 0, x.final(way), S.s);
  }
};

template <>
struct engine_of<chunkwise, memory::gaps> {
  static constexpr bool carries_states = true;
  static chunkwise::engine<scalar_weights, chunkwise::most> of(const chunkwise& form) { return {form}; }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
