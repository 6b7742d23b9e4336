// SPDX-License-Identifier: Apache-2.0
// The recurrent form: two sweeps that carry one state each, token by token. It suits streaming and small memories.
#pragma once

#include <bila/config.hpp>
#include <bila/form/chunkwise_gradient.hpp>
#include <bila/form/decays.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/global_state.hpp>
#include <bila/form/two_sided_sweep.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The form uses exclusive states and adds the diagonal explicitly:
///
///     P_i = e^{f_i} (P_{i-1} + k_{i-1} [v_{i-1}, 1]),   R_i = e^{b_{i+1}} (R_{i+1} + k_{i+1} [v_{i+1}, 1])
///     [N_i, Z_i] = q_i P_i + q_i R_i + diagonal (q_i . k_i) [v_i, 1]
///
/// The result equals LION's, which subtracts half the diagonal from S_i in each direction, but without the cancellation of that
/// difference. Time O(L Dk Dv), memory O(Dk Dv) and one number per token. The form is a two-sided sweep: the first pass over a
/// token stores one direction's part in y. Source: LION (arXiv 2502.16249), the bidirectional RNN.
struct recurrent {
  static constexpr index_t block = 32;  // tokens of a block, which are read from the user's memory together

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : q(memory.padded<Kernel, Real>(block, size.Dk)),
          k(memory.padded<Kernel, Real>(block, size.Dk)),
          weighted(memory.padded<Kernel, Real>(block, size.Dk)),
          v(memory.padded<Kernel, Real>(block, size.Dv)),
          N(memory.padded<Kernel, Real>(block, size.Dv)),
          z(memory.numbers<Kernel, Real>(block)),
          out(memory.numbers<Kernel, Real>(block)),
          read(memory.numbers<Kernel, Real>(block)),
          settle(memory.numbers<Kernel, Real>(block)),
          write(memory.numbers<Kernel, Real>(block)),
          S(memory.padded<Kernel, Real>(size.Dk, size.Dv)),
          s(memory.numbers<Kernel, Real>(size.Dk)),
          lambda(memory.numbers<Kernel, double>(block + 1)) {}

    kernel::tile<Real> q, k, weighted, v, N;  // (block, Dk) (block, Dk) (block, Dk) (block, Dv) (block, Dv)
    Real *z, *out;                            // (block) row sums; factors of the rows
    Real *read, *settle, *write;              // (block) weights and decays for `steps`, in the order of the sweep
    kernel::tile<Real> S;                     // (Dk, Dv) copy of the state, used inside one block
    Real* s;                                  // (Dk) the column of the copy for row sums
    double* lambda;                           // (block + 1) decays of the gaps
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    kernel::arena other;
    typename global_state::scratch<Kernel, real_of<T>>(other, size);
    scratch<Kernel, real_of<T>>(memory, size);
    if (other.used() > memory.used()) memory = other;
  }

  template <class Kernel, class T>
  void plan_two_sided_sweep(kernel::arena& memory, head_size size) const {
    two_sided_sweep<Kernel, real_of<T>>(memory, size, is_narrow<T>);
  }

  index_t halves(head_size size) const { return size.L / 2 >= block ? 2 : 1; }
  index_t splits(head_size size, index_t wanted) const { return splits_by_column(size.Dv, wanted); }

  template <class Kernel, class T, class Real>
  void run(const head<T>& whole, const norm_view<Real>& norm, split part, kernel::arena memory, kernel::arena between) const {
    if (is_idle(whole.v.width, part)) return;
    const head<T> x = columns_of(whole, part);
    const head_size now{x.q.count, x.q.width, x.v.width};
    two_sided_sweep<Kernel, Real> m(between, now, is_narrow<T>);
    if (global_state::serves(x.mask.gaps, x.direction, x.diagonal)) return global_state::run<Kernel>(x, norm, part, memory, m);

    scratch<Kernel, Real> w(memory, now);
    run_two_sided_sweep(x, part, now.L / block / 2 * block, [&](direction way, index_t first, index_t last, sweep_flags flags) {
      sweep(x, norm, w, m, way, first, last, flags);
    });
  }

  /// The gradient takes chunks of 16 tokens, keeps one adjoint per span of about sqrt(L / 16) chunks, and recomputes the rest.
  chunkwise_gradient gradient() const { return {.size = 16, .recompute = true}; }

 private:
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void sweep(const head<T>& x, const norm_view<Real>& norm, scratch<Kernel, Real>& w,
                                  two_sided_sweep<Kernel, Real>& m, direction way, index_t first, index_t last, sweep_flags flags) {
    const bool forwards = way == direction::forward;
    const index_t L = x.q.count, blocks = (last - first + block - 1) / block;
    auto& passed = m.way(way);
    Real* const z = norm.uses_row_sum ? w.z : nullptr;
    const kernel::state<Real> S{passed.S, z == nullptr ? nullptr : passed.s}, copy{w.S, z == nullptr ? nullptr : w.s};
    if (forwards ? first == 0 : last == L) passed.load(x.initial(way));
    kernel::pending_decay state(*passed.pending);

    for (index_t turn = 0; turn < blocks; ++turn) {
      const index_t at = first + (forwards ? turn : blocks - 1 - turn) * block, n = (std::min)(block, last - at);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(at, n), w.q);  // (n, Dk)
      const auto k = kernel::whole_packets<Kernel>(x.k.slice(at, n), w.k);  // (n, Dk)
      const auto v = kernel::whole_packets<Kernel>(x.v.slice(at, n), w.v);  // (n, Dv)
      fill_decays<Kernel>(x, way, at, n, w.lambda);
      kernel::pending_decay inside = state;
      double total = 1;
      for (index_t i = 0; i < n; ++i) {
        const double lambda = w.lambda[forwards ? i + 1 : n - 1 - i];
        w.read[i] = static_cast<Real>(inside.factor());
        w.write[i] = static_cast<Real>(1 / inside.factor());
        // No decay is applied inside a group of 4 tokens, if possible: `steps` then passes over the state once for all four.
        w.settle[i] = static_cast<Real>(inside.decay(lambda, i % 4 == 3 || i + 1 == n ? 0.5 : 1. / 16));
        total *= lambda;
      }
      kernel::prefetch_queue next;
      if (turn + 1 < blocks) {
        const index_t then = first + (forwards ? turn + 1 : blocks - 2 - turn) * block;
        prefetch_tokens(next, x, way, then, (std::min)(block, last - then));
      }
      if (flags.has_partial)
        std::copy_n(m.z + at, z == nullptr ? 0 : n, w.z);
      else
        std::fill_n(w.z, n, Real(0));
      const auto N = flags.finish ? kernel::results<Kernel>(x.y.slice(at, n), w.N) : rows_for_partial(x, m, at, n, w.N);  // (n, Dv)
      if (flags.has_partial) {
        const kernel::tile<const Real> partial = partial_rows(x, m, at, n, w.N);
        for (index_t i = 0; i < n && partial.data != N.data; ++i) std::copy_n(partial.row(i), partial.stride, N.row(i));
      } else {
        for (index_t i = 0; i < n; ++i) std::fill_n(N.row(i), kernel::round_up(N.columns, Kernel::template lanes<Real>), Real(0));
      }
      if (flags.finish) Kernel::diagonal(N, z, static_cast<Real>(x.diagonal), q, k, v);
      if (!forwards) std::reverse(w.z, w.z + n);
      const kernel::state<Real> rest = passed.rest.after(total, static_cast<double>(n));
      const kernel::step_terms<Real> tokens{.q = along<const Real>(way, q),
                                            .k = along<const Real>(way, k),
                                            .v = along<const Real>(way, v),
                                            .read = w.read,
                                            .write = w.write,
                                            .decay = w.settle,
                                            .weighted = w.weighted};
      if (rest.S.data == nullptr) {
        Kernel::steps(along(way, N), z, S, tokens, &next);
        state = inside;
      } else {  // compensated: `steps` updates a copy of the state, and the state adds the block's sum at once
        std::copy_n(passed.S.data, passed.S.rows * passed.S.stride, w.S.data);
        std::copy_n(passed.s, kernel::round_up(passed.S.rows, Kernel::template lanes<Real>), w.s);
        Kernel::steps(along(way, N), z, copy, tokens, &next);
        const Real settle = static_cast<Real>(state.decay(total));
        double kept = 1 / state.factor();
        for (index_t i = n - 1; i >= 0; --i) w.write[i] = static_cast<Real>(kept *= w.lambda[forwards ? i + 1 : n - 1 - i]);
        Kernel::accumulate(
            S,
            {.from = S, .decay = settle, .k = tokens.k, .v = tokens.v, .weights = w.write, .weighted = w.weighted, .rest = rest});
      }
      if (!forwards) std::reverse(w.z, w.z + n);
      if (flags.finish) {
        finish<Kernel>(x, at, N, w.z, w.out, norm, [&] { Kernel::scale(N, w.out, N); });
      } else {
        if constexpr (!is_narrow<T>) kernel::store(x.y.slice(at, n), N);
        std::copy_n(w.z, z == nullptr ? 0 : n, m.z + at);
      }
    }
    *passed.pending = state.factor();
    if (forwards ? last == L : first == 0) store_final_state(x.final(way), S.S, S.s, state.factor());
  }

  /// The tile x with its rows in the order of the sweep.
  template <class Real>
  static kernel::tile<Real> along(direction way, kernel::tile<Real> x) {
    if (way == direction::forward) return x;
    return {x.row(x.rows - 1), x.rows, x.columns, -x.stride};
  }
};

template <>
struct engine_of<recurrent, memory::gaps> {
  static constexpr bool carries_states = true;
  static recurrent of(const recurrent& form) { return form; }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
