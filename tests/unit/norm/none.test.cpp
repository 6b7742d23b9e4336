// SPDX-License-Identifier: Apache-2.0
// What a norm is, and the one that divides by nothing.
#include "support/catch.hpp"

#include <bila/norm/max_one.hpp>
#include <bila/norm/none.hpp>
#include <bila/norm/row_sum.hpp>

namespace {

struct own_norm {
  static constexpr bool uses_row_sum = true;
  template <class Real>
  bila::quotient<Real> operator()(Real Z, Real scale) const {
    return {scale, Z * Z};
  }
};

struct says_not_what_it_reads {
  bila::quotient<double> operator()(double, double) const { return {}; }
};

}  // namespace

TEST_CASE("a norm says whether it reads the row sum and gives a quotient") {
  STATIC_REQUIRE((bila::normaliser<bila::norm::none> && bila::normaliser<bila::norm::row_sum> &&
                  bila::normaliser<bila::norm::max_one> && bila::normaliser<own_norm>));
  STATIC_REQUIRE((!bila::normaliser<says_not_what_it_reads> && !bila::normaliser<int>));
}

TEST_CASE("none applies the scale and divides by one") {
  STATIC_REQUIRE_FALSE(bila::norm::none::uses_row_sum);
  for (const double Z : {-3.0, 0.0, 7.0}) {
    const auto row = bila::norm::none{}(Z, 0.25);
    CHECK(row.factor / row.divisor == 0.25);
  }
}
