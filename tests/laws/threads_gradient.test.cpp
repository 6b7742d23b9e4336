// SPDX-License-Identifier: Apache-2.0
// The gradient has the same bits for every number of threads, and for every executor that they come from.
#include "support/catch.hpp"
#include "support/gradient.hpp"

#include <thread>
#include <vector>

namespace {

/// Runs the tasks backwards, each on a thread of its own.
struct backwards : bila::executor {
  void run(bila::index_t n, void (*task)(void*, bila::index_t), void* context) override {
    std::vector<std::thread> all;
    for (bila::index_t i = n; i-- > 0;) all.emplace_back(task, context, i);
    for (std::thread& one : all) one.join();
  }
};

}  // namespace

TEMPLATE_TEST_CASE("gradients on 1, 2, 3 and 5 threads", "", float, double) {
  test::random_source random(3201);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto& [size, offsets] :
           {std::pair<test::sizes, std::vector<test::index_t>>{{.B = 2, .H = 4, .L = 90, .Dk = 5, .Dv = 9, .Hq = 2, .Hk = 1}, {}},
            {{.B = 1, .H = 2, .L = 90, .Dk = 5, .Dv = 9}, {0, 30, 30, 31, 90}},
            {{.B = 1, .H = 1, .L = 150, .Dk = 16, .Dv = 33}, {}}}) {
        auto wide = test::random_lesson(random, size, kind, norm);
        wide.x.offsets = offsets;
        for (const bool states : {false, true}) {
          if (states) add_states(wide, random);
          const auto x = test::stored_as<TestType>(wide);
          for (const auto& form : test::all_forms) {
            if (states && form.index() == 0) continue;
            const auto alone = learn(form, x);
            for (const int threads : {2, 3, 5}) {
              INFO(test::name_of(form) << " on " << threads << " threads: " << x.name());
              CHECK(same_bits(learn(form, x, {.threads = threads}), alone));
            }
          }
        }
      }
}

TEST_CASE("gradients on an executor of the caller's") {
  test::random_source random(3202);
  backwards executor;
  for (const auto kind : test::all_masks) {
    const auto x =
        test::random_lesson(random, {.B = 2, .H = 3, .L = 40, .Dk = 5, .Dv = 9, .Hv = 1}, kind, bila::norm::row_sum{1e-6});
    for (const auto& form : test::all_forms) {
      INFO(test::name_of(form) << ": " << x.name());
      CHECK(same_bits(learn(form, x, {.threads = 4, .executor = &executor}), learn(form, x)));
    }
  }
}
