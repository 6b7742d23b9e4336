// SPDX-License-Identifier: Apache-2.0
// The weights of levels of one block of tokens, which multiply the weights that come from gaps.
#pragma once

#include <bila/config.hpp>
#include <bila/form/decays.hpp>
#include <bila/form/head_gradient.hpp>
#include <bila/form/level_states.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The number of levels that pairs of L tokens have: level 0 for a token and itself, and bit_width(L - 1) others.
inline index_t levels_in(index_t L) { return bits_in(std::max<index_t>(L, 1) - 1) + 1; }

/// The weights w_i[l] of the queries of one block, level by level. Inside the block tokens may count from the block's start: levels
/// stay the same, because the block starts at a multiple of a power of two that is at least its length.
template <class Kernel, class Real>
struct level_weights {
  level_weights(kernel::arena& memory, index_t tokens, index_t levels)
      : fetched(memory.padded<Kernel, Real>(tokens, levels)),
        forward(memory.padded<Kernel, Real>(levels, tokens)),
        backward(memory.padded<Kernel, Real>(levels, tokens)),
        sums(memory.padded<Kernel, Real>(levels_in(tokens), tokens)) {
    if (fetched.data != nullptr) kernel::clear(fetched);
  }

  const kernel::tile<Real>& way(direction w) const { return w == direction::forward ? forward : backward; }
  const Real* of(direction w, index_t level) const { return way(w).row(level); }

  /// Reads the weights of tokens [first, first + n) on levels [0, levels).
  template <class T>
  BILA_NOINLINE void fetch(const head<T>& x, direction w, index_t first, index_t n, index_t levels) const {
    x.mask.level_weights(w, first, n, levels, fetched.data, fetched.stride);
    const kernel::tile<Real> to{way(w).data, levels, n, way(w).stride};
    Kernel::transpose(to, kernel::tile<Real>{fetched.data, n, levels, fetched.stride});
  }

  /// The weight of token i on itself.
  template <class T>
  Real own(const head<T>& x, index_t i) const {
    if (x.direction != direction::both) return way(x.direction).data[i];
    return (forward.data[i] + backward.data[i]) / 2;
  }

  /// Multiplies the weights M_ji of pairs inside the block by those of their levels.
  template <class T>
  BILA_NOINLINE void weigh(const head<T>& x, const kernel::tile<Real>& M) const {
    for (const direction w : {direction::forward, direction::backward})
      if (x.direction != other(w)) Kernel::weigh_levels(M, block_of(w, M.rows), w);
    for (index_t i = 0; i < M.rows; ++i) M.row(i)[i] *= own(x, i);
  }

  /// Adds the gradient of the weights that pairs inside the block have. Then multiplies A, G and E, which score_gradient computed
  /// without these weights, by them.
  template <class T>
  BILA_NOINLINE void weigh_gradient(const head<T>& x, const head_gradient<T>& g, index_t first, const kernel::tile<Real>& A,
                                    const kernel::tile<Real>& G, const kernel::tile<Real>& E) const {
    const index_t n = E.rows, levels = levels_in(n);
    const Real half = static_cast<Real>(x.direction == direction::both ? x.diagonal / 2 : x.diagonal);
    for (const direction w : {direction::forward, direction::backward}) {
      if (x.direction == other(w)) continue;
      if (const rows<Real>& to = g.own(w); to.data != nullptr) {
        const kernel::tile<Real> D{sums.data, levels, n, sums.stride};  // (levels, n)
        Kernel::sum_levels(D, E, w);
        for (index_t i = 0; i < n; ++i) {
          to(first + i, 0) += half * E.row(i)[i];
          for (index_t l = 1; l < levels; ++l) to(first + i, l) += D.row(l)[i];
        }
      }
    }
    weigh(x, A);
    weigh(x, G);
    weigh(x, E);
  }

  kernel::tile<Real> fetched;            // (tokens, levels)
  kernel::tile<Real> forward, backward;  // (levels, tokens)
  kernel::tile<Real> sums;               // (levels of the block, tokens) gradients

 private:
  kernel::tile<const Real> block_of(direction w, index_t n) const { return {way(w).data, levels_in(n), n, way(w).stride}; }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
