// SPDX-License-Identifier: Apache-2.0
// Division by the row sum where it exceeds one.
#include "support/catch.hpp"

#include <bila/norm/max_one.hpp>

#include <cmath>

TEST_CASE("y = s N / max(|s Z|, 1)") {
  STATIC_REQUIRE(bila::norm::max_one::uses_row_sum);
  const bila::norm::max_one norm;
  const auto weight = [&](double Z, double scale) { return norm(Z, scale).factor / norm(Z, scale).divisor; };
  CHECK(weight(0.5, 1) == 1);
  CHECK(weight(1, 1) == 1);
  CHECK(weight(4, 1) == 0.25);
  CHECK(weight(-4, 1) == 0.25);
  CHECK(weight(4, 0.125) == 0.125);  // |s Z| = 1/2: only the scale is left
  CHECK(weight(4, 0.5) == 0.5 / 2);
  CHECK(weight(4, -0.5) == -0.5 / 2);
  CHECK(weight(0, 3) == 3);
}

TEST_CASE("a row sum that is NaN is not hidden") {
  const auto row = bila::norm::max_one{}(std::nan(""), 1.0);
  CHECK(std::isnan(row.divisor));
}
