// SPDX-License-Identifier: Apache-2.0
// Reading the sequence from its other end: the source and the target convention commute with it, later becomes earlier and the
// other way round, and a packed buffer is reversed segment by segment.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <vector>

namespace {

using test::index_t;
using test::mask_kind;

/// Token l of every tensor is token place(l) of x.
template <class T, class Place>
test::problem<T> reordered(const test::problem<T>& x, const Place& place) {
  auto result = x;
  const auto reorder = [&](auto& to, const auto& from) {
    if (from.extent(2) == x.size.L)
      to.for_each([&](auto& y, index_t b, index_t h, index_t l, index_t d) { y = from(b, h, place(l), d); });
  };
  reorder(result.q, x.q);
  reorder(result.k, x.k);
  reorder(result.v, x.v);
  reorder(result.gates, x.gates);
  reorder(result.other_gates, x.other_gates);
  return result;
}

mask_kind seen_from_the_end(mask_kind kind) {
  return kind == mask_kind::later ? mask_kind::earlier : kind == mask_kind::earlier ? mask_kind::later : kind;
}

bila::direction opposite(bila::direction way) {
  return way == bila::direction::forward    ? bila::direction::backward
         : way == bila::direction::backward ? bila::direction::forward
                                            : way;
}

template <class T, class Place>
void check(const test::problem<T>& x, const Place& place) {
  const auto exact = x.exact();
  auto flipped = reordered(x, place);
  flipped.kind = seen_from_the_end(x.kind);
  flipped.direction = opposite(x.direction);
  if (x.kind == mask_kind::two_sided)  // gap t becomes gap L - t, crossed the other way
    for (index_t b = 0; b < x.size.B; ++b)
      for (index_t h = 0; h < x.size.H; ++h)
        for (index_t t = 1; t < x.size.L; ++t) {
          flipped.gates(b, h, t) = x.other_gates(b, h, x.size.L - t);
          flipped.other_gates(b, h, t) = x.gates(b, h, x.size.L - t);
        }
  for (const auto& form : test::all_forms) {
    const auto y = test::evaluate(form, flipped).y;
    auto back = x.output();
    back.for_each([&](T& value, index_t b, index_t h, index_t l, index_t d) { value = y(b, h, place(l), d); });
    INFO(test::name_of(form) << ": " << x.name());
    CHECK(x.worst_error(back, exact) <= 1);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("reversal commutes with source and target, and swaps later and earlier", "", float, double) {
  test::random_source random(721);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto direction : test::all_directions)
        for (const index_t L : {1, 2, 70, 131}) {
          auto x = test::random_problem<TestType>(random, {1, 2, L, 4, 5}, kind, norm);
          x.direction = direction;
          check(x, [L](index_t l) { return L - 1 - l; });
        }
}

TEMPLATE_TEST_CASE("each segment of a packed buffer is reversed on its own", "", float, double) {
  test::random_source random(722);
  const std::vector<index_t> offsets{0, 3, 8, 8, 80, 110};
  const auto place = [&](index_t l) {
    std::size_t n = 1;
    while (offsets[n] <= l) ++n;
    return offsets[n - 1] + offsets[n] - 1 - l;
  };
  for (const auto kind : {mask_kind::fixed, mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::earlier}) {
    auto x = test::random_problem<TestType>(random, {1, 2, 110, 4, 5}, kind, bila::norm::row_sum{1e-6});
    x.offsets = offsets;
    check(x, place);
  }
}

TEST_CASE("later does not commute with reversal") {
  test::random_source random(723);
  const auto x = test::random_problem<double>(random, {1, 1, 20, 4, 5}, mask_kind::later, bila::norm::none{});
  const auto flipped = reordered(x, [](index_t l) { return 19 - l; });
  const auto y = test::evaluate<double>(bila::form::full{}, flipped).y;
  auto back = x.output();
  back.for_each([&](double& value, index_t b, index_t h, index_t l, index_t d) { value = y(b, h, 19 - l, d); });
  CHECK(x.worst_error(back, x.exact()) > 1e6);
}
