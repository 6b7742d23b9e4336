// SPDX-License-Identifier: Apache-2.0
// The 16-bit types: every pattern, and every float near a tie, against the nearest number found by search.
#include "support/catch.hpp"
#include "support/random.hpp"

#include <bila/view/storage.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace {

using bila::bf16;
using bila::f16;

/// What a pattern stands for, from the definition of the format: sign, exponent, fraction.
template <class T>
double value_of(std::uint32_t bits) {
  constexpr int fraction_bits = std::is_same_v<T, bf16> ? 7 : 10, exponent_bits = 15 - fraction_bits;
  constexpr int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & top,
            fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  if (exponent == top)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

/// The pattern nearest to x >= 0, ties to even, found between neighbours; the one past the largest finite number is infinity, which
/// the format rounds to as if it were the next number.
template <class T>
std::uint16_t nearest(float x) {
  constexpr std::uint32_t infinity = std::is_same_v<T, bf16> ? 0x7f80u : 0x7c00u;
  if (std::isinf(x)) return static_cast<std::uint16_t>(infinity);
  std::uint32_t below = 0, above = infinity;
  while (above - below > 1) {
    const std::uint32_t middle = (below + above) / 2;
    (value_of<T>(middle) <= x ? below : above) = middle;
  }
  const double low = value_of<T>(below), high = above == infinity ? 2 * low - value_of<T>(below - 1) : value_of<T>(above);
  const double to_low = x - low, to_high = high - x;
  const bool up = to_high < to_low || (to_high == to_low && above % 2 == 0);
  return static_cast<std::uint16_t>(up ? above : below);
}

constexpr std::uint32_t infinity_of_float = 0x7f800000u;

}  // namespace

TEMPLATE_TEST_CASE("each of the 65536 patterns has its value, and comes back from float as itself", "", bf16, f16) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    TestType x;
    x.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(x);
    const double expected = value_of<TestType>(bits);
    const TestType back(wide);
    if (std::isnan(expected)) {
      const bool good = std::isnan(wide) && std::isnan(static_cast<float>(back)) && (back.bits & 0x8000u) == (bits & 0x8000u);
      if (!good) FAIL("NaN of bits " << bits << " became " << back.bits);
    } else if (static_cast<double>(wide) != expected || std::signbit(wide) != std::signbit(expected) || back.bits != bits) {
      FAIL("bits " << bits << " are " << wide << ", back to " << back.bits);
    }
  }
  SUCCEED();
}

TEMPLATE_TEST_CASE("rounding is to nearest, ties to even, near every pattern and halfway between each two", "", bf16, f16) {
  constexpr std::uint32_t patterns = std::is_same_v<TestType, bf16> ? 0x7f80u : 0x7c00u;
  for (std::uint32_t bits = 0; bits < patterns; ++bits) {
    const double low = value_of<TestType>(bits),
                 high = bits + 1 == patterns ? 2 * low - value_of<TestType>(bits - 1) : value_of<TestType>(bits + 1);
    const auto half = static_cast<float>(low + (high - low) / 2), third = static_cast<float>(low + (high - low) / 3);
    for (const float x : {static_cast<float>(low), std::nextafter(static_cast<float>(low), 0.0f), third, std::nextafter(half, 0.0f),
                          half, std::nextafter(half, std::numeric_limits<float>::infinity())}) {
      const std::uint16_t expected = nearest<TestType>(x);
      if (TestType(x).bits != expected || TestType(-x).bits != (expected | 0x8000u))
        FAIL(x << " became bits " << TestType(x).bits << ", not " << expected);
    }
  }
  SUCCEED();
}

TEMPLATE_TEST_CASE("floats of all sizes round to nearest", "", bf16, f16) {
  test::random_source random(4001);
  for (int n = 0; n < 200000; ++n) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()) & 0x7fffffffu);
    if (std::isnan(x)) {
      if (!std::isnan(static_cast<float>(TestType(x)))) FAIL("a NaN was lost");
    } else if (TestType(x).bits != nearest<TestType>(x)) {
      FAIL(x << " became bits " << TestType(x).bits);
    }
  }
  SUCCEED();
}

TEST_CASE("numbers at the ends of the formats") {
  CHECK(f16(65504.0f).bits == 0x7bffu);
  CHECK(f16(65519.996f).bits == 0x7bffu);
  CHECK(f16(65520.0f).bits == 0x7c00u);
  CHECK(f16(-1e30f).bits == 0xfc00u);
  CHECK(f16(0x1p-24f).bits == 1u);
  CHECK(f16(0x1p-25f).bits == 0u);  // a tie, to even
  CHECK(f16(std::nextafter(0x1p-25f, 1.0f)).bits == 1u);
  CHECK(f16(0x1.8p-24f).bits == 2u);
  CHECK(f16(0x1p-14f).bits == 0x400u);
  CHECK(f16(0x1.ff8p-15f).bits == 0x3ffu);
  CHECK(f16(0x1.ffcp-15f).bits == 0x400u);  // a tie, to even: to the first normal number
  CHECK(bf16(0x1.fep127f).bits == 0x7f7fu);
  CHECK(bf16(0x1.ffp127f).bits == 0x7f80u);
  CHECK(bf16(0x1.fefffep127f).bits == 0x7f7fu);
  CHECK(bf16(0x1p-133f).bits == 1u);
  CHECK(bf16(1.00390625f).bits == 0x3f80u);  // 1 + 2^-8, a tie
  CHECK(bf16(1.01171875f).bits == 0x3f82u);  // 1 + 3 2^-8, a tie
  CHECK(bf16(-0.0f).bits == 0x8000u);
  CHECK(f16(-0.0f).bits == 0x8000u);
}

TEMPLATE_TEST_CASE("NaN and infinity stay what they are, whatever their payload", "", bf16, f16) {
  for (std::uint32_t payload = 1; payload < 0x800000u; payload = payload * 3 / 2 + 1)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const TestType x(std::bit_cast<float>(sign | infinity_of_float | payload));
      CHECK(std::isnan(static_cast<float>(x)));
      CHECK((x.bits >> 15) == sign >> 31);
    }
  CHECK(static_cast<float>(TestType(std::numeric_limits<float>::infinity())) == std::numeric_limits<float>::infinity());
  CHECK(static_cast<float>(TestType(-std::numeric_limits<float>::infinity())) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("layout and arithmetic of the storage types") {
  STATIC_REQUIRE(sizeof(bf16) == 2);
  STATIC_REQUIRE(sizeof(f16) == 2);
  STATIC_REQUIRE(alignof(bf16) == 2);
  STATIC_REQUIRE(alignof(f16) == 2);
  STATIC_REQUIRE(std::is_trivially_copyable_v<bf16>);
  STATIC_REQUIRE(std::is_trivially_copyable_v<f16>);
  STATIC_REQUIRE(std::is_standard_layout_v<bf16>);
  STATIC_REQUIRE(std::is_standard_layout_v<f16>);
  STATIC_REQUIRE(bila::storage<bf16>);
  STATIC_REQUIRE(bila::storage<f16>);
  STATIC_REQUIRE(bila::storage<float>);
  STATIC_REQUIRE(bila::storage<double>);
  STATIC_REQUIRE_FALSE(bila::storage<int>);
  STATIC_REQUIRE_FALSE(bila::storage<long double>);
  STATIC_REQUIRE_FALSE(bila::storage<const float>);
  STATIC_REQUIRE(std::is_same_v<bila::real_of<bf16>, float>);
  STATIC_REQUIRE(std::is_same_v<bila::real_of<f16>, float>);
  STATIC_REQUIRE(std::is_same_v<bila::real_of<float>, float>);
  STATIC_REQUIRE(std::is_same_v<bila::real_of<double>, double>);
  // One is never taken for the other, nor made of a float by accident.
  STATIC_REQUIRE_FALSE(std::is_convertible_v<float, bf16>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<float, f16>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<f16, bf16>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<bf16, f16>);
  STATIC_REQUIRE(f16(1.5f).bits == 0x3e00u);  // at compile time
  STATIC_REQUIRE(static_cast<float>(bf16(-2.0f)) == -2.0f);
  CHECK(bf16{}.bits == 0);
}
