// SPDX-License-Identifier: Apache-2.0
// Results that were computed once, from the equations and outside of C++ (golden/make.py), in 40 digits.
#include "golden/golden.hpp"
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <cmath>
#include <limits>

namespace {

using test::index_t;

template <class T>
void fill(test::tensor<T>& x, const std::vector<double>& values) {
  std::size_t n = 0;
  x.for_each([&](T& element, index_t, index_t, index_t, index_t) { element = static_cast<T>(values.at(n++)); });
}

template <class T>
test::problem<T> problem_of(const test::golden_case& golden) {
  test::random_source unused(0);
  auto x = test::random_problem<T>(unused, golden.size, golden.mask, golden.norm);
  fill(x.q, golden.q);
  fill(x.k, golden.k);
  fill(x.v, golden.v);
  fill(x.gates, golden.gates);
  x.direction = golden.direction;
  x.diagonal = golden.diagonal;
  x.scale = golden.scale;
  x.offsets = golden.offsets;
  x.lengths = golden.lengths;
  return x;
}

}  // namespace

TEMPLATE_TEST_CASE("golden results", "", float, double) {
  const auto cases = test::golden_cases();
  CHECK(cases.size() >= 25);
  for (const auto& golden : cases) {
    const auto x = problem_of<TestType>(golden);
    auto exact = x.exact();
    REQUIRE(golden.y.size() == exact.y.size());
    for (std::size_t n = 0; n < golden.y.size(); ++n) exact.y[n] = golden.y[n];
    for (const auto& form : test::all_forms) {
      INFO(test::name_of(form) << ": " << x.name());
      CHECK(x.worst_error(test::evaluate(form, x).y, exact) <= 1);
    }
  }
}

TEST_CASE("the oracle of these tests gives the golden results") {
  for (const auto& golden : test::golden_cases()) {
    const auto exact = problem_of<double>(golden).exact();
    // Golden numbers are rounded to double, and the oracle has roundings of its own.
    const auto own = std::numeric_limits<test::wide>::epsilon() * test::roundings<double>(golden.size.L, golden.size.Dk);
    bool same = true;
    for (std::size_t n = 0; n < golden.y.size(); ++n)
      same = same && std::fabs(exact.y[n] - golden.y[n]) <=
                         std::numeric_limits<double>::epsilon() / 2 * std::fabs(exact.y[n]) + own * exact.spread[n];
    INFO(problem_of<double>(golden).name());
    CHECK(same);
  }
}
