// SPDX-License-Identifier: Apache-2.0
// The gradient of the delta rule in chunks: adjoints of the state against each direction first, then the tokens along it.
#pragma once

#include <bila/config.hpp>
#include <bila/form/delta_chunk.hpp>
#include <bila/form/delta_gradient_weights.hpp>
#include <bila/form/head_gradient.hpp>
#include <bila/form/kept_adjoints.hpp>

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
template <template <class Kernel, class Real> class Weights>
struct delta_gradient {
  index_t size;    // tokens per chunk
  bool recompute;  // true: only the adjoint at the end of each span of chunks is kept, and the others are recomputed

  keeping keep_for(index_t L) const { return keeping::for_tokens(L, size, recompute); }

  /// Tiles of 2 C rows hold two kinds of rows one below the other: q' and k, or Y and P, or the scores of q' and of k with keys.
  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size head, index_t chunk, keeping kept)
        : C(chunk),
          q(memory.padded<Kernel, Real>(C, head.Dk)),
          QK(memory.padded<Kernel, Real>(2 * C, head.Dk)),
          dQK(memory.padded<Kernel, Real>(2 * C, head.Dk)),
          weighted(memory.padded<Kernel, Real>(2 * C, head.Dk)),
          dk(memory.padded<Kernel, Real>(C, head.Dk)),
          YP(memory.padded<Kernel, Real>(2 * C, head.Dv)),
          v(memory.padded<Kernel, Real>(C, head.Dv)),
          E(memory.padded<Kernel, Real>(C, head.Dv)),
          U(memory.padded<Kernel, Real>(C, head.Dv)),
          AT(memory.padded<Kernel, Real>(2 * C, C)),
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
          running(memory.numbers<Kernel, Real>(C)),
          dots(memory.numbers<Kernel, double>(C)),
          value_dots(memory.numbers<Kernel, double>(C)),
          own_dots(memory.numbers<Kernel, double>(C)),
          H_pending(memory.numbers<Kernel, double>(Weights<Kernel, Real>::pending(head))),
          weights(memory, head, C),
          adjoints(memory, head, kept, Weights<Kernel, Real>::pending(head)),
          Pi(memory.padded<Kernel, Real>(kept.chunks * C, head.Dv)) {}

    kernel::tile<Real> kept_Pi(index_t n, index_t count) const { return {Pi.row(n * C), count, Pi.columns, Pi.stride}; }

    index_t C;
    kernel::tile<Real> q, QK, dQK, weighted, dk;  // (C, Dk) (2 C, Dk) (2 C, Dk) (2 C, Dk) (C, Dk)
    kernel::tile<Real> YP, v, E, U;               // (2 C, Dv) (C, Dv) (C, Dv) (C, Dv)
    kernel::tile<Real> AT;                        // (2 C, C) rows are readers, columns are writers
    kernel::tile<Real> H, Ht, Rt;                 // (Dk, Dv) (Dv, Dk) (Dv, Dk)
    Real* H_sums;                                 // (Dk) for load_initial_state; not read
    compensation<Real> rest;                      // (Dk, Dv) rounding errors of H
    Real* slopes;                                 // (L) dN_i = slopes_i dy_i
    Real *beta, *own, *erased, *factors;          // (C) own: weights of own values; erased: -beta_i (q_i . k_i)
    Real* running;                                // (C)
    double *dots, *value_dots, *own_dots;         // (C) dq'_i . k_i; Pi_i . e_i or Y_i . v_i; q_i . k_i
    double* H_pending;                            // what H has not been multiplied by
    Weights<Kernel, Real> weights;
    kept_adjoints<Kernel, Real> adjoints;
    kernel::tile<Real> Pi;  // (chunks C, Dv) of the chunks of one span
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
    for (index_t first = 0; first < L; first += C)
      g.scale += through_norm<Kernel>(x, g, first, (std::min)(C, L - first), w.slopes + first, w.factors, w.dots, w.E, w.U, norm);
    const auto pass = [&](direction way, bool first, bool dense) {
      one_way(x, g, w, kept, {.way = way, .row_sums = false, .first = first, .dense = dense});
    };
    if (x.direction != direction::both) return pass(x.direction, true, true);
    pass(direction::backward, true, false);
    pass(direction::forward, false, true);
  }

 private:
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

  /// The scores of keys with the chunk's keys.
  template <class Real>
  static kernel::tile<Real> below(kernel::tile<Real> AT, index_t n) {
    return {AT.row(n), n, n, AT.stride};
  }

  template <class Kernel, class T, class Real>
  BILA_NOINLINE void one_way(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, keeping kept,
                             pass_flags flags) const {
    const index_t L = x.q.count;
    w.weights.start();
    const auto sweep = [&](index_t begin, index_t end) { sweep_adjoint(x, g, w, begin, end, flags); };
    const auto start = [&] {
      const auto& first = w.adjoints.inside;
      const double entered = x.initial(flags.way).decay;
      Weights<Kernel, Real>::store(g.initial(flags.way), first.R(0), first.pending(0), entered);
      load_initial_state<Kernel>(w.H, w.H_sums, x.initial(flags.way));
      decay<Real>(w.H, nullptr, 0, entered);
      std::fill_n(w.H_pending, Weights<Kernel, Real>::pending({L, x.q.width, x.v.width}), 1.0);
      w.rest.start();
    };
    w.adjoints.walk(kept, (L + w.C - 1) / w.C, g.final(flags.way), false, sweep, start,
                    [&](index_t step, index_t begin, index_t end) {
                      kernel::prefetch_queue next;
                      if (step + 1 < end) prefetch_chunk(x, g, place(flags.way, step + 1, L, w.C), next, flags);
                      chunk(x, g, w, place(flags.way, step, L, w.C), step - begin, next, flags);
                    });
  }

  /// Fills QK with q' and k, AT with their scores with the chunk's keys, and YP with Y.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void prepare(const head<T>& x, const head_gradient<T>& g, scratch<Kernel, Real>& w, direction way,
                                    place at) {
    const index_t n = at.count;
    x.mask.strengths(way, at.first, n, w.beta);
    const kernel::tile<Real> read = w.QK.top(n), k = lower(w.QK, n), Y = w.YP.top(n);
    kernel::load(read, x.q.slice(at.first, n));
    kernel::load(k, x.k.slice(at.first, n));
    kernel::load(Y, g.dy.slice(at.first, n));
    Kernel::scale(Y, w.slopes + at.first, Y);
    Kernel::template dots<Real>(w.own_dots, read, k);
    for (index_t i = 0; i < n; ++i) w.erased[i] = -w.beta[i] * static_cast<Real>(w.own_dots[i]);
    Kernel::add(read, k, w.erased);
    w.weights.weigh(x, way, w.weights.here(x, way, at.first, n), at.first, k);
    w.weights.score(scores(w.AT, n, n), read);
    w.weights.score(below(w.AT, n), k);
  }

  /// Computes R and Pi against the direction, from chunk `end` - 1 down to chunk `begin`.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void sweep_adjoint(const head<T>& x, const head_gradient<T>& g, scratch<Kernel, Real>& w, index_t begin,
                                          index_t end, pass_flags flags) {
    const auto& adjoints = w.adjoints.inside;
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
      const kernel::tile<Real> Pi = w.kept_Pi(here, n), A = scores(w.AT, n, n);  // (n, Dv) (n, n)
      double* const pending = adjoints.pending(here);
      std::copy_n(adjoints.pending(here + 1), adjoints.decays, pending);
      const weighed_rows<Real> writes = w.weights.writes(lower(w.QK, n), pending, false);
      Kernel::read(Pi, {.q = writes.x, .S = adjoints.R(here + 1), .weights = writes.weights, .A = A, .v = w.YP.top(n)}, &next);
      Kernel::solve(Pi, lower(w.YP, n), below(w.AT, n), w.beta, flags.way, true);
      w.weights.cross(pending);
      const weighed_rows<Real> reads = w.weights.both_reads(w.QK.top(2 * n), pending, true);
      Kernel::accumulate(kernel::state<Real>{adjoints.R(here)},
                         {.from = {adjoints.R(here + 1)},
                          .decay = w.weights.decay(),
                          .k = reads.x,
                          .v = w.YP.top(2 * n),
                          .weights = reads.of_sum(),
                          .weighted = w.weighted,
                          .rest = {w.adjoints.rest.after(w.weights.largest(), 1).S}},
                         &next);
    }
  }

  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void chunk(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, place at, index_t here,
                                  kernel::prefetch_queue& next, pass_flags flags) {
    const index_t n = at.count;
    prepare(x, g, w, flags.way, at);
    const auto q = kernel::whole_packets<Kernel>(x.q.slice(at.first, n), w.q);                             // (n, Dk)
    const auto v = kernel::whole_packets<Kernel>(x.v.slice(at.first, n), w.v);                             // (n, Dv)
    const kernel::tile<const Real> R = w.adjoints.inside.R(here + 1);                                      // (Dk, Dv)
    const kernel::tile<Real> P = lower(w.YP, n), E = w.E.top(n), U = w.U.top(n), Pi = w.kept_Pi(here, n);  // (n, Dv)
    const delta_tokens<Real> t{.QK = w.QK.top(2 * n),
                               .dQK = w.dQK.top(2 * n),
                               .dk = w.dk.top(n),
                               .YP = w.YP.top(2 * n),
                               .AT = scores(w.AT, 2 * n, n),
                               .U = U};
    const state_pair<Real> by{w.H, R, w.H_pending, w.adjoints.inside.pending(here + 1)};

    const weighed_rows<Real> reads = w.weights.reads(reader::key, t.k(), w.H_pending);
    Kernel::read(E, {.q = reads.x, .S = w.H, .weights = reads.weights, .partial = v}, &next);
    Kernel::solve(E, U, below(w.AT, n), w.beta, flags.way);
    Kernel::scale(P, w.beta, Pi);
    Kernel::transpose(w.Ht, w.H);
    Kernel::transpose(w.Rt, R);
    w.weights.come_back(t, by, w.Ht, w.Rt, next);
    if (w.weights.wanted(g, flags.way)) w.weights.add_crossing(x, g, flags.way, at.first, t, by);
    w.weights.add_pairs(x, g, flags.way, at.first, t);
    Kernel::add(t.dk, lower(w.dQK, n));
    through_read<Kernel, T, Real>(x, g, w, at, {q, v, Pi}, flags);

    w.weights.cross(w.H_pending);
    const weighed_rows<Real> writes = w.weights.writes(t.k(), w.H_pending, true);
    Kernel::accumulate(kernel::state<Real>{w.H},
                       {.from = {w.H},
                        .decay = w.weights.decay(),
                        .k = writes.x,
                        .v = U,
                        .weights = writes.of_sum(),
                        .weighted = w.weighted,
                        .rest = {w.rest.after(w.weights.largest(), 1).S}},
                       &next);
    accumulate_or_store<Kernel>(g.q, at.first, w.dQK.top(n), flags.first, flags.dense);
    accumulate_or_store<Kernel>(g.k, at.first, t.dk, flags.first, flags.dense);
    accumulate_or_store<Kernel>(g.v, at.first, P, flags.first, flags.dense);
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
    Kernel::template dots<Real>(w.dots, dq, k);
    for (index_t i = 0; i < n; ++i) w.factors[i] = -w.beta[i] * static_cast<Real>(w.dots[i]);
    if (of_way.data != nullptr) {
      Kernel::template dots<Real>(w.value_dots, in.Pi, w.E.top(n));
      for (index_t i = 0; i < n; ++i) of_way(at.first + i, 0) += static_cast<Real>(w.value_dots[i] - w.own_dots[i] * w.dots[i]);
    }
    if (flags.dense) {
      Kernel::template dots<Real>(w.value_dots, Y, in.v);
      own_betas(x, at.first, n, w.own, w.running);
      const bool halves = x.direction == direction::both && !one_beta;  // y_i has the mean of the two betas
      for (index_t i = 0; i < n; ++i) {
        const double score = w.own_dots[i] * w.value_dots[i], of_beta = x.diagonal * score;
        g.diagonal += static_cast<double>(w.own[i]) * score;
        if (halves && g.own_forward.data != nullptr) g.own_forward(at.first + i, 0) += static_cast<Real>(of_beta / 2);
        if (halves && g.own_backward.data != nullptr) g.own_backward(at.first + i, 0) += static_cast<Real>(of_beta / 2);
        if (!halves && of_way.data != nullptr) of_way(at.first + i, 0) += static_cast<Real>(of_beta);
        w.factors[i] += w.own[i] * static_cast<Real>(x.diagonal * w.value_dots[i]);
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
