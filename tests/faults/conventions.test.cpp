// SPDX-License-Identifier: Apache-2.0
// The facts that decide whether a port is right: whose gate a crossing uses, what a reversed sequence gives, what a zero gate cuts.
#include "faults/faults.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

using namespace faults;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("section 0, A6: the 3x3 masks of gates .5 .25 .125", "[conventions]") {
  struct table {
    mask_kind kind;
    std::array<std::array<double, 3>, 3> M;
  };
  for (const table& wanted : {table{mask_kind::later, {{{1, .25, .03125}, {.25, 1, .125}, {.03125, .125, 1}}}},
                              table{mask_kind::source, {{{1, .25, .03125}, {.5, 1, .125}, {.125, .25, 1}}}},
                              table{mask_kind::target, {{{1, .5, .125}, {.25, 1, .25}, {.03125, .125, 1}}}},
                              table{mask_kind::earlier, {{{1, .5, .125}, {.5, 1, .25}, {.125, .25, 1}}}}}) {
    auto x = whole_mask<double>(wanted.kind, 3);
    x.gates.for_each(
        [](double& gate, index_t, index_t, index_t l, index_t) { gate = std::log(std::ldexp(.5, -static_cast<int>(l))); });
    for (const test::any_form& form : three_forms(2)) {
      CAPTURE(x.name(), test::name_of(form));
      run(form, x).for_each([&](double M, index_t, index_t, index_t i, index_t j) {
        // Two logs, two exponentials and two products, each off by at most one rounding.
        CHECK(std::fabs(M - wanted.M[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)]) <=
              6 * std::numeric_limits<double>::epsilon() * M);
      });
    }
  }
}

TEST_CASE("section 0: reversing the sequence reverses the result, where the convention allows it", "[conventions]") {
  for (const auto& [kind, kind_of_reversed] :
       {std::pair(mask_kind::source, mask_kind::source), std::pair(mask_kind::target, mask_kind::target),
        std::pair(mask_kind::later, mask_kind::earlier), std::pair(mask_kind::earlier, mask_kind::later)}) {
    const auto x = sample({.H = 2, .L = 70, .Dk = 5, .Dv = 6}, kind);
    auto reversed = x;
    reversed.kind = kind_of_reversed;
    const auto reverse = [](auto& to, const auto& from) {
      to.for_each([&](auto& value, index_t b, index_t h, index_t l, index_t d) { value = from(b, h, from.extent(2) - 1 - l, d); });
    };
    reverse(reversed.q, x.q), reverse(reversed.k, x.k), reverse(reversed.v, x.v), reverse(reversed.gates, x.gates);
    const test::answer exact = x.exact();
    for (const test::any_form& form : test::all_forms) {
      CAPTURE(x.name(), test::name_of(form));
      tensor<float> y = run(form, reversed), back = y;
      reverse(back, y);
      CHECK(x.worst_error(back, exact) <= 1);
    }
  }
}

TEST_CASE("section 0: a zero gate cannot part packed sequences, offsets do", "[conventions]") {
  using pairs = std::set<std::pair<index_t, index_t>>;
  const index_t seam = 4;
  auto x = whole_mask(mask_kind::source, 8);
  for (const test::any_form& form : three_forms(3)) {
    CAPTURE(test::name_of(form));
    pairs leaks, cuts;  // (i, j) that see each other and should not, and the reverse
    const auto look = [&] {
      leaks.clear(), cuts.clear();
      run(form, x).for_each([&](float M, index_t, index_t, index_t i, index_t j) {
        const bool together = (i < seam) == (j < seam);
        if (M != 0 && !together) leaks.emplace(i, j);
        if (M == 0 && together) cuts.emplace(i, j);
      });
    };
    x.offsets.clear();
    x.gates.fill(-.1);
    x.gates(0, 0, seam - 1) = -infinity;
    look();
    CHECK(leaks == pairs{{3, 4}, {3, 5}, {3, 6}, {3, 7}});
    x.gates(0, 0, seam) = -infinity;
    look();
    CHECK(leaks.empty());
    CHECK(cuts == pairs{{0, 3}, {1, 3}, {2, 3}, {5, 4}, {6, 4}, {7, 4}});
    x.gates.fill(-.1);
    x.offsets = {0, seam, 8};
    look();
    CHECK((leaks.empty() && cuts.empty()));
  }
}
