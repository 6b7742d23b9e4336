// SPDX-License-Identifier: Apache-2.0
// Tiles, what the kernels compute on, and how tokens get into them and out of them.
#pragma once

#include <bila/config.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace kernel {
inline namespace BILA_UNIT {

constexpr index_t round_up(index_t n, index_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// A row-major matrix in the workspace or in the user's memory.
///
/// Padded tiles have `stride` a multiple of Kernel::lanes<Real>; the columns from `columns` up to the next multiple are zero and
/// may be read and written with the rest. Vectors reach to the end of the last packet too; along features (s, h), and a and b of
/// score_gradient, they are zero there, elsewhere it does not matter.
template <class Real>
struct tile {
  Real* data = nullptr;
  index_t rows = 0, columns = 0;
  index_t stride = 0;

  constexpr Real* row(index_t i) const { return data + i * stride; }

  constexpr tile top(index_t n) const { return {data, n, columns, stride}; }

  constexpr operator tile<const Real>() const requires(!std::is_const_v<Real>) { return {data, rows, columns, stride}; }
};

/// An argument whose type follows from the tile that the verb writes. Tiles go by reference into a verb and by value into its
/// innermost loops: to copy one that was written a moment ago stalls the processor (1.5 to 4 % of a chunk), and a loop would read
/// a reference again after each store.
template <class T>
using argument = const std::type_identity_t<T>&;

/// A tile that a verb only reads.
template <class Real>
using operand = argument<tile<const Real>>;

/// For a verb that reads it between stores.
template <class Real>
using operand_copy = std::type_identity_t<tile<const Real>>;

/// What stands for a tile that is not wanted.
template <class Real>
inline constexpr tile<Real> no_tile{};

/// A tile of one row; of none where x is null.
template <class Real>
constexpr tile<const Real> one_row(const Real* x, index_t columns) {
  return {x, x == nullptr ? 0 : 1, columns, columns};
}

/// Sets a padded tile to zero, the rest of its packets included.
template <class Real>
void clear(tile<Real> x) {
  std::fill_n(x.data, x.rows * x.stride, Real(0));
}

/// Reads tokens into a padded tile, widening what is stored in fewer bits.
template <class Real, class T>
BILA_NOINLINE void load(const tile<Real>& to, const rows<const T>& from) {
  for (index_t i = 0; i < from.count; ++i) {
    if (from.column_stride == 1 && from.width > 0)  // nothing may have no address
      std::transform(&from(i, 0), &from(i, 0) + from.width, to.row(i), [](T x) { return static_cast<Real>(x); });
    else
      for (index_t d = 0; d < from.width; ++d) to.row(i)[d] = static_cast<Real>(from(i, d));
    std::fill(to.row(i) + from.width, to.row(i) + to.stride, Real(0));
  }
}

/// Writes a tile to tokens: each number is rounded once.
template <class T, class Real>
BILA_NOINLINE void store(const rows<T>& to, const tile<Real>& from) {
  if constexpr (std::is_same_v<T, Real>)
    if (to.data == from.data) return;  // it is there already
  for (index_t i = 0; i < to.count; ++i)
    if (to.column_stride == 1 && to.width > 0)  // nothing may have no address
      std::transform(from.row(i), from.row(i) + to.width, &to(i, 0), [](Real x) { return static_cast<T>(x); });
    else
      for (index_t d = 0; d < to.width; ++d) to(i, d) = static_cast<T>(from.row(i)[d]);
}

/// Tokens as a padded tile: the user's memory if its rows are whole packets, else a copy.
template <class Kernel, class Real, class T>
tile<const Real> whole_packets(rows<const T> from, tile<Real> scratch) {
  if constexpr (std::is_same_v<T, Real>)
    if (from.column_stride == 1 && from.width % Kernel::template lanes<Real> == 0)
      return {from.data, from.count, from.width, from.row_stride};
  load(scratch.top(from.count), from);
  return scratch.top(from.count);
}

/// Where a kernel writes whole rows for tokens: their own memory if the rows are whole packets, else scratch, from which `store`
/// copies them.
template <class Kernel, class Real, class T>
tile<Real> results(rows<T> to, tile<Real> scratch) {
  if constexpr (std::is_same_v<T, Real>)
    if (to.column_stride == 1 && to.width % Kernel::template lanes<Real> == 0) return {to.data, to.count, to.width, to.row_stride};
  return scratch.top(to.count);
}

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila
