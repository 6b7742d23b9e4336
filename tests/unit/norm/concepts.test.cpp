// SPDX-License-Identifier: Apache-2.0
// What a norm is.
#include "support/catch.hpp"

#include <bila/norm/concepts.hpp>
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
