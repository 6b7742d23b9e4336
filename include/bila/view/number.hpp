// SPDX-License-Identifier: Apache-2.0
// Tests of a number that also work with -ffast-math. This flag lets a compiler assume that no number is NaN or infinite, so the
// tests read the bits of a number.
#pragma once

#include <bila/config.hpp>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace detail {

/// The bits without the sign: equal to infinity_bits for infinity, smaller for finite numbers, larger for NaN.
BILA_ALWAYS_INLINE constexpr std::uint64_t size_bits(double x) { return std::bit_cast<std::uint64_t>(x) & 0x7fffffffffffffffu; }
inline constexpr std::uint64_t infinity_bits = 0x7ff0000000000000u;

BILA_ALWAYS_INLINE constexpr bool is_nan(double x) { return size_bits(x) > infinity_bits; }
BILA_ALWAYS_INLINE constexpr bool is_finite(double x) { return size_bits(x) < infinity_bits; }

/// Whether x is the logarithm of a decay <= 1, or -inf. Rounding may give x slightly above zero, so x up to 1e-6 is accepted.
BILA_ALWAYS_INLINE constexpr bool is_log_decay(double x) { return x <= 1e-6 && !is_nan(x); }

/// Whether n numbers are log decays. The loop compares integers, so that compilers vectorise it: a loop over is_log_decay takes as
/// long as a third of the forward pass.
BILA_ALWAYS_INLINE bool are_log_decays(const float* x, std::int64_t n) {
  const std::uint32_t largest = std::bit_cast<std::uint32_t>(1e-6f), sign = 0x80000000u, infinity = 0x7f800000u;
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(x[i]);
    bad |= static_cast<std::uint32_t>(bits > largest) & static_cast<std::uint32_t>(bits - sign > infinity);
  }
  return bad == 0;
}

template <class T>
bool are_log_decays(const T* x, std::int64_t n) {
  bool good = true;
  for (std::int64_t i = 0; i < n; ++i) good = good && is_log_decay(static_cast<double>(x[i]));
  return good;
}

// The comparison is exact on purpose. The pragmas silence -Wfloat-equal in builds that include bila.
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wfloat-equal"
#endif
template <class Real>
BILA_SHARED constexpr bool is_exactly(Real x, std::type_identity_t<Real> value) {
  return x == value;
}
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

}  // namespace detail
}  // namespace v0_1
}  // namespace bila
