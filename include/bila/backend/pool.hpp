// SPDX-License-Identifier: Apache-2.0
// The process's thread pool, made of Eigen's, and started by the first call that asks for more than one thread.
#pragma once

#if defined(__CUDACC__)
#error "bila: nvcc must not compile Eigen; include <bila/cuda.hpp> in .cu files"
#endif

#include <bila/view/tensor_view.hpp>

#include <unsupported/Eigen/CXX11/ThreadPool>

#include <algorithm>
#include <memory>
#include <mutex>
#include <thread>

namespace bila::inline v0_1::detail {

inline int hardware_threads() { return (std::max)(1, static_cast<int>(std::thread::hardware_concurrency())); }

/// The shared pool, with at least `workers` threads. A caller keeps the one it got alive while it uses it.
inline std::shared_ptr<Eigen::ThreadPool> pool_of(int workers) {
  static std::mutex guard;
  static std::shared_ptr<Eigen::ThreadPool> pool;
  const std::lock_guard lock(guard);
  if (pool == nullptr || pool->NumThreads() < workers)
    pool = std::make_shared<Eigen::ThreadPool>((std::max)(workers, hardware_threads() - 1));
  return pool;
}

/// Runs task(context, i) for 0 <= i < n, the last on the calling thread; one after the other when called from a task of the pool.
inline void run_on_pool(index_t n, void (*task)(void* context, index_t i), void* context) {
  thread_local bool inside_a_task = false;
  if (n <= 1 || inside_a_task) {
    for (index_t i = 0; i < n; ++i) task(context, i);
    return;
  }
  struct call {
    void (*task)(void*, index_t);
    void* context;
    std::atomic<index_t> next;
    Eigen::Barrier done;
  } all{task, context, 0, Eigen::Barrier(static_cast<unsigned>(n - 1))};

  const auto pool = pool_of(static_cast<int>(n - 1));
  for (index_t i = 0; i + 1 < n; ++i)
    pool->Schedule([c = &all] {
      inside_a_task = true;
      c->task(c->context, c->next.fetch_add(1));
      inside_a_task = false;
      c->done.Notify();
    });
  task(context, n - 1);
  all.done.Wait();
}

}  // namespace bila::inline v0_1::detail
