// SPDX-License-Identifier: Apache-2.0
// Everything at once: calls with random shapes, heads, segments, lengths, layouts, options, threads and chunk sizes.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace {

using test::index_t;

/// One of the divisors of n.
index_t divisor_of(test::random_source& random, index_t n) {
  index_t d = 1 + random.below(n);
  while (n % d != 0) --d;
  return d;
}

template <class T>
test::problem<T> anything(test::random_source& random) {
  const auto one_of = [&random](const auto& list) {
    return list[static_cast<std::size_t>(random.below(static_cast<index_t>(list.size())))];
  };
  const bool packed = random.below(3) == 0;
  // One draw per statement: the order of a call's arguments is the compiler's.
  test::sizes size;
  size.B = packed ? 1 : 1 + random.below(3);
  size.H = 1 + random.below(6);
  size.L = 1 + random.below(20);
  if (random.below(2) == 0) size.L += random.below(160);
  size.Dk = 1 + random.below(20);
  size.Dv = 1 + random.below(40);
  for (index_t* const heads : {&size.Hq, &size.Hk, &size.Hv}) *heads = divisor_of(random, size.H);
  const auto kind = one_of(test::all_masks);
  const auto norm = one_of(test::all_norms);
  auto x = test::random_problem<T>(random, size, kind, norm);
  x.q = x.q.laid_out(one_of(test::all_layouts));
  x.k = x.k.laid_out(one_of(test::all_layouts));
  x.v = x.v.laid_out(one_of(test::all_layouts));
  x.direction = one_of(test::all_directions);
  x.diagonal = one_of(std::array{1.0, 0.0, 2.0, 0.3});
  x.scale = one_of(std::array{1.0, 0.1, 4.0});
  for (auto* const gates : {&x.gates, &x.other_gates})
    gates->for_each([&](double& gate, index_t, index_t, index_t, index_t) {
      const index_t one_in_12 = random.below(12);
      if (one_in_12 == 0) gate = -std::numeric_limits<double>::infinity();
      if (one_in_12 == 1) gate = -60;
      if (one_in_12 == 2) gate = 0;
    });
  if (packed) {
    x.offsets = {0, size.L};
    for (index_t n = random.below(6); n > 0; --n) x.offsets.push_back(random.below(size.L + 1));
    std::sort(x.offsets.begin(), x.offsets.end());
  } else if (random.below(3) == 0) {
    for (index_t b = 0; b < size.B; ++b) x.lengths.push_back(random.below(size.L + 1));
  }
  return x;
}

}  // namespace

TEMPLATE_TEST_CASE("random calls give the numbers of the definition", "", float, double) {
  test::random_source random(901);
  for (int n = 0; n < 300; ++n) {
    const auto x = anything<TestType>(random);
    const auto exact = x.exact();
    for (const test::any_form& form :
         {test::any_form(bila::form::full{}), test::any_form(bila::form::recurrent{}), test::any_form(bila::form::automatic{}),
          test::any_form(bila::form::chunkwise{.size = 1 + random.below(90)})}) {
      const int threads = 1 + static_cast<int>(random.below(4));
      const auto where = test::all_layouts[static_cast<std::size_t>(random.below(6))];
      INFO(test::name_of(form) << ", " << threads << " threads, y " << test::name_of(where) << ": " << x.name());
      const auto [y, intact] = test::evaluate(form, x, {.threads = threads}, where);
      CHECK(intact);
      CHECK(x.worst_error(y, exact) <= 1);
    }
  }
}
