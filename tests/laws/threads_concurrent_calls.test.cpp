// SPDX-License-Identifier: Apache-2.0
// Calls from several threads at once, each with threads of its own, do not see each other.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <atomic>
#include <thread>
#include <vector>

TEST_CASE("callers in parallel get the bits that they get alone") {
  test::random_source random(771);
  std::vector<test::problem<float>> problems;
  std::vector<test::tensor<float>> alone;
  for (const auto kind : test::all_masks) {
    problems.push_back(test::random_problem<float>(random, {1, 2, 150 + 40 * static_cast<test::index_t>(problems.size()), 8, 40},
                                                   kind, bila::norm::row_sum{1e-6}));
    for (const auto& form : test::all_forms) alone.push_back(test::evaluate(form, problems.back()).y);
  }
  for (const int threads : {1, 3}) {
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (std::size_t caller = 0; caller < 4; ++caller)
      callers.emplace_back([&, caller] {
        for (std::size_t n = 0; n < 3 * alone.size(); ++n) {
          const std::size_t at = (n * (2 * caller + 1) + caller) % alone.size();  // each in its own order
          wrong += !same_bits(test::evaluate(test::all_forms[at % 4], problems[at / 4], {.threads = threads}).y, alone[at]);
        }
      });
    for (std::thread& one : callers) one.join();
    CHECK(wrong == 0);
  }
}
