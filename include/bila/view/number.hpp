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
