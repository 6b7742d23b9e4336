// SPDX-License-Identifier: Apache-2.0
// y is linear in v, whatever the norm; without a norm it is linear in q and in k too; and permuting value features permutes y.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <cmath>

namespace {

using test::index_t;
using test::wide;

}  // namespace

TEMPLATE_TEST_CASE("y(a u + b v) = a y(u) + b y(v)", "", float, double) {
  test::random_source random(831);
  constexpr wide a = 0.75, b = -2;
  const auto fill_coarsely = [&random](test::tensor<TestType>& v) {  // few bits, so that a u + b v is exact
    v.for_each([&](TestType& x, index_t, index_t, index_t, index_t) { x = static_cast<TestType>(random.below(513) - 256) / 256; });
  };
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms) {
      auto first = test::random_problem<TestType>(random, {1, 2, 130, 5, 6}, kind, norm);
      auto second = first, sum = first;
      fill_coarsely(first.v);
      fill_coarsely(second.v);
      sum.v.for_each([&](TestType& x, index_t m, index_t h, index_t l, index_t d) {
        x = static_cast<TestType>(a * wide(first.v(m, h, l, d)) + b * wide(second.v(m, h, l, d)));
      });
      const auto y_exact = sum.exact(), u_exact = first.exact(), v_exact = second.exact();
      for (const auto& form : test::all_forms) {
        const auto y = test::evaluate(form, sum).y, u = test::evaluate(form, first).y, v = test::evaluate(form, second).y;
        bool linear = true;
        y.for_each([&](const TestType& x, index_t m, index_t h, index_t l, index_t d) {
          const std::size_t at = y_exact.place(m, h, l, d);
          const auto allowed = [&](const test::answer& exact) { return test::bound<TestType>(exact, at, 130, 5); };
          linear = linear && std::fabs(wide(x) - a * wide(u(m, h, l, d)) - b * wide(v(m, h, l, d))) <=
                                 allowed(y_exact) + std::fabs(a) * allowed(u_exact) + std::fabs(b) * allowed(v_exact);
        });
        INFO(test::name_of(form) << ": " << first.name());
        CHECK(linear);
      }
    }
}

TEMPLATE_TEST_CASE("powers of two pass through exactly", "", float, double) {
  test::random_source random(832);
  for (const auto kind : test::all_masks)
    for (const auto& form : test::all_forms) {
      const auto x = test::random_problem<TestType>(random, {1, 2, 130, 5, 6}, kind, bila::norm::none{});
      const auto y = test::evaluate(form, x).y;
      const auto times = [](const test::tensor<TestType>& from, TestType factor) {
        auto to = from;
        to.for_each([factor](TestType& value, index_t, index_t, index_t, index_t) { value *= factor; });
        return to;
      };
      auto scaled = x;
      scaled.v = times(x.v, 4);
      scaled.q = times(x.q, TestType(0.5));
      scaled.k = times(x.k, -8);
      INFO(test::name_of(form) << ": " << x.name());
      CHECK(same_bits(test::evaluate(form, scaled).y, times(y, -16)));
      scaled = x;
      scaled.scale = -0.25;
      CHECK(same_bits(test::evaluate(form, scaled).y, times(y, TestType(-0.25))));
    }
}

TEMPLATE_TEST_CASE("a value feature does not see the others", "", float, double) {
  test::random_source random(833);
  for (const auto kind : test::all_masks)
    for (const auto& form : test::all_forms) {
      const auto x = test::random_problem<TestType>(random, {1, 2, 130, 5, 37}, kind, bila::norm::row_sum{1e-6});
      auto turned = x;
      turned.v.for_each([&](TestType& value, index_t b, index_t h, index_t l, index_t d) { value = x.v(b, h, l, (d + 11) % 37); });
      auto expected = test::evaluate(form, x).y;
      const auto y = expected;
      expected.for_each([&](TestType& value, index_t b, index_t h, index_t l, index_t d) { value = y(b, h, l, (d + 11) % 37); });
      INFO(test::name_of(form) << ": " << x.name());
      CHECK(same_bits(test::evaluate(form, turned).y, expected));
    }
}
