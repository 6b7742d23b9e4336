// SPDX-License-Identifier: Apache-2.0
// The gradient in chunks: the forward operator with its arguments permuted. It serves the chunkwise and the recurrent form.
#pragma once

#include <bila/form/decays.hpp>
#include <bila/form/head_gradient.hpp>

#include <cmath>

namespace bila::inline v0_1::form {

/// For one direction, with H the state that enters a chunk, R the adjoint of the state that leaves it, and a column of ones added
/// to v, of dZ to dN, wherever a state is meant,
///
///     dq_i += read_i H dN_i        R <- total R + sum_i read_i q_i dN_i     against the direction, first; kept for each chunk
///     dk_j += write_j R v_j        H <- total H + sum_j write_j k_j v_j     along the direction
///     dv_j += write_j R^T k_j
///
/// and inside the chunk, once for both directions, with g_ij = dN_i . v_j + dZ_i,
///
///     dq_i += sum_j M_ij g_ij k_j,   dk_j += sum_i M_ij g_ij q_i,   dv_j += sum_i M_ij (q_i . k_j) dN_i
///
/// Time O(L C (Dk + Dv) + L Dk Dv); memory one adjoint per chunk, or with `recompute` one per sqrt(L / C) chunks, twice.
/// Source: the transposed masked form of LION (arXiv 2502.16249); it is what automatic differentiation of the definition gives.
struct chunkwise_gradient {
  index_t size;    // tokens per chunk
  bool recompute;  // the adjoints inside a span of chunks, from the one kept at its end

  /// How many adjoints are kept: of all chunks, or of a span, and one for each span.
  struct keeping {
    index_t chunks, spans;
  };

  keeping keep_for(index_t L) const {
    const index_t chunks = std::max<index_t>(1, (L + size - 1) / size);
    if (!recompute) return {chunks, 1};
    const auto side = static_cast<index_t>(std::ceil(std::sqrt(static_cast<double>(chunks))));
    return {side, (chunks + side - 1) / side};
  }

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size head, index_t C, keeping kept)
        : q(memory.padded<Kernel, Real>(C, head.Dk)),
          k(memory.padded<Kernel, Real>(C, head.Dk)),
          dq(memory.padded<Kernel, Real>(C, head.Dk)),
          dk(memory.padded<Kernel, Real>(C, head.Dk)),
          v(memory.padded<Kernel, Real>(C, head.Dv)),
          dv(memory.padded<Kernel, Real>(C, head.Dv)),
          dN(memory.padded<Kernel, Real>(C, head.Dv)),
          weighted(memory.padded<Kernel, Real>(C, (std::max)(head.Dk, head.Dv))),
          kt(memory.padded<Kernel, Real>(head.Dk, C)),
          vt(memory.padded<Kernel, Real>(head.Dv, C)),
          P(memory.padded<Kernel, Real>(C, C)),
          G(memory.padded<Kernel, Real>(C, C)),
          M(memory.padded<Kernel, Real>(C, C)),
          Ht(memory.padded<Kernel, Real>(head.Dv, head.Dk)),
          R(memory.padded<Kernel, Real>(head.Dk, head.Dv)),
          Rt(memory.padded<Kernel, Real>(head.Dv, head.Dk)),
          h(memory.numbers<Kernel, Real>(head.Dk)),
          r(memory.numbers<Kernel, Real>(head.Dk)),
          border{memory.numbers<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)},
          dZ(memory.numbers<Kernel, Real>(C)),
          ones(memory.numbers<Kernel, Real>(C)),
          product(memory.numbers<Kernel, Real>(C)),
          lambda(memory.numbers<Kernel, double>(C + 1)),
          row(memory.numbers<Kernel, double>(C)),
          rows(memory.numbers<Kernel, double>(C)),
          columns(memory.numbers<Kernel, double>(C)),
          adjoint_size(head.Dk * (R.stride + 1)),
          inside(memory.numbers<Kernel, Real>(kept.chunks * adjoint_size)),
          ends(memory.numbers<Kernel, Real>(kept.spans * adjoint_size)) {}

    kernel::tile<Real> q, k, dq, dk;         // (C, Dk)
    kernel::tile<Real> v, dv, dN, weighted;  // (C, Dv), weighted is for either width
    kernel::tile<Real> kt, vt;               // (Dk, C) (Dv, C)
    kernel::tile<Real> P, G, M;              // (C, C) scores, their adjoint, mask
    kernel::tile<Real> Ht, R, Rt;            // (Dv, Dk) (Dk, Dv) (Dv, Dk)
    Real *h, *r;                             // (Dk) row sums of H and of R
    kernel::border_weights<Real> border;     // (C)
    Real *dZ, *ones, *product;               // (C)
    double *lambda, *row, *rows, *columns;   // (C + 1) (C) (C) (C)
    index_t adjoint_size;                    // numbers of one kept R and r
    Real *inside, *ends;
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    scratch<Kernel, real_of<T>>(memory, largest, (std::min)(size, std::max<index_t>(largest.L, 1)), keep_for(largest.L));
  }

  template <class Kernel, class T, gapped Mask, class Norm>
  void run(const head<T, Mask>& x, head_gradient<T>& g, const Norm& norm, kernel::arena& memory) const {
    using Real = real_of<T>;
    const keeping kept = keep_for(x.q.count);
    scratch<Kernel, Real> w(memory, {x.q.count, x.q.width, x.v.width}, (std::min)(size, x.q.count), kept);
    std::fill_n(w.ones, w.q.rows, Real(1));
    switch (x.direction) {
      case direction::both:
        one_way<Kernel, direction::backward>(x, g, norm, w, kept, {.first = true, .dense = false});
        one_way<Kernel, direction::forward>(x, g, norm, w, kept, {.first = false, .dense = true});
        break;
      case direction::forward:
        one_way<Kernel, direction::forward>(x, g, norm, w, kept, {.first = true, .dense = true});
        break;
      case direction::backward:
        one_way<Kernel, direction::backward>(x, g, norm, w, kept, {.first = true, .dense = true});
        break;
    }
  }

 private:
  struct duties {
    bool first;  // starts the sums dq, dk, dv
    bool dense;  // adds the block inside each chunk, and finishes the sums: the last pass
  };

  /// A chunk, counted along the direction.
  template <direction Way>
  struct place {
    place(index_t step, index_t L, index_t C) {
      const index_t chunks = (L + C - 1) / C;
      first = (Way == direction::forward ? step : chunks - 1 - step) * C;
      count = (std::min)(C, L - first);
    }
    index_t first, count;
  };

  template <class Kernel, direction Way, class T, class Mask, class Norm, class Real>
  void one_way(const head<T, Mask>& x, head_gradient<T>& g, const Norm& norm, scratch<Kernel, Real>& w, keeping kept,
               duties duty) const {
    const index_t L = x.q.count, C = w.q.rows, chunks = (L + C - 1) / C;
    start(w.R, w.r, g.template final<Way>());
    if (!Norm::uses_row_sum) std::fill_n(w.r, w.R.rows, Real(0));
    sweep_adjoint<Kernel, Way>(x, g, norm, w, {0, chunks, kept});
    keep(g.template initial<Way>(), w.R, w.r);

    start_transposed(w.Ht, w.h, x.template initial<Way>());
    kernel::carried_decay<Real> carried;
    for (index_t step = 0; step < chunks; ++step) {
      if (kept.spans > 1 && step % kept.chunks == 0) {
        copy_adjoint(w.ends + step / kept.chunks * w.adjoint_size, w);
        sweep_adjoint<Kernel, Way>(x, g, norm, w, {step, (std::min)(step + kept.chunks, chunks), {kept.chunks, 1}});
      }
      copy_adjoint(w.inside + step % kept.chunks * w.adjoint_size, w);
      chunk<Kernel, Way>(x, g, norm, w, place<Way>(step, L, C), carried, duty);
    }
  }

  struct range {
    index_t begin, end;  // steps
    keeping kept;
  };

  /// R against the direction; keeps it as each chunk needs it, or at the end of each span.
  template <class Kernel, direction Way, class T, class Mask, class Norm, class Real>
  static void sweep_adjoint(const head<T, Mask>& x, head_gradient<T>& g, const Norm& norm, scratch<Kernel, Real>& w, range steps) {
    const index_t L = x.q.count, C = w.q.rows;
    kernel::carried_decay<Real> carried;
    for (index_t step = steps.end - 1; step >= steps.begin; --step) {
      if (steps.kept.spans == 1)
        keep_adjoint(w.inside + step % steps.kept.chunks * w.adjoint_size, w);
      else if (step == steps.end - 1 || (step + 1) % steps.kept.chunks == 0)
        keep_adjoint(w.ends + step / steps.kept.chunks * w.adjoint_size, w);

      const place<Way> at(step, L, C);
      const index_t n = at.count;
      scan_border<Way>(x, at.first, n, w.lambda, w.border);
      through_norm<Kernel>(x, g, at.first, w.dN.top(n), w.dZ, w.dv.top(n), norm);
      const auto q = kernel::elements(x.q.slice(at.first, n), w.q);  // (n, Dk)
      const Real total = carried(w.border.total);
      Kernel::accumulate(w.R, static_cast<Real*>(nullptr), total, q, w.border.read, w.dN.top(n), w.weighted);
      if (!Norm::uses_row_sum) continue;
      for (index_t i = 0; i < n; ++i) w.product[i] = w.border.read[i] * w.dZ[i];
      Kernel::gather(w.r, total, q, w.product);
    }
  }

  template <class Kernel, direction Way, class T, class Mask, class Norm, class Real>
  void chunk(const head<T, Mask>& x, head_gradient<T>& g, const Norm& norm, scratch<Kernel, Real>& w, place<Way> at,
             kernel::carried_decay<Real>& carried, duties duty) const {
    const index_t n = at.count;
    const auto q = kernel::whole_packets<Kernel>(x.q.slice(at.first, n), w.q);  // (n, Dk)
    const auto k = kernel::whole_packets<Kernel>(x.k.slice(at.first, n), w.k);  // (n, Dk)
    const auto v = kernel::whole_packets<Kernel>(x.v.slice(at.first, n), w.v);  // (n, Dv)
    const auto dq = w.dq.top(n), dk = w.dk.top(n);                              // (n, Dk)
    const auto dv = w.dv.top(n), dN = w.dN.top(n);                              // (n, Dv)
    const double scale = through_norm<Kernel>(x, g, at.first, dN, w.dZ, dv, norm);
    if (duty.dense) g.scale += scale;
    scan_border<Way>(x, at.first, n, w.lambda, w.border);
    const Real *read = w.border.read, *write = w.border.write;

    for (const auto& sum : {dq, dk, dv}) kernel::clear(sum);
    Kernel::read(dq, static_cast<Real*>(nullptr), read, dN, w.Ht, w.h);
    Kernel::transpose(w.Rt, w.R);
    Kernel::read(dk, static_cast<Real*>(nullptr), write, v, w.Rt, w.r);
    Kernel::read(dv, static_cast<Real*>(nullptr), write, k, w.R, w.r);
    if (Norm::uses_row_sum) {
      for (index_t i = 0; i < n; ++i) w.product[i] = read[i] * w.dZ[i];
      Kernel::outer(dq, w.product, w.h);
      Kernel::outer(dk, write, w.r);
    }
    if (double* const gaps = g.template gaps<Way>(); gaps != nullptr) {
      double pass = Kernel::inner(w.Ht, w.Rt);
      for (index_t c = 0; Norm::uses_row_sum && c < x.q.width; ++c)
        pass += static_cast<double>(w.h[c]) * static_cast<double>(w.r[c]);
      Kernel::dots(w.rows, dq, q);
      Kernel::dots(w.columns, dk, k);
      spread<Way>(w.border.total * pass, w.rows, w.columns, n, gaps + at.first);
    }
    if (duty.dense) block<Kernel>(x, g, at.first, q, k, v, w);

    const Real total = carried(w.border.total);
    Kernel::accumulate(w.Ht, static_cast<Real*>(nullptr), total, v, write, k, w.weighted);
    if (Norm::uses_row_sum) Kernel::gather(w.h, total, k, write);

    deliver(g.q, at.first, dq, duty.first, duty.dense);
    deliver(g.k, at.first, dk, duty.first, duty.dense);
    deliver(g.v, at.first, dv, duty.first, duty.dense);
  }

  /// The pairs inside one chunk.
  template <class Kernel, class T, class Mask, class Real>
  static void block(const head<T, Mask>& x, head_gradient<T>& g, index_t first, kernel::tile<const Real> q,
                    kernel::tile<const Real> k, kernel::tile<const Real> v, scratch<Kernel, Real>& w) {
    const index_t n = q.rows;
    const kernel::tile<Real> kt{w.kt.data, q.columns, n, w.kt.stride}, vt{w.vt.data, v.columns, n, w.vt.stride};  // (Dk, n) (Dv, n)
    const kernel::tile<Real> P{w.P.data, n, n, w.P.stride}, G{w.G.data, n, n, w.G.stride};                        // (n, n)
    Kernel::transpose(kt, k);
    Kernel::transpose(vt, v);
    Kernel::score(P, q, kt);
    Kernel::score(G, w.dN.top(n), vt);
    Kernel::outer(G, w.dZ, w.ones);
    for (index_t i = 0; i < n; ++i) g.diagonal += static_cast<double>(P.row(i)[i]) * static_cast<double>(G.row(i)[i]);
    scan_block(x, first, w.M.top(n), w.lambda, w.row, true);
    Kernel::weigh(G, w.M, static_cast<Real*>(nullptr));
    if (g.forward != nullptr) block_gaps<direction::forward>(P, G, w.rows, w.columns, g.forward + first);
    if (g.backward != nullptr) block_gaps<direction::backward>(P, G, w.rows, w.columns, g.backward + first);
    Kernel::weigh(P, w.M, static_cast<Real*>(nullptr));
    Kernel::apply(w.dq.top(n), G, k);
    Kernel::apply_transposed(w.dk.top(n), G, q);
    Kernel::apply_transposed(w.dv.top(n), P, w.dN.top(n));
  }

  template <class Kernel, class Real>
  static void keep_adjoint(Real* to, const scratch<Kernel, Real>& w) {
    std::copy_n(w.R.data, w.R.rows * w.R.stride, to);
    std::copy_n(w.r, w.R.rows, to + w.R.rows * w.R.stride);
  }

  template <class Kernel, class Real>
  static void copy_adjoint(const Real* from, scratch<Kernel, Real>& w) {
    std::copy_n(from, w.R.rows * w.R.stride, w.R.data);
    std::copy_n(from + w.R.rows * w.R.stride, w.R.rows, w.r);
  }
};

}  // namespace bila::inline v0_1::form
