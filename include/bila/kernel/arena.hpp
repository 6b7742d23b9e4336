// SPDX-License-Identifier: Apache-2.0
// Scratch memory: a form lays out its tiles in an arena. The same code, run on an arena without memory, says how much is needed.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace bila::inline v0_1::kernel::inline BILA_UNIT {

class arena {
 public:
  static constexpr std::size_t alignment = 64;  // bytes: a cache line, and the widest packet

  /// An arena that only counts.
  arena() = default;
  explicit arena(std::byte* aligned_memory) : base_(aligned_memory) {}

  std::size_t used() const { return used_; }

  /// The next bytes, a multiple of the alignment.
  std::byte* take(std::size_t bytes) {
    std::byte* const result = base_ == nullptr ? nullptr : base_ + used_;
    used_ += bytes;
    return result;
  }

  /// Room for n numbers and the rest of the last packet; the content is whatever was there.
  template <class Kernel, class Real>
  Real* numbers(index_t n) {
    const auto count = static_cast<std::size_t>(round_up(n, Kernel::template lanes<Real>));
    Real* result = base_ == nullptr ? nullptr : reinterpret_cast<Real*>(base_ + used_);
    used_ += (count * sizeof(Real) + alignment - 1) / alignment * alignment;
    return result;
  }

  /// The same, all zero: for a vector whose last packet is computed with, whole, before all of it is written.
  template <class Kernel, class Real>
  Real* zeros(index_t n) {
    Real* const result = numbers<Kernel, Real>(n);
    if (result != nullptr) std::fill_n(result, round_up(n, Kernel::template lanes<Real>), Real(0));
    return result;
  }

  /// A padded tile; the content is whatever was there. Rows 512 bytes apart would share an eighth of the first cache's sets.
  template <class Kernel, class Real>
  tile<Real> padded(index_t rows, index_t columns) {
    constexpr index_t lanes = Kernel::template lanes<Real>;
    index_t stride = round_up(columns, lanes);
    if (stride * static_cast<index_t>(sizeof(Real)) % 512 == 0) stride += lanes;
    return {numbers<Kernel, Real>(rows * stride), rows, columns, stride};
  }

 private:
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
};

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

/// Writes a tile to tokens: the one rounding of a result.
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
tile<const Real> whole_packets(rows<const T> from, tile<Real> room) {
  if constexpr (std::is_same_v<T, Real>)
    if (from.column_stride == 1 && from.width % Kernel::template lanes<Real> == 0)
      return {from.data, from.count, from.width, from.row_stride};
  load(room.top(from.count), from);
  return room.top(from.count);
}

/// Where a kernel may leave whole rows for tokens: their own memory if the rows are whole packets, else the room; then `store`
/// them.
template <class Kernel, class Real, class T>
tile<Real> results(rows<T> to, tile<Real> room) {
  if constexpr (std::is_same_v<T, Real>)
    if (to.column_stride == 1 && to.width % Kernel::template lanes<Real> == 0) return {to.data, to.count, to.width, to.row_stride};
  return room.top(to.count);
}

}  // namespace bila::inline v0_1::kernel::inline BILA_UNIT
