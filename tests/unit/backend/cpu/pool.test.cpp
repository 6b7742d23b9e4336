// SPDX-License-Identifier: Apache-2.0
// The pool of the process: every index once, from any caller, at any depth.
#include "support/catch.hpp"

#include <bila/backend/cpu/pool.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using bila::index_t;
using bila::detail::run_on_pool;

struct tally {
  explicit tally(index_t n) : counts(static_cast<std::size_t>(n)) {}
  std::vector<std::atomic<int>> counts;

  static void count(void* context, index_t i) { ++static_cast<tally*>(context)->counts[static_cast<std::size_t>(i)]; }

  bool each(int times) const {
    for (const auto& n : counts)
      if (n != times) return false;
    return true;
  }
};

}  // namespace

TEST_CASE("every index runs once, for fewer and for more tasks than the hardware has threads") {
  for (const index_t n : {0, 1, 2, 3, 40}) {
    tally all(n);
    run_on_pool(n, tally::count, &all);
    CHECK(all.each(1));
  }
}

TEST_CASE("the calling thread takes part") {
  struct context {
    std::atomic<int> here{0};
    std::thread::id caller = std::this_thread::get_id();
  } all;
  run_on_pool(
      3, [](void* c, index_t) { static_cast<context*>(c)->here += std::this_thread::get_id() == static_cast<context*>(c)->caller; },
      &all);
  CHECK(all.here >= 1);
}

TEST_CASE("a task may use the pool itself") {
  struct context {
    tally inner{30};
  } all;
  run_on_pool(
      6, [](void* c, index_t) { run_on_pool(30, tally::count, &static_cast<context*>(c)->inner); }, &all);
  CHECK(all.inner.each(6));
}

TEST_CASE("several threads use it at once") {
  tally all(20);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&all] {
      for (int n = 0; n < 50; ++n) run_on_pool(20, tally::count, &all);
    });
  for (std::thread& one : callers) one.join();
  CHECK(all.each(200));
}

TEST_CASE("while the pool works for one caller, another runs its tasks itself") {
  struct context {
    std::atomic<int> started{0};
    std::atomic<bool> may_end{false};
  } job;
  std::thread other([&job] {
    run_on_pool(
        2,
        [](void* c, index_t) {
          auto& all = *static_cast<context*>(c);
          ++all.started;
          while (!all.may_end) std::this_thread::yield();
        },
        &job);
  });
  while (job.started < 2) std::this_thread::yield();
  struct note {
    tally all{5};
    std::atomic<int> elsewhere{0};
    std::thread::id caller = std::this_thread::get_id();
  } mine;
  run_on_pool(
      5,
      [](void* c, index_t i) {
        auto& to = *static_cast<note*>(c);
        tally::count(&to.all, i);
        to.elsewhere += std::this_thread::get_id() != to.caller;
      },
      &mine);
  CHECK((mine.all.each(1) && mine.elsewhere == 0));
  job.may_end = true;
  other.join();
  tally after(7);
  run_on_pool(7, tally::count, &after);
  CHECK(after.each(1));
}

TEST_CASE("a pool takes one job at a time, grows for a larger one, and ends idle or unused") {
  { const bila::detail::pool unused; }
  bila::detail::pool some;
  for (const index_t n : {1, 2, 5, 3, 9, 2}) {
    tally all(n);
    CHECK(some.try_run(n, tally::count, &all));
    CHECK(all.each(1));
  }
  struct context {
    bila::detail::pool* pool;
    std::atomic<int> refused{0};
    tally inner{3};
  } nested{&some};
  CHECK(some.try_run(
      4,
      [](void* c, index_t) {
        auto& all = *static_cast<context*>(c);
        all.refused += !all.pool->try_run(3, tally::count, &all.inner);
      },
      &nested));
  CHECK((nested.refused == 4 && nested.inner.each(0)));

  // As many tasks as threads, each of which waits for all others: they run at the same time.
  struct meeting {
    std::atomic<int> here{0};
  } together;
  CHECK(some.try_run(
      5,
      [](void* c, index_t) {
        auto& all = *static_cast<meeting*>(c);
        ++all.here;
        while (all.here < 5) std::this_thread::yield();
      },
      &together));
  CHECK(together.here == 5);
}

TEST_CASE("jobs that follow each other, at once and after a sleep, lose no task") {
  bila::detail::pool some;
  tally all(4);
  for (int n = 0; n < 2000; ++n) CHECK(some.try_run(4, tally::count, &all));
  CHECK(all.each(2000));
  for (int n = 0; n < 20; ++n) {
    std::this_thread::sleep_for(std::chrono::microseconds(n < 10 ? 500 : 90 + n));  // longer than a thread's patience, or about it
    CHECK(some.try_run(4, tally::count, &all));
  }
  CHECK(all.each(2020));
}

TEST_CASE("a change is awaited by looking, and then asleep") {
  for (const int milliseconds : {0, 5}) {
    std::atomic<std::uint32_t> x{1};
    std::thread other([&x, milliseconds] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      x = 2;
      x.notify_all();
    });
    bila::detail::wait_for_change(x, std::uint32_t(1));
    CHECK(x == 2);
    other.join();
  }
  const std::atomic<std::uint64_t> changed{3};
  bila::detail::wait_for_change(changed, std::uint64_t(1));
  CHECK(changed == 3);
}
