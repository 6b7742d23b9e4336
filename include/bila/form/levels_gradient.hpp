// SPDX-License-Identifier: Apache-2.0
// The gradient of log-linear attention in chunks. It serves the chunkwise and the recurrent form.
#pragma once

#include <bila/config.hpp>
#include <bila/form/kept_adjoints.hpp>
#include <bila/form/level_states.hpp>
#include <bila/form/level_weights.hpp>

#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// For one direction, let H_p be the live states before a chunk and R_p their adjoints after it, all with one more column, for row
/// sums, and let u_ip = read_i [dN_i, dZ_i] H_p^T. Against the direction,
///
///     R_p <- total R_p + sum_i w_i[c + p] read_i q_i^T [dN_i, dZ_i]
///
/// Where states were merged, each of them gets a copy of the adjoint of the merged state. The adjoint R of the chunk's own sum, one
/// of these copies, is kept. Along the direction,
///
///     dq_i += sum_p w_i[c + p] u_ip     dw_i[c + p] = q_i . u_ip     dk_j += write_j [v_j, 1] R^T     dv_j += write_j k_j R
///
/// The pairs inside the chunk are added once for both directions, as in chunkwise_gradient. Nothing is divided by a weight.
///
/// The pairs that cross the whole chunk, which the gradients of gaps need, are a sum over the live states. The pairs of a state
/// with one chunk that reads it follow from that chunk's dw. Those with all chunks after the state's merge are one inner product,
/// of the state and its adjoint.
///
/// Time O(L C (Dk + Dv) + L Dk Dv log(L / C)). Memory: one adjoint per chunk, Dk (Dv + 1) / C numbers per token.
/// Source: the transposed masked form of log-linear attention (arXiv 2506.04761), MATH.md 6.9.
struct levels_gradient {
  index_t size;  // tokens per chunk: a power of two, at most 128

  template <class Kernel, class Real>
  struct scratch {
    using kept = typename kept_adjoints<Kernel, Real>::list;
    static constexpr index_t lanes = Kernel::template lanes<Real>;

    scratch(kernel::arena& memory, head_size head, index_t C, index_t states, index_t chunks)
        : q(memory.padded<Kernel, Real>(C, head.Dk)),
          k(memory.padded<Kernel, Real>(C, head.Dk)),
          dq(memory.padded<Kernel, Real>(C, head.Dk)),
          dk(memory.padded<Kernel, Real>(C, head.Dk)),
          part(memory.padded<Kernel, Real>(C, head.Dk)),
          wide(memory.padded<Kernel, Real>(C, states * head.Dk + lanes)),
          v(memory.padded<Kernel, Real>(C, head.Dv)),
          dv(memory.padded<Kernel, Real>(C, head.Dv)),
          dy(memory.padded<Kernel, Real>(C, head.Dv)),
          weighted(memory.padded<Kernel, Real>(C, head.Dv)),
          qt(memory.padded<Kernel, Real>(head.Dk, C)),
          dyt(memory.padded<Kernel, Real>(head.Dv, C)),
          Rt(memory.padded<Kernel, Real>(head.Dv, head.Dk)),
          A(memory.padded<Kernel, Real>(C, C)),
          G(memory.padded<Kernel, Real>(C, C)),
          E(memory.padded<Kernel, Real>(C, C)),
          M(memory.padded<Kernel, Real>(C, C)),
          border{memory.numbers<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)},
          a(memory.numbers<Kernel, Real>(head.L)),
          b(memory.numbers<Kernel, Real>(head.L)),
          a_here(memory.zeros<Kernel, Real>(C)),
          b_here(memory.zeros<Kernel, Real>(C)),
          reads_dy(memory.zeros<Kernel, Real>(C)),
          reads_dZ(memory.zeros<Kernel, Real>(C)),
          write(memory.zeros<Kernel, Real>(C)),
          running(memory.numbers<Kernel, Real>(C)),
          rest(memory.numbers<Kernel, Real>(head.Dk)),
          dots(memory.numbers<Kernel, double>(C)),
          rows(memory.numbers<Kernel, double>(C)),
          columns(memory.numbers<Kernel, double>(C)),
          read_here(memory.numbers<Kernel, double>(chunks * states)),
          merged(memory.numbers<Kernel, double>(chunks * states)),
          crossing(memory.numbers<Kernel, double>(states)),
          decays(memory, C, std::type_identity<Kernel>()),
          weights(memory, C, levels_in(head.L)),
          H(memory, states, head.Dv, head.Dk, head.Dk, kernel::round_up(head.Dk, lanes)),
          R(memory, head, states, 1),
          R_rest(memory, head, states, 0),
          settle(memory.numbers<Kernel, Real>(states * head.Dk)),
          adjoints(memory, head, chunks, 1) {}

    kernel::tile<Real> q, k, dq, dk, part, wide;          // (C, Dk); wide: (C, states Dk)
    kernel::tile<Real> v, dv, dy, weighted;               // (C, Dv)
    kernel::tile<Real> qt, dyt, Rt;                       // (Dk, C) (Dv, C) (Dv, Dk)
    kernel::tile<Real> A, G, E, M;                        // (C, C) rows are keys, columns are queries
    kernel::border_weights<Real> border;                  // (C) weights at the borders
    Real *a, *b;                                          // (L) dN_i = a_i dy_i, dZ_i = b_i
    Real *a_here, *b_here, *reads_dy, *reads_dZ, *write;  // (C) a, b of the chunk; read_i a_i, read_i b_i; keys' weights for R
    Real *running, *rest;                                 // (C) scratch; (Dk) rounding errors of a chunk's row sums
    double *dots, *rows, *columns;                        // (C) dw of a level; for gate_gradient_scan
    double *read_here, *merged;                           // (chunks, states) pairs of a state with the chunk that reads it; with
                                                          // all chunks after the one in which it is merged
    double* crossing;                                     // (states) pairs of a state with all chunks that are still to come
    gap_decays decays;
    level_weights<Kernel, Real> weights;
    level_states<Kernel, Real> H;  // transposed: (states Dv, Dk)
    kept R, R_rest;                // (states Dk, Dv) adjoints of the live states, and rounding errors
    Real* settle;                  // (states Dk) decays of the rows of R
    kept adjoints;                 // (chunks Dk, Dv) of the chunks' own sums
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    scratch<Kernel, real_of<T>>(memory, largest, (std::min)(size, std::max<index_t>(largest.L, 1)), level_count(largest.L, size),
                                (largest.L + size - 1) / size);
  }

  template <class Kernel, class T, class Real>
  void run(const head<T>& x, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory) const {
    const index_t L = x.q.count, C = (std::min)(size, L);
    scratch<Kernel, Real> w(memory, {L, x.q.width, x.v.width}, C, level_count(L, size), (L + size - 1) / size);
    for (index_t first = 0; first < L; first += C)
      g.scale += through_norm<Kernel>(x, g, first, (std::min)(C, L - first), w.a + first, w.b + first, w.dots, w.dy, w.dv, norm);
    const auto pass = [&](direction way, bool first, bool dense) {
      const pass_flags flags{.way = way, .row_sums = norm.uses_row_sum, .first = first, .dense = dense};
      const index_t chunks = (L + size - 1) / size;
      sweep_adjoint(x, g, w, chunks, flags);
      w.H.start();
      for (index_t step = 0; step < chunks; ++step) chunk(x, g, w, step, chunks, flags);
      if (g.gaps(way) != nullptr) add_passing(x, w, chunks, way, g.gaps(way));
    };
    if (x.direction != direction::both) return pass(x.direction, true, true);
    pass(direction::backward, true, false);
    pass(direction::forward, false, true);
  }

 private:
  // With more chunks than these the adjoints are compensated: see form::compensation.
  static constexpr index_t most_sums = 128;

  live_levels live_at(direction way, const place& at, index_t L) const { return {way, at.first / size, L, size}; }

  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void weigh_tokens(const head<T>& x, direction way, place at, scratch<Kernel, Real>& w) {
    fill_decays<Kernel>(x, way, at.first, at.count, w.decays.way(way));
    scan_border(x, way, at.first, w.decays, at.count, w.border);
    w.weights.fetch(x, way, at.first, at.count, levels_in(x.q.count));
  }

  /// Computes the adjoints R against the direction, and keeps those of the chunks' own sums.
  template <class Kernel, class T, class Real>
  BILA_NOINLINE void sweep_adjoint(const head<T>& x, const head_gradient<T>& g, scratch<Kernel, Real>& w, index_t chunks,
                                   pass_flags flags) const {
    const index_t L = x.q.count, Dk = x.q.width, c = bits_in(size) - 1;
    const bool compensates = chunks > most_sums;
    kernel::clear(w.R.row_sums);
    kernel::clear(w.R_rest.row_sums);
    for (index_t step = chunks - 1; step >= 0; --step) {
      const place at(flags.way, step, L, size);
      const live_levels live = live_at(flags.way, at, L);
      if (step + 1 == chunks) {
        for (index_t p = 0; p < live.count; ++p) {
          kernel::clear(w.R.R(p));
          *w.R.pending(p) = 1;
          if (compensates) kernel::clear(w.R_rest.R(p));
        }
      } else {
        const index_t top = live.count - live.merged;
        w.R.copy(top, w.adjoints, step);
        for (index_t p = top + 1; p < live.count; ++p) {
          w.R.copy(top, w.R, p);
          std::copy_n(w.R_rest.r(top), w.R_rest.row_sums.stride, w.R_rest.r(p));
          if (compensates) w.R_rest.copy(top, w.R_rest, p);
        }
      }
      if (live.count == 0) continue;
      weigh_tokens(x, flags.way, at, w);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(at.first, at.count), w.q);     // (n, Dk)
      const auto dy = kernel::whole_packets<Kernel>(g.dy.slice(at.first, at.count), w.dy);  // (n, Dv)
      kernel::prefetch_queue next;
      if (step > 0) {
        const place then(flags.way, step - 1, L, size);
        next.add(x.q, then.first, then.count);
        next.add(g.dy, then.first, then.count);
      }
      const kernel::tile<Real> wide{w.wide.data, at.count, live.count * Dk, w.wide.stride};  // (n, live Dk)
      for (index_t p = 0; p < live.count; ++p) {
        kernel::pending_decay state(*w.R.pending(p));
        const Real settle = static_cast<Real>(state.decay(w.border.total)), factor = static_cast<Real>(1 / state.factor());
        const Real* const weight = w.weights.of(flags.way, c + live.level[p]);
        *w.R.pending(p) = state.factor();
        std::fill_n(w.settle + p * Dk, Dk, settle);
        for (index_t i = 0; i < at.count; ++i) {
          const Real read = w.border.read[i] * factor * weight[i];
          w.reads_dy[i] = read * w.a[at.first + i];
          w.reads_dZ[i] = read * w.b[at.first + i];
        }
        Kernel::scale(kernel::tile<Real>{wide.data + p * Dk, at.count, Dk, wide.stride}, w.reads_dy, q);
        if (flags.row_sums) Kernel::gather(w.R.r(p), w.R_rest.r(p), settle, w.R.r(p), q, w.reads_dZ);
      }
      const kernel::state<Real> R{{w.R.first.data, live.count * Dk, x.v.width, w.R.first.stride}};
      const kernel::tile<Real> E{w.R_rest.first.data, live.count * Dk, x.v.width, w.R_rest.first.stride};
      Kernel::accumulate(R,
                         {.from = R,
                          .decay = kernel::row_decays<Real>(w.settle),
                          .k = wide,
                          .v = dy,
                          .rest = {compensates ? E : kernel::tile<Real>{}}},
                         &next);
    }
  }

  template <class Kernel, class T, class Real>
  BILA_NOINLINE void chunk(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, index_t step, index_t chunks,
                           pass_flags flags) const {
    const place at(flags.way, step, x.q.count, size);
    const index_t n = at.count;
    const auto q = kernel::whole_packets<Kernel>(x.q.slice(at.first, n), w.q);     // (n, Dk)
    const auto k = kernel::whole_packets<Kernel>(x.k.slice(at.first, n), w.k);     // (n, Dk)
    const auto v = kernel::whole_packets<Kernel>(x.v.slice(at.first, n), w.v);     // (n, Dv)
    const auto dy = kernel::whole_packets<Kernel>(g.dy.slice(at.first, n), w.dy);  // (n, Dv)
    const auto dq = open_sum<Kernel>(g.q, at.first, w.dq.top(n), flags), dk = open_sum<Kernel>(g.k, at.first, w.dk.top(n), flags);
    const auto dv = open_sum<Kernel>(g.v, at.first, w.dv.top(n), flags);
    const live_levels live = live_at(flags.way, at, x.q.count);
    double* const gaps = g.gaps(flags.way);
    const bool read_later = step + 1 < chunks;
    kernel::prefetch_queue next;
    if (read_later) prefetch_chunk(x, g, place(flags.way, step + 1, x.q.count, size), next, flags);
    weigh_tokens(x, flags.way, at, w);
    if (!dq.started) clear_rows<Kernel>(dq.to);
    std::fill_n(w.rows, n, 0.0);
    std::fill_n(w.columns, n, 0.0);

    if (read_later) {
      add_keys(w, {q, k, v, dy}, {dq, dk, dv}, w.adjoints.R(step), flags.row_sums ? w.adjoints.r(step) : nullptr,
               *w.adjoints.pending(step), gaps != nullptr, next);
    } else {
      if (!dk.started) clear_rows<Kernel>(dk.to);
      if (!dv.started) clear_rows<Kernel>(dv.to);
    }
    double* const read_here = w.read_here + step * w.H.states();
    for (index_t p = 0; p < live.count; ++p) {
      read_here[p] = add_read(x, g, w, at, {q, k, v, dy}, dq.to, p, bits_in(size) - 1 + live.level[p], flags, next);
      w.H.held[p] *= w.border.total;
    }
    if (gaps != nullptr) gate_gradient_scan(flags.way, 0, w.rows, w.columns, n, gaps + at.first);
    if (flags.dense) block(x, g, flags.way, at.first, {q, k, v, dy}, {dq, dk, dv}, w);
    if (read_later) push(w, {q, k, v, dy}, live, step, flags.row_sums, gaps != nullptr, next);

    close_sum(g.q, at.first, dq.to, flags);
    close_sum(g.k, at.first, dk.to, flags);
    close_sum(g.v, at.first, dv.to, flags);
  }

  template <class Kernel, class Real>
  static void clear_rows(kernel::tile<Real> N) {  // not kernel::clear: the rows may lie in the caller's memory
    for (index_t i = 0; i < N.rows; ++i) std::fill_n(N.row(i), kernel::round_up(N.columns, Kernel::template lanes<Real>), Real(0));
  }

  template <class Real>
  struct tokens {
    kernel::tile<Real> q, k, v, dy;
  };

  template <class Real>
  struct sums {
    running_sum<Real> dq, dk, dv;
  };

  /// Adds to dk and dv what comes from the later chunks, which read this chunk's own sum.
  template <class Kernel, class Real>
  static BILA_NOINLINE void add_keys(scratch<Kernel, Real>& w, const tokens<const Real>& in, const sums<Real>& to,
                                     kernel::operand<Real> R, std::type_identity_t<const Real*> r, double pending, bool columns,
                                     kernel::prefetch_queue& next) {
    const index_t n = in.k.rows;
    const Real factor = static_cast<Real>(pending);
    for (index_t j = 0; j < n; ++j) w.write[j] = w.border.write[j] * factor;
    const bool apart = columns && to.dk.started;
    const kernel::tile<Real> part = apart ? w.part.top(n) : to.dk.to;
    Kernel::transpose(w.Rt, R);
    Kernel::read(part,
                 {.q = in.v,
                  .S = w.Rt,
                  .weights = w.write,
                  .A = kernel::one_row(r == nullptr ? r : w.write, n),
                  .v = kernel::one_row(r, in.k.columns),
                  .partial = apart ? kernel::tile<const Real>{} : to.dk.partial()},
                 &next);
    if (columns) Kernel::template dots<Real>(w.columns, part, in.k);
    if (apart) Kernel::add(to.dk.to, part);
    Kernel::read(to.dv.to, {.q = in.k, .S = R, .weights = w.write, .partial = to.dv.partial()}, &next);
  }

  /// Adds to dq and dw what the queries read of state p, and returns the sum of its pairs.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE double add_read(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, place at,
                                       const tokens<const Real>& in, kernel::tile<Real> dq, index_t p, index_t level,
                                       pass_flags flags, kernel::prefetch_queue& next) {
    const index_t n = at.count;
    const kernel::tile<Real> part = w.part.top(n);
    const Real held = static_cast<Real>(w.H.held[p]);
    const Real* const weight = w.weights.of(flags.way, level);
    for (index_t i = 0; i < n; ++i) {
      const Real read = w.border.read[i] * held;
      w.reads_dy[i] = read * w.a[at.first + i];
      w.reads_dZ[i] = read * w.b[at.first + i];
    }
    Kernel::read(part,
                 {.q = in.dy,
                  .S = w.H.at(p),
                  .weights = w.reads_dy,
                  .A = kernel::one_row(flags.row_sums ? w.reads_dZ : nullptr, n),
                  .v = kernel::one_row(flags.row_sums ? w.H.sums_at(p) : nullptr, x.q.width)},
                 &next);
    Kernel::template dots<Real>(w.dots, part, in.q);
    double pairs = 0;
    for (index_t i = 0; i < n; ++i) {
      const double here = static_cast<double>(weight[i]) * w.dots[i];
      w.rows[i] += here;
      pairs += here;
    }
    if (const auto& to = g.own(flags.way); to.data != nullptr)
      for (index_t i = 0; i < n; ++i) to(at.first + i, level) += static_cast<Real>(w.dots[i]);
    Kernel::scale(part, weight, part);
    Kernel::add(dq, part);
    return pairs;
  }

  /// Adds the chunk's own sum to the states, as the forward pass does. The pairs of a state that is merged, with all later chunks,
  /// are its inner product with the adjoint of the result.
  template <class Kernel, class Real>
  static BILA_NOINLINE void push(scratch<Kernel, Real>& w, const tokens<const Real>& in, const live_levels& live, index_t step,
                                 bool row_sums, bool gaps, kernel::prefetch_queue& next) {
    const Real* const r = w.adjoints.r(step);
    for (index_t p = live.count - live.merged; gaps && p < live.count; ++p) {
      double pairs = Kernel::template inner<Real>(w.H.at(p), w.Rt);
      for (index_t c = 0; row_sums && c < in.k.columns; ++c)
        pairs += static_cast<double>(w.H.sums_at(p)[c]) * static_cast<double>(r[c]);
      w.merged[step * w.H.states() + p] = w.H.held[p] * *w.adjoints.pending(step) * pairs;
    }
    const index_t to = live.merged > 0 ? live.count - 1 : live.count;
    if (live.merged == 0) w.H.clear(to);
    const kernel::state<Real> S{w.H.at(to)};
    const Real held = static_cast<Real>(w.H.held[to]);
    Kernel::accumulate(S, {.from = S, .decay = held, .k = in.v, .v = in.k, .weights = w.border.write, .weighted = w.weighted},
                       &next);
    if (row_sums) {
      std::fill_n(w.rest, kernel::round_up(in.k.columns, Kernel::template lanes<Real>), Real(0));
      Kernel::gather(w.H.sums_at(to), w.rest, held, w.H.sums_at(to), in.k, w.border.write);
    }
    w.H.held[to] = 1;
    for (index_t n = to; n > live.count - live.merged; --n) w.H.merge(n, row_sums);
  }

  /// Adds to the gradients of gaps the pairs that cross a whole chunk.
  template <class Kernel, class T, class Real>
  BILA_NOINLINE void add_passing(const head<T>& x, scratch<Kernel, Real>& w, index_t chunks, direction way, double* gaps) const {
    const bool backwards = way == direction::backward;
    std::fill_n(w.crossing, w.H.states(), 0.0);
    for (index_t step = chunks - 1; step >= 0; --step) {
      const place at(way, step, x.q.count, size);
      const live_levels live = live_at(way, at, x.q.count);
      const double *const read_here = w.read_here + step * w.H.states(), *const merged = w.merged + step * w.H.states();
      double pass = 0;
      for (index_t p = 0; p < live.count; ++p) {
        if (step + 1 == chunks)
          w.crossing[p] = 0;
        else if (p >= live.count - live.merged)
          w.crossing[p] = merged[p];
        pass += w.crossing[p];
        w.crossing[p] += read_here[p];
      }
      for (index_t t = 0; t < at.count; ++t) gaps[at.first + t + backwards] += pass;
    }
  }

  /// Adds the pairs inside one chunk. w.decays and w.weights already hold those of direction `way`.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void block(const head<T>& x, head_gradient<T>& g, direction way, index_t first, const tokens<const Real>& in,
                                  const sums<Real>& out, scratch<Kernel, Real>& w) {
    const index_t n = in.q.rows;
    const kernel::tile<Real> qt{w.qt.data, in.q.columns, n, w.qt.stride},
        dyt{w.dyt.data, in.v.columns, n, w.dyt.stride};  // (Dk, n) (Dv, n)
    const kernel::tile<Real> A{w.A.data, n, n, w.A.stride}, G{w.G.data, n, n, w.G.stride}, E{w.E.data, n, n, w.E.stride},
        M{w.M.data, n, n, w.M.stride};  // (n, n)
    std::copy_n(w.a + first, n, w.a_here);
    std::copy_n(w.b + first, n, w.b_here);
    const index_t padding = kernel::round_up(n, Kernel::template lanes<Real>) - n;
    std::fill_n(w.a_here + n, padding, Real(0));
    std::fill_n(w.b_here + n, padding, Real(0));
    if (x.direction == direction::both) {
      fill_decays<Kernel>(x, other(way), first, n, w.decays.way(other(way)));
      w.weights.fetch(x, other(way), first, n, levels_in(n));
    }
    scan_block<Kernel>(x, first, M, w.decays, 1);
    Kernel::transpose(qt, in.q);
    Kernel::transpose(dyt, in.dy);
    Kernel::score(A, in.k, qt, M);
    Kernel::score_gradient(A, {G, E}, in.v, dyt, {w.a_here, w.b_here}, M);
    w.weights.weigh_gradient(x, g, first, A, G, E);
    weigh_diagonal(x, g, A, G, E);
    const auto to = [first](double* gaps) { return gaps == nullptr ? gaps : gaps + first; };
    Kernel::crossings(to(g.forward), to(g.backward), E, w.running);
    Kernel::apply(out.dq.to, G, in.k);
    Kernel::multiply(out.dk.to, G, in.q);
    Kernel::multiply(out.dv.to, A, in.dy);
  }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
