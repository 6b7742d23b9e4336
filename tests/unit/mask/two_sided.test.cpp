// SPDX-License-Identifier: Apache-2.0
// The mask that is its gaps.
#include "support/catch.hpp"
#include "support/refusal.hpp"

#include <bila/mask/two_sided.hpp>

#include <type_traits>
#include <vector>

using bila::index_t;

TEST_CASE("each direction has its own numbers, of its own type") {
  std::vector<double> f(24), b(24);
  for (std::size_t n = 0; n < f.size(); ++n) f[n] = -static_cast<double>(n), b[n] = -100 - static_cast<double>(n);
  const bila::mask::two_sided mask{bila::bhl(f.data(), 2, 3, 4), bila::bhl(b.data(), 2, 3, 4)};
  STATIC_REQUIRE(std::is_same_v<decltype(mask), const bila::mask::two_sided<double>>);
  STATIC_REQUIRE(bila::mask::two_sided<double>::gaps == bila::gap::per_token);
  for (index_t t = 1; t < 4; ++t) {
    CHECK(mask.log_forward(1, 2, t) == -static_cast<double>((1 * 3 + 2) * 4 + t));
    CHECK(mask.log_backward(1, 2, t) == -100 - static_cast<double>((1 * 3 + 2) * 4 + t));
  }
}

TEST_CASE("both shapes are checked, by name") {
  using test::has_all;
  std::vector<float> memory(24);
  const auto right = bila::bhl(memory.data(), 2, 3, 4), wrong = bila::bhl(memory.data(), 1, 3, 4);
  CHECK(bila::mask::two_sided{right, right}.validate(2, 3, 4).empty());
  CHECK(has_all(bila::mask::two_sided{wrong, right}.validate(2, 3, 4), {"log_forward", "[1, 3, 4, 1]", "[2, 3, 4, 1]"}));
  CHECK(has_all(bila::mask::two_sided{right, wrong}.validate(2, 3, 4), {"log_backward", "[1, 3, 4, 1]", "[2, 3, 4, 1]"}));
  const bila::mask::two_sided mask{right, right};
  CHECK(mask.parameter_of(bila::direction::forward, 1, 2, 3) == "log_forward[b = 1, h = 2, t = 3]");
  CHECK(mask.parameter_of(bila::direction::backward, 0, 1, 2) == "log_backward[b = 0, h = 1, t = 2]");
  CHECK(std::tuple_size_v<decltype(mask.parameters())> == 2);
}
