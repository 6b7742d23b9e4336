// SPDX-License-Identifier: Apache-2.0
// What normalisation promises: weights that sum to one, a scale that cancels or does not, and zero where there is nothing to divide
// by.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <cmath>

namespace {

using test::index_t;
using test::mask_kind;

}  // namespace

TEMPLATE_TEST_CASE("the weights of a row sum to one: a constant v comes back", "", float, double) {
  test::random_source random(841);
  for (const auto kind : test::all_masks)
    for (const auto direction : test::all_directions)
      for (const double diagonal : {1.0, 2.0, 0.3}) {
        auto x = test::random_problem<TestType>(random, {1, 2, 150, 5, 6}, kind, bila::norm::row_sum{0});
        x.direction = direction;
        x.diagonal = diagonal;
        x.v.fill(1);
        auto exact = x.exact();
        for (auto& y : exact.y) y = 1;
        for (const auto& form : test::all_forms) {
          INFO(test::name_of(form) << ": " << x.name());
          CHECK(x.worst_error(test::evaluate(form, x).y, exact) <= 1);
        }
      }
}

TEMPLATE_TEST_CASE("the scale cancels against the row sum, bit for bit, whatever eps", "", float, double) {
  test::random_source random(842);
  for (const auto kind : test::all_masks)
    for (const double eps : {0.0, 1e-6, 0.5})
      for (const auto& form : test::all_forms) {
        auto x = test::random_problem<TestType>(random, {1, 2, 100, 5, 6}, kind, bila::norm::row_sum{eps});
        const auto y = test::evaluate(form, x).y;
        for (const double scale : {0.125, 0.3, -2.0, 1e-20}) {
          x.scale = scale;
          INFO(test::name_of(form) << ": " << x.name());
          CHECK(same_bits(test::evaluate(form, x).y, y));
        }
      }
}

TEMPLATE_TEST_CASE("eps is added to the row sum without the scale, alike in all forms", "", float, double) {
  test::random_source random(843);
  for (const auto& form : test::all_forms) {
    auto x = test::random_problem<TestType>(random, {1, 1, 3, 1, 1}, mask_kind::all_ones, bila::norm::row_sum{1e-6});
    x.q.fill(TestType(1e-4));
    x.k.fill(TestType(1e-4));
    x.v.fill(1);
    for (const double scale : {1.0, 1 / std::sqrt(2.0), 1.0 / 3}) {
      x.scale = scale;
      const auto y = test::evaluate(form, x).y;
      INFO(test::name_of(form));
      CHECK(x.worst_error(y, x.exact()) <= 1);
      CHECK(std::fabs(static_cast<double>(y(0, 0, 1, 0)) - 3e-8 / (3e-8 + 1e-6)) < 1e-5);  // 0.029
    }
  }
}

TEMPLATE_TEST_CASE("the scale counts for none and for max_one", "", float, double) {
  test::random_source random(844);
  for (const auto kind : test::all_masks)
    for (const auto& form : test::all_forms) {
      auto bounded = test::random_problem<TestType>(random, {1, 1, 60, 5, 6}, kind, bila::norm::max_one{});
      auto small = bounded, unbounded = bounded;
      small.scale = unbounded.scale = 0.01;
      unbounded.norm = bila::norm::none{};
      INFO(test::name_of(form) << ": " << bounded.name());
      CHECK(small.worst_error(test::evaluate(form, small).y, unbounded.exact()) <= 1);  // |0.01 Z| < 1: divided by one
      CHECK(unbounded.worst_error(test::evaluate(form, unbounded).y, unbounded.exact()) <= 1);
      CHECK(bounded.worst_error(test::evaluate(form, bounded).y, unbounded.exact()) > 1000);
    }
}

TEMPLATE_TEST_CASE("a row without weight is zero", "", float, double) {
  test::random_source random(845);
  for (const auto kind : test::all_masks)
    for (const auto& norm : {test::any_norm(bila::norm::row_sum{0}), test::any_norm(bila::norm::row_sum{1e-6}),
                             test::any_norm(bila::norm::max_one{}), test::any_norm(bila::norm::none{})})
      for (const auto& form : test::all_forms) {
        auto x = test::random_problem<TestType>(random, {1, 1, 90, 4, 5}, kind, norm);
        for (const index_t l : {0, 17, 89})
          for (index_t d = 0; d < 4; ++d) x.q(0, 0, l, d) = 0;
        const auto y = test::evaluate(form, x).y;
        INFO(test::name_of(form) << ": " << x.name());
        CHECK(x.worst_error(y, x.exact()) <= 1);
        for (const index_t l : {0, 17, 89})
          for (index_t d = 0; d < 5; ++d) CHECK(y(0, 0, l, d) == 0);

        x.direction = bila::direction::forward;  // strict: the first token sees nothing
        x.diagonal = 0;
        for (index_t d = 0; d < 5; ++d) CHECK(test::evaluate(form, x).y(0, 0, 0, d) == 0);
      }
}

TEST_CASE("a row sum that cancels exactly gives zero in every form") {
  test::random_source random(846);
  for (const auto& form : test::all_forms) {
    auto x = test::random_problem<double>(random, {1, 1, 2, 1, 1}, mask_kind::all_ones, bila::norm::row_sum{0});
    x.q.fill(1);
    x.k(0, 0, 0) = 1;
    x.k(0, 0, 1) = -1;
    x.v(0, 0, 0) = 1;
    x.v(0, 0, 1) = 2;
    const auto y = test::evaluate(form, x).y;
    INFO(test::name_of(form));
    CHECK(y(0, 0, 0) == 0);
    CHECK(y(0, 0, 1) == 0);
  }
}
