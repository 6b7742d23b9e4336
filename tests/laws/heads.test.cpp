// SPDX-License-Identifier: Apache-2.0
// Fewer heads of q, k, v or the gates than of y are those heads repeated, group by group; and k and v may be other tokens than q
// where no mask orders them.
#include "support/catch.hpp"
#include "support/gradient.hpp"
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

/// The first heads of a mask's parameters.
test::tensor<double> first_heads(const test::tensor<double>& x, index_t heads) {
  test::tensor<double> few(x.extent(0), heads, x.extent(2), 1);
  few.for_each([&](double& value, index_t b, index_t h, index_t l, index_t) { value = x(b, h, l); });
  return few;
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

TEMPLATE_TEST_CASE("grouped gates are repeated gates, bit for bit", "", float, double) {
  test::random_source random(854);
  for (const auto kind : test::all_masks)
    for (const index_t heads : {1, 2, 3}) {
      auto grouped = test::random_problem<TestType>(random, {2, 6, 70, 5, 9, 3, 2, 6}, kind, bila::norm::row_sum{1e-6});
      grouped.gates = first_heads(grouped.gates, heads), grouped.other_gates = first_heads(grouped.other_gates, heads);
      auto repeated = grouped;
      repeat_heads(repeated.gates, 6);
      repeat_heads(repeated.other_gates, 6);
      const auto exact = grouped.exact();
      for (const auto& form : test::all_forms)
        for (const int threads : {1, 3}) {
          INFO(test::name_of(form) << ", gates of " << heads << " heads: " << grouped.name());
          const auto y = test::evaluate(form, grouped, {.threads = threads});
          CHECK(y.intact);
          CHECK(same_bits(y.y, test::evaluate(form, repeated).y));
          CHECK(grouped.worst_error(y.y, exact) <= 1);
        }
    }
}

TEST_CASE("the gradient by grouped gates is that of differences, the sum over the group, and the same for any threads") {
  test::random_source random(855);
  for (const auto kind : test::all_masks) {
    if (kind == test::mask_kind::all_ones || kind == test::mask_kind::two_sided) continue;
    for (const index_t heads : {1, 2, 3})
      for (const int cut : {0, 1, 2}) {
        auto grouped = test::random_lesson(random, {.B = cut == 1 ? 1 : 2, .H = 6, .L = 37, .Dk = 3, .Dv = 5, .Hk = 2}, kind,
                                           bila::norm::row_sum{1e-6});
        if (cut == 1) grouped.x.offsets = {0, 1, 1, 20, 37};
        if (cut == 2) grouped.x.lengths = {37, 9};
        grouped.x.gates = first_heads(grouped.x.gates, heads);
        auto repeated = grouped;
        repeat_heads(repeated.x.gates, 6);
        const test::directional exact(grouped, random);
        for (const auto& form : test::all_forms) {
          INFO(test::name_of(form) << ", gates of " << heads << " heads: " << grouped.name());
          const auto found = learn(form, grouped), alike = learn(form, repeated);
          CHECK(exact.judge(found).worst <= 1);
          auto sum = found.log_decay;
          sum.fill(0);
          alike.log_decay.for_each(
              [&](const double& g, index_t b, index_t h, index_t l, index_t) { sum(b, h / (6 / heads), l) += g; });
          CHECK(distance(found.log_decay, sum) < 1e-13);
          CHECK((found.intact() && same_bits(found.k, alike.k) && same_bits(found.log_forward, alike.log_forward)));
          CHECK(same_bits(found, learn(form, grouped, {.threads = 4})));
        }
      }
  }
}

TEST_CASE("gates whose heads do not divide those of y are refused") {
  test::random_source random(856);
  for (const auto kind : {test::mask_kind::fixed, test::mask_kind::source, test::mask_kind::two_sided}) {
    auto x = test::random_problem<float>(random, {1, 6, 5, 2, 2}, kind, bila::norm::none{});
    auto y = x.output();
    const auto words = [&](index_t heads, index_t other) {
      x.gates = test::tensor<double>(x.gates.extent(0), heads, x.gates.extent(2), 1);
      x.other_gates = test::tensor<double>(1, other, 5, 1);
      x.gates.fill(-1), x.other_gates.fill(-1);
      return test::refusal([&] { test::attend<float>({}, bila::form::full{}, x.mask(), x.norm, x.inputs(), y.view()); });
    };
    for (const index_t heads : {0, 4, 5, 12}) CHECK(test::has_all(words(heads, heads), {"log_", "heads that divide 6"}));
    CHECK(words(3, 3).empty());
    if (kind == test::mask_kind::two_sided) CHECK(test::has_all(words(3, 2), {"log_forward has 3 heads", "log_backward has 2"}));
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
