// SPDX-License-Identifier: Apache-2.0
// A gate of exactly zero, log -inf, is legal: a border that nothing crosses in its direction, and that leaves the other alone.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <limits>

namespace {

using test::index_t;
using test::mask_kind;

constexpr double cut = -std::numeric_limits<double>::infinity();

}  // namespace

TEMPLATE_TEST_CASE("zero gates anywhere, in every form", "", float, double) {
  test::random_source random(811);
  for (const auto kind : {mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::earlier, mask_kind::two_sided})
    for (const auto direction : test::all_directions)
      for (const index_t one_in : {2, 5, 40}) {
        auto x = test::random_problem<TestType>(random, {1, 2, 150, 5, 6}, kind, bila::norm::row_sum{1e-6});
        x.direction = direction;
        for (auto* const gates : {&x.gates, &x.other_gates})
          gates->for_each([&](double& gate, index_t, index_t, index_t, index_t) {
            if (random.below(one_in) == 0) gate = cut;
          });
        const auto exact = x.exact();
        for (const auto& form : test::all_forms) {
          INFO(test::name_of(form) << ", one in " << one_in << ": " << x.name());
          CHECK(x.worst_error(test::evaluate(form, x).y, exact) <= 1);
        }
      }
}

TEMPLATE_TEST_CASE("nothing crosses a zero gate, not even the largest numbers", "", float, double) {
  test::random_source random(812);
  for (const index_t border : {1, 24, 40, 64, 128, 149})
    for (const auto& form : test::all_forms)
      for (const bool forward : {true, false}) {
        auto x = test::random_problem<TestType>(random, {1, 1, 150, 5, 6}, mask_kind::two_sided, bila::norm::row_sum{1e-6});
        (forward ? x.gates : x.other_gates)(0, 0, border) = cut;
        x.direction = forward ? bila::direction::forward : bila::direction::backward;
        const auto before = test::evaluate(form, x).y;
        auto changed = x;
        changed.v.for_each([&](TestType& value, index_t, index_t, index_t l, index_t) {
          if ((l < border) == forward) value = TestType(1e30);
        });
        const auto after = test::evaluate(form, changed).y;
        bool beyond = true, this_side = true;
        after.for_each([&](const TestType& value, index_t b, index_t h, index_t l, index_t d) {
          if ((l < border) == forward)
            this_side = this_side && value != before(b, h, l, d);
          else
            beyond = beyond && value == before(b, h, l, d);
        });
        INFO(test::name_of(form) << ", border " << border << (forward ? ", forward" : ", backward"));
        CHECK(beyond);
        CHECK(this_side);
      }
}

TEMPLATE_TEST_CASE("a zero gate of one direction leaves the other one alone", "", float, double) {
  test::random_source random(813);
  for (const auto& form : test::all_forms) {
    const auto x = test::random_problem<TestType>(random, {1, 1, 150, 5, 6}, mask_kind::two_sided, bila::norm::none{});
    auto causal = x;
    causal.gates.fill(cut);  // no way forwards: what is left is the backward direction
    auto backward = x;
    backward.direction = bila::direction::backward;
    INFO(test::name_of(form));
    CHECK(x.worst_error(test::evaluate(form, causal).y, backward.exact()) <= 1);

    causal = x;
    causal.other_gates.fill(cut);
    auto forward = x;
    forward.direction = bila::direction::forward;
    CHECK(x.worst_error(test::evaluate(form, causal).y, forward.exact()) <= 1);
  }
}

TEMPLATE_TEST_CASE("with all gates zero only the diagonal is left", "", float, double) {
  test::random_source random(814);
  for (const auto kind :
       {mask_kind::fixed, mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::earlier, mask_kind::two_sided})
    for (const auto& form : test::all_forms) {
      auto x = test::random_problem<TestType>(random, {1, 2, 100, 5, 6}, kind, bila::norm::row_sum{0});
      x.gates.fill(cut);
      x.other_gates.fill(cut);
      const auto y = test::evaluate(form, x).y;
      test::answer values = x.exact();
      y.for_each([&](const TestType&, index_t b, index_t h, index_t l, index_t d) {
        values.y[values.place(b, h, l, d)] = x.v(b, h, l, d);
      });
      INFO(test::name_of(form) << ": " << x.name());
      CHECK(x.worst_error(y, values) <= 1);
    }
}
