// SPDX-License-Identifier: Apache-2.0
// The gradient in chunks: the forward operator with its arguments permuted. It serves the chunkwise and the recurrent form.
#pragma once

#include <bila/config.hpp>
#include <bila/form/compensation.hpp>
#include <bila/form/decays.hpp>
#include <bila/form/global_state_gradient.hpp>
#include <bila/form/head_gradient.hpp>
#include <bila/form/kept_adjoints.hpp>

#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// For one direction, let H be the state before a chunk and R the adjoint of the state after the chunk, both with one more column,
/// for row sums. Then, with all vectors as rows,
///
///     dq_i += read_i [dN_i, dZ_i] H^T     R <- total R + sum_i read_i q_i^T [dN_i, dZ_i]    against the direction
///     dk_j += write_j [v_j, 1] R^T        H <- total H + sum_j write_j k_j^T [v_j, 1]       along the direction
///     dv_j += write_j k_j R               without the last column
///
/// The R are computed first, and `recompute` says how many of them are kept.
/// The pairs inside the chunk are added once for both directions, with g_ij = dN_i . v_j + dZ_i:
///
///     dq_i += sum_j M_ij g_ij k_j,   dk_j += sum_i M_ij g_ij q_i,   dv_j += sum_i M_ij (q_i . k_j) dN_i
///
/// Time O(L C (Dk + Dv) + L Dk Dv). Memory: one adjoint per chunk, with `recompute` about 3 sqrt(L / C) adjoints.
/// Source: the transposed masked form of LION (arXiv 2502.16249), which equals automatic differentiation of the definition.
struct chunkwise_gradient {
  index_t size;    // tokens per chunk
  bool recompute;  // true: only the adjoint at the end of each span of chunks is kept, and the others are recomputed

  keeping keep_for(index_t L) const { return keeping::for_tokens(L, size, recompute); }

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size head, index_t C, keeping kept)
        : q(memory.padded<Kernel, Real>(C, head.Dk)),
          k(memory.padded<Kernel, Real>(C, head.Dk)),
          dq(memory.padded<Kernel, Real>(C, head.Dk)),
          dk(memory.padded<Kernel, Real>(C, head.Dk)),
          v(memory.padded<Kernel, Real>(C, head.Dv)),
          dv(memory.padded<Kernel, Real>(C, head.Dv)),
          dy(memory.padded<Kernel, Real>(C, head.Dv)),
          weighted(memory.padded<Kernel, Real>(C, (std::max)(head.Dk, head.Dv))),
          qt(memory.padded<Kernel, Real>(head.Dk, C)),
          dyt(memory.padded<Kernel, Real>(head.Dv, C)),
          A(memory.padded<Kernel, Real>(C, C)),
          G(memory.padded<Kernel, Real>(C, C)),
          E(memory.padded<Kernel, Real>(C, C)),
          M(memory.padded<Kernel, Real>(C, C)),
          Ht(memory.padded<Kernel, Real>(head.Dv, head.Dk)),
          Rt(memory.padded<Kernel, Real>(head.Dv, head.Dk)),
          h(memory.numbers<Kernel, Real>(head.Dk)),
          rest(memory, head.Dv, head.Dk, head.Dk, std::type_identity<Kernel>()),
          border{memory.numbers<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)},
          now{memory.numbers<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)},
          a(memory.numbers<Kernel, Real>(head.L)),
          b(memory.numbers<Kernel, Real>(head.L)),
          a_here(memory.numbers<Kernel, Real>(C)),
          b_here(memory.numbers<Kernel, Real>(C)),
          reads_dy(memory.numbers<Kernel, Real>(C)),
          reads_dZ(memory.numbers<Kernel, Real>(C)),
          running(memory.numbers<Kernel, Real>(C)),
          rows(memory.numbers<Kernel, double>(C)),
          columns(memory.numbers<Kernel, double>(C)),
          decays(memory, C, std::type_identity<Kernel>()),
          adjoints(memory, head, kept, 1) {}

    kernel::tile<Real> q, k, dq, dk;                        // (C, Dk)
    kernel::tile<Real> v, dv, dy, weighted;                 // (C, Dv); weighted: (C, max(Dk, Dv))
    kernel::tile<Real> qt, dyt;                             // (Dk, C) (Dv, C)
    kernel::tile<Real> A, G, E, M;                          // (C, C) rows are keys, columns are queries
    kernel::tile<Real> Ht, Rt;                              // (Dv, Dk) (Dv, Dk)
    Real* h;                                                // (Dk) the column of H for row sums
    compensation<Real> rest;                                // (Dv, Dk) (Dk) rounding errors of H and h
    kernel::border_weights<Real> border, now;               // (C) weights at the borders; now: rescaled for the stored state
    Real *a, *b;                                            // (L) dN_i = a_i dy_i, dZ_i = b_i
    Real *a_here, *b_here, *reads_dy, *reads_dZ, *running;  // (C) a and b of the chunk; read_i a_i; read_i b_i; scratch
    double *rows, *columns;                                 // (C) for gate_gradient_scan
    gap_decays decays;
    kept_adjoints<Kernel, Real> adjoints;
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    kernel::arena other;
    typename global_state_gradient::scratch<Kernel, real_of<T>>(other, largest);
    scratch<Kernel, real_of<T>>(memory, largest, (std::min)(size, std::max<index_t>(largest.L, 1)), keep_for(largest.L));
    if (other.used() > memory.used()) memory = other;
  }

  template <class Kernel, class T, class Real>
  void run(const head<T>& x, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory) const {
    if (!global_state_gradient::serves(x)) return run_chunks<Kernel>(x, g, norm, memory);
    if (g.of_pairs) {  // one global state does not give the gradients with respect to the diagonal and to gaps between tokens
      head_gradient<T> pairs = g;
      pairs.q = pairs.k = pairs.v = {};
      pairs.initial_forward = pairs.initial_backward = {};
      run_chunks<Kernel>(x, pairs, norm, memory);
      g.diagonal = pairs.diagonal;
      // Only an initial state crosses the first gap (backwards: the last), and global_state_gradient adds the gradient of this gap.
      if (g.forward != nullptr) g.forward[0] = 0;
      if (g.backward != nullptr) g.backward[x.q.count] = 0;
    }
    global_state_gradient::run<Kernel>(x, g, norm, memory);
  }

 private:
  template <class Kernel, class T, class Real>
  void run_chunks(const head<T>& x, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory) const {
    const keeping kept = keep_for(x.q.count);
    scratch<Kernel, Real> w(memory, {x.q.count, x.q.width, x.v.width}, (std::min)(size, x.q.count), kept);
    for (index_t first = 0; first < x.q.count; first += w.q.rows)
      g.scale += through_norm<Kernel>(x, g, first, (std::min)(w.q.rows, x.q.count - first), w.a + first, w.b + first, w.rows, w.dy,
                                      w.dv, norm);
    const auto pass = [&](direction way, bool first, bool dense) {
      one_way(x, g, w, kept, {.way = way, .row_sums = norm.uses_row_sum, .first = first, .dense = dense});
    };
    if (x.direction != direction::both) return pass(x.direction, true, true);
    pass(direction::backward, true, false);
    pass(direction::forward, false, true);
  }

  template <class Kernel, class T, class Real>
  BILA_NOINLINE void one_way(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, keeping kept,
                             pass_flags flags) const {
    const index_t L = x.q.count, C = w.q.rows;
    kernel::pending_decay state;
    const auto sweep = [&](index_t begin, index_t end) { sweep_adjoint(x, g, w, begin, end, flags); };
    const auto start = [&] {
      const auto& first = w.adjoints.inside;
      store_final_state(g.initial(flags.way), first.R(0), flags.row_sums ? first.r(0) : nullptr,
                        *first.pending(0) * x.initial(flags.way).decay);
      load_initial_state_transposed<Kernel>(w.Ht, w.h, x.initial(flags.way));
      decay(w.Ht, w.h, w.Ht.columns, x.initial(flags.way).decay);
      w.rest.start();
    };
    w.adjoints.walk(kept, (L + C - 1) / C, g.final(flags.way), flags.row_sums, sweep, start,
                    [&](index_t step, index_t begin, index_t end) {
                      kernel::prefetch_queue next;
                      if (step + 1 < end) prefetch_chunk(x, g, place(flags.way, step + 1, L, C), next, flags);
                      chunk(x, g, w, place(flags.way, step, L, C), step - begin + 1, state, next, flags);
                    });
  }

  /// Computes the adjoints R against the direction, from chunk `end` - 1 down to chunk `begin`.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void sweep_adjoint(const head<T>& x, const head_gradient<T>& g, scratch<Kernel, Real>& w, index_t begin,
                                          index_t end, pass_flags flags) {
    kernel::pending_decay state(*w.adjoints.inside.pending(end - begin));
    for (index_t step = end - 1; step >= begin; --step) {
      const place at(flags.way, step, x.q.count, w.q.rows);
      weigh_tokens(x, flags.way, at, w);
      const Real settle = static_cast<Real>(state.decay(w.border.total));
      read_tokens(at, 1 / state.factor(), w);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(at.first, at.count), w.q);     // (n, Dk)
      const auto dy = kernel::whole_packets<Kernel>(g.dy.slice(at.first, at.count), w.dy);  // (n, Dv)
      kernel::prefetch_queue next;
      if (step > begin) {
        const place then(flags.way, step - 1, x.q.count, w.q.rows);
        next.add(x.q, then.first, then.count);
        next.add(g.dy, then.first, then.count);
      }
      const index_t n = step - begin;
      Kernel::accumulate(kernel::state<Real>{w.adjoints.inside.R(n)},
                         {.from = {w.adjoints.inside.R(n + 1)},
                          .decay = settle,
                          .k = q,
                          .v = dy,
                          .weights = w.reads_dy,
                          .weighted = w.weighted,
                          .rest = w.adjoints.rest.after(w.border.total, 1)},
                         &next);
      Kernel::gather(w.adjoints.inside.r(n), w.adjoints.rest.e, settle, w.adjoints.inside.r(n + 1), q, w.reads_dZ);
      *w.adjoints.inside.pending(n) = state.factor();
    }
  }

  /// Computes the weights at the chunk's borders.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void weigh_tokens(const head<T>& x, direction way, place at, scratch<Kernel, Real>& w) {
    fill_decays<Kernel>(x, way, at.first, at.count, w.decays.way(way));
    scan_border(x, way, at.first, w.decays, at.count, w.border);
  }

  /// Computes the weights of dy and dZ for a state: reads_dy_i = `times` read_i a_i, reads_dZ_i = `times` read_i b_i.
  template <class Kernel, class Real>
  static void read_tokens(place at, double times, scratch<Kernel, Real>& w) {
    const Real factor = static_cast<Real>(times);
    for (index_t i = 0; i < at.count; ++i) {
      const Real read = w.border.read[i] * factor;
      w.reads_dy[i] = read * w.a[at.first + i];
      w.reads_dZ[i] = read * w.b[at.first + i];
    }
  }

  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void chunk(const head<T>& x, head_gradient<T>& g, scratch<Kernel, Real>& w, place at, index_t adjoint,
                                  kernel::pending_decay& state, kernel::prefetch_queue& next, pass_flags flags) {
    const index_t n = at.count;
    const auto q = kernel::whole_packets<Kernel>(x.q.slice(at.first, n), w.q);     // (n, Dk)
    const auto k = kernel::whole_packets<Kernel>(x.k.slice(at.first, n), w.k);     // (n, Dk)
    const auto v = kernel::whole_packets<Kernel>(x.v.slice(at.first, n), w.v);     // (n, Dv)
    const auto dy = kernel::whole_packets<Kernel>(g.dy.slice(at.first, n), w.dy);  // (n, Dv)
    const kernel::tile<const Real> R = w.adjoints.inside.R(adjoint);               // (Dk, Dv)
    const Real* const r = w.adjoints.inside.r(adjoint);                            // (Dk)
    const auto dq = open_sum<Kernel>(g.q, at.first, w.dq.top(n), flags), dk = open_sum<Kernel>(g.k, at.first, w.dk.top(n), flags);
    const auto dv = open_sum<Kernel>(g.v, at.first, w.dv.top(n), flags);
    double *const gaps = g.gaps(flags.way), *const log_weights = x.mask.ends == nullptr ? nullptr : x.mask.ends->sums;
    const bool wants_dots = gaps != nullptr || log_weights != nullptr;
    const double H_pending = state.factor(), R_pending = *w.adjoints.inside.pending(adjoint);
    weigh_tokens(x, flags.way, at, w);
    read_tokens(at, H_pending, w);
    kernel::weigh_borders(w.border, H_pending, 1 / R_pending, n, w.now);
    const Real* const write = w.now.write;

    // Adds weights_i a_i S + sums_weights_i sums to row i of N, the running sum of dk or dq. The second term enters as the score
    // and the value of one more key. z_i becomes the dot product of what was added with of_i.
    const auto add_read = [&](const running_sum<Real>& N, const Real* weights, kernel::tile<const Real> a,
                              kernel::tile<const Real> S, const Real* sums_weights, const Real* sums, kernel::tile<const Real> of,
                              double* z) {
      const bool apart = wants_dots && N.started;
      const kernel::tile<Real> part = apart ? kernel::tile<Real>{w.weighted.data, n, of.columns, w.weighted.stride} : N.to;
      Kernel::read(part,
                   {.q = a,
                    .S = S,
                    .weights = weights,
                    .A = kernel::one_row(sums == nullptr ? sums : sums_weights, n),
                    .v = kernel::one_row(sums, of.columns),
                    .partial = apart ? kernel::tile<const Real>{} : N.partial()},
                   &next);
      if (wants_dots) Kernel::template dots<Real>(z, part, of);
      if (apart) Kernel::add(N.to, part);
    };
    Kernel::transpose(w.Rt, R);
    add_read(dk, write, v, w.Rt, write, flags.row_sums ? r : nullptr, k, w.columns);
    Kernel::read(dv.to, {.q = k, .S = R, .weights = write, .partial = dv.partial()}, &next);
    // dq comes last of the three, so that H is in the cache when the chunk updates it.
    add_read(dq, w.reads_dy, dy, w.Ht, w.reads_dZ, flags.row_sums ? w.h : nullptr, q, w.rows);
    for (index_t j = 0; log_weights != nullptr && j < n; ++j) log_weights[at.first + j] += w.columns[j];
    if (gaps != nullptr) {
      double pass = Kernel::template inner<Real>(w.Ht, w.Rt);
      for (index_t c = 0; flags.row_sums && c < x.q.width; ++c) pass += static_cast<double>(w.h[c]) * static_cast<double>(r[c]);
      gate_gradient_scan(flags.way, w.border.total * H_pending * R_pending * pass, w.rows, w.columns, n, gaps + at.first);
    }
    if (flags.dense) block(x, g, flags.way, at.first, {q, k, v, dy}, {dq.to, dk.to, dv.to}, w);

    const Real settle = static_cast<Real>(state.decay(w.border.total));
    kernel::weigh_borders(w.border, H_pending, state.factor(), n, w.now);
    const kernel::state<Real> H{w.Ht};
    Kernel::accumulate(H,
                       {.from = H,
                        .decay = settle,
                        .k = v,
                        .v = k,
                        .weights = w.now.write,
                        .weighted = w.weighted,
                        .rest = w.rest.after(w.border.total, 1)},
                       &next);
    if (flags.row_sums) Kernel::gather(w.h, w.rest.e, settle, w.h, k, w.now.write);

    close_sum(g.q, at.first, dq.to, flags);
    close_sum(g.k, at.first, dk.to, flags);
    close_sum(g.v, at.first, dv.to, flags);
  }

  template <class Real>
  struct tokens {
    kernel::tile<Real> q, k, v, dy;
  };

  template <class Real>
  struct sums {
    kernel::tile<Real> dq, dk, dv;
  };

  /// Adds the pairs inside one chunk. w.decays already holds the decays of direction `way`.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void block(const head<T>& x, head_gradient<T>& g, direction way, index_t first, const tokens<const Real>& in,
                                  const sums<Real>& out, scratch<Kernel, Real>& w) {
    const auto& [q, k, v, dy] = in;
    const index_t n = q.rows;
    const kernel::tile<Real> qt{w.qt.data, q.columns, n, w.qt.stride},
        dyt{w.dyt.data, v.columns, n, w.dyt.stride};  // (Dk, n) (Dv, n)
    const kernel::tile<Real> A{w.A.data, n, n, w.A.stride}, G{w.G.data, n, n, w.G.stride}, E{w.E.data, n, n, w.E.stride},
        M{w.M.data, n, n, w.M.stride};  // (n, n)
    const index_t padded = kernel::round_up(n, Kernel::template lanes<Real>);
    std::fill_n(w.a_here, padded, Real(0));
    std::fill_n(w.b_here, padded, Real(0));
    std::copy_n(w.a + first, n, w.a_here);
    std::copy_n(w.b + first, n, w.b_here);
    if (x.direction == direction::both) fill_decays<Kernel>(x, other(way), first, n, w.decays.way(other(way)));
    scan_block<Kernel>(x, first, M, w.decays, 1);
    Kernel::transpose(qt, q);
    Kernel::transpose(dyt, dy);
    Kernel::score(A, k, qt, M);
    Kernel::score_gradient(A, {G, E}, v, dyt, {w.a_here, w.b_here}, M);
    weigh_diagonal(x, g, A, G, E);
    add_log_weights<Kernel>(x, first, E, true, w.rows);
    const auto to = [first](double* gaps) { return gaps == nullptr ? gaps : gaps + first; };
    Kernel::crossings(to(g.forward), to(g.backward), E, w.running);
    Kernel::apply(out.dq, G, k);
    Kernel::multiply(out.dk, G, q);
    Kernel::multiply(out.dv, A, dy);
  }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
