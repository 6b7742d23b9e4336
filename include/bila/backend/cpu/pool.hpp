// SPDX-License-Identifier: Apache-2.0
// The threads of the process, started by the first call that uses more than one. An idle thread polls for work before it sleeps:
// waking a thread costs 50 microseconds, and a call's second pass (form::sweep_pass) follows the first within a few microseconds.
#pragma once

#include <bila/config.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace bila {
inline namespace v0_1 {
namespace detail {
inline namespace BILA_UNIT {

/// The number of processors that this process may use: an affinity mask may allow fewer than the machine has.
inline int hardware_threads() {
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return (std::max)(1, CPU_COUNT(&allowed));
#endif
  return (std::max)(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// A number that differs between a process and its child after fork().
inline long this_process() {
#if defined(__unix__) || defined(__APPLE__)
  return static_cast<long>(getpid());
#else
  return 0;
#endif
}

/// Waits until x != old: first polls for 100 microseconds, then sleeps.
template <class Number>
void wait_for_change(const std::atomic<Number>& x, Number old) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
  for (int looks = 1; x.load(std::memory_order_acquire) == old; ++looks) {
    if (looks % 64 != 0) continue;
    if (std::chrono::steady_clock::now() > patience) return x.wait(old, std::memory_order_acquire);
    std::this_thread::yield();
  }
}

/// Runs one job at a time: task(context, i) for 0 <= i < n. The caller runs task n - 1, then takes other tasks along with the
/// pool's threads. A thread that wakes after all tasks were taken does nothing. Tasks do not throw.
class pool {
 public:
  pool() = default;
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;
  ~pool() {
    stopping_ = true;
    offer(0);  // wakes all threads, which then read stopping_
    for (std::thread& one : threads_) one.join();
  }

  /// Returns false without running anything while the job of another caller runs.
  bool try_run(index_t n, void (*task)(void*, index_t), void* context) {
    if (busy_.test_and_set(std::memory_order_acquire)) return false;
    struct release {  // clears the flag even if starting a thread throws
      std::atomic_flag& busy;
      ~release() { busy.clear(std::memory_order_release); }
    } at_the_end{busy_};
    while (static_cast<index_t>(threads_.size()) < n - 1) threads_.emplace_back([this] { work(); });
    task_ = task;
    context_ = context;
    unfinished_ = static_cast<std::uint32_t>(n - 1);
    offer(static_cast<std::uint32_t>(n - 1));
    task(context, n - 1);  // the caller's own task
    while (take_one()) {
    }
    for (std::uint32_t left = unfinished_; left != 0; left = unfinished_) wait_for_change(unfinished_, left);
    return true;
  }

 private:
  // The upper 32 bits of offered_ are the number of the job, the lower 32 bits count the job's tasks that are not taken yet.
  static constexpr std::uint64_t left_mask = 0xffffffffu;

  void offer(std::uint32_t n) {
    offered_.store(((offered_.load() >> 32) + 1) << 32 | n, std::memory_order_release);
    offered_.notify_all();
  }

  bool take_one() {
    std::uint64_t offered = offered_.load(std::memory_order_acquire);
    do {
      if ((offered & left_mask) == 0) return false;
    } while (!offered_.compare_exchange_weak(offered, offered - 1, std::memory_order_acq_rel));
    // The job cannot end before this task, because unfinished_ still counts the task.
    task_(context_, static_cast<index_t>((offered & left_mask) - 1));
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_all();
    return true;
  }

  void work() {
    for (;;) {
      const std::uint64_t offered = offered_.load(std::memory_order_acquire);
      if (stopping_) return;
      if (!take_one()) wait_for_change(offered_, offered);
    }
  }

  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::atomic<std::uint64_t> offered_{0};
  std::atomic<std::uint32_t> unfinished_{0};
  std::atomic<bool> stopping_{false};
  void (*task_)(void*, index_t) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> threads_;
};

/// The pool of this process. fork() does not copy threads, so a child process makes a new pool. The child does not touch the
/// parent's pool: no thread in the child could finish the work that was pending at the fork.
class pool_of_process {
 public:
  pool_of_process() = default;
  pool_of_process(const pool_of_process&) = delete;
  pool_of_process& operator=(const pool_of_process&) = delete;
  ~pool_of_process() {
    owned* const last = now_.exchange(nullptr);
    if (last != nullptr && last->process == this_process()) delete last;
  }

  pool& get() {
    owned* found = now_.load();
    if (found != nullptr && found->process == this_process()) return found->threads;
    auto fresh = std::make_unique<owned>();
    if (now_.compare_exchange_strong(found, fresh.get())) return fresh.release()->threads;
    return found->threads;  // another thread of this process made the pool first
  }

 private:
  struct owned {
    long process = this_process();
    pool threads;
  };
  std::atomic<owned*> now_{nullptr};
};

/// Runs task(context, i) for 0 <= i < n on the process's pool and the calling thread. Uses the calling thread alone inside a task
/// of the pool, or while the pool works for another caller. Tasks do not throw.
BILA_NOINLINE inline void run_on_pool(index_t n, void (*task)(void* context, index_t i), void* context) {
  static pool_of_process threads;
  struct call {
    void (*task)(void*, index_t);
    void* context;
  } all{task, context};
  thread_local bool inside_a_task = false;
  const auto marked = [](void* c, index_t i) {
    const bool before = inside_a_task;
    inside_a_task = true;
    static_cast<call*>(c)->task(static_cast<call*>(c)->context, i);
    inside_a_task = before;
  };
  if (n > 1 && !inside_a_task && threads.get().try_run(n, marked, &all)) return;
  for (index_t i = 0; i < n; ++i) task(context, i);
}

}  // namespace BILA_UNIT
}  // namespace detail
}  // namespace v0_1
}  // namespace bila
