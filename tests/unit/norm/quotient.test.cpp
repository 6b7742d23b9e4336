// SPDX-License-Identifier: Apache-2.0
// Which rows are divided by one multiplication a number, and by which factor.
#include "support/catch.hpp"

#include <bila/norm/quotient.hpp>
#include <bila/view/tensor_view.hpp>

#include <cmath>
#include <limits>
#include <vector>

namespace {

using bila::index_t;

struct fixed_quotient {
  static constexpr bool uses_row_sum = true;
  template <class Real>
  bila::quotient<Real> operator()(Real Z, Real scale) const {
    return {scale, Z};
  }
};

struct ignores_row_sum {
  static constexpr bool uses_row_sum = false;
  template <class Real>
  bila::quotient<Real> operator()(Real Z, Real) const {
    return {Real(1), Z + 2};
  }
};

}  // namespace

TEMPLATE_TEST_CASE("one factor a row, unless it is no normal number", "", float, double) {
  using limits = std::numeric_limits<TestType>;
  const std::vector<TestType> z{
      2, -4, -limits::infinity(), limits::infinity(), limits::min(), 1 / limits::min(), limits::quiet_NaN()};
  const auto n = static_cast<index_t>(z.size());
  std::vector<TestType> out(z.size() + 1, 99);
  CHECK(bila::norm::row_scales(out.data(), z.data(), n, fixed_quotient{}, 3));
  CHECK((out[0] == TestType(1.5) && out[1] == TestType(-0.75) && out[2] == 0 && out[3] == 0));
  CHECK((out[4] == 3 / limits::min() && out[5] == 3 * limits::min() && std::isnan(out[6]) && out[7] == 99));

  // Still to be divided: a divisor of zero too, whose row is zero whatever it was.
  for (const TestType extreme :
       {limits::denorm_min(), limits::min() / 8, limits::max(), 2 / limits::min(), -limits::max(), TestType(0)}) {
    const std::vector<TestType> rows{2, extreme, -4};
    CHECK_FALSE(bila::norm::row_scales(out.data(), rows.data(), 3, fixed_quotient{}, 3));
    CHECK((out[0] == TestType(1.5) && out[1] == 1 && out[2] == TestType(-0.75)));
  }
  // A norm that does not ask for row sums need not be given any.
  CHECK(bila::norm::row_scales(out.data(), static_cast<const TestType*>(nullptr), 2, ignores_row_sum{}, 3));
  CHECK((out[0] == TestType(0.5) && out[1] == TestType(0.5)));
}
