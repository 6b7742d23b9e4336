// SPDX-License-Identifier: Apache-2.0
// The gradient of the full form, tile by tile.
#pragma once

#include <bila/form/block_walk.hpp>
#include <bila/form/head_gradient.hpp>

namespace bila::inline v0_1::form {

/// With A_ij = M_ij (q_i . k_j) and g_ij = dN_i . v_j + dZ_i,
///
///     dQ = (g o M) K,   dK = (g o M)^T Q,   dV = A^T dN,   E = g o A = dl / d log M
///     dl/df_t = sum_{i >= t > j} E_ij,   dl/db_t = sum_{i < t <= j} E_ij,   dl/d diagonal = sum_i g_ii (q_i . k_i)
///
/// Time O(L^2 (Dk + Dv)), memory O(block (block + Dk + Dv)) and four numbers per token. Keeps nothing from the forward pass.
/// Source: the dense closed form of LION's full masked attention (arXiv 2502.16249).
struct full_gradient {
  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : q(memory.padded<Kernel, Real>(block, size.Dk)),
          k(memory.padded<Kernel, Real>(block, size.Dk)),
          dq(memory.padded<Kernel, Real>(block, size.Dk)),
          dk(memory.padded<Kernel, Real>(block, size.Dk)),
          v(memory.padded<Kernel, Real>(block, size.Dv)),
          dN(memory.padded<Kernel, Real>(block, size.Dv)),
          dv(memory.padded<Kernel, Real>(block, size.Dv)),
          kt(memory.padded<Kernel, Real>(size.Dk, block)),
          vt(memory.padded<Kernel, Real>(size.Dv, block)),
          P(memory.padded<Kernel, Real>(block, block)),
          G(memory.padded<Kernel, Real>(block, block)),
          dZ(memory.numbers<Kernel, Real>(block)),
          ones(memory.numbers<Kernel, Real>(block)),
          forward(memory, size.L),
          backward(memory, size.L),
          rows(memory.numbers<Kernel, double>(block)),
          columns(memory.numbers<Kernel, double>(block)),
          walk(memory) {}

    /// What the pairs of different blocks add to the gaps they cross.
    struct crossings {
      crossings(kernel::arena& memory, index_t L)
          : rows(memory.numbers<Kernel, double>(L)),
            columns(memory.numbers<Kernel, double>(L)),
            pass(memory.numbers<Kernel, double>(blocks_in(L))) {}
      double *rows, *columns, *pass;  // (L) (L) (blocks)
    };

    kernel::tile<Real> q, k, dq, dk;  // (block, Dk)
    kernel::tile<Real> v, dN, dv;     // (block, Dv)
    kernel::tile<Real> kt, vt;        // (Dk, block) (Dv, block)
    kernel::tile<Real> P, G;          // (block, block)
    Real *dZ, *ones;                  // (block)
    crossings forward, backward;
    double *rows, *columns;  // (block)
    walk_scratch<Kernel, Real> walk;
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    scratch<Kernel, real_of<T>>(memory, size);
  }

  template <class Kernel, class T, class Mask, class Norm>
  void run(const head<T, Mask>& x, head_gradient<T>& g, const Norm& norm, kernel::arena& memory) const {
    using Real = real_of<T>;
    const index_t L = x.q.count, blocks = blocks_in(L);
    scratch<Kernel, Real> w(memory, {L, x.q.width, x.v.width});
    std::fill_n(w.ones, kernel::round_up(block, Kernel::template lanes<Real>), Real(1));
    for (const auto& c : {w.forward, w.backward}) {
      std::fill_n(c.rows, L, 0.0);
      std::fill_n(c.columns, L, 0.0);
      std::fill_n(c.pass, blocks, 0.0);
    }
    clear_sum(g.k);
    clear_sum(g.v);

    for (index_t ib = 0; ib < blocks; ++ib) {
      const index_t first = ib * block, n = (std::min)(block, L - first);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(first, n), w.q);  // (n, Dk)
      const auto dq = w.dq.top(n);                                             // (n, Dk)
      const auto dN = w.dN.top(n);                                             // (n, Dv)
      kernel::clear(dq);
      g.scale += through_norm<Kernel>(x, g, first, dN, w.dZ, w.dv.top(n), norm);
      for_each_column_block<Kernel>(x, ib, w.walk, [&](index_t jb, const auto& weigh) {
        const index_t from = jb * block, m = (std::min)(block, L - from);
        const auto k = kernel::whole_packets<Kernel>(x.k.slice(from, m), w.k);  // (m, Dk)
        const auto v = kernel::whole_packets<Kernel>(x.v.slice(from, m), w.v);  // (m, Dv)
        const kernel::tile<Real> kt{w.kt.data, k.columns, m, w.kt.stride},
            vt{w.vt.data, v.columns, m, w.vt.stride};                                           // (Dk, m) (Dv, m)
        const kernel::tile<Real> P{w.P.data, n, m, w.P.stride}, G{w.G.data, n, m, w.G.stride};  // (n, m)
        const auto dk = w.dk.top(m), dv = w.dv.top(m);                                          // (m, Dk) (m, Dv)
        Kernel::transpose(kt, k);
        Kernel::transpose(vt, v);
        Kernel::score(P, q, kt);
        Kernel::score(G, dN, vt);
        Kernel::outer(G, w.dZ, w.ones);
        if (ib == jb)
          for (index_t i = 0; i < n; ++i)
            g.diagonal += own_weight(x, first + i) * static_cast<double>(P.row(i)[i]) * static_cast<double>(G.row(i)[i]);
        weigh(G, static_cast<Real*>(nullptr));
        cross(P, G, ib, jb, g, w);
        weigh(P, static_cast<Real*>(nullptr));
        kernel::clear(dk);
        kernel::clear(dv);
        Kernel::apply(dq, G, k);
        Kernel::apply_transposed(dk, G, q);
        Kernel::apply_transposed(dv, P, dN);
        add_to_sum(g.k, from, dk);
        add_to_sum(g.v, from, dv);
      });
      deliver(g.q, first, dq, true, true);
    }
    round_sum(g.k);
    round_sum(g.v);
    for (index_t ib = 0; ib < blocks; ++ib) {
      const index_t first = ib * block, n = (std::min)(block, L - first);
      if (g.forward != nullptr)
        spread<direction::forward>(w.forward.pass[ib], w.forward.rows + first, w.forward.columns + first, n, g.forward + first);
      if (g.backward != nullptr)
        spread<direction::backward>(w.backward.pass[ib], w.backward.rows + first, w.backward.columns + first, n,
                                    g.backward + first);
    }
  }

 private:
  template <class Real, class T, class Scratch>
  static void cross(kernel::tile<Real> P, kernel::tile<Real> G, index_t ib, index_t jb, const head_gradient<T>& g, Scratch& w) {
    if (ib == jb) {
      if (g.forward != nullptr) block_gaps<direction::forward>(P, G, w.rows, w.columns, g.forward + ib * block);
      if (g.backward != nullptr) block_gaps<direction::backward>(P, G, w.rows, w.columns, g.backward + ib * block);
      return;
    }
    if ((ib > jb ? g.forward : g.backward) == nullptr) return;
    const auto& c = ib > jb ? w.forward : w.backward;
    double total = 0;
    for (index_t i = 0; i < P.rows; ++i) {
      double sum = 0;
      for (index_t j = 0; j < P.columns; ++j) {
        const double e = static_cast<double>(P.row(i)[j]) * static_cast<double>(G.row(i)[j]);
        sum += e;
        c.columns[jb * block + j] += e;
      }
      c.rows[ib * block + i] += sum;
      total += sum;
    }
    for (index_t between = (std::min)(ib, jb) + 1; between < (std::max)(ib, jb); ++between) c.pass[between] += total;
  }

  template <class T>
  static void clear_sum(const gradient_rows<T>& to) {
    if (to.out.data == nullptr || !to.first) return;
    for (index_t i = 0; i < to.sum.count; ++i)
      for (index_t d = 0; d < to.sum.width; ++d) to.sum(i, d) = 0;
  }

  template <class T, class Real>
  static void add_to_sum(const gradient_rows<T>& to, index_t first, kernel::tile<Real> X) {
    if (to.out.data == nullptr) return;
    for (index_t i = 0; i < X.rows; ++i)
      for (index_t d = 0; d < X.columns; ++d) to.sum(first + i, d) += X.row(i)[d];
  }

  template <class T>
  static void round_sum(const gradient_rows<T>& to) {
    if constexpr (is_narrow<T>) {
      if (to.out.data == nullptr || !to.last) return;
      for (index_t i = 0; i < to.sum.count; ++i)
        for (index_t d = 0; d < to.sum.width; ++d) to.out(i, d) = static_cast<T>(to.sum(i, d));
    }
  }
};

}  // namespace bila::inline v0_1::form
