// SPDX-License-Identifier: Apache-2.0
// The gradient in chunks for masks with decays per channel.
#pragma once

#include <bila/config.hpp>
#include <bila/form/channel_weights.hpp>
#include <bila/form/kept_adjoints.hpp>

#include <algorithm>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// As chunkwise_gradient, with alpha_i the decays of the channels from where the sweep enters the chunk to token i, and omega_j
/// those from token j to where it leaves the chunk (MATH.md 6.4, vectors as rows):
///
///     dq_i += alpha_i o ([dN_i, dZ_i] H^T)     R <- total o R + sum_i (q_i o alpha_i)^T [dN_i, dZ_i]    against the direction
///     dk_j += omega_j o ([v_j, 1] R^T)         H <- total o H + sum_j (k_j o omega_j)^T [v_j, 1]        along the direction
///     dv_j += (k_j o omega_j) R                without the last column
///
/// Inside the chunk, with g_ij = dN_i . v_j + dZ_i and D_ij the decays between tokens i and j:
///
///     dq_i += sum_j g_ij k_j o D_ij,   dk_j += sum_i g_ij q_i o D_ij,   dv_j += sum_i A_ij dN_i
///
/// The gradient of a gap of channel c sums q_ic dq_ic and k_jc dk_jc, parts of this chunk alone.
struct channel_gradient {
  bool recompute;  // true: only the adjoint at the end of each span of chunks is kept, and the others are recomputed

  static constexpr index_t size = kernel::most_channel_tokens;  // tokens per chunk

  keeping keep_for(index_t L) const { return keeping::for_tokens(L, size, recompute); }

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size head, keeping kept)
        : q(memory.padded<Kernel, Real>(size, head.Dk)),
          k(memory.padded<Kernel, Real>(size, head.Dk)),
          dq(memory.padded<Kernel, Real>(size, head.Dk)),
          dk(memory.padded<Kernel, Real>(size, head.Dk)),
          alpha(memory.padded<Kernel, Real>(size, head.Dk)),
          omega(memory.padded<Kernel, Real>(size, head.Dk)),
          part(memory.padded<Kernel, Real>(size, head.Dk)),
          weighed(memory.padded<Kernel, Real>(size, head.Dk)),
          unit(memory.padded<Kernel, Real>(size, head.Dk)),
          to_end(memory.padded<Kernel, Real>(size, head.Dk)),
          to_start(memory.padded<Kernel, Real>(size, head.Dk)),
          v(memory.padded<Kernel, Real>(size, head.Dv)),
          dv(memory.padded<Kernel, Real>(size, head.Dv)),
          dy(memory.padded<Kernel, Real>(size, head.Dv)),
          dyt(memory.padded<Kernel, Real>(head.Dv, size)),
          A(memory.padded<Kernel, Real>(size, size)),
          G(memory.padded<Kernel, Real>(size, size)),
          E(memory.padded<Kernel, Real>(size, size)),
          H(memory.padded<Kernel, Real>(head.Dk, head.Dv)),
          Ht(memory.padded<Kernel, Real>(head.Dv, head.Dk)),
          Rt(memory.padded<Kernel, Real>(head.Dv, head.Dk)),
          h(memory.zeros<Kernel, Real>(head.Dk)),
          R_read(memory.zeros<Kernel, Real>(head.Dk)),
          H_pending(memory.numbers<Kernel, double>(head.Dk)),
          rest(memory, head.Dk, head.Dv, head.Dk, std::type_identity<Kernel>()),
          a(memory.numbers<Kernel, Real>(head.L)),
          b(memory.numbers<Kernel, Real>(head.L)),
          ones(memory.numbers<Kernel, Real>(size)),
          a_here(memory.numbers<Kernel, Real>(size)),
          b_here(memory.numbers<Kernel, Real>(size)),
          bonus(memory.numbers<Kernel, Real>(head.Dk)),
          running(memory.numbers<Kernel, Real>(head.Dk)),
          of_gap(memory.numbers<Kernel, Real>(head.Dk)),
          dots(memory.numbers<Kernel, double>(size)),
          pass(memory.numbers<Kernel, double>(head.Dk)),
          weights(memory, head, size),
          adjoints(memory, head, kept, head.Dk) {}

    kernel::tile<Real> q, k, dq, dk;                 // (C, Dk)
    kernel::tile<Real> alpha, omega, part, weighed;  // (C, Dk)
    kernel::tile<Real> unit;                         // (C, Dk) ones
    kernel::tile<Real> to_end, to_start;             // (C, Dk) q o dq and k o dk, for the gradients of gaps
    kernel::tile<Real> v, dv, dy, dyt;               // (C, Dv) three times, (Dv, C)
    kernel::tile<Real> A, G, E;                      // (C, C) rows are keys, columns are queries
    kernel::tile<Real> H, Ht, Rt;                    // (Dk, Dv) (Dv, Dk) (Dv, Dk)
    Real *h, *R_read;                                // (Dk) the column of H for row sums; what R must still be multiplied by
    double* H_pending;                               // (Dk) what H must still be multiplied by
    compensation<Real> rest;                         // (Dk, Dv) (Dk) rounding errors of H and h
    Real *a, *b, *ones;                              // (L) dN_i = a_i dy_i, dZ_i = b_i; (C) ones
    Real *a_here, *b_here, *bonus;                   // (C) a and b of the chunk; (Dk) weights of the channels on the diagonal
    Real *running, *of_gap;                          // (Dk) running sums over gaps; a gap's gradient
    double *dots, *pass;                             // (C) dots dy_i . y_i; (Dk) pairs that cross the whole chunk
    channel_weights<Kernel, Real> weights;
    kept_adjoints<Kernel, Real> adjoints;
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    scratch<Kernel, real_of<T>>(memory, largest, keep_for(largest.L));
  }

  template <class Kernel, class T, class Real>
  void run(const head<T>& x, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory) const {
    const index_t L = x.q.count;
    scratch<Kernel, Real> w(memory, {L, x.q.width, x.v.width}, keep_for(L));
    std::fill_n(w.ones, size, Real(1));
    std::fill_n(w.unit.data, size * w.unit.stride, Real(1));
    for (index_t first = 0; first < L; first += size)
      g.scale += through_norm<Kernel>(x, g, first, (std::min)(size, L - first), w.a + first, w.b + first, w.dots, w.dy, w.dv, norm);
    const auto pass = [&](direction way, bool first, bool dense) {
      one_way(x, g, w, {.way = way, .row_sums = norm.uses_row_sum, .first = first, .dense = dense});
    };
    if (x.direction != direction::both) return pass(x.direction, true, true);
    pass(direction::backward, true, false);
    pass(direction::forward, false, true);
  }

 private:
  template <class Kernel, class T, class Real>
  void one_way(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, pass_flags flags) const {
    const index_t L = x.q.count;
    const auto sweep = [&](index_t begin, index_t end) { sweep_adjoint(x, g, w, begin, end, flags); };
    const auto start = [&] {
      finish_initial(x, g, w, flags);
      load_initial_state<Kernel>(w.H, w.h, x.initial(flags.way));
      std::fill_n(w.H_pending, x.q.width, 1.0);
      w.rest.start();
    };
    w.adjoints.walk(keep_for(L), (L + size - 1) / size, g.final(flags.way), flags.row_sums, sweep, start,
                    [&](index_t step, index_t begin, index_t end) {
                      kernel::prefetch_queue next;
                      if (step + 1 < end) prefetch_chunk(x, g, place(flags.way, step + 1, L, size), next, flags);
                      chunk(x, g, w, place(flags.way, step, L, size), step - begin + 1, next, flags);
                    });
  }

  /// Computes the adjoints R against the direction, from chunk `end` - 1 down to chunk `begin`.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void sweep_adjoint(const head<T>& x, const head_gradient<T>& g, scratch<Kernel, Real>& w, index_t begin,
                                          index_t end, pass_flags flags) {
    for (index_t step = end - 1; step >= begin; --step) {
      const place at(flags.way, step, x.q.count, size);
      const index_t n = step - begin, tokens = at.count;
      const auto& R = w.adjoints.inside;
      std::copy_n(R.pending(n + 1), x.q.width, R.pending(n));
      const double total = w.weights.weigh(x, flags.way, at.first, tokens, R.pending(n));
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(at.first, tokens), w.q);     // (n, Dk)
      const auto dy = kernel::whole_packets<Kernel>(g.dy.slice(at.first, tokens), w.dy);  // (n, Dv)
      const kernel::tile<Real> qa = w.weighed.top(tokens), unused = w.omega.top(tokens);  // (n, Dk)
      w.weights.multiply(flags.way, x.mask.exclusive, q, q, w.weights.write(), w.weights.write(), qa, unused);
      const kernel::row_decays<Real> settle(w.weights.settle());
      Kernel::accumulate(kernel::state<Real>{R.R(n)}, {.from = {R.R(n + 1)},
                                                       .decay = settle,
                                                       .k = qa,
                                                       .v = dy,
                                                       .weights = w.a + at.first,
                                                       .weighted = w.part,
                                                       .rest = w.adjoints.rest.after(total, 1)});
      Kernel::gather(R.r(n), w.adjoints.rest.e, settle, R.r(n + 1), qa, w.b + at.first);
    }
  }

  /// Writes the gradient of the initial state. The first chunk applies the decays of its gap.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void finish_initial(const head<T>& x, const head_gradient<T>& g, scratch<Kernel, Real>& w,
                                           pass_flags flags) {
    const auto& R = w.adjoints.inside;
    const auto& to = g.initial(flags.way);
    for (index_t c = 0; c < x.q.width; ++c) {
      const Real factor = static_cast<Real>(R.pending(0)[c]);
      for (index_t d = 0; d < x.v.width && to.S.data != nullptr; ++d) to.S(c, d) = factor * R.R(0).row(c)[d];
      if (flags.row_sums && to.z.data != nullptr) to.z(c, 0) = factor * R.r(0)[c];
    }
  }

  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void chunk(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, place at, index_t adjoint,
                                  kernel::prefetch_queue& next, pass_flags flags) {
    const index_t n = at.count, Dk = x.q.width;
    const auto q = kernel::whole_packets<Kernel>(x.q.slice(at.first, n), w.q);     // (n, Dk)
    const auto k = kernel::whole_packets<Kernel>(x.k.slice(at.first, n), w.k);     // (n, Dk)
    const auto v = kernel::whole_packets<Kernel>(x.v.slice(at.first, n), w.v);     // (n, Dv)
    const auto dy = kernel::whole_packets<Kernel>(g.dy.slice(at.first, n), w.dy);  // (n, Dv)
    const kernel::tile<Real> R = w.adjoints.inside.R(adjoint);                     // (Dk, Dv)
    Real* const r = w.adjoints.inside.r(adjoint);                                  // (Dk)
    const double* const R_pending = w.adjoints.inside.pending(adjoint);            // (Dk)
    const auto dq = open_sum<Kernel>(g.q, at.first, w.dq.top(n), flags), dk = open_sum<Kernel>(g.k, at.first, w.dk.top(n), flags);
    const auto dv = open_sum<Kernel>(g.v, at.first, w.dv.top(n), flags);
    const bool of_gaps = g.channels(flags.way).wanted();
    const kernel::tile<Real> to_end = w.to_end.top(n), to_start = w.to_start.top(n);  // (n, Dk)
    kernel::clear(to_end);
    kernel::clear(to_start);

    // read_c is what H must still be multiplied by, so that the weighed tiles read the true H; R's factors join omega.
    const double total = w.weights.weigh(x, flags.way, at.first, n, w.H_pending);
    for (index_t c = 0; c < Dk; ++c) w.R_read[c] = static_cast<Real>(R_pending[c]);
    const kernel::tile<Real> alpha = w.alpha.top(n), omega = w.omega.top(n);  // (n, Dk)
    const kernel::tile<const Real> unit = w.unit.top(n);
    w.weights.multiply(flags.way, x.mask.exclusive, unit, unit, w.weights.read(), w.R_read, alpha, omega);
    if (of_gaps) {  // pairs that cross the whole chunk: total o <H, R>
      for (index_t c = 0; c < Dk; ++c) {
        double sum = flags.row_sums ? static_cast<double>(w.h[c]) * static_cast<double>(r[c]) : 0;
        for (index_t d = 0; d < x.v.width; ++d) sum += static_cast<double>(w.H.row(c)[d]) * static_cast<double>(R.row(c)[d]);
        w.pass[c] = w.weights.total()[c] * static_cast<double>(w.weights.read()[c]) * R_pending[c] * sum;
      }
    }
    Kernel::transpose(w.Ht, kernel::tile<const Real>(w.H));
    Kernel::transpose(w.Rt, kernel::tile<const Real>(R));

    const index_t columns = whole_packets_of<Kernel, Real>(Dk);
    // Adds N_i += decays_i o (weights_i a_i S + sums_weights_i sums), and to `sums_of_gap` the products with `of`.
    const auto add_read = [&](const running_sum<Real>& N, const Real* weights, kernel::tile<const Real> a,
                              kernel::tile<const Real> S, const Real* sums_weights, const Real* sums,
                              const kernel::tile<Real>& decays, kernel::tile<const Real> of,
                              const kernel::tile<Real>& sums_of_gap) {
      const kernel::tile<Real> part = w.weighed.top(n);
      Kernel::read(part,
                   {.q = a,
                    .S = S,
                    .weights = weights,
                    .A = kernel::one_row(sums == nullptr ? sums : sums_weights, n),
                    .v = kernel::one_row(sums, Dk)},
                   &next);
      for (index_t i = 0; i < n; ++i)
        for (index_t c = 0; c < columns; ++c) {
          const Real term = part.row(i)[c] * decays.row(i)[c];
          N.to.row(i)[c] = N.started ? N.to.row(i)[c] + term : term;
          sums_of_gap.row(i)[c] += term * of.row(i)[c];
        }
    };
    add_read(dk, w.ones, v, w.Rt, w.ones, flags.row_sums ? r : nullptr, omega, k, to_start);
    for (index_t i = 0; i < n; ++i)
      for (index_t c = 0; c < columns; ++c) w.weighed.row(i)[c] = k.row(i)[c] * omega.row(i)[c];
    Kernel::read(dv.to, {.q = w.weighed.top(n), .S = R, .weights = w.ones, .partial = dv.partial()}, &next);
    add_read(dq, w.a + at.first, dy, w.Ht, w.b + at.first, flags.row_sums ? w.h : nullptr, alpha, q, to_end);
    if (of_gaps) add_crossing_gaps(g.channels(flags.way), x, flags.way, at.first, n, w);
    if (flags.dense) block(x, g, flags.way, at.first, {q, k, v, dy}, {dq.to, dk.to, dv.to}, w);

    const kernel::tile<Real> kw = w.weighed.top(n);
    w.weights.multiply(flags.way, false, k, k, w.weights.write(), w.weights.write(), w.alpha.top(n), kw);
    const kernel::state<Real> H{w.H, flags.row_sums ? w.h : nullptr};
    Kernel::accumulate(
        H, {.from = H, .decay = kernel::row_decays<Real>(w.weights.settle()), .k = kw, .v = v, .rest = w.rest.after(total, 1)},
        &next);
    close_sum(g.q, at.first, dq.to, flags);
    close_sum(g.k, at.first, dk.to, flags);
    close_sum(g.v, at.first, dv.to, flags);
  }

  /// The columns that rows of Dk numbers have in whole packets. A padded tile may have more, the caller's memory has not.
  template <class Kernel, class Real>
  static index_t whole_packets_of(index_t Dk) {
    return kernel::round_up(Dk, Kernel::template lanes<Real>);
  }

  /// Adds a row of numbers to row t of `to`.
  template <class Real>
  static void add_row(const rows<Real>& to, index_t t, const Real* row) {
    if (to.data == nullptr) return;
    if (to.column_stride == 1) {
      Real* const there = &to(t, 0);
      for (index_t c = 0; c < to.width; ++c) there[c] += row[c];
    } else {
      for (index_t c = 0; c < to.width; ++c) to(t, c) += row[c];
    }
  }

  /// Adds the row `sum`, less `read` if it is not null, to the gradients of the gap before the u-th token of the sweep. A gap of
  /// decay zero has gradient zero.
  template <class Kernel, class T, class Real>
  static void add_gap(const channel_gaps<Real>& to, const head<T>& x, direction way, index_t first, index_t n, index_t u,
                      const Real* sum, const Real* read, const scratch<Kernel, Real>& w) {
    const index_t gap = way == direction::forward ? u : n - u, t = first + gap;
    const bool enters = t == (way == direction::forward ? 0 : x.q.count);  // the gap of the initial state
    const Real* const decay = w.weights.decays(way, n).row(gap);
    for (index_t c = 0; c < x.q.width; ++c) w.of_gap[c] = decay[c] > 0 ? (read == nullptr ? sum[c] : sum[c] - read[c]) : Real(0);
    if (enters) return add_row(to.entering, 0, w.of_gap);
    add_row(to.gaps, t, w.of_gap);
    add_row(to.parameter, t - to.before, w.of_gap);
  }

  /// Adds the pairs that cross a border of the chunk: row i of to_end has the products of query i with keys before the chunk, row j
  /// of to_start those of key j with queries after it, and `pass` the pairs that cross the whole chunk.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void add_crossing_gaps(const channel_gaps<Real>& to, const head<T>& x, direction way, index_t first,
                                              index_t n, const scratch<Kernel, Real>& w) {
    const kernel::tile<Real> rows = rows_along(way, w.to_end.top(n)), columns = rows_along(way, w.to_start.top(n));  // (n, Dk)
    const index_t Dk = x.q.width;
    for (index_t c = 0; c < Dk; ++c) w.running[c] = static_cast<Real>(w.pass[c]);
    for (index_t u = 0; u < n; ++u)
      for (index_t c = 0; c < Dk; ++c) w.running[c] += rows.row(u)[c];
    for (index_t u = 0; u < n; ++u) {
      add_gap(to, x, way, first, n, u, w.running, x.mask.exclusive ? rows.row(u) : nullptr, w);
      for (index_t c = 0; c < Dk; ++c) w.running[c] += columns.row(u)[c] - rows.row(u)[c];
    }
  }

  /// Adds the pairs inside the chunk: to_end and to_start hold the products of queries and keys with each other. The pairs across
  /// the gap before the u-th token are those of the queries from there on, less those of the keys from there on.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void add_inner_gaps(const channel_gaps<Real>& to, const head<T>& x, direction way, index_t first, index_t n,
                                           const scratch<Kernel, Real>& w) {
    const kernel::tile<Real> rows = rows_along(way, w.to_end.top(n)), columns = rows_along(way, w.to_start.top(n));  // (n, Dk)
    const index_t Dk = x.q.width;
    std::fill_n(w.running, Dk, Real(0));
    for (index_t u = n - 1; u >= 1; --u) {
      for (index_t c = 0; c < Dk; ++c) w.running[c] += rows.row(u)[c] - columns.row(u)[c];
      add_gap(to, x, way, first, n, u, w.running, x.mask.exclusive ? rows.row(u) : nullptr, w);
    }
  }

  template <class Real>
  struct tokens {
    kernel::tile<Real> q, k, v, dy;
  };

  template <class Real>
  struct sums {
    kernel::tile<Real> dq, dk, dv;
  };

  /// Adds the pairs inside one chunk. w.weights already holds the decays of direction `way`.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void block(const head<T>& x, head_gradient<T>& g, direction way, index_t first, const tokens<const Real>& in,
                                  const sums<Real>& out, scratch<Kernel, Real>& w) {
    const auto& [q, k, v, dy] = in;
    const index_t n = q.rows, Dk = x.q.width, columns = whole_packets_of<Kernel, Real>(Dk);
    const bool exclusive = x.mask.exclusive;
    const kernel::tile<Real> dyt{w.dyt.data, v.columns, n, w.dyt.stride};  // (Dv, n)
    const kernel::tile<Real> A{w.A.data, n, n, w.A.stride}, G{w.G.data, n, n, w.G.stride}, E{w.E.data, n, n, w.E.stride};  // (n, n)
    if (x.direction == direction::both) w.weights.fill(x, other(way), first, n);
    const bool up = x.direction != direction::backward, down = x.direction != direction::forward;
    const kernel::tile<Real> forward = w.weights.decays(direction::forward, n), backward = w.weights.decays(direction::backward, n);
    std::copy_n(w.weights.own(x, 1), Dk, w.bonus);
    const Real* const own = w.weights.own(x, x.diagonal);
    kernel::clear(w.A);
    Kernel::score_channels(A, nullptr, k, q, up ? kernel::tile<const Real>(forward) : kernel::tile<const Real>{},
                           down ? kernel::tile<const Real>(backward) : kernel::tile<const Real>{}, own, exclusive);
    Real *const a = w.a_here, *const b = w.b_here;
    std::fill_n(a, size, Real(0));
    std::fill_n(b, size, Real(0));
    std::copy_n(w.a + first, n, a);
    std::copy_n(w.b + first, n, b);
    Kernel::transpose(dyt, dy);
    const kernel::rank_one<Real> ones{w.ones, w.ones};
    Kernel::score_gradient(A, {G, E}, v, dyt, {a, b}, ones);
    Kernel::multiply(out.dv, A, dy);
    for (const direction side : {direction::forward, direction::backward}) {
      if (x.direction == other(side)) continue;
      const kernel::tile<const Real> gaps = side == direction::forward ? forward : backward;
      const auto collect = [&](bool of_keys, kernel::tile<const Real> from, const kernel::tile<Real>& to,
                               kernel::tile<const Real> of, const kernel::tile<Real>& products) {
        const kernel::tile<Real> part = w.part.top(n);  // (n, Dk)
        kernel::clear(part);
        Kernel::collect_channels(part, G, from, gaps, side, of_keys, exclusive);
        for (index_t i = 0; i < n; ++i)
          for (index_t c = 0; c < columns; ++c) {
            to.row(i)[c] += part.row(i)[c];
            products.row(i)[c] = part.row(i)[c] * of.row(i)[c];
          }
      };
      collect(false, k, out.dq, q, w.to_end);
      collect(true, q, out.dk, k, w.to_start);
      if (g.channels(side).wanted()) add_inner_gaps(g.channels(side), x, side, first, n, w);
    }
    for (index_t i = 0; i < n; ++i) {
      const Real slope = G.row(i)[i];
      double sum = 0;
      for (index_t c = 0; c < Dk; ++c) {
        const Real weight = slope * own[c];
        out.dq.row(i)[c] += weight * k.row(i)[c];
        out.dk.row(i)[c] += weight * q.row(i)[c];
        const Real pair = slope * q.row(i)[c] * k.row(i)[c];
        sum += static_cast<double>(pair) * static_cast<double>(w.bonus[c]);
        if (g.bonus != nullptr) g.bonus[c] += x.diagonal * static_cast<double>(pair);
      }
      g.diagonal += sum;
    }
  }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
