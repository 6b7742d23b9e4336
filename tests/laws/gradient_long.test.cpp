// SPDX-License-Identifier: Apache-2.0
// Gradients over long sequences: sums over gaps end with a chunk, so they do not drown in what cancels.
#include "support/catch.hpp"
#include "support/gradient.hpp"

#include <cmath>

namespace {

using test::index_t;
using test::mask_kind;

test::lesson<double> long_lesson(double low, double high, const test::any_norm& norm) {
  test::random_source random(3601);
  auto x = test::random_lesson(random, {.L = 4096, .Dk = 8, .Dv = 8}, mask_kind::source, norm);
  x.x.gates.for_each([&](double& gate, index_t, index_t, index_t, index_t) { gate = std::log(random.uniform(low, high)); });
  x.x.scale = 0.3;
  return x;
}

}  // namespace

TEST_CASE("gate gradients in float at L = 4096 are as good as at L = 64", "[slow]") {
  for (const auto& [low, high] : {std::array{0.3, 0.6}, {0.95, 1.0}})
    for (const test::any_form& form : {test::any_form(bila::form::recurrent{}), test::any_form(bila::form::chunkwise{})}) {
      const auto x = test::stored_as<float>(long_lesson(low, high, bila::norm::none{}));
      const auto found = learn(form, x);
      const auto exact = learn(form, test::stored_as<double>(x));
      INFO(test::name_of(form) << " lambda from " << low);
      // A global reverse cumulative sum is off by 1.5e-4 here.
      CHECK(distance(test::converted<double>(found.log_decay), exact.log_decay) < 2e-5);
      CHECK(distance(test::converted<double>(found.q), exact.q) < 2e-6);
      CHECK(distance(test::converted<double>(found.k), exact.k) < 2e-6);
    }
}

TEST_CASE("long gradients of all forms agree in double, and states join them", "[slow]") {
  for (const auto& norm : test::all_norms) {
    auto x = long_lesson(0.9, 1.0, norm);
    const auto expected = learn(bila::form::full{}, x);
    for (const test::any_form& form :
         {test::any_form(bila::form::recurrent{}), test::any_form(bila::form::chunkwise{}),
          test::any_form(bila::form::chunkwise{.size = 50, .recompute = true}), test::any_form(bila::form::automatic{})}) {
      INFO(test::name_of(form) << ": " << x.name());
      CHECK(distance(learn(form, x), expected) <= 2e-12);
    }
  }
}
