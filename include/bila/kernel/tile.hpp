// SPDX-License-Identifier: Apache-2.0
// Tiles, on which the kernels compute, and the functions that copy tokens into tiles and back.
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
/// The `stride` of a padded tile is a multiple of Kernel::lanes<Real>. The columns from `columns` up to the next multiple are zero,
/// and may be read and written with the others. Arrays of numbers (`Real*`) also reach to the end of their last packet. This
/// padding is zero in arrays along features (s of a state, h and e of gather) and in row_slopes, and has any value in other arrays.
template <class Real>
struct tile {
  Real* data = nullptr;
  index_t rows = 0, columns = 0;
  index_t stride = 0;

  constexpr Real* row(index_t i) const { return data + i * stride; }

  constexpr tile top(index_t n) const { return {data, n, columns, stride}; }

  constexpr operator tile<const Real>() const requires(!std::is_const_v<Real>) { return {data, rows, columns, stride}; }
};

/// An argument whose type follows from the tile that the verb writes. A verb takes tiles by reference, because copying a tile that
/// was written a moment ago stalls the processor (1.5 to 4 % of a chunk). Innermost loops take tiles by value, because a loop would
/// read a reference again after each store.
template <class T>
using argument = const std::type_identity_t<T>&;

/// A tile that a verb only reads.
template <class Real>
using operand = argument<tile<const Real>>;

/// A tile that a verb reads between its stores.
template <class Real>
using operand_copy = std::type_identity_t<tile<const Real>>;

/// The argument for a tile that is not wanted.
template <class Real>
inline constexpr tile<Real> no_tile{};

/// A tile of one row, or of no rows if x is null.
template <class Real>
constexpr tile<const Real> one_row(const Real* x, index_t columns) {
  return {x, x == nullptr ? 0 : 1, columns, columns};
}

/// Sets a padded tile to zero, padding included.
template <class Real>
void clear(tile<Real> x) {
  std::fill_n(x.data, x.rows * x.stride, Real(0));
}

/// Copies tokens into a padded tile, and widens numbers that are stored in fewer bits than Real has.
template <class Real, class T>
BILA_NOINLINE void load(const tile<Real>& to, const rows<const T>& from) {
  for (index_t i = 0; i < from.count; ++i) {
    if (from.column_stride == 1 && from.width > 0)  // an empty row may have no address
      std::transform(&from(i, 0), &from(i, 0) + from.width, to.row(i), [](T x) { return static_cast<Real>(x); });
    else
      for (index_t d = 0; d < from.width; ++d) to.row(i)[d] = static_cast<Real>(from(i, d));
    std::fill(to.row(i) + from.width, to.row(i) + to.stride, Real(0));
  }
}

/// Copies a tile to tokens, and rounds each number once.
template <class T, class Real>
BILA_NOINLINE void store(const rows<T>& to, const tile<Real>& from) {
  if constexpr (std::is_same_v<T, Real>)
    if (to.data == from.data) return;  // the kernel wrote to the tokens' memory
  for (index_t i = 0; i < to.count; ++i)
    if (to.column_stride == 1 && to.width > 0)  // an empty row may have no address
      std::transform(from.row(i), from.row(i) + to.width, &to(i, 0), [](Real x) { return static_cast<T>(x); });
    else
      for (index_t d = 0; d < to.width; ++d) to(i, d) = static_cast<T>(from.row(i)[d]);
}

/// Tokens as a padded tile: in the user's memory if the rows are whole packets, else as a copy in scratch.
template <class Kernel, class Real, class T>
tile<const Real> whole_packets(rows<const T> from, tile<Real> scratch) {
  if constexpr (std::is_same_v<T, Real>)
    if (from.column_stride == 1 && from.width % Kernel::template lanes<Real> == 0)
      return {from.data, from.count, from.width, from.row_stride};
  load(scratch.top(from.count), from);
  return scratch.top(from.count);
}

/// The tile to which a kernel writes whole rows of tokens: the tokens' memory if the rows are whole packets, else scratch, from
/// which `store` copies the rows.
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
