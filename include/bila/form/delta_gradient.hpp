// SPDX-License-Identifier: Apache-2.0
// The gradient of the delta rule in chunks: adjoints of the state against each direction first, then the tokens along it.
#pragma once

#include <bila/config.hpp>
#include <bila/form/compensation.hpp>
#include <bila/form/delta_chunk.hpp>
#include <bila/form/head_gradient.hpp>

#include <cmath>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// For one direction, let H be the state before a chunk and R the adjoint of the state after the chunk. T, A, E and U are those of
/// the forward pass, A = strict(Q' K^T o M), Y = dN. Then, with all vectors as rows (MATH.md 6.7),
///
///     against the direction:   Pi = (I + T^T diag(beta))^-1 (A^T Y + write o K R),   P = beta o Pi
///                              R <- total R + (read o Q')^T Y - (read o K)^T P                    each R and Pi is kept
///     along the direction:     dQ' = read o Y H^T + G K,         G = M o (Y U^T)
///                              dK  = write o U R^T - read o P H^T + G^T Q' + F K + F^T K,     F = -M o (P U^T)
///                              dV  = P,   dbeta_i = Pi_i . e_i,   H <- total H + (write o K)^T U
///     through q':              dq = dq' - beta (dq'.k) k,   dk -= beta ((dq'.k) q + (q.k) dq'),   dbeta -= (q.k) (dq'.k)
///
/// R and Pi do not depend on H. A gap's gradient is a sum over the pairs that cross the gap, local to the chunk as for masks.
/// Time O(L C (Dk + Dv) + L Dk Dv). Memory: one adjoint per chunk and Dv numbers per token, with `recompute` those of 3 sqrt(L / C)
/// chunks. Source: the gradient of DeltaNet's chunkwise form (arXiv 2406.06484), for exclusive reads in both directions.
struct delta_gradient {
  index_t size;    // tokens per chunk
  bool recompute;  // true: only the adjoint at the end of each span of chunks is kept, and the others are recomputed

  /// How many adjoints are kept: one for each chunk of a span, and one for each span. Without `recompute` one span has all chunks.
  struct keeping {
    index_t chunks, spans;
  };

  keeping keep_for(index_t L) const {
    const index_t chunks = std::max<index_t>(1, (L + size - 1) / size);
    if (!recompute) return {chunks, 1};
    const auto side = static_cast<index_t>(std::ceil(std::sqrt(static_cast<double>(chunks))));
    return {side, (chunks + side - 1) / side};
  }

  /// Adjoints R of the states after chunks.
  template <class Kernel, class Real>
  struct adjoints {
    adjoints(kernel::arena& memory, head_size head, index_t count)
        : first(memory.padded<Kernel, Real>(count * head.Dk, head.Dv)),
          pending(memory.numbers<Kernel, double>(count)),
          Dk(head.Dk) {}

    kernel::tile<Real> R(index_t n) const { return {first.row(n * Dk), Dk, first.columns, first.stride}; }

    void copy_to(index_t n, const adjoints& to, index_t m) const {
      std::copy_n(R(n).data, Dk * first.stride, to.R(m).data);
      to.pending[m] = pending[n];
    }

    kernel::tile<Real> first;  // (count Dk, Dv)
    double* pending;           // (count) the true adjoint is this factor times the stored one
    index_t Dk;
  };

  /// Tiles of 2 C rows hold two kinds of rows one below the other: of q' and k, or of Y and P, or of their scores with keys.
  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size head, index_t chunk, keeping kept)
        : C(chunk),
          q(memory.padded<Kernel, Real>(C, head.Dk)),
          QK(memory.padded<Kernel, Real>(2 * C, head.Dk)),
          dQK(memory.padded<Kernel, Real>(2 * C, head.Dk)),
          weighted(memory.padded<Kernel, Real>(2 * C, head.Dk)),
          dk(memory.padded<Kernel, Real>(C, head.Dk)),
          kt(memory.padded<Kernel, Real>(head.Dk, C)),
          YP(memory.padded<Kernel, Real>(2 * C, head.Dv)),
          v(memory.padded<Kernel, Real>(C, head.Dv)),
          E(memory.padded<Kernel, Real>(C, head.Dv)),
          U(memory.padded<Kernel, Real>(C, head.Dv)),
          ut(memory.padded<Kernel, Real>(head.Dv, C)),
          AT(memory.padded<Kernel, Real>(2 * C, C)),
          G(memory.padded<Kernel, Real>(2 * C, C)),
          crossed(memory.padded<Kernel, Real>(2 * C, C)),
          M(memory.padded<Kernel, Real>(3 * C, C)),
          H(memory.padded<Kernel, Real>(head.Dk, head.Dv)),
          Ht(memory.padded<Kernel, Real>(head.Dv, head.Dk)),
          Rt(memory.padded<Kernel, Real>(head.Dv, head.Dk)),
          H_sums(memory.numbers<Kernel, Real>(head.Dk)),
          rest(memory, head.Dk, head.Dv, 0, std::type_identity<Kernel>()),
          slopes(memory.numbers<Kernel, Real>(head.L)),
          beta(memory.numbers<Kernel, Real>(C)),
          own(memory.numbers<Kernel, Real>(C)),
          erased(memory.numbers<Kernel, Real>(C)),
          factors(memory.numbers<Kernel, Real>(C)),
          reads(memory.numbers<Kernel, Real>(2 * C)),
          writes(memory.numbers<Kernel, Real>(C)),
          ones(memory.numbers<Kernel, Real>(C)),
          zeros(memory.zeros<Kernel, Real>(C)),
          running(memory.numbers<Kernel, Real>(C)),
          rows(memory.numbers<Kernel, double>(2 * C)),
          columns(memory.numbers<Kernel, double>(C)),
          own_dots(memory.numbers<Kernel, double>(C)),
          weights(memory, C),
          decays(memory, C, std::type_identity<Kernel>()),
          R_rest(memory, head.Dk, head.Dv, 0, std::type_identity<Kernel>()),
          inside(memory, head, kept.chunks + 1),
          Pi(memory.padded<Kernel, Real>(kept.chunks * C, head.Dv)),
          ends(memory, head, kept.spans == 1 ? 0 : kept.spans),
          ends_rest(memory, head, kept.spans == 1 ? 0 : kept.spans) {}

    /// The memory that keeps R_rest as it was at the end of a span.
    compensation<Real> rest_of(index_t span) const { return R_rest.at(ends_rest.R(span), nullptr, ends_rest.pending + span); }

    kernel::tile<Real> kept_Pi(index_t n, index_t count) const { return {Pi.row(n * C), count, Pi.columns, Pi.stride}; }

    index_t C;
    kernel::tile<Real> q, QK, dQK, weighted, dk;    // (C, Dk) (2 C, Dk) (2 C, Dk) (2 C, Dk) (C, Dk)
    kernel::tile<Real> kt;                          // (Dk, C)
    kernel::tile<Real> YP, v, E, U;                 // (2 C, Dv) (C, Dv) (C, Dv) (C, Dv)
    kernel::tile<Real> ut;                          // (Dv, C)
    kernel::tile<Real> AT, G, crossed;              // (2 C, C) rows are readers, columns are writers
    kernel::tile<Real> M;                           // (3 C, C) the triangle twice, then with its sign changed
    kernel::tile<Real> H, Ht, Rt;                   // (Dk, Dv) (Dv, Dk) (Dv, Dk)
    Real* H_sums;                                   // (Dk) without meaning
    compensation<Real> rest;                        // (Dk, Dv) rounding errors of H
    Real* slopes;                                   // (L) dN_i = slopes_i dy_i
    Real *beta, *own, *erased, *factors;            // (C) own: weights of own values; erased: -beta_i (q_i . k_i)
    Real *reads, *writes, *ones, *zeros, *running;  // (2 C) with P's sign, (C) weights of a stored state; (C)
    double *rows, *columns, *own_dots;              // (2 C) (C) for gate_gradient_scan; (C) q_i . k_i
    delta_weights<Kernel, Real> weights;
    gap_decays decays;
    compensation<Real> R_rest;         // (Dk, Dv) rounding errors of R
    adjoints<Kernel, Real> inside;     // for the chunks of one span, and one more
    kernel::tile<Real> Pi;             // (chunks C, Dv) of the chunks of one span
    adjoints<Kernel, Real> ends;       // for the spans
    adjoints<Kernel, Real> ends_rest;  // R_rest at the ends of the spans
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    scratch<Kernel, real_of<T>>(memory, largest, (std::min)(size, std::max<index_t>(largest.L, 1)), keep_for(largest.L));
  }

  template <class Kernel, class T, class Real>
  void run(const head<T>& x, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory) const {
    const index_t L = x.q.count, C = (std::min)(size, L);
    const keeping kept = keep_for(L);
    scratch<Kernel, Real> w(memory, {L, x.q.width, x.v.width}, C, kept);
    std::fill_n(w.ones, kernel::round_up(C, Kernel::template lanes<Real>), Real(1));
    for (index_t first = 0; first < L; first += C)
      g.scale += through_norm<Kernel>(x, g, first, (std::min)(C, L - first), w.slopes + first, w.factors, w.rows, w.E, w.U, norm);
    if (x.direction != direction::both) return one_way<Kernel>(x, g, w, kept, pass_flags{x.direction, true, true});
    one_way<Kernel>(x, g, w, kept, pass_flags{direction::backward, true, false});
    one_way<Kernel>(x, g, w, kept, pass_flags{direction::forward, false, true});
  }

 private:
  /// What a pass over the tokens does.
  struct pass_flags {
    direction way;
    bool first;  // whether this pass starts the sums dq, dk, dv
    bool last;   // whether this pass adds the tokens' own values, and finishes the sums
  };

  /// The tokens of a chunk. `step` counts the chunks along the direction.
  struct place {
    place(direction way, index_t step, index_t L, index_t C) {
      const index_t chunks = (L + C - 1) / C;
      first = (way == direction::forward ? step : chunks - 1 - step) * C;
      count = (std::min)(C, L - first);
    }
    index_t first, count;
  };

  /// Rows [n, 2 n) of a tile of two kinds of rows.
  template <class Real>
  static kernel::tile<Real> lower(kernel::tile<Real> x, index_t n) {
    return {x.row(n), n, x.columns, x.stride};
  }

  /// The first `rows` rows and n columns of a tile of scores.
  template <class Real>
  static kernel::tile<Real> scores(kernel::tile<Real> x, index_t rows, index_t n) {
    return {x.data, rows, n, x.stride};
  }

  template <class Kernel, class T, class Real>
  BILA_NOINLINE void one_way(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, keeping kept,
                             pass_flags flags) const {
    const index_t L = x.q.count, chunks = (L + w.C - 1) / w.C;
    const auto& last = kept.spans == 1 ? w.inside : w.ends;
    const index_t n = kept.spans == 1 ? chunks : kept.spans - 1;
    w.weights.start();
    load_initial_state<Kernel>(last.R(n), w.H_sums, g.final(flags.way));
    last.pending[n] = 1;
    w.R_rest.start();
    if (kept.spans > 1) w.R_rest.copy_to(w.rest_of(kept.spans - 1));
    for (index_t span = kept.spans - 1; span >= 0; --span) {
      const index_t begin = span * kept.chunks, end = (std::min)(begin + kept.chunks, chunks);
      if (kept.spans > 1) w.ends.copy_to(span, w.inside, end - begin);
      sweep_adjoint(x, g, w, begin, end, flags);
      if (span == 0) continue;
      w.inside.copy_to(0, w.ends, span - 1);
      w.R_rest.copy_to(w.rest_of(span - 1));
    }
    const double entered = x.initial(flags.way).decay;
    store_adjoint(g.initial(flags.way), w.inside.R(0), w.inside.pending[0] * entered);

    load_initial_state<Kernel>(w.H, w.H_sums, x.initial(flags.way));
    decay<Real>(w.H, nullptr, 0, entered);
    w.rest.start();
    kernel::pending_decay state;
    for (index_t span = 0; span < kept.spans; ++span) {
      const index_t begin = span * kept.chunks, end = (std::min)(begin + kept.chunks, chunks);
      if (span > 0) {
        w.ends.copy_to(span, w.inside, end - begin);
        w.rest_of(span).copy_to(w.R_rest);
        sweep_adjoint(x, g, w, begin, end, flags);
      }
      for (index_t step = begin; step < end; ++step) {
        kernel::prefetch_queue next;
        if (step + 1 < end) prefetch_chunk(x, g, place(flags.way, step + 1, L, w.C), next);
        chunk(x, g, w, place(flags.way, step, L, w.C), step - begin, state, next, flags);
      }
    }
  }

  /// Stores `times` R, if the caller wants it. R is kept.
  template <class Real>
  static void store_adjoint(const head_state<Real>& to, kernel::tile<Real> R, double times) {
    if (to.S.data == nullptr) return;
    for (index_t c = 0; c < R.rows; ++c)
      for (index_t d = 0; d < R.columns; ++d) to.S(c, d) = static_cast<Real>(times) * R.row(c)[d];
  }

  template <class T>
  static void prefetch_chunk(const head<T>& x, const head_gradient<T>& g, place at, kernel::prefetch_queue& next) {
    next.add(x.q, at.first, at.count);
    next.add(x.k, at.first, at.count);
    next.add(x.v, at.first, at.count);
    next.add(g.dy, at.first, at.count);
  }

  /// Fills QK with q' and k, AT with their scores with the chunk's keys, and YP with Y.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void prepare(const head<T>& x, const head_gradient<T>& g, scratch<Kernel, Real>& w, direction way,
                                    place at) {
    const index_t n = at.count;
    fill_decays<Kernel>(x, way, at.first, n, w.decays.way(way));
    if (w.weights.weigh(x, way, w.decays, at.first, n)) {
      const kernel::tile<Real> triangle = w.weights.triangle(n);
      for (index_t i = 0; i < n; ++i)
        for (index_t j = 0; j < triangle.stride; ++j) {
          const Real weight = triangle.row(i)[j];
          w.M.row(i)[j] = w.M.row(n + i)[j] = weight;
          w.M.row(2 * n + i)[j] = -weight;
        }
    }
    x.mask.strengths(way, at.first, n, w.beta);
    const kernel::tile<Real> read = w.QK.top(n), k = lower(w.QK, n), Y = w.YP.top(n), kt = scores(w.kt, x.k.width, n);
    kernel::load(read, x.q.slice(at.first, n));
    kernel::load(k, x.k.slice(at.first, n));
    kernel::load(Y, g.dy.slice(at.first, n));
    Kernel::scale(Y, w.slopes + at.first, Y);
    Kernel::template dots<Real>(w.own_dots, read, k);
    for (index_t i = 0; i < n; ++i) w.erased[i] = -w.beta[i] * static_cast<Real>(w.own_dots[i]);
    Kernel::add(read, k, w.erased);
    Kernel::transpose(kt, k);
    Kernel::score(scores(w.AT, 2 * n, n), w.QK.top(2 * n), kt, scores(w.M, 2 * n, n));
  }

  /// Fills `reads` with the weights of rows (q', k) or (Y, P): read_i, and -read_i, times `times`.
  template <class Kernel, class Real>
  static void weigh_reads(scratch<Kernel, Real>& w, index_t n, double times) {
    for (index_t i = 0; i < n; ++i) {
      w.reads[i] = w.weights.border.read[i] * static_cast<Real>(times);
      w.reads[n + i] = -w.reads[i];
    }
  }

  template <class Kernel, class Real>
  static void weigh_writes(scratch<Kernel, Real>& w, index_t n, double times) {
    for (index_t i = 0; i < n; ++i) w.writes[i] = w.weights.border.write[i] * static_cast<Real>(times);
  }

  /// Computes R and Pi against the direction, from chunk `end` - 1 down to chunk `begin`.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void sweep_adjoint(const head<T>& x, const head_gradient<T>& g, scratch<Kernel, Real>& w, index_t begin,
                                          index_t end, pass_flags flags) {
    kernel::pending_decay state(w.inside.pending[end - begin]);
    for (index_t step = end - 1; step >= begin; --step) {
      const place at(flags.way, step, x.q.count, w.C);
      const index_t n = at.count, here = step - begin;
      prepare(x, g, w, flags.way, at);
      kernel::prefetch_queue next;
      if (step > begin) {
        const place then(flags.way, step - 1, x.q.count, w.C);
        next.add(x.q, then.first, then.count);
        next.add(x.k, then.first, then.count);
        next.add(g.dy, then.first, then.count);
      }
      const kernel::tile<Real> Pi = w.kept_Pi(here, n), A = scores(w.AT, n, n),
                               T_below{w.AT.row(n), n, n, w.AT.stride};  // (n, Dv) (n, n) (n, n)
      weigh_writes(w, n, state.factor());
      Kernel::read(Pi, {.q = lower(w.QK, n), .S = w.inside.R(here + 1), .weights = w.writes, .A = A, .v = w.YP.top(n)}, &next);
      Kernel::solve(Pi, lower(w.YP, n), T_below, w.beta, flags.way, true);
      const double total = w.weights.border.total;
      const Real settle = static_cast<Real>(state.decay(total));
      weigh_reads(w, n, 1 / state.factor());
      Kernel::accumulate(kernel::state<Real>{w.inside.R(here)},
                         {.from = {w.inside.R(here + 1)},
                          .decay = settle,
                          .k = w.QK.top(2 * n),
                          .v = w.YP.top(2 * n),
                          .weights = w.reads,
                          .weighted = w.weighted,
                          .rest = {w.R_rest.after(total, 1).S}},
                         &next);
      w.inside.pending[here] = state.factor();
    }
  }

  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void chunk(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, place at, index_t here,
                                  kernel::pending_decay& state, kernel::prefetch_queue& next, pass_flags flags) {
    const index_t n = at.count;
    prepare(x, g, w, flags.way, at);
    const auto q = kernel::whole_packets<Kernel>(x.q.slice(at.first, n), w.q);  // (n, Dk)
    const auto v = kernel::whole_packets<Kernel>(x.v.slice(at.first, n), w.v);  // (n, Dv)
    const kernel::tile<const Real> R = w.inside.R(here + 1);                    // (Dk, Dv)
    const kernel::tile<Real> k = lower(w.QK, n), P = lower(w.YP, n), E = w.E.top(n), U = w.U.top(n), Pi = w.kept_Pi(here, n),
                             T_below{w.AT.row(n), n, n, w.AT.stride};
    const kernel::tile<Real> dQK = w.dQK.top(2 * n), dq = w.dQK.top(n), dk = w.dk.top(n);
    double* const gaps = g.gaps(flags.way);
    const double H_pending = state.factor(), R_pending = w.inside.pending[here + 1], total = w.weights.border.total;

    weigh_reads(w, n, H_pending);
    Kernel::read(E, {.q = k, .S = w.H, .weights = w.reads + n, .partial = v}, &next);
    Kernel::solve(E, U, T_below, w.beta, flags.way);
    Kernel::scale(P, w.beta, Pi);
    Kernel::transpose(w.Ht, w.H);
    Kernel::read(dQK, {.q = w.YP.top(2 * n), .S = w.Ht, .weights = w.reads}, &next);
    if (gaps != nullptr) Kernel::template dots<Real>(w.rows, dQK, w.QK.top(2 * n));
    Kernel::transpose(w.Rt, R);
    weigh_writes(w, n, R_pending);
    Kernel::read(dk, {.q = U, .S = w.Rt, .weights = w.writes}, &next);
    if (gaps != nullptr) {
      for (index_t i = 0; i < n; ++i) w.rows[i] += w.rows[n + i];
      Kernel::template dots<Real>(w.columns, dk, k);
      const double pass = total * H_pending * R_pending * Kernel::template inner<Real>(w.H, R);
      gate_gradient_scan(flags.way, pass, w.rows, w.columns, n, gaps + at.first);
    }
    pairs(w, n, flags.way, gaps == nullptr ? nullptr : gaps + at.first);
    through_read<Kernel, T, Real>(x, g, w, at, {q, v, Pi}, flags);

    const Real settle = static_cast<Real>(state.decay(total));
    weigh_writes(w, n, 1 / state.factor());
    Kernel::accumulate(kernel::state<Real>{w.H},
                       {.from = {w.H},
                        .decay = settle,
                        .k = k,
                        .v = U,
                        .weights = w.writes,
                        .weighted = w.weighted,
                        .rest = {w.rest.after(total, 1).S}},
                       &next);
    accumulate_or_store<Kernel>(g.q, at.first, dq, flags.first, flags.last);
    accumulate_or_store<Kernel>(g.k, at.first, dk, flags.first, flags.last);
    accumulate_or_store<Kernel>(g.v, at.first, P, flags.first, flags.last);
  }

  /// Adds what the pairs inside a chunk give to dQK and dk, and to the gradients of the gaps. dk then holds all of a key's parts.
  template <class Kernel, class Real>
  static BILA_NOINLINE void pairs(scratch<Kernel, Real>& w, index_t n, direction way, double* gaps) {
    const kernel::tile<Real> AT = scores(w.AT, 2 * n, n), G = scores(w.G, 2 * n, n), crossed = scores(w.crossed, 2 * n, n),
                             ut = scores(w.ut, w.U.columns, n), dQK = w.dQK.top(2 * n), dk = w.dk.top(n);
    Kernel::transpose(ut, w.U.top(n));
    Kernel::score_gradient(AT, {G, crossed}, w.YP.top(2 * n), ut, {w.ones, w.zeros},
                           kernel::tile<const Real>{w.M.row(n), 2 * n, n, w.M.stride});
    if (gaps != nullptr) {
      for (index_t i = 0; i < n; ++i)
        for (index_t j = 0; j < crossed.stride; ++j) crossed.row(i)[j] -= crossed.row(n + i)[j];
      const bool forwards = way == direction::forward;  // in `crossings` the rows are the keys
      Kernel::crossings(forwards ? nullptr : gaps, forwards ? gaps : nullptr, scores(crossed, n, n), w.running);
    }
    Kernel::multiply(dQK, G, lower(w.QK, n));
    Kernel::apply(dk, G, w.QK.top(2 * n));
    Kernel::add(dk, lower(w.dQK, n));
  }

  template <class Real>
  struct tokens {
    kernel::tile<const Real> q, v, Pi;
  };

  /// Turns dq' into dq, and adds to dk and dbeta what comes through q'. The last pass also adds what the tokens' own values give.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void through_read(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, place at,
                                         const tokens<Real>& in, pass_flags flags) {
    const index_t n = at.count;
    const kernel::tile<Real> k = lower(w.QK, n), P = lower(w.YP, n), Y = w.YP.top(n), dq = w.dQK.top(n), dk = w.dk.top(n);
    const bool one_beta = x.mask.own == detail::own_parameter::beta;
    const rows<Real>& of_way = flags.way == direction::forward || one_beta ? g.own_forward : g.own_backward;
    Kernel::template dots<Real>(w.columns, dq, k);
    for (index_t i = 0; i < n; ++i) w.factors[i] = -w.beta[i] * static_cast<Real>(w.columns[i]);
    if (of_way.data != nullptr) {
      Kernel::template dots<Real>(w.rows, in.Pi, w.E.top(n));
      for (index_t i = 0; i < n; ++i) of_way(at.first + i, 0) += static_cast<Real>(w.rows[i] - w.own_dots[i] * w.columns[i]);
    }
    if (flags.last) {
      Kernel::template dots<Real>(w.rows, Y, in.v);
      own_betas(x, at.first, n, w.own, w.running);
      const bool halves = x.direction == direction::both && !one_beta;  // y_i has the mean of the two betas
      for (index_t i = 0; i < n; ++i) {
        const double score = w.own_dots[i] * w.rows[i], of_beta = x.diagonal * score;
        g.diagonal += static_cast<double>(w.own[i]) * score;
        if (halves && g.own_forward.data != nullptr) g.own_forward(at.first + i, 0) += static_cast<Real>(of_beta / 2);
        if (halves && g.own_backward.data != nullptr) g.own_backward(at.first + i, 0) += static_cast<Real>(of_beta / 2);
        if (!halves && of_way.data != nullptr) of_way(at.first + i, 0) += static_cast<Real>(of_beta);
        w.factors[i] += w.own[i] * static_cast<Real>(x.diagonal * w.rows[i]);
        w.own[i] *= static_cast<Real>(x.diagonal * w.own_dots[i]);
      }
      Kernel::add(P, Y, w.own);
    }
    Kernel::add(dk, dq, w.erased);
    Kernel::add(dk, in.q, w.factors);
    Kernel::add(dq, k, w.factors);
  }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
