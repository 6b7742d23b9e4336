// SPDX-License-Identifier: Apache-2.0
// The mask of ones has no gaps.
#include "support/catch.hpp"

#include <bila/mask/all_ones.hpp>

#include <type_traits>

TEST_CASE("all gaps are free") {
  constexpr bila::mask::all_ones mask;
  STATIC_REQUIRE(bila::mask::all_ones::gaps == bila::gap::none);
  STATIC_REQUIRE(std::is_empty_v<bila::mask::all_ones>);
  for (bila::index_t t = 0; t < 3; ++t) {
    CHECK(mask.log_forward(1, 2, t) == 0);
    CHECK(mask.log_backward(1, 2, t) == 0);
  }
}
