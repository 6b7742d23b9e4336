// SPDX-License-Identifier: Apache-2.0
// What crosses a chunk's borders against plain products, and the decays that do not drift. The square inside a chunk is a verb: see
// contract.test.cpp.
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

TEST_CASE("a pending decay collects, and is settled by powers of two; no factor is lost") {
  test::random_source random(415);
  for (const double least : {0.5, 1. / 16}) {
    bila::kernel::pending_decay pending;
    CHECK(pending.factor() == 1);
    wide exact = 1, settled = 1;
    for (int n = 1; n <= 2000; ++n) {
      const double lambda = n % 3 == 0 ? 1 - 1e-9 : n % 100 == 0 ? 1e-5 : random.uniform(0.9, 1);
      const double settle = pending.decay(lambda, least);
      exact *= lambda;
      settled *= settle;
      int exponent = 0;
      CHECK((settle == 1 || (settle < 1 && std::frexp(settle, &exponent) == 0.5)));
      CHECK((pending.factor() >= least && pending.factor() <= 1));
      if (exact < 1e-250L) exact = settled = 1, pending = bila::kernel::pending_decay();
      REQUIRE(std::fabs(settled * pending.factor() / exact - 1) <=
              static_cast<wide>(n) * (std::numeric_limits<double>::epsilon() / 2));
      pending = bila::kernel::pending_decay(pending.factor());  // as one half of a sequence passes it on to the other
    }
    CHECK(pending.decay(0) == 0);
    CHECK(pending.factor() == 1);
    for (int n = 0; n < 100; ++n) CHECK((pending.decay(1) == 1 && pending.factor() == 1));
  }
}

TEMPLATE_TEST_CASE("borders beside a state that is kept larger than it is", "", float, double) {
  std::vector<TestType> read{1, TestType(0.5), 0}, write{TestType(0.25), 1, 0}, read_now(3), write_now(3);
  bila::kernel::border_weights<TestType> border{read.data(), write.data(), 0.5}, now{read_now.data(), write_now.data()};
  bila::kernel::weigh_borders(border, 0.75, 0.5, 3, now);
  CHECK((read_now == std::vector<TestType>{TestType(0.75), TestType(0.375), 0}));
  CHECK((write_now == std::vector<TestType>{TestType(0.5), 2, 0}));
}
