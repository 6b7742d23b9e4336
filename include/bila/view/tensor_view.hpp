// SPDX-License-Identifier: Apache-2.0
// Non-owning strided views: a rank 4 tensor [batch, head, length, feature] and the rows of one of its heads.
// Strides are 64-bit, count elements, and may be negative or zero. Nothing here depends on attention.
#pragma once

#include <bila/config.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace bila {
inline namespace v0_1 {

using index_t = std::int64_t;

/// One number for each axis of a tensor. std::array is not used, because a GPU kernel may not call its members.
struct per_axis {
  index_t number[4];

  BILA_SHARED constexpr index_t& operator[](std::size_t axis) { return number[axis]; }
  BILA_SHARED constexpr const index_t& operator[](std::size_t axis) const { return number[axis]; }
  BILA_SHARED constexpr index_t* begin() { return number; }
  BILA_SHARED constexpr index_t* end() { return number + 4; }
  BILA_SHARED constexpr const index_t* begin() const { return number; }
  BILA_SHARED constexpr const index_t* end() const { return number + 4; }

  friend constexpr bool operator==(const per_axis&, const per_axis&) = default;
};

/// A [batch, head, length, feature] tensor in memory that the view does not own.
///
///     x(b, h, l, d) = data[b strides[0] + h strides[1] + l strides[2] + d strides[3]]
template <class T>
struct tensor_view {
  T* data = nullptr;
  per_axis extents{};
  per_axis strides{};  // elements

  BILA_SHARED constexpr index_t batches() const { return extents[0]; }
  BILA_SHARED constexpr index_t heads() const { return extents[1]; }
  BILA_SHARED constexpr index_t length() const { return extents[2]; }
  BILA_SHARED constexpr index_t features() const { return extents[3]; }

  BILA_SHARED constexpr bool empty() const { return extents[0] == 0 || extents[1] == 0 || extents[2] == 0 || extents[3] == 0; }

  BILA_SHARED constexpr T& operator()(index_t b, index_t h, index_t l, index_t d) const {
    return data[b * strides[0] + h * strides[1] + l * strides[2] + d * strides[3]];
  }

  // A template, because nvcc warns about a conversion from a view of const to itself even if `requires` excludes it.
  template <class U>
  requires(!std::is_const_v<T> && std::is_same_v<U, const T>) BILA_SHARED constexpr operator tensor_view<U>() const {
    return {data, extents, strides};
  }
};

namespace detail {
inline namespace BILA_UNIT {

/// Returns the product modulo 2^64, because signed overflow is undefined. A call refuses a view whose shape is that large.
BILA_SHARED constexpr index_t times(index_t a, index_t b) {
  return static_cast<index_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

}  // namespace BILA_UNIT
}  // namespace detail

/// A view of a contiguous [batch, head, length, feature] tensor.
template <class T>
BILA_SHARED constexpr tensor_view<T> bhld(T* data, index_t B, index_t H, index_t L, index_t D) {
  const index_t head = detail::times(L, D);
  return {data, {B, H, L, D}, {detail::times(H, head), head, D, 1}};
}

/// A view with the axes of bhld over memory laid out [batch, length, head, feature].
template <class T>
BILA_SHARED constexpr tensor_view<T> blhd(T* data, index_t B, index_t L, index_t H, index_t D) {
  const index_t token = detail::times(H, D);
  return {data, {B, H, L, D}, {detail::times(L, token), D, token, 1}};
}

/// A view of one number per token, such as a gate, in contiguous memory [batch, head, length].
template <class T>
BILA_SHARED constexpr tensor_view<T> bhl(T* data, index_t B, index_t H, index_t L) {
  return {data, {B, H, L, 1}, {detail::times(H, L), L, 1, 1}};
}

/// A view of one number per token in memory laid out [batch, length, head].
template <class T>
BILA_SHARED constexpr tensor_view<T> blh(T* data, index_t B, index_t L, index_t H) {
  return {data, {B, H, L, 1}, {detail::times(L, H), 1, H, 1}};
}

/// A view of one number per head in contiguous memory [head].
template <class T>
BILA_SHARED constexpr tensor_view<T> vec(T* data, index_t H) {
  return {data, {1, H, 1, 1}, {0, 1, 1, 1}};
}

/// The tokens of one head: `count` rows of `width` features.
template <class T>
struct rows {
  T* data = nullptr;
  index_t count = 0, width = 0;
  index_t row_stride = 0, column_stride = 0;  // elements

  BILA_SHARED constexpr T& operator()(index_t i, index_t d) const { return data[i * row_stride + d * column_stride]; }

  BILA_SHARED constexpr rows slice(index_t first, index_t n) const {
    return {data + first * row_stride, n, width, row_stride, column_stride};
  }

  BILA_SHARED constexpr rows columns(index_t first, index_t n) const {
    return {data == nullptr ? nullptr : data + first * column_stride, count, n, row_stride, column_stride};
  }

  template <class U>
  requires(!std::is_const_v<T> && std::is_same_v<U, const T>) BILA_SHARED constexpr operator rows<U>() const {
    return {data, count, width, row_stride, column_stride};
  }
};

/// Tokens [first, first + count) of head h of batch row b.
template <class T>
BILA_SHARED constexpr rows<T> head_rows(const tensor_view<T>& x, index_t b, index_t h, index_t first, index_t count) {
  if (x.data == nullptr || count == 0) return {nullptr, count, x.features(), x.strides[2], x.strides[3]};
  return {&x(b, h, first, 0), count, x.features(), x.strides[2], x.strides[3]};
}

}  // namespace v0_1
}  // namespace bila
