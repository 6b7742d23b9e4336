// SPDX-License-Identifier: Apache-2.0
// The bits do not depend on how many threads there are, whether heads or shares of one head are spread over them.
#include "support/catch.hpp"
#include "support/problem.hpp"

namespace {

template <class T>
void check(const test::problem<T>& x) {
  for (const auto& form : test::all_forms) {
    const auto alone = test::evaluate(form, x);
    for (const int threads : {1, 2, 3, 5, 8, 0}) {
      INFO(test::name_of(form) << ", " << threads << " threads: " << x.name());
      const auto y = test::evaluate(form, x, {.threads = threads});
      CHECK(y.intact);
      CHECK(same_bits(y.y, alone.y));
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("every mask, norm and direction, one long head", "", float, double) {
  test::random_source random(761);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto direction : test::all_directions) {
        auto x = test::random_problem<TestType>(random, {1, 1, 400, 4, 53}, kind, norm);
        x.direction = direction;
        x.diagonal = 0.5;
        check(x);
      }
}

TEMPLATE_TEST_CASE("heads that divide evenly over the threads and heads that do not", "", float, double) {
  test::random_source random(762);
  for (const auto kind : {test::mask_kind::all_ones, test::mask_kind::source})
    for (const test::index_t heads : {1, 2, 3, 5, 7, 16}) {
      check(test::random_problem<TestType>(random, {1, heads, 300, 8, 40}, kind, bila::norm::row_sum{1e-6}));
      check(test::random_problem<TestType>(random, {heads, 1, 140, 7, 3}, kind, bila::norm::max_one{}));
    }
}

TEMPLATE_TEST_CASE("packed segments and lengths", "", float, double) {
  test::random_source random(763);
  auto packed = test::random_problem<TestType>(random, {1, 2, 600, 8, 40}, test::mask_kind::source, bila::norm::row_sum{1e-6});
  packed.offsets = {0, 0, 1, 200, 201, 590, 600};
  check(packed);
  auto padded = test::random_problem<TestType>(random, {3, 1, 260, 8, 40}, test::mask_kind::source, bila::norm::row_sum{1e-6});
  padded.lengths = {260, 0, 131};
  check(padded);
}

TEMPLATE_TEST_CASE("one head much longer than all that is shared of it", "", float, double) {
  test::random_source random(764);
  check(test::random_problem<TestType>(random, {1, 1, 3000, 16, 64}, test::mask_kind::later, bila::norm::row_sum{1e-6}));
}
