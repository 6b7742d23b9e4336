// SPDX-License-Identifier: Apache-2.0
// The gradient of the full form, computed tile by tile.
#pragma once

#include <bila/config.hpp>
#include <bila/form/block_walk.hpp>
#include <bila/form/head_gradient.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Let A_ij = M_ij (q_i . k_j) and g_ij = dN_i . v_j + dZ_i. Then
///
///     dQ = (g o M) K,   dK = (g o M)^T Q,   dV = A^T dN,   E = g o A = dl / d log M
///     dl/dM_ij = g_ij (q_i . k_j)                                for a pairwise mask
///     dl/df_t = sum_{i >= t > j} E_ij,   dl/db_t = sum_{i < t <= j} E_ij,   dl/d diagonal = sum_i g_ii (q_i . k_i)
///
/// Time O(L^2 (Dk + Dv)), memory O(block (block + Dk + Dv)) and four numbers per token. The form reads y and the forward row sum.
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
          dy(memory.padded<Kernel, Real>(block, size.Dv)),
          dv(memory.padded<Kernel, Real>(block, size.Dv)),
          qt(memory.padded<Kernel, Real>(size.Dk, block)),
          dyt(memory.padded<Kernel, Real>(size.Dv, block)),
          A(memory.padded<Kernel, Real>(block, block)),
          G(memory.padded<Kernel, Real>(block, block)),
          E(memory.padded<Kernel, Real>(block, block)),
          a(memory.numbers<Kernel, Real>(block)),
          b(memory.numbers<Kernel, Real>(block)),
          running(memory.numbers<Kernel, Real>(block)),
          dots(memory.numbers<Kernel, double>(block)),
          forward(memory, size.L),
          backward(memory, size.L),
          walk(memory) {}

    /// Sums over pairs of tokens in different blocks. The gradients of the gaps that these pairs cross follow from the sums.
    struct crossings {
      crossings(kernel::arena& memory, index_t L)
          : rows(memory.numbers<Kernel, double>(L)),
            columns(memory.numbers<Kernel, double>(L)),
            pass(memory.numbers<Kernel, double>(blocks_in(L))) {}
      double *rows, *columns, *pass;  // (L) sums per query; (L) per key; (blocks) of pairs that cross a whole block
    };

    kernel::tile<Real> q, k, dq, dk;  // (block, Dk)
    kernel::tile<Real> v, dy, dv;     // (block, Dv)
    kernel::tile<Real> qt, dyt;       // (Dk, block) (Dv, block)
    kernel::tile<Real> A, G, E;       // (block, block) rows are keys, columns are queries
    Real *a, *b, *running;            // (block) dN_i = a_i dy_i, dZ_i = b_i; scratch
    double* dots;                     // (block) dots dy_i . y_i
    crossings forward, backward;
    walk_scratch<Kernel, Real> walk;
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    scratch<Kernel, real_of<T>>(memory, size);
  }

  template <class Kernel, class T, class Real>
  void run(const head<T>& x, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory) const {
    run_blocks<Kernel>(x, g, norm, memory, gaps_alone());
  }

 protected:
  /// The weights of `more` enter after a block's products, so that their own gradients need no division.
  template <class Kernel, class T, class Real, class More>
  static void run_blocks(const head<T>& x, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory,
                         const More& more) {
    const index_t L = x.q.count, blocks = blocks_in(L);
    scratch<Kernel, Real> w(memory, {L, x.q.width, x.v.width});
    for (const auto* way : {&w.forward, &w.backward}) {
      const auto& c = *way;
      std::fill_n(c.rows, L, 0.0);
      std::fill_n(c.columns, L, 0.0);
      std::fill_n(c.pass, blocks, 0.0);
    }
    clear_sum(g.k);
    clear_sum(g.v);

    for (index_t ib = 0; ib < blocks; ++ib) {
      const index_t first = ib * block, n = (std::min)(block, L - first);
      std::fill_n(w.a, block, Real(0));
      std::fill_n(w.b, block, Real(0));
      g.scale += through_norm<Kernel>(x, g, first, n, w.a, w.b, w.dots, w.dy, w.dv, norm);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(first, n), w.q);     // (n, Dk)
      const auto dy = kernel::whole_packets<Kernel>(g.dy.slice(first, n), w.dy);  // (n, Dv)
      const auto dq = w.dq.top(n);                                                // (n, Dk)
      const kernel::tile<Real> qt{w.qt.data, q.columns, n, w.qt.stride};          // (Dk, n)
      const kernel::tile<Real> dyt{w.dyt.data, dy.columns, n, w.dyt.stride};      // (Dv, n)
      Kernel::transpose(qt, q);
      Kernel::transpose(dyt, dy);
      kernel::clear(dq);
      const auto add_block = [&](index_t jb, const auto& M) {
        const index_t from = jb * block, m = (std::min)(block, x.k.count - from);
        const auto k = kernel::whole_packets<Kernel>(x.k.slice(from, m), w.k);  // (m, Dk)
        const auto v = kernel::whole_packets<Kernel>(x.v.slice(from, m), w.v);  // (m, Dv)
        const kernel::tile<Real> A{w.A.data, m, n, w.A.stride}, G{w.G.data, m, n, w.G.stride},
            E{w.E.data, m, n, w.E.stride};  // (m, n)
        if (g.weights.data != nullptr) {
          const kernel::rank_one<Real> ones{w.walk.r, w.walk.r};  // a pairwise mask does not overwrite these ones
          Kernel::score(A, k, qt, ones);
          Kernel::score_gradient(A, {G, E}, v, dyt, {w.a, w.b}, ones);
          write_weights<Kernel>(x, g, first, from, E);
        }
        Kernel::score(A, k, qt, M);
        Kernel::score_gradient(A, {G, E}, v, dyt, {w.a, w.b}, M);
        more.weigh_gradient(ib, jb, A, G, E);
        if (ib == jb && (g.of_pairs || !detail::is_exactly(x.diagonal, 1))) weigh_diagonal(x, g, A, G, E);
        add_log_weights<Kernel>(x, from, E, ib == jb, w.dots);
        if (g.of_pairs) cross<Kernel>(E, ib, jb, g, w);
        Kernel::apply(dq, G, k);
        add_product<Kernel>(g.k, from, w.dk.top(m), G, q);
        add_product<Kernel>(g.v, from, w.dv.top(m), A, dy);
      };
      for_each_key_block<Kernel>(x, ib, 1, w.walk, add_block, more);
      accumulate_or_store<Kernel>(g.q, first, dq, true, true);
    }
    round_sum(g.k);
    round_sum(g.v);
    for (index_t ib = 0; ib < blocks; ++ib) {
      const index_t first = ib * block, n = (std::min)(block, L - first);
      if (g.forward != nullptr)
        gate_gradient_scan(direction::forward, w.forward.pass[ib], w.forward.rows + first, w.forward.columns + first, n,
                           g.forward + first);
      if (g.backward != nullptr)
        gate_gradient_scan(direction::backward, w.backward.pass[ib], w.backward.rows + first, w.backward.columns + first, n,
                           g.backward + first);
    }
  }

 private:
  /// Writes dl / dM_ij = g_ij (q_i . k_j) for the pairs that the call's direction sees within the mask's reach. E must be computed
  /// with a mask of ones.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void write_weights(const head<T>& x, const head_gradient<T>& g, index_t first, index_t from,
                                          kernel::tile<Real> E) {
    const index_t reach = x.mask.reach();
    for (index_t j = from; j < from + E.rows; ++j)
      for (index_t i = (std::max)(first, j - reach); i < (std::min)(first + E.columns, j + reach + 1); ++i) {
        if (i < j ? x.direction == direction::forward : i > j && x.direction == direction::backward) continue;
        const Real slope = E.row(j - from)[i - first];
        g.weights(i, j) = i == j ? static_cast<Real>(x.diagonal) * slope : slope;
      }
  }

  template <class Kernel, class Real, class T>
  static void cross(kernel::tile<Real> E, index_t ib, index_t jb, const head_gradient<T>& g, scratch<Kernel, Real>& w) {
    const auto to = [](double* gaps, index_t first) { return gaps == nullptr ? gaps : gaps + first; };
    if (ib == jb) return Kernel::crossings(to(g.forward, ib * block), to(g.backward, ib * block), E, w.running);
    if ((ib > jb ? g.forward : g.backward) == nullptr) return;
    const auto& c = ib > jb ? w.forward : w.backward;
    const double total = Kernel::sums(c.rows + ib * block, c.columns + jb * block, E);
    for (index_t between = (std::min)(ib, jb) + 1; between < (std::max)(ib, jb); ++between) c.pass[between] += total;
  }

  template <class T>
  static void clear_sum(const gradient_rows<T>& to) {
    if (to.out.data == nullptr || !to.first) return;
    for (index_t i = 0; i < to.sum.count; ++i)
      for (index_t d = 0; d < to.sum.width; ++d) to.sum(i, d) = 0;
  }

  /// Adds A q to the rows of `to.sum` from row `first` on: in place if these are whole packets, else in scratch_tile.
  template <class Kernel, class T, class Real>
  static void add_product(const gradient_rows<T>& to, index_t first, kernel::tile<Real> scratch_tile, kernel::tile<Real> A,
                          kernel::tile<const Real> q) {
    if (to.out.data == nullptr) return;
    const rows<Real> sum = to.sum.slice(first, A.rows);
    const kernel::tile<Real> N = kernel::results<Kernel>(sum, scratch_tile);
    if (N.data == scratch_tile.data) kernel::load(scratch_tile, rows<const Real>(sum));
    Kernel::multiply(N, A, q);
    kernel::store(sum, N);
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

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
