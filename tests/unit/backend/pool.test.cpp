// SPDX-License-Identifier: Apache-2.0
// The pool of the process: every index once, from any caller, at any depth.
#include "support/catch.hpp"

#include <bila/backend/pool.hpp>

#include <atomic>
#include <memory>
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

TEST_CASE("a pool that is in use survives a larger one") {
  const auto small = bila::detail::pool_of(1);
  const auto large = bila::detail::pool_of(small->NumThreads() + 3);
  CHECK(large->NumThreads() >= small->NumThreads() + 3);
  std::atomic<bool> ran{false};
  Eigen::Notification done;
  small->Schedule([&] {
    ran = true;
    done.Notify();
  });
  done.Wait();
  CHECK(ran);
  CHECK(bila::detail::pool_of(1) == large);
}
