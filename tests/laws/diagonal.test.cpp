// SPDX-License-Identifier: Apache-2.0
// The diagonal weight stands beside the other weights and is not made by subtracting: a token may weigh itself far more than all
// others together, and its own term must leave nothing behind where its weight is zero.
#include "support/catch.hpp"
#include "support/problem.hpp"

namespace {

using test::index_t;

}  // namespace

TEMPLATE_TEST_CASE("a token that is far larger than the others", "", float, double) {
  test::random_source random(911);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto direction : test::all_directions)
        for (const double diagonal : {0.0, 1e-3, 1.0, 2.0})
          for (const index_t L : {1, 2, 40}) {
            auto x = test::random_problem<TestType>(random, {1, 1, L, 6, 5}, kind, norm);
            x.direction = direction;
            x.diagonal = diagonal;
            for (index_t c = 0; c < 6; ++c) {
              x.q(0, 0, L / 2, c) *= 1000;
              x.k(0, 0, L / 2, c) *= 1000;
            }
            const auto exact = x.exact();
            for (const auto& form : test::all_forms) {
              INFO(test::name_of(form) << ": " << x.name());
              CHECK(x.worst_error(test::evaluate(form, x).y, exact) <= 1);
            }
          }
}

TEMPLATE_TEST_CASE("the diagonal's weight counts once: two scans without correction are weight 2, strict ones weight 0", "", float,
                   double) {
  test::random_source random(912);
  for (const auto kind : test::all_masks)
    for (const auto& form : test::all_forms) {
      auto x = test::random_problem<TestType>(random, {1, 2, 70, 4, 3}, kind, bila::norm::none{});
      const auto exact = x.exact();
      for (const double diagonal : {0.0, 1.0, 2.0}) {
        x.diagonal = diagonal;
        auto expected = x.exact();
        for (index_t h = 0; h < 2; ++h)
          for (index_t l = 0; l < 70; ++l) {
            test::wide score = 0;
            for (index_t c = 0; c < 4; ++c) score += test::wide(x.q(0, h, l, c)) * x.k(0, h, l, c);
            for (index_t d = 0; d < 3; ++d) {
              const std::size_t at = exact.place(0, h, l, d);
              expected.y[at] = exact.y[at] + (test::wide(diagonal) - 1) * score * x.v(0, h, l, d);
            }
          }
        INFO(test::name_of(form) << ": " << x.name());
        CHECK(x.worst_error(test::evaluate(form, x).y, expected) <= 1);
      }
    }
}
