// SPDX-License-Identifier: Apache-2.0
// Whose threads run a call, with which indices, and that one thread means none is started.
#include "support/catch.hpp"
#include "support/problem.hpp"
#include "support/refusal.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <set>
#include <thread>
#include <variant>
#include <vector>

namespace {

using bila::index_t;

/// Runs the tasks on the calling thread, last first, and notes what it was asked for.
struct noting_executor : bila::executor {
  std::vector<index_t> asked;
  std::thread::id thread;

  void run(index_t n, void (*task)(void*, index_t), void* context) override {
    asked.push_back(n);
    thread = std::this_thread::get_id();
    for (index_t i = n - 1; i >= 0; --i) task(context, i);
  }
};

/// Runs every task on a thread of its own.
struct thread_each : bila::executor {
  void run(index_t n, void (*task)(void*, index_t), void* context) override {
    std::vector<std::thread> threads;
    for (index_t i = 0; i < n; ++i) threads.emplace_back(task, context, i);
    for (std::thread& one : threads) one.join();
  }
};

test::problem<float> some_problem(index_t B, index_t H, index_t L = 300, index_t D = 33) {
  test::random_source random(601);
  return test::random_problem<float>(random, {B, H, L, 16, D}, test::mask_kind::source, bila::norm::row_sum{1e-6});
}

}  // namespace

TEST_CASE("one thread asks no executor and starts no thread") {
  // Where the system lists a process's threads, they are counted. This is the first test here: others leave a pool behind.
  const std::filesystem::path list = "/proc/self/task";
  const auto threads_now = [&list] {
    return std::filesystem::exists(list)
               ? std::distance(std::filesystem::directory_iterator(list), std::filesystem::directory_iterator())
               : 1;
  };
  const auto before = threads_now();
  for (const auto& form : test::all_forms)
    for (const index_t heads : {1, 8}) {
      noting_executor executor;
      const auto x = some_problem(1, heads);
      test::evaluate(form, x, {.threads = 1});
      test::evaluate(form, x, {.threads = 1, .executor = &executor});
      CHECK(executor.asked.empty());
      CHECK(threads_now() == before);
    }
  const auto tiny = some_problem(1, 1, 1, 1);  // nothing to share
  test::evaluate<float>(bila::form::full{}, tiny, {.threads = 8});
  CHECK(threads_now() == before);
  const auto cheap = some_problem(1, 3);  // not worth a thread
  auto y = cheap.output();
  for (const auto& form : test::all_forms)
    std::visit(
        [&](const auto& f) {
          bila::attend(bila::cpu{.threads = 8}, f, bila::mask::all_ones{}, bila::norm::none{}, cheap.inputs(), y.view());
        },
        form);
  CHECK(threads_now() == before);
}

TEST_CASE("the defaults: one thread, the process's pool, the thread's own memory") {
  const bila::cpu backend;
  CHECK((backend.threads == 1 && backend.executor == nullptr && backend.workspace.empty()));
  CHECK(bila::detail::threads_of({.threads = 3}) == 3);
  CHECK(bila::detail::threads_of({.threads = 0}) == bila::detail::hardware_threads());
  CHECK(bila::detail::hardware_threads() >= 1);
}

TEST_CASE("a negative number of threads is refused") {
  using test::has_all;
  const auto x = some_problem(1, 1);
  auto y = x.output();
  CHECK(has_all(
      test::refusal([&] { test::attend<float>({.threads = -1}, bila::form::full{}, x.mask(), x.norm, x.inputs(), y.view()); }),
      {"cpu.threads", "-1"}));
}

TEST_CASE("run_tasks runs every task once, in no more workers than asked for, each with its own arena") {
  for (const index_t tasks : {0, 1, 2, 7, 100})
    for (const index_t workers : {1, 2, 5}) {
      noting_executor executor;
      std::vector<int> runs(static_cast<std::size_t>(tasks));
      const bila::detail::schedule plan{1, 1, tasks, workers, 128, 64};
      std::vector<std::byte> memory(plan.bytes());
      std::set<float*> arenas;
      const bila::detail::call_memory mine(memory, plan.bytes());
      std::byte* const shared = mine.aligned();
      bila::detail::run_tasks({.threads = 5, .executor = &executor}, plan, mine,
                              [&](index_t task, bila::kernel::arena own, std::byte* common) {
                                ++runs[static_cast<std::size_t>(task)];
                                CHECK(own.used() == 0);
                                CHECK(common == shared);
                                float* const numbers = own.numbers<bila::kernel::reference, float>(32);
                                auto* const bytes = reinterpret_cast<std::byte*>(numbers);
                                CHECK((bytes >= common + 64 && bytes + 128 <= memory.data() + memory.size()));
                                CHECK((bytes - (common + 64)) % 128 == 0);
                                arenas.insert(numbers);
                              });
      CHECK((shared >= memory.data() && shared < memory.data() + bila::kernel::arena::alignment));
      CHECK(static_cast<index_t>(arenas.size()) <= workers);
      CHECK(std::all_of(runs.begin(), runs.end(), [](int n) { return n == 1; }));
      CHECK(executor.asked == (workers == 1 ? std::vector<index_t>{} : std::vector<index_t>{workers}));
    }
}

// The linear forms cut a head that too few threads would share into two halves, which pause for each other in between.
TEST_CASE("an executor is asked once a call, or for halves that meet twice; for at most as many tasks as threads; same bits") {
  for (const auto& form : test::all_forms)
    for (const index_t heads : {1, 2, 6}) {
      INFO(test::name_of(form) << ", " << heads << " heads");
      const auto x = some_problem(2, heads / 2 + heads % 2);
      const index_t all_heads = 2 * x.size.H;
      const auto alone = test::evaluate(form, x);
      for (const int threads : {2, 3, 16}) {
        noting_executor backwards;
        const auto y = test::evaluate(form, x, {.threads = threads, .executor = &backwards});
        CHECK(y.intact);
        CHECK(same_bits(y.y, alone.y));
        const bool cut = all_heads % threads != 0 && all_heads < 4 * threads;
        const bool meets = !std::holds_alternative<bila::form::full>(form);
        REQUIRE(backwards.asked.size() == (cut && meets ? 2 : 1));
        CHECK((backwards.asked[0] >= 2 && backwards.asked[0] <= threads));
        CHECK(backwards.asked.back() == backwards.asked[0]);
        CHECK(backwards.thread == std::this_thread::get_id());

        thread_each at_once;
        CHECK(same_bits(test::evaluate(form, x, {.threads = threads, .executor = &at_once}).y, alone.y));
      }
    }
}

TEST_CASE("one direction has no halves: an executor is asked once") {
  for (const auto& form : test::all_forms)
    for (const auto direction : {bila::direction::forward, bila::direction::backward}) {
      INFO(test::name_of(form) << ", " << test::name_of(direction));
      auto x = some_problem(1, 1);
      x.direction = direction;
      const auto alone = test::evaluate(form, x);
      noting_executor backwards;
      CHECK(same_bits(test::evaluate(form, x, {.threads = 2, .executor = &backwards}).y, alone.y));
      CHECK(backwards.asked == std::vector<index_t>{2});
    }
}

TEST_CASE("an empty call asks nobody") {
  noting_executor executor;
  for (const auto& form : test::all_forms) test::evaluate(form, some_problem(0, 3), {.threads = 4, .executor = &executor});
  CHECK(executor.asked.empty());
}
