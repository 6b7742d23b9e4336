// SPDX-License-Identifier: Apache-2.0
// The full form for masks with decays per channel, tile by tile.
#pragma once

#include <bila/config.hpp>
#include <bila/form/block_walk.hpp>
#include <bila/form/channel_gradient.hpp>
#include <bila/form/channel_weights.hpp>
#include <bila/form/compensation.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/full.hpp>
#include <bila/form/head.hpp>

#include <algorithm>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

template <class Number>
kernel::tile<Number> rows_from(const kernel::tile<Number>& x, index_t at, index_t n) {
  return {x.row(at), n, x.columns, x.stride};
}

/// The decays per channel around the tokens of one block, crossed in one direction. The block consists of pieces of 16 tokens. A
/// product of decays in Real never has more factors than a piece has gaps, and the products of whole pieces are double.
template <class Kernel, class Real>
class channel_block {
 public:
  static constexpr index_t piece = kernel::most_channel_tokens;

  channel_block(kernel::arena& memory, index_t Dk)
      : decays_(memory.padded<Kernel, Real>(block + 1, Dk)),
        factors_(memory.zeros<Kernel, Real>(Dk)),
        totals_(memory.numbers<Kernel, double>(block / piece * Dk)) {}

  /// Computes the decays of the gaps around tokens [first, first + n) of the head, and their products over the pieces.
  template <class T>
  BILA_NOINLINE void fill(const head<T>& x, direction way, index_t first, index_t n) {
    const kernel::tile<Real> E = decays_.top(n + 1);
    const index_t Dk = E.columns;
    fill_channel_logs(x, way, first, n, E);
    for (index_t at = 0; at < n; at += piece)
      Kernel::column_sums(totals_ + at / piece * Dk, rows_from(E, at + (way == direction::backward), (std::min)(piece, n - at)));
    Kernel::exponentials(totals_, (n + piece - 1) / piece * Dk);
    Kernel::exponentials(E);
  }

  /// The decays of the gaps around tokens [at, at + n) of the block.
  kernel::tile<Real> decays(index_t at, index_t n) const { return rows_from(decays_, at, n + 1); }  // (n + 1, Dk)

  /// Writes tokens [at, at + n) of x to the same rows of `to`: queries times `between` and the decays from where the direction
  /// enters these tokens, keys times `between` and the decays to where it leaves them. Multiplies `between` by the decays over all
  /// of these tokens. `at` is the first token of a piece.
  BILA_NOINLINE void weigh(direction way, bool of_keys, bool exclusive, index_t at, index_t n, kernel::operand<Real> x,
                           const kernel::tile<Real>& to, double* between) {
    const index_t Dk = x.columns, pieces = (n + piece - 1) / piece;
    const bool ascending = (way == direction::forward) != of_keys;
    for (index_t step = 0; step < pieces; ++step) {
      const index_t from = at + (ascending ? step : pieces - 1 - step) * piece, m = (std::min)(piece, at + n - from);
      for (index_t c = 0; c < Dk; ++c) factors_[c] = static_cast<Real>(between[c]);
      const kernel::tile<Real> weighed = rows_along(way, rows_from(to, from, m)), none;
      const kernel::tile<const Real> tokens = rows_along(way, rows_from(x, from, m));  // (m, Dk)
      Kernel::weigh_channels(of_keys ? none : weighed, of_keys ? weighed : none, tokens, tokens, gaps_along(way, decays(from, m)),
                             factors_, factors_, exclusive);
      for (index_t c = 0; c < Dk; ++c) between[c] *= totals_[from / piece * Dk + c];
    }
  }

 private:
  kernel::tile<Real> decays_;  // (block + 1, Dk)
  Real* factors_;              // (Dk)
  double* totals_;             // (block / piece, Dk) decays over the pieces
};

/// Computes y_i = norm(sum_j A_ij v_j) with A_ij = sum_c q_ic k_jc D_ijc, where D_ijc is the product of channel c's decays over the
/// gaps between i and j. Between two blocks of tokens, with alpha_i the decays from the keys' side of the queries' block to query
/// i, omega_j those from key j to the queries' side of the keys' block, and Gamma those over the blocks between,
///
///     A = (Q o alpha) (K o omega o Gamma)^T
///
/// and likewise between two pieces of 16 tokens of one block. Only inside a piece has each pair of tokens its own products.
///
/// Time O(L^2 (Dk + Dv)), memory O(block (block + Dk + Dv)). The gradient is that of the chunkwise form: it takes linear time and
/// keeps O(sqrt(L)) states.
struct full_channels : full {
  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : q(memory.padded<Kernel, Real>(block, size.Dk)),
          k(memory.padded<Kernel, Real>(block, size.Dk)),
          weighed(memory.padded<Kernel, Real>(block, size.Dk)),
          qt(memory.padded<Kernel, Real>(size.Dk, block)),
          v(memory.padded<Kernel, Real>(block, size.Dv)),
          N(memory.padded<Kernel, Real>(block, size.Dv)),
          A(memory.padded<Kernel, Real>(block, block)),
          z(memory.numbers<Kernel, Real>(block)),
          out(memory.numbers<Kernel, Real>(block)),
          ones(memory.numbers<Kernel, Real>(block)),
          own(memory.zeros<Kernel, Real>(size.Dk)),
          sums(memory.numbers<Kernel, double>(block)),
          between(memory.numbers<Kernel, double>(size.Dk)),
          rest(memory, block, size.Dv, 0, std::type_identity<Kernel>()),
          forward(memory, size.Dk),
          backward(memory, size.Dk),
          theirs(memory, size.Dk) {}

    channel_block<Kernel, Real>& mine(direction way) { return way == direction::forward ? forward : backward; }

    kernel::tile<Real> q, k, weighed, qt, v, N, A;  // (block, Dk) three times, (Dk, block) (block, Dv) (block, Dv) (block, block)
    Real *z, *out, *ones;                           // (block) row sums over one block of keys; factors of the rows; ones
    Real* own;                                      // (Dk) weights of the channels on the diagonal
    double* sums;                                   // (block) row sums over all keys
    double* between;                                // (Dk) decays between the queries and the next keys
    compensation<Real> rest;                        // (block, Dv) rounding error of N
    channel_block<Kernel, Real> forward, backward, theirs;  // decays around the queries' block; around a block of keys
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    scratch<Kernel, real_of<T>>(memory, size);
  }

  template <class Kernel, class T, class Real>
  void run(const head<T>& x, const norm_view<Real>& norm, split part, kernel::arena memory) const {
    const index_t L = x.q.count, Dk = x.q.width;
    scratch<Kernel, Real> w(memory, {L, Dk, x.v.width});
    std::fill_n(w.ones, block, Real(1));
    fill_own_channels(x, x.diagonal, w.own);
    Real* const z = norm.uses_row_sum ? w.z : nullptr;
    for (index_t ib = part.index; ib < blocks_in(L); ib += part.count) {
      const index_t first = ib * block, n = (std::min)(block, L - first);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(first, n), w.q);  // (n, Dk)
      const auto N = w.N.top(n);                                               // (n, Dv)
      const kernel::tile<Real> qt{w.qt.data, Dk, n, w.qt.stride};              // (Dk, n)
      kernel::clear(N);
      std::fill_n(w.sums, block, 0.0);
      w.rest.start();
      const kernel::state<Real> sum{N};
      const auto add_block = [&](index_t jb, const auto& score) {
        const index_t from = jb * block, m = (std::min)(block, L - from);
        const auto k = kernel::whole_packets<Kernel>(x.k.slice(from, m), w.k);  // (m, Dk)
        const auto v = kernel::whole_packets<Kernel>(x.v.slice(from, m), w.v);  // (m, Dv)
        const kernel::tile<Real> A{w.A.data, m, n, w.A.stride};                 // (m, n)
        std::fill_n(w.z, block, Real(0));
        score(k, A);
        for (index_t i = 0; i < n; ++i) w.sums[i] += static_cast<double>(w.z[i]);
        Kernel::accumulate(sum, {.from = sum, .k = A, .v = v, .rest = w.rest.after(1, 1)});  // N += A^T v
      };
      constexpr direction ways[] = {direction::forward, direction::backward};
      for (const direction way : ways)
        if (x.direction != other(way)) w.mine(way).fill(x, way, first, n);
      add_block(ib, [&](kernel::tile<const Real> k, const kernel::tile<Real>& A) { score_own_block(x, q, k, A, z, w); });
      for (const direction way : ways) {
        if (x.direction == other(way)) continue;
        std::fill_n(w.between, Dk, 1.0);
        w.mine(way).weigh(way, false, x.mask.exclusive, 0, n, q, w.weighed, w.between);
        Kernel::transpose(qt, kernel::tile<const Real>(w.weighed.top(n)));
        std::fill_n(w.between, Dk, 1.0);
        const auto any_left = [](double decay) { return static_cast<Real>(decay) > 0; };
        const index_t away = way == direction::forward ? -1 : 1;
        for (index_t jb = ib + away; jb >= 0 && jb < blocks_in(L) && std::any_of(w.between, w.between + Dk, any_left); jb += away)
          add_block(jb, [&](kernel::tile<const Real> k, const kernel::tile<Real>& A) {
            w.theirs.fill(x, way, jb * block, k.rows);
            w.theirs.weigh(way, true, false, 0, k.rows, k, w.weighed, w.between);
            Kernel::score(A, w.weighed.top(k.rows), qt, kernel::rank_one<Real>{w.ones, w.ones}, z);
          });
      }
      for (index_t i = 0; i < n; ++i) w.z[i] = static_cast<Real>(w.sums[i]);
      const auto y = kernel::results<Kernel>(x.y.slice(first, n), w.N);  // (n, Dv)
      finish<Kernel>(x, first, y, w.z, w.out, norm, [&] { Kernel::scale(y, w.out, N); });
    }
  }

  channel_gradient gradient() const { return {.recompute = true}; }

 private:
  /// Computes the scores between the tokens of one block, piece of queries by piece of queries.
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void score_own_block(const head<T>& x, kernel::operand<Real> q, kernel::operand<Real> k,
                                            const kernel::tile<Real>& A, Real* z, scratch<Kernel, Real>& w) {
    constexpr index_t piece = channel_block<Kernel, Real>::piece;
    const index_t n = q.rows, Dk = q.columns;
    kernel::clear(A);
    for (index_t at = 0; at < n; at += piece) {
      const index_t m = (std::min)(piece, n - at);
      Real* const sums = z == nullptr ? z : z + at;
      const kernel::tile<Real> up = w.forward.decays(at, m), down = w.backward.decays(at, m);  // (m + 1, Dk)
      const kernel::tile<const Real> hidden;
      Kernel::score_channels(kernel::tile<Real>{A.row(at) + at, m, m, A.stride}, sums, rows_from(k, at, m), rows_from(q, at, m),
                             x.direction == direction::backward ? hidden : up, x.direction == direction::forward ? hidden : down,
                             w.own, x.mask.exclusive);
      for (const direction way : {direction::forward, direction::backward}) {
        const index_t from = way == direction::forward ? 0 : at + m, keys = way == direction::forward ? at : n - from;
        if (x.direction == other(way) || keys == 0) continue;
        const kernel::tile<Real> qt{w.qt.data, Dk, m, w.qt.stride};  // (Dk, m)
        std::fill_n(w.between, Dk, 1.0);
        w.mine(way).weigh(way, false, x.mask.exclusive, at, m, q, w.weighed, w.between);
        Kernel::transpose(qt, kernel::tile<const Real>(rows_from(w.weighed, at, m)));
        std::fill_n(w.between, Dk, 1.0);
        w.mine(way).weigh(way, true, false, from, keys, k, w.weighed, w.between);
        Kernel::score(kernel::tile<Real>{A.row(from) + at, keys, m, A.stride}, rows_from(w.weighed, from, keys), qt,
                      kernel::rank_one<Real>{w.ones, w.ones}, sums);
      }
    }
  }
};

template <>
struct engine_of<full, memory::channels> {
  static constexpr bool carries_states = false;
  static full_channels of(const full&) { return {}; }
};

template <>
struct engine_of<full, memory::exclusive_channels> : engine_of<full, memory::channels> {};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
