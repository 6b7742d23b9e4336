// SPDX-License-Identifier: Apache-2.0
// The size of a chunk is a matter of speed: every size from one token to more than the sequence gives the same numbers.
#include "support/catch.hpp"
#include "support/problem.hpp"

TEMPLATE_TEST_CASE("chunkwise does not depend on its chunk size", "", float, double) {
  test::random_source random(751);
  for (const auto kind : test::all_masks)
    for (const auto direction : test::all_directions)
      for (const test::index_t L : {12, 65, 96, 300}) {  // decays are filled for up to 128 tokens at once
        auto x = test::random_problem<TestType>(random, {1, 1, L, 5, 7}, kind, bila::norm::row_sum{1e-6});
        x.direction = direction;
        const auto exact = x.exact();
        for (test::index_t size = 1; size <= L + 2; size += L > 96 ? 29 : 1) {
          INFO("chunks of " << size << ": " << x.name());
          const auto [y, intact] = test::evaluate<TestType>(bila::form::chunkwise{.size = size}, x);
          CHECK(intact);
          CHECK(x.worst_error(y, exact) <= 1);
        }
      }
}
