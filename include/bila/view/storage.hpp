// SPDX-License-Identifier: Apache-2.0
// The types in which tensors are stored, and the type in which a call computes. 16-bit types are storage only: numbers are widened
// to float when read and rounded once, to nearest even, when written. Layouts are those of CUDA's __nv_bfloat16 and __half.
#pragma once

#include <bila/config.hpp>

#include <bit>
#include <concepts>
#include <cstdint>

namespace bila {
inline namespace v0_1 {

/// The upper half of a float: 8 bits of exponent, 7 of fraction.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;

  BILA_ALWAYS_INLINE constexpr explicit bf16(float x) {
    const auto word = std::bit_cast<std::uint32_t>(x);
    const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);             // round to nearest, ties to even
    bits = static_cast<std::uint16_t>(nan ? (word >> 16) | 0x40u : rounded >> 16);  // a NaN stays a (quiet) NaN
  }

  BILA_ALWAYS_INLINE constexpr operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE binary16: 5 bits of exponent, 10 of fraction; overflows to infinity above 65504.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;

  BILA_ALWAYS_INLINE constexpr explicit f16(float x) {
    const auto word = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (word >> 16) & 0x8000u, size = word & 0x7fffffffu;
    std::uint32_t half = 0;
    if (size > 0x7f800000u) {
      half = 0x7e00u | ((size >> 13) & 0x3ffu);  // NaN, quiet
    } else if (size >= 0x477ff000u) {
      half = 0x7c00u;  // 65520 and above round to infinity
    } else if (size >= 0x38800000u) {
      half = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;  // normal: rebias the exponent, round
    } else {
      // Below 2^-14 a half is a multiple of 2^-24, the worth of the last bit of 0.5f. So adding 0.5 rounds correctly.
      half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
    }
    bits = static_cast<std::uint16_t>(sign | half);
  }

  BILA_ALWAYS_INLINE constexpr operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    std::uint32_t word = 0;
    if (size >= 0x7c00u)
      word = 0x7f800000u | ((size & 0x3ffu) << 13);
    else if (size >= 0x400u)
      word = (size << 13) + 0x38000000u;
    else
      word = std::bit_cast<std::uint32_t>(static_cast<float>(size) * 0x1p-24f);
    return std::bit_cast<float>(sign | word);
  }
};

/// The types in which q, k, v and y may be stored.
template <class T>
concept storage = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, bf16> || std::same_as<T, f16>;

namespace detail {

template <class T>
struct arithmetic {
  using type = float;
};

template <>
struct arithmetic<double> {
  using type = double;
};

}  // namespace detail

/// The type of arithmetic, states and row sums for tensors of T: float, or double for double. real_of is defined for every T, so
/// that the entry points can refuse other types with a message of their own.
template <class T>
using real_of = typename detail::arithmetic<T>::type;

}  // namespace v0_1
}  // namespace bila
