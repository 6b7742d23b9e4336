// SPDX-License-Identifier: Apache-2.0
// A sequence gives the same bits alone, anywhere in a batch, as any head, and each time that it is asked.
#include "support/catch.hpp"
#include "support/problem.hpp"

namespace {

using test::index_t;

/// Head h of batch row b, alone.
template <class T>
test::problem<T> alone(const test::problem<T>& x, index_t b, index_t h) {
  auto result = x;
  result.size.B = result.size.H = 1;
  const auto cut = [&](auto& to, const auto& from, index_t row) {
    to = {1, 1, from.extent(2), from.extent(3)};
    to.for_each([&](auto& y, index_t, index_t, index_t l, index_t d) { y = from(row, h, l, d); });
  };
  cut(result.q, x.q, b);
  cut(result.k, x.k, b);
  cut(result.v, x.v, b);
  cut(result.gates, x.gates, x.kind == test::mask_kind::fixed ? 0 : b);
  cut(result.other_gates, x.other_gates, b);
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("place in the batch", "", float, double) {
  test::random_source random(781);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms) {
      const auto x = test::random_problem<TestType>(random, {3, 4, 140, 6, 21}, kind, norm);
      for (const auto& form : test::all_forms)
        for (const int threads : {1, 3}) {
          const auto y = test::evaluate(form, x, {.threads = threads}).y;
          INFO(test::name_of(form) << ", " << threads << " threads: " << x.name());
          for (index_t b = 0; b < 3; ++b)
            for (index_t h = 0; h < 4; ++h) {
              auto own = alone(x, b, h).output();
              own.for_each([&](TestType& value, index_t, index_t, index_t l, index_t d) { value = y(b, h, l, d); });
              CHECK(same_bits(own, test::evaluate(form, alone(x, b, h)).y));
            }
        }
    }
}

TEMPLATE_TEST_CASE("repetition, after larger and smaller calls on the same memory", "", float, double) {
  test::random_source random(782);
  for (const auto kind : test::all_masks)
    for (const auto& form : test::all_forms) {
      const auto x = test::random_problem<TestType>(random, {1, 2, 137, 9, 19}, kind, bila::norm::row_sum{1e-6});
      const auto first = test::evaluate(form, x).y;
      CHECK(same_bits(test::evaluate(form, x).y, first));
      for (const test::sizes& size : {test::sizes{1, 1, 600, 33, 40}, test::sizes{2, 1, 3, 1, 1}}) {
        test::evaluate(form, test::random_problem<TestType>(random, size, kind, bila::norm::none{}));
        CHECK(same_bits(test::evaluate(form, x).y, first));
      }
    }
}
