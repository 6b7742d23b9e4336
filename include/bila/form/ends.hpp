// SPDX-License-Identifier: Apache-2.0
// The weights of keys, as a form applies them: all sums are kept relative to their largest weight (MATH.md 6.1).
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/arena.hpp>
#include <bila/kernel/scan.hpp>
#include <bila/kernel/tile.hpp>
#include <bila/view/direction.hpp>

#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// What the tokens of one head are multiplied by where their keys have log weights w. With mu_i the largest log weight in the state
/// of a direction after token i, decays included, and m_i the larger one of both directions:
///
///     decay of gap i = e^{f_i + mu_{i-1} - mu_i},   write_j = e^{w_j - mu_j},   read_i = e^{mu_i - m_i},   own_i = e^{w_i - m_i}
///
/// All of them are at most one. The rows that a form computes with them are e^{-m_i} times the true ones, and unit_i = e^{-m_i}.
template <class Real>
struct key_ends {
  template <class Kernel>
  key_ends(kernel::arena& memory, index_t L, std::type_identity<Kernel>)
      : forward(memory.numbers<Kernel, double>(L + 1)),
        backward(memory.numbers<Kernel, double>(L + 1)),
        write_forward(memory.numbers<Kernel, Real>(L)),
        write_backward(memory.numbers<Kernel, Real>(L)),
        read_forward(memory.numbers<Kernel, Real>(L)),
        read_backward(memory.numbers<Kernel, Real>(L)),
        own(memory.numbers<Kernel, Real>(L)),
        unit(memory.numbers<Kernel, Real>(L)) {}

  double* decays(direction way) const { return way == direction::forward ? forward : backward; }
  Real* write(direction way) const { return way == direction::forward ? write_forward : write_backward; }
  Real* read(direction way) const { return way == direction::forward ? read_forward : read_backward; }

  /// Multiplies the weights at the borders of tokens [first, first + n).
  BILA_NOINLINE void weigh_border(direction way, index_t first, index_t n, const kernel::border_weights<Real>& border) const {
    const Real *const reads = read(way) + first, *const writes = write(way) + first;
    for (index_t i = 0; i < n; ++i) {
      border.read[i] *= reads[i];
      border.write[i] *= writes[i];
    }
  }

  /// Multiplies the weights M_ji of keys j and queries i among tokens [first, first + M.rows).
  BILA_NOINLINE void weigh_block(index_t first, kernel::tile<Real> M) const {
    const Real *const up = read_forward + first, *const down = read_backward + first;
    const int n = static_cast<int>(M.rows);
    for (int j = 0; j < n; ++j) {
      Real* const row = M.row(j);
      const Real above = write_forward[first + j], below = write_backward[first + j], diagonal = row[j] * own[first + j];
      for (int i = 0; i < n; ++i) row[i] *= i > j ? above * up[i] : below * down[i];
      row[j] = diagonal;
    }
  }

  double *forward, *backward;  // (L + 1) decays of the gaps, between states that are relative to their largest weights
  Real *write_forward, *write_backward, *read_forward, *read_backward, *own, *unit;  // (L)
  double* sums = nullptr;  // (L) gradient with respect to w_j, to which a form adds; null: not wanted
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
