// SPDX-License-Identifier: Apache-2.0
// oneTBB's threads under load: a thread that waits for its own tasks takes others meanwhile, and so enters attend again.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <vector>

namespace {

using bila::index_t;

struct one_tbb : bila::executor {
  void run(index_t n, void (*task)(void*, index_t), void* context) override {
    tbb::parallel_for(index_t(0), n, [=](index_t i) { task(context, i); });
  }
};

}  // namespace

TEST_CASE("hundreds of nested calls on eight threads have the bits of one call alone", "[foreign]") {
  struct work {
    test::any_form form;
    test::problem<float> x;
    test::tensor<float> expected;
  };
  test::random_source random(9);
  std::vector<work> all;
  for (const test::any_form& form : test::all_forms)
    for (const index_t L : {30, 170, 300}) {
      auto x = test::random_problem<float>(random, {.H = 2, .L = L, .Dk = 16, .Dv = 32}, test::mask_kind::fixed,
                                           bila::norm::row_sum{1e-6});
      auto expected = test::evaluate(form, x).y;
      all.push_back({form, std::move(x), std::move(expected)});
    }
  one_tbb executor;
  std::atomic<int> wrong{0};
  const tbb::global_control eight(tbb::global_control::max_allowed_parallelism, 8);  // however few processors there are
  tbb::task_arena(8).execute([&] {
    tbb::parallel_for(0, 400, [&](int n) {
      const work& w = all[static_cast<std::size_t>(n) % all.size()];
      const auto found = test::evaluate(w.form, w.x, {.threads = 4, .executor = &executor});
      if (!found.intact || !same_bits(found.y, w.expected)) ++wrong;
    });
  });
  CHECK(wrong == 0);
}
