// SPDX-License-Identifier: Apache-2.0
// Fewer heads of q, k or v than of y are those heads repeated, group by group; and k and v may be other tokens than q where no mask
// orders them.
#include "support/catch.hpp"
#include "support/problem.hpp"
#include "support/refusal.hpp"

#include <array>
#include <utility>

namespace {

using test::index_t;

template <class T>
void repeat_heads(test::tensor<T>& x, index_t H) {
  test::tensor<T> repeated(x.extent(0), H, x.extent(2), x.extent(3));
  const index_t group = H / x.extent(1);
  repeated.for_each([&](T& value, index_t b, index_t h, index_t l, index_t d) { value = x(b, h / group, l, d); });
  x = repeated;
}

}  // namespace

TEMPLATE_TEST_CASE("grouped heads are repeated heads, bit for bit", "", float, double) {
  test::random_source random(851);
  for (const auto kind : test::all_masks)
    for (const auto& [Hq, Hk, Hv] : {std::array<index_t, 3>{6, 1, 1}, {6, 2, 2}, {3, 6, 2}, {1, 6, 3}, {2, 3, 6}}) {
      const auto grouped = test::random_problem<TestType>(random, {2, 6, 70, 5, 9, Hq, Hk, Hv}, kind, bila::norm::row_sum{1e-6});
      auto repeated = grouped;
      repeat_heads(repeated.q, 6);
      repeat_heads(repeated.k, 6);
      repeat_heads(repeated.v, 6);
      const auto exact = grouped.exact();
      for (const auto& form : test::all_forms) {
        INFO(test::name_of(form) << ", heads " << Hq << " " << Hk << " " << Hv << ": " << grouped.name());
        const auto y = test::evaluate(form, grouped);
        CHECK(y.intact);
        CHECK(same_bits(y.y, test::evaluate(form, repeated).y));
        CHECK(grouped.worst_error(y.y, exact) <= 1);
      }
    }
}

TEMPLATE_TEST_CASE("cross attention with the mask of ones", "", float, double) {
  test::random_source random(852);
  for (const auto& norm : test::all_norms)
    for (const auto& [L, Lk] : {std::pair<index_t, index_t>{3, 5}, {5, 3}, {1, 200}, {200, 1}, {130, 65}, {64, 129}, {7, 0}}) {
      auto x = test::random_problem<TestType>(random, {2, 4, L, 5, 9, 4, 2, 1, Lk}, test::mask_kind::all_ones, norm);
      x.scale = 0.3;
      const auto exact = x.exact();
      for (const auto& form : test::all_forms)
        for (const int threads : {1, 3}) {
          INFO(test::name_of(form) << ", " << threads << " threads: " << x.name());
          const auto [y, intact] = test::evaluate(form, x, {.threads = threads});
          CHECK(intact);
          CHECK(x.worst_error(y, exact) <= 1);
        }
    }
}

TEST_CASE("cross attention is refused where tokens have an order") {
  test::random_source random(853);
  const test::sizes size{1, 1, 3, 2, 2, 1, 1, 1, 5};
  const auto words = [&](const test::problem<float>& x, const test::any_form& form) {
    auto y = x.output();
    return test::refusal([&] { test::attend<float>({}, form, x.mask(), x.norm, x.inputs(), y.view()); });
  };
  for (const auto& form : test::all_forms) {
    for (const auto kind : test::all_masks) {
      const auto x = test::random_problem<float>(random, size, kind, bila::norm::none{});
      CHECK(words(x, form).empty() == (kind == test::mask_kind::all_ones));
      if (kind != test::mask_kind::all_ones) CHECK(test::has_all(words(x, form), {"k", "5", "q", "3", "decay"}));
    }
    const auto x = test::random_problem<float>(random, size, test::mask_kind::all_ones, bila::norm::none{});
    auto spoiled = x;
    spoiled.direction = bila::direction::forward;
    CHECK(test::has_all(words(spoiled, form), {"k", "5", "q", "3", "direction"}));
    spoiled = x;
    spoiled.diagonal = 2;
    CHECK(test::has_all(words(spoiled, form), {"diagonal"}));
    spoiled = x;
    spoiled.lengths = {3};
    CHECK(test::has_all(words(spoiled, form), {"lengths"}));
    spoiled = x;
    spoiled.offsets = {0, 3};
    CHECK(test::has_all(words(spoiled, form), {"offsets"}));
  }
}
