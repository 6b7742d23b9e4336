// SPDX-License-Identifier: Apache-2.0
// Division by the row sum: eps belongs to the sum without the scale, so the scale cancels.
#include "support/catch.hpp"
#include "support/refusal.hpp"

#include <bila/norm/row_sum.hpp>

#include <cmath>
#include <limits>

TEST_CASE("y = N / (Z + eps), whatever the scale") {
  STATIC_REQUIRE(bila::norm::row_sum::uses_row_sum);
  for (const double scale : {1.0, 0.125, -2.0, 0.0})
    for (const double Z : {4.0, -0.75, 1e-9}) {
      const auto row = bila::norm::row_sum{0.5}(Z, scale);
      CHECK(row.factor == 1);
      CHECK(row.divisor == Z + 0.5);
    }
  CHECK(bila::norm::row_sum{}(0.0, 1.0).divisor == 0);
  CHECK(bila::norm::row_sum{0.5}(-0.5f, 1.0f).divisor == 0);
}

TEST_CASE("eps is finite and not negative") {
  using test::has_all;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(bila::norm::row_sum{0}.validate().empty());
  CHECK(bila::norm::row_sum{1e-6}.validate().empty());
  CHECK(has_all(bila::norm::row_sum{-1e-6}.validate(), {"eps", "-1e-06"}));
  CHECK(has_all(bila::norm::row_sum{infinity}.validate(), {"eps", "inf"}));
  CHECK(has_all(bila::norm::row_sum{std::nan("")}.validate(), {"eps", "nan"}));
}
