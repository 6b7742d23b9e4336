// SPDX-License-Identifier: Apache-2.0
// Gates of zero decay make every mask the mask of ones, and one decay everywhere makes all of them the fixed one.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <limits>

namespace {

using test::index_t;
using test::mask_kind;

template <class T>
test::problem<T> with_gates(test::problem<T> x, mask_kind kind, double log_decay) {
  x.kind = kind;
  x.other_gates = test::tensor<double>(x.size.B, x.size.H, x.size.L, 1);
  x.gates = kind == mask_kind::fixed ? test::tensor<double>(1, x.size.H, 1, 1) : x.other_gates;
  x.gates.fill(log_decay);
  x.other_gates.fill(log_decay);
  return x;
}

template <class T>
void check_all_equal(const test::problem<T>& some, double log_decay, mask_kind reference) {
  const auto exact = with_gates(some, reference, log_decay).exact();
  for (const auto kind : test::all_masks) {
    if (kind == mask_kind::all_ones && reference != mask_kind::all_ones) continue;
    const auto x = with_gates(some, kind, log_decay);
    for (const auto& form : test::all_forms) {
      INFO(test::name_of(form) << ": " << x.name());
      CHECK(x.worst_error(test::evaluate(form, x).y, exact) <= 1);
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("all_ones = fixed(0) = selective(0) = two_sided(0)", "", float, double) {
  test::random_source random(741);
  for (const auto& norm : test::all_norms)
    for (const auto direction : test::all_directions)
      for (const double diagonal : {1.0, 0.0, 2.0, 0.3}) {
        auto x = test::random_problem<TestType>(random, {1, 2, 100, 7, 6}, mask_kind::all_ones, norm);
        x.direction = direction;
        x.diagonal = diagonal;
        check_all_equal(x, 0, mask_kind::all_ones);
        check_all_equal(x, 9e-7, mask_kind::all_ones);  // what rounding may leave above zero counts as zero
      }
}

TEMPLATE_TEST_CASE("one gate everywhere is the fixed decay in every convention", "", float, double) {
  test::random_source random(742);
  for (const auto& norm : test::all_norms) {
    const auto x = test::random_problem<TestType>(random, {2, 1, 100, 7, 6}, mask_kind::fixed, norm);
    check_all_equal(x, -0.3, mask_kind::fixed);
    check_all_equal(x, -std::numeric_limits<double>::infinity(), mask_kind::fixed);
  }
}
