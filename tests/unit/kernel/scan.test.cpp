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

TEMPLATE_TEST_CASE("a carried decay goes on from what was owed", "", float, double) {
  test::random_source random(414);
  bila::kernel::carried_decay<TestType> whole;
  CHECK(whole.owed() == 1);
  bila::kernel::carried_decay<TestType> half(whole.owed());
  for (int n = 0; n < 200; ++n) {
    const double decay = random.uniform(0.9, 1);
    CHECK(half(decay) == whole(decay));
    CHECK(half.owed() == whole.owed());
    half = bila::kernel::carried_decay<TestType>(half.owed());
  }
}

TEST_CASE("a held decay collects until little is left, and is then settled; no factor is lost") {
  test::random_source random(415);
  bila::kernel::held_decay held;
  const double least = bila::kernel::held_decay::least;
  CHECK(held.held() == 1);
  wide exact = 1, settled = 1;
  for (int n = 1; n <= 2000; ++n) {
    const double lambda = n % 3 == 0 ? 1 - 1e-9 : random.uniform(0.9, 1);
    const double settle = held.decay(lambda);
    exact *= lambda;
    settled *= settle;
    CHECK((settle == 1 || (settle < least && held.held() == 1)));
    CHECK((held.held() >= least && held.held() <= 1));
    REQUIRE(std::fabs(settled * held.held() / exact - 1) <= static_cast<wide>(n) * (std::numeric_limits<double>::epsilon() / 2));
    held = bila::kernel::held_decay(held.held());  // as one half of a sequence passes it on to the other
  }
  CHECK(held.decay(0) == 0);
  CHECK(held.held() == 1);
}
