// SPDX-License-Identifier: Apache-2.0
// One decay per head, whatever the token, the batch row and the direction.
#include "support/catch.hpp"
#include "support/refusal.hpp"

#include <bila/mask/fixed_decay.hpp>

#include <array>
#include <type_traits>

using bila::index_t;

TEST_CASE("the gap is the head's own number") {
  std::array<float, 3> log_decay{-0.5f, -1.25f, -3};
  const bila::mask::fixed_decay mask{bila::vec(log_decay.data(), 3)};
  STATIC_REQUIRE(std::is_same_v<decltype(mask), const bila::mask::fixed_decay<float>>);
  STATIC_REQUIRE(bila::mask::fixed_decay<float>::gaps == bila::gap::per_head);
  for (index_t h = 0; h < 3; ++h)
    for (index_t t = 1; t < 4; ++t) {
      CHECK(mask.log_forward(5, h, t) == static_cast<double>(log_decay[static_cast<std::size_t>(h)]));
      CHECK(mask.log_backward(5, h, t) == static_cast<double>(log_decay[static_cast<std::size_t>(h)]));
    }
}

TEST_CASE("it needs one number per head of y") {
  std::array<double, 4> log_decay{};
  using test::has_all;
  const bila::mask::fixed_decay mask{bila::vec(log_decay.data(), 4)};
  CHECK(mask.validate(2, 4, 9).empty());
  CHECK(has_all(mask.validate(2, 3, 9), {"log_decay", "[1, 4, 1, 1]", "[1, 3, 1, 1]"}));
  CHECK(has_all(bila::mask::fixed_decay{bila::bhl(log_decay.data(), 1, 2, 2)}.validate(1, 2, 2),
                {"log_decay", "[1, 2, 2, 1]", "[1, 2, 1, 1]"}));
  CHECK(has_all(bila::mask::fixed_decay{bila::vec(static_cast<double*>(nullptr), 4)}.validate(1, 4, 9), {"log_decay", "null"}));
  CHECK(mask.parameter_of(bila::direction::backward, 1, 3, 7) == "log_decay[h = 3]");
  CHECK(std::get<0>(mask.parameters()).data == log_decay.data());
}
