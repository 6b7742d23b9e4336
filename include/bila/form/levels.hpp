// SPDX-License-Identifier: Apache-2.0
// Log-linear attention: the chunkwise form with a state for each level of a binary tree over the chunks.
#pragma once

#include <bila/config.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/full_levels.hpp>
#include <bila/form/level_states.hpp>
#include <bila/form/level_weights.hpp>
#include <bila/form/levels_gradient.hpp>
#include <bila/form/recurrent.hpp>
#include <bila/form/two_sided_sweep.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The memory that the first pass hands to the second: the states of each direction, and the rows so far.
template <class Kernel, class Real>
struct level_sweep {
  level_sweep(kernel::arena& memory, head_size size, index_t states, bool narrow_storage)
      : forward(memory, states, size.Dk, size.Dv, size.Dk, size.Dk),
        rows(memory, {size.L, 0, size.Dv}, narrow_storage),
        backward(memory, states, size.Dk, size.Dv, size.Dk, size.Dk) {}

  level_states<Kernel, Real>& way(direction w) { return w == direction::forward ? forward : backward; }

  level_states<Kernel, Real> forward;
  two_sided_sweep<Kernel, Real> rows;  // its own two states are empty, because Dk is 0
  level_states<Kernel, Real> backward;
};

/// Log-linear attention in chunks of C = 2^c tokens. Let H_p be the sum of the 2^(p-1) chunks that lie on level p of chunk n,
/// decayed to the chunk's start, and w_i the level weights of query i. Then, forwards,
///
///     N_i = sum_p w_i[c + p] alpha_i q_i H_p + sum_{j <= i in chunk} w_i[l(i, j)] M_ij (q_i . k_j) v_j
///
/// with level p present iff bit p - 1 of n is set (backwards: not set, and its chunks exist). The states are a binary counter:
/// after a chunk, its own sum and the states of the lowest levels become one state. All states are read by one product,
///
///     N = [w[c + p_1] alpha o q | w[c + p_2] alpha o q | ...] [H_p1; H_p2; ...]
///
/// A token is added to a state at most log2(L / C) + 1 times, each time together with as many others: sums of any length need no
/// compensation. Time O(L C (Dk + Dv) + L Dk Dv log(L / C)), memory O(Dk Dv log(L / C)). The form is a two-sided sweep.
/// Source: log-linear attention (arXiv 2506.04761), chunkwise; the backward direction on the same tree is new (MATH.md 6.8).
struct level_chunks {
  chunkwise form;
  index_t size;  // tokens per chunk: a power of two, at most 128

  error_message validate() const { return form.validate(); }

  static level_chunks of(const chunkwise& form) {
    const index_t most = form.size > 0 ? form.tokens() : 64;
    return {form, static_cast<index_t>(std::bit_floor(static_cast<std::uint64_t>(most)))};
  }

  index_t levels_of(index_t L) const { return level_count(L, size); }

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size head, index_t C, index_t states)
        : q(memory.padded<Kernel, Real>(C, head.Dk)),
          k(memory.padded<Kernel, Real>(C, head.Dk)),
          weighted(memory.padded<Kernel, Real>(C, head.Dk)),
          wide(memory.padded<Kernel, Real>(C, states * head.Dk + Kernel::template lanes<Real>)),
          v(memory.padded<Kernel, Real>(C, head.Dv)),
          N(memory.padded<Kernel, Real>(C, head.Dv)),
          qt(memory.padded<Kernel, Real>(head.Dk, C)),
          A(memory.padded<Kernel, Real>(C, C)),
          M(memory.padded<Kernel, Real>(C, C)),
          z(memory.zeros<Kernel, Real>(C)),
          out(memory.numbers<Kernel, Real>(C)),
          ones(memory.numbers<Kernel, Real>(C)),
          factors(memory.zeros<Kernel, Real>(C)),
          rest(memory.numbers<Kernel, Real>(head.Dk)),
          border{memory.numbers<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)},
          weights(memory, C, levels_in(head.L)),
          decays(memory, sweep_decays<Kernel>::tokens_for(C), std::type_identity<Kernel>()) {
      if (ones != nullptr) std::fill_n(ones, C, Real(1));
    }

    kernel::tile<Real> q, k, weighted, wide;  // (C, Dk) (C, Dk) (C, Dk) (C, states Dk)
    kernel::tile<Real> v, N, qt;              // (C, Dv) (C, Dv) (Dk, C)
    kernel::tile<Real> A, M;                  // (C, C) rows are keys, columns are queries
    Real *z, *out, *ones, *factors;           // (C) row sums; factors of the rows; ones; weights of a state in each row
    Real* rest;                               // (Dk) rounding errors of a chunk's row sums
    kernel::border_weights<Real> border;      // (C) weights at the chunk's borders
    level_weights<Kernel, Real> weights;
    gap_decays decays;
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    scratch<Kernel, real_of<T>>(memory, largest, (std::min)(size, std::max<index_t>(largest.L, 1)), levels_of(largest.L));
  }

  template <class Kernel, class T>
  void plan_two_sided_sweep(kernel::arena& memory, head_size largest) const {
    level_sweep<Kernel, real_of<T>>(memory, largest, levels_of(largest.L), is_narrow<T>);
  }

  index_t halves(head_size largest) const { return largest.L / 2 >= size ? 2 : 1; }
  index_t splits(head_size largest, index_t wanted) const { return splits_by_column(largest.Dv, wanted); }

  template <class Kernel, class T, class Real>
  void run(const head<T>& whole, const norm_view<Real>& norm, split part, kernel::arena memory, kernel::arena between) const {
    if (is_idle(whole.v.width, part)) return;
    const head<T> x = columns_of(whole, part);
    const head_size now{x.q.count, x.q.width, x.v.width};
    level_sweep<Kernel, Real> m(between, now, levels_of(now.L), is_narrow<T>);
    scratch<Kernel, Real> w(memory, now, (std::min)(size, now.L), levels_of(now.L));
    run_two_sided_sweep(x, part, now.L / size / 2 * size, [&](direction way, index_t first, index_t last, sweep_flags flags) {
      sweep(x, norm, w, m, way, first, last, flags);
    });
  }

  levels_gradient gradient() const { return {size}; }

 private:
  template <class Kernel, class T, class Real>
  BILA_NOINLINE void sweep(const head<T>& x, const norm_view<Real>& norm, scratch<Kernel, Real>& w, level_sweep<Kernel, Real>& m,
                           direction way, index_t first, index_t last, sweep_flags flags) const {
    const bool forwards = way == direction::forward, both = flags.finish && x.direction == direction::both;
    const index_t L = x.q.count, C = size, chunks = (last - first + C - 1) / C, c = bits_in(C) - 1, levels = levels_in(L);
    const auto& states = m.way(way);
    Real* const z = norm.uses_row_sum ? w.z : nullptr;
    if (forwards ? first == 0 : last == L) states.start();
    sweep_decays<Kernel> gaps(w.decays, way, C, first, last, both);
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
      const gap_decays decays = gaps.of(x, at, n);
      scan_border(x, way, at, decays, n, w.border);
      w.weights.fetch(x, way, at, n, levels);
      const live_levels live(way, at / C, L, C);
      const kernel::tile<const Real> wide = weigh_queries(w, states, live, c, way, q);  // (n, live Dk)
      if (flags.has_partial)
        std::copy_n(m.rows.z + at, z == nullptr ? 0 : n, w.z);
      else
        std::fill_n(w.z, n, Real(0));
      if (z != nullptr) Kernel::project(z, w.ones, wide, states.s);
      if (flags.finish) {
        if (both) w.weights.fetch(x, other(way), at, n, (std::min)(c + 1, levels));
        const kernel::tile<Real> M{w.M.data, n, n, w.M.stride}, A{w.A.data, n, n, w.A.stride};  // (n, n)
        const kernel::tile<Real> qt{w.qt.data, q.columns, n, w.qt.stride};                      // (Dk, n)
        scan_block<Kernel>(x, at, M, decays, x.diagonal);
        w.weights.weigh(x, M);
        Kernel::transpose(qt, q);
        Kernel::score(A, k, qt, M, z);
        const auto y = kernel::results<Kernel>(x.y.slice(at, n), w.N);  // (n, Dv)
        const kernel::tile<const Real> partial =
            flags.has_partial ? partial_rows(x, m.rows, at, n, w.N) : kernel::tile<const Real>{};
        finish<Kernel>(x, at, y, w.z, w.out, norm, [&] {
          Kernel::read(y,
                       {.q = wide,
                        .S = states.first(live.count),
                        .weights = w.ones,
                        .A = A,
                        .v = v,
                        .partial = partial,
                        .row_scales = w.out},
                       &next);
        });
      } else {
        store_partial(x, m.rows, at, n, w.N, [&](kernel::tile<Real> N) {
          Kernel::read(N, {.q = wide, .S = states.first(live.count), .weights = w.ones}, &next);
        });
        if (z != nullptr) std::copy_n(z, n, m.rows.z + at);
      }
      if (forwards ? at + n < L : at > 0) push(w, states, live, {k, v}, z != nullptr, next);
    }
  }

  /// Writes the queries, weighed for the state of each level, side by side: one row then reads all states.
  template <class Kernel, class Real>
  static BILA_NOINLINE kernel::tile<const Real> weigh_queries(scratch<Kernel, Real>& w, const level_states<Kernel, Real>& states,
                                                              const live_levels& live, index_t c, direction way,
                                                              const kernel::tile<const Real>& q) {
    const kernel::tile<Real> all{w.wide.data, q.rows, live.count * q.columns, w.wide.stride};  // (n, live Dk)
    for (index_t p = 0; p < live.count; ++p) {
      const Real held = static_cast<Real>(states.held[p]);
      const Real* const weight = w.weights.of(way, c + live.level[p]);
      for (index_t i = 0; i < q.rows; ++i) w.factors[i] = w.border.read[i] * held * weight[i];
      Kernel::scale(kernel::tile<Real>{all.data + p * q.columns, q.rows, q.columns, all.stride}, w.factors, q);
    }
    const index_t padding = kernel::round_up(all.columns, Kernel::template lanes<Real>) - all.columns;
    for (index_t i = 0; i < q.rows; ++i) std::fill_n(all.row(i) + all.columns, padding, Real(0));
    return all;
  }

  template <class Real>
  struct tokens {
    kernel::tile<Real> k, v;
  };

  /// Adds the chunk's own sum to the states, and merges the states that now share a level.
  template <class Kernel, class Real>
  static BILA_NOINLINE void push(scratch<Kernel, Real>& w, const level_states<Kernel, Real>& states, const live_levels& live,
                                 const tokens<const Real>& chunk, bool row_sums, kernel::prefetch_queue& next) {
    for (index_t p = 0; p < live.count; ++p) states.held[p] *= w.border.total;
    const index_t to = live.merged > 0 ? live.count - 1 : live.count;
    if (live.merged == 0) states.clear(to);
    std::fill_n(w.rest, kernel::round_up(states.sums, Kernel::template lanes<Real>), Real(0));
    const kernel::state<Real> S{states.at(to), row_sums ? states.sums_at(to) : nullptr};
    Kernel::accumulate(S,
                       {.from = S,
                        .decay = static_cast<Real>(states.held[to]),
                        .k = chunk.k,
                        .v = chunk.v,
                        .weights = w.border.write,
                        .weighted = w.weighted,
                        .rest = {{}, w.rest}},
                       &next);
    states.held[to] = 1;
    for (index_t n = to; n > live.count - live.merged; --n) states.merge(n, row_sums);
  }
};

template <>
struct engine_of<chunkwise, memory::levels> {
  static constexpr bool carries_states = false;
  static level_chunks of(const chunkwise& form) { return level_chunks::of(form); }
};

template <>
struct engine_of<recurrent, memory::levels> {
  static constexpr bool carries_states = false;
  static level_chunks of(const recurrent&) { return level_chunks::of({.size = 4}); }
};

template <>
struct engine_of<automatic, memory::levels> {
  static constexpr bool carries_states = false;
  static level_chunks of(const automatic&) { return level_chunks::of({}); }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
