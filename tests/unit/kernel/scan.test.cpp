// SPDX-License-Identifier: Apache-2.0
// The weights of a chunk against plain products, and the decay that does not drift.
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

#include <bila/kernel/scan.hpp>

#include <cmath>
#include <limits>
#include <vector>

namespace {

using bila::index_t;
using test::wide;

/// lambda_first * ... * lambda_last, and how far a product of so many doubles, rounded once to Real, may be from it.
wide product(const std::vector<double>& lambda, index_t first, index_t last) {
  wide result = 1;
  for (index_t t = first; t <= last; ++t) result *= lambda[static_cast<std::size_t>(t)];
  return result;
}

template <class Real>
bool close(Real x, wide exact, index_t factors) {
  const wide u = std::numeric_limits<Real>::epsilon() / 2,
             steps = static_cast<wide>(factors) * (std::numeric_limits<double>::epsilon() / 2);
  return std::fabs(wide(x) - exact) <= (u + steps) * exact + std::numeric_limits<Real>::denorm_min();
}

std::vector<double> random_decays(test::random_source& random, index_t count, bool with_zeros) {
  std::vector<double> lambda(static_cast<std::size_t>(count));
  for (double& x : lambda) x = with_zeros && random.below(4) == 0 ? 0 : random.uniform(0.2, 1);
  return lambda;
}

}  // namespace

TEMPLATE_TEST_CASE("what crosses the borders of a chunk", "", float, double) {
  test::random_source random(411);
  for (const index_t n : {1, 2, 3, 17, 64})
    for (const bool with_zeros : {false, true}) {
      const auto lambda = random_decays(random, n + 1, with_zeros);
      std::vector<TestType> read(static_cast<std::size_t>(n)), write(read);
      bila::kernel::border_weights<TestType> border{read.data(), write.data()};

      bila::kernel::scan_forward(border, lambda.data(), n);
      for (index_t i = 0; i < n; ++i) {
        CHECK(close(read[static_cast<std::size_t>(i)], product(lambda, 0, i), n));
        CHECK(close(write[static_cast<std::size_t>(i)], product(lambda, i + 1, n - 1), n));
      }
      CHECK(close(border.total, product(lambda, 0, n - 1), n));

      bila::kernel::scan_backward(border, lambda.data(), n);
      for (index_t i = 0; i < n; ++i) {
        CHECK(close(read[static_cast<std::size_t>(i)], product(lambda, i + 1, n), n));
        CHECK(close(write[static_cast<std::size_t>(i)], product(lambda, 1, i), n));
      }
      CHECK(close(border.total, product(lambda, 1, n), n));
    }
}

TEMPLATE_TEST_CASE("the block inside a chunk", "", float, double) {
  test::random_source random(412);
  for (const index_t n : {1, 2, 3, 17, 64})
    for (const bool with_zeros : {false, true}) {
      const auto lambda = random_decays(random, n + 1, with_zeros);
      const index_t stride = n + 3;
      std::vector<TestType> memory(static_cast<std::size_t>(n * stride), TestType(-7));
      std::vector<double> row(static_cast<std::size_t>(n), std::numeric_limits<double>::quiet_NaN());
      const bila::kernel::tile<TestType> M{memory.data(), n, n, stride};

      bila::kernel::scan_lower(M, lambda.data(), row.data());
      std::fill(row.begin(), row.end(), std::numeric_limits<double>::quiet_NaN());
      bila::kernel::scan_upper(M, lambda.data(), row.data());
      for (index_t i = 0; i < n; ++i) {
        for (index_t j = 0; j < i; ++j) CHECK(close(M.row(i)[j], product(lambda, j + 1, i), n));
        CHECK(M.row(i)[i] == -7);  // the diagonal and what lies behind the columns are not its business
        for (index_t j = i + 1; j < n; ++j) CHECK(close(M.row(i)[j], product(lambda, i + 1, j), n));
        for (index_t j = n; j < stride; ++j) CHECK(M.row(i)[j] == -7);
      }
    }
}

TEMPLATE_TEST_CASE("a product of carried decays stays within one rounding of the exact one", "", float, double) {
  test::random_source random(413);
  const auto u = static_cast<wide>(std::numeric_limits<TestType>::epsilon() / 2);
  for (const double low : {0.999999, 0.99, 0.5}) {
    bila::kernel::carried_decay<TestType> carried;
    wide exact = 1, applied = 1;
    for (index_t n = 1; n <= 20000; ++n) {
      const double decay = low < 0.9999 ? random.uniform(low, 1) : 1 - 1e-7;
      const TestType factor = carried(decay);
      CHECK_FALSE(factor > 1);
      exact *= decay;
      applied *= factor;
      if (exact < 1e-3000L) break;
      // what is owed is kept in double and divided anew at each step
      const wide allowed = u + static_cast<wide>(2 * n) * (std::numeric_limits<double>::epsilon() / 2);
      REQUIRE(std::fabs(applied / exact - 1) <= allowed * (1 + allowed));
    }
  }
}

TEMPLATE_TEST_CASE("carried decays of exactly one and zero", "", float, double) {
  bila::kernel::carried_decay<TestType> carried;
  for (int n = 0; n < 100; ++n) CHECK(carried(1) == 1);
  CHECK(carried(0) == 0);
  CHECK(carried(1) == 1);
  CHECK(carried(0.5) == TestType(0.5));

  for (const double decay : {1 - 1e-9, 1 - 1e-12, 0.3}) {  // what was owed before a cut is forgotten
    bila::kernel::carried_decay<TestType> before, fresh;
    for (int n = 0; n < 5; ++n) before(decay);
    CHECK(before(0) == 0);
    for (int n = 0; n < 50; ++n) CHECK(before(decay) == fresh(decay));
  }
}
