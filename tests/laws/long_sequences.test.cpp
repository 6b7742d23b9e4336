// SPDX-License-Identifier: Apache-2.0
// A hundred thousand tokens in float: decays near one must not drift, strong ones must not underflow into NaN, and the sums must
// hold.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace {

using test::any_form;
using test::index_t;
using test::mask_kind;

const std::array linear_forms{any_form(bila::form::recurrent{}), any_form(bila::form::chunkwise{.size = 4}),
                              any_form(bila::form::chunkwise{}), any_form(bila::form::chunkwise{.size = 300}),
                              any_form(bila::form::automatic{})};

void check(test::problem<float> x, bila::direction direction = bila::direction::both) {
  x.direction = direction;
  const auto exact = test::long_definition(x.inputs(), x.gaps(), x.rule());
  for (const auto& form : linear_forms) {
    INFO(test::name_of(form) << ": " << x.name());
    CHECK(x.worst_error(test::evaluate(form, x).y, exact) <= 1);
  }
}

}  // namespace

TEST_CASE("the linear-time oracle is the definition") {
  test::random_source random(820);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto direction : test::all_directions) {
        auto x = test::random_problem<double>(random, {1, 1, 60, 3, 4}, kind, norm);
        x.direction = direction;
        x.diagonal = 0.3;
        x.scale = 0.7;
        const auto one = x.exact(), other = test::long_definition(x.inputs(), x.gaps(), x.rule());
        const auto own = 2 * std::numeric_limits<test::wide>::epsilon() * test::roundings<double>(60, 3);
        bool same = true;
        for (std::size_t n = 0; n < one.y.size(); ++n)
          same = same && std::fabs(one.y[n] - other.y[n]) <= own * one.spread[n] &&
                 std::fabs(one.spread[n] - other.spread[n]) <= own * one.spread[n];
        CHECK(same);
      }
}

TEST_CASE("decays near one over 100000 tokens") {
  // All numbers positive and no norm: a decay that is off by 1e-8 each time shows, and no sign or quotient hides it.
  test::random_source random(821);
  const auto positive = [&random](mask_kind kind) {
    auto x = test::random_problem<float>(random, {1, 1, 100000, 2, 3}, kind, bila::norm::row_sum{1e-6});
    x.norm = bila::norm::none{};
    x.v.fill_uniform(random, 0.1, 1);
    return x;
  };
  for (const double log_decay : {-1e-7, -1e-5, -1e-3}) {
    auto fixed = positive(mask_kind::fixed);
    fixed.gates.fill(log_decay);
    check(fixed);
    auto selective = positive(mask_kind::source);
    selective.gates.fill_uniform(random, 2 * log_decay, 0);
    check(selective);
  }
  for (const auto direction : test::all_directions) check(positive(mask_kind::all_ones), direction);
}

TEST_CASE("row sums over 100000 tokens") {
  test::random_source random(824);
  for (const auto kind : {mask_kind::all_ones, mask_kind::fixed, mask_kind::later}) {
    auto x = test::random_problem<float>(random, {1, 1, 100000, 2, 3}, kind, bila::norm::row_sum{1e-6});
    x.gates.fill_uniform(random, -2e-5, 0);
    check(x);
  }
}

TEST_CASE("-100 per token over 100000 tokens, alone and now and then") {
  test::random_source random(822);
  for (const auto& norm : test::all_norms) {
    auto fixed = test::random_problem<float>(random, {1, 1, 100000, 2, 3}, mask_kind::fixed, norm);
    fixed.gates.fill(-100);
    check(fixed);
    auto mixed = test::random_problem<float>(random, {1, 1, 100000, 2, 3}, mask_kind::two_sided, norm);
    for (auto* const gates : {&mixed.gates, &mixed.other_gates})
      gates->for_each(
          [&](double& gate, index_t, index_t, index_t, index_t) { gate = random.below(3) == 0 ? -100 : random.uniform(-1e-4, 0); });
    for (const auto direction : test::all_directions) check(mixed, direction);
  }
}

TEST_CASE("strong decay in the full form and in double") {
  test::random_source random(823);
  for (const double log_decay : {-1.4, -20.0, -100.0, -1000.0}) {
    auto x = test::random_problem<float>(random, {1, 1, 500, 4, 3}, mask_kind::later, bila::norm::row_sum{0});
    x.gates.fill(log_decay);
    const auto exact = x.exact();
    for (const auto& form : test::all_forms) {
      INFO(test::name_of(form) << ", " << log_decay);
      CHECK(x.worst_error(test::evaluate(form, x).y, exact) <= 1);
      CHECK(test::widened(x).worst_error(test::evaluate(form, test::widened(x)).y, exact) <= 1);
    }
  }
}
