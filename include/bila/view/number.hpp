// SPDX-License-Identifier: Apache-2.0
// Questions about one number that are answered as asked, whatever the flags: -ffast-math lets a compiler take it that no number is
// NaN or infinite, so those are told by their bits.
#pragma once

#include <bila/config.hpp>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace bila::inline v0_1::detail {

/// The bits without the sign: those of infinity, or below for finite numbers, or above for NaN.
BILA_ALWAYS_INLINE constexpr std::uint64_t size_bits(double x) { return std::bit_cast<std::uint64_t>(x) & 0x7fffffffffffffffu; }
inline constexpr std::uint64_t infinity_bits = 0x7ff0000000000000u;

BILA_ALWAYS_INLINE constexpr bool is_nan(double x) { return size_bits(x) > infinity_bits; }
BILA_ALWAYS_INLINE constexpr bool is_finite(double x) { return size_bits(x) < infinity_bits; }

/// What a decay of at most one has for its logarithm, -inf included; rounding may leave it a little above zero.
BILA_ALWAYS_INLINE constexpr bool is_log_decay(double x) { return x <= 1e-6 && !is_nan(x); }

// By this name equality is meant, and -Wfloat-equal in the build of who includes bila says nothing.
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

}  // namespace bila::inline v0_1::detail
