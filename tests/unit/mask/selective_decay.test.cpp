// SPDX-License-Identifier: Apache-2.0
// The four conventions: whose gate a crossing uses. The tables are the golden ones of lambda = (.9, .8, .7, .6, .5).
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/refusal.hpp"
#include "support/run.hpp"
#include "support/tensor.hpp"

#include <bila/mask/selective_decay.hpp>

#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

namespace {

using bila::gate;
using bila::index_t;
using table = std::vector<std::vector<double>>;

const table later{{1, .8, .56, .336, .168},  //
                  {.8, 1, .7, .42, .21},
                  {.56, .7, 1, .6, .3},
                  {.336, .42, .6, 1, .5},
                  {.168, .21, .3, .5, 1}};

const table source{{1, .8, .56, .336, .168},  //
                   {.9, 1, .7, .42, .21},
                   {.72, .8, 1, .6, .3},
                   {.504, .56, .7, 1, .5},
                   {.3024, .336, .42, .6, 1}};

table transposed(const table& x) {
  table result = x;
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < x.size(); ++j) result[j][i] = x[i][j];
  return result;
}

/// The same mask of the sequence read from its end.
table reversed(const table& x) {
  table result = x;
  const std::size_t last = x.size() - 1;
  for (std::size_t i = 0; i <= last; ++i)
    for (std::size_t j = 0; j <= last; ++j) result[last - i][last - j] = x[i][j];
  return result;
}

/// What attend makes of the gates: with q = k = 1 and v the unit matrix, y is M.
table mask_of(const std::vector<double>& lambda, gate convention, const test::any_form& form) {
  const auto L = static_cast<index_t>(lambda.size());
  test::tensor<double> one(1, 1, L, 1), unit(1, 1, L, L), gates(1, 1, L, 1), y(1, 1, L, L);
  one.fill(1);
  unit.for_each([](double& x, index_t, index_t, index_t l, index_t d) { x = l == d; });
  gates.for_each([&](double& x, index_t, index_t, index_t t, index_t) { x = std::log(lambda[static_cast<std::size_t>(t)]); });
  test::attend<double>({}, form, bila::mask::selective_decay<double>{gates.view(), convention}, bila::norm::none{},
                       {one.view(), one.view(), unit.view()}, y.view());
  table M(lambda.size(), std::vector<double>(lambda.size()));
  y.for_each(
      [&](double x, index_t, index_t, index_t i, index_t j) { M[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] = x; });
  return M;
}

/// Equal but for the roundings of a product of at most L decays and of the logarithms themselves.
bool equal(const table& x, const table& y) {
  bool same = x.size() == y.size();
  for (std::size_t i = 0; i < x.size() && same; ++i)
    for (std::size_t j = 0; j < x.size(); ++j) {
      const double roundings = 4 * static_cast<double>(x.size()) + 16;
      same = same && std::fabs(x[i][j] - y[i][j]) <= roundings * std::numeric_limits<double>::epsilon() * std::fabs(y[i][j]);
    }
  return same;
}

const std::vector<double> lambda{.9, .8, .7, .6, .5};

}  // namespace

TEST_CASE("the golden tables of the four conventions, in every form") {
  for (const auto& form : {test::any_form(bila::form::full{}), test::any_form(bila::form::recurrent{}),
                           test::any_form(bila::form::chunkwise{.size = 1}), test::any_form(bila::form::chunkwise{.size = 2}),
                           test::any_form(bila::form::chunkwise{.size = 64}), test::any_form(bila::form::automatic{})}) {
    INFO(test::name_of(form));
    CHECK(equal(mask_of(lambda, gate::later, form), later));
    CHECK(equal(mask_of(lambda, gate::source, form), source));
    CHECK(equal(mask_of(lambda, gate::target, form), transposed(source)));
    const table target = mask_of(lambda, gate::target, form);
    CHECK(equal({target[0], target[4]}, {{1, .9, .72, .504, .3024}, {.168, .21, .3, .5, 1}}));

    std::vector<double> backwards(lambda.rbegin(), lambda.rend());
    CHECK(equal(mask_of(lambda, gate::earlier, form), reversed(mask_of(backwards, gate::later, form))));
  }
}

TEST_CASE("later is symmetric, target is source transposed, and all agree for one constant gate") {
  const test::any_form form = bila::form::full{};
  CHECK(equal(mask_of(lambda, gate::later, form), transposed(mask_of(lambda, gate::later, form))));
  CHECK(equal(mask_of(lambda, gate::earlier, form), transposed(mask_of(lambda, gate::earlier, form))));
  CHECK(equal(mask_of(lambda, gate::target, form), transposed(mask_of(lambda, gate::source, form))));
  CHECK_FALSE(equal(mask_of(lambda, gate::source, form), transposed(mask_of(lambda, gate::source, form))));

  const std::vector<double> constant(5, .75);
  for (const gate convention : {gate::source, gate::target, gate::earlier})
    CHECK(equal(mask_of(constant, convention, form), mask_of(constant, gate::later, form)));
}

TEST_CASE("the gate of the token that is left, as LION's code has it") {
  const table M = mask_of({.5, .25, .125}, gate::source, bila::form::recurrent{});
  CHECK(equal(M, {{1, .25, .03125}, {.5, 1, .125}, {.125, .25, 1}}));
}

TEST_CASE("the gates at the ends that a convention does not use are not read") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& form : test::all_forms) {
    INFO(test::name_of(form));
    CHECK(equal(mask_of({nan, .8, .7, .6, .5}, gate::later, form), later));
    CHECK(equal(mask_of({.5, .6, .7, .8, nan}, gate::earlier, form), reversed(later)));
  }
}

TEST_CASE("each gap asks the right token") {
  std::array<float, 12> memory;
  for (std::size_t n = 0; n < memory.size(); ++n) memory[n] = -static_cast<float>(n);
  const auto gates = bila::bhl(memory.data(), 2, 2, 3);
  const auto asks = [&](gate convention, index_t forward, index_t backward) {
    const bila::mask::selective_decay mask{gates, convention};
    STATIC_REQUIRE(std::is_same_v<decltype(mask), const bila::mask::selective_decay<float>>);
    STATIC_REQUIRE(std::remove_cv_t<decltype(mask)>::gaps == bila::gap::per_token);
    for (index_t t = 1; t < 3; ++t) {
      CHECK(mask.log_forward(1, 0, t) == -static_cast<double>(6 + t + forward));
      CHECK(mask.log_backward(1, 0, t) == -static_cast<double>(6 + t + backward));
    }
  };
  asks(gate::later, 0, 0);
  asks(gate::source, -1, 0);
  asks(gate::target, 0, -1);
  asks(gate::earlier, -1, -1);
}

TEST_CASE("shape and names") {
  using test::has_all;
  std::vector<double> memory(24);
  const bila::mask::selective_decay mask{bila::bhl(memory.data(), 2, 3, 4), gate::source};
  CHECK(mask.validate(2, 3, 4).empty());
  CHECK(has_all(mask.validate(2, 3, 5), {"log_decay", "[2, 3, 4, 1]", "[2, 3, 5, 1]"}));
  CHECK(has_all(mask.validate(1, 3, 4), {"log_decay", "[2, 3, 4, 1]", "[1, 3, 4, 1]"}));
  CHECK(has_all(mask.validate(2, 7, 4), {"log_decay", "[2, 3, 4, 1]", "[2, 7, 4, 1]"}));
  CHECK(mask.validate(2, 6, 4).empty());  // each of its heads serves two
  const bila::mask::selective_decay null{bila::bhl(static_cast<double*>(nullptr), 2, 3, 4), gate::source};
  CHECK(has_all(null.validate(2, 3, 4), {"log_decay", "null"}));
  CHECK(mask.parameter_of(bila::direction::forward, 1, 2, 3) == "log_decay[b = 1, h = 2, t = 2]");  // the token that is left
  CHECK(mask.parameter_of(bila::direction::backward, 1, 2, 3) == "log_decay[b = 1, h = 2, t = 3]");
  CHECK(std::get<0>(mask.parameters()).data == memory.data());
}
