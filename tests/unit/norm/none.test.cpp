// SPDX-License-Identifier: Apache-2.0
// The norm that divides by nothing.
#include "support/catch.hpp"

#include <bila/norm/none.hpp>

TEST_CASE("none applies the scale and divides by one") {
  STATIC_REQUIRE_FALSE(bila::norm::none::uses_row_sum);
  for (const double Z : {-3.0, 0.0, 7.0}) {
    const auto row = bila::norm::none{}(Z, 0.25);
    CHECK(row.factor / row.divisor == 0.25);
  }
}
