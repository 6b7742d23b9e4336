// SPDX-License-Identifier: Apache-2.0
// Executors that a user would bring: their own threads, or none. The result has the bits of one thread.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace {

using bila::index_t;
using task_function = void (*)(void*, index_t);

/// A thread for each task.
struct own_threads : bila::executor {
  std::mutex guard;
  std::set<std::thread::id> ids;
  index_t tasks = 0;

  void run(index_t n, task_function task, void* context) override {
    tasks += n;
    std::vector<std::thread> threads;
    for (index_t i = 0; i < n; ++i)
      threads.emplace_back([=, this] {
        {
          const std::lock_guard lock(guard);
          ids.insert(std::this_thread::get_id());
        }
        task(context, i);
      });
    for (std::thread& thread : threads) thread.join();
  }
};

/// No threads at all, and the tasks last to first.
struct backwards : bila::executor {
  void run(index_t n, task_function task, void* context) override {
    for (index_t i = n - 1; i >= 0; --i) task(context, i);
  }
};

/// A thread of the user's that itself calls attend with several threads.
struct nested : bila::executor {
  own_threads inner;
  void run(index_t n, task_function task, void* context) override {
    std::thread([&] { inner.run(n, task, context); }).join();
  }
};

}  // namespace

TEST_CASE("a user's executor runs the tasks, and the result has the bits of one thread", "[foreign]") {
  test::random_source random(4);
  for (const test::sizes& size :
       {test::sizes{.B = 3, .H = 2, .L = 150, .Dk = 8, .Dv = 8}, test::sizes{.L = 300, .Dk = 8, .Dv = 64}}) {
    const auto x = test::random_problem<float>(random, size, test::mask_kind::source, bila::norm::row_sum{1e-6});
    for (const test::any_form& form : test::all_forms) {
      const auto alone = test::evaluate(form, x).y;
      own_threads threads;
      backwards serial;
      nested calls;
      for (const auto& [executor, count] : std::vector<std::pair<bila::executor*, int>>{{&threads, 3}, {&serial, 4}, {&calls, 2}}) {
        const auto [y, intact] = test::evaluate(form, x, {.threads = count, .executor = executor});
        CHECK(intact);
        CHECK(same_bits(y, alone));
      }
      CHECK((threads.tasks >= 1 && threads.tasks <= 2 * 3));  // twice if the halves of a head run apart
      CHECK(threads.ids.count(std::this_thread::get_id()) == 0);
    }
  }
}

TEST_CASE("an executor is not asked for one thread's work", "[foreign]") {
  struct nobody : bila::executor {
    void run(index_t, task_function, void*) override { FAIL("one thread was wanted"); }
  } executor;
  test::random_source random(5);
  const auto x = test::random_problem<float>(random, {.B = 3, .H = 2, .L = 40, .Dk = 4, .Dv = 4}, test::mask_kind::source,
                                             bila::norm::row_sum{1e-6});
  for (const test::any_form& form : test::all_forms)
    CHECK(same_bits(test::evaluate(form, x, {.executor = &executor}).y, test::evaluate(form, x).y));
}

TEST_CASE("a user's threads may each call attend", "[foreign]") {
  test::random_source random(6);
  const auto x = test::random_problem<float>(random, {.B = 2, .H = 2, .L = 100, .Dk = 8, .Dv = 8}, test::mask_kind::later,
                                             bila::norm::row_sum{1e-6});
  const auto alone = test::evaluate(bila::form::chunkwise{}, x).y;
  own_threads threads;
  struct call {
    const decltype(x)& problem;
    const decltype(alone)& expected;
    std::atomic<int> same;
  } all{x, alone, 0};
  threads.run(
      4,
      [](void* context, index_t i) {
        call& c = *static_cast<call*>(context);
        const auto [y, intact] = test::evaluate(bila::form::chunkwise{}, c.problem, {.threads = static_cast<int>(i % 2 + 1)});
        c.same += intact && same_bits(y, c.expected);
      },
      &all);
  CHECK(all.same == 4);
}
