// SPDX-License-Identifier: Apache-2.0
// The CPU backend: number of threads, executor and workspace. This header schedules tasks, and does not know what tasks compute.
#pragma once

#include <bila/backend/cpu/denormals.hpp>
#include <bila/backend/cpu/pool.hpp>
#include <bila/backend/cpu/workspace.hpp>
#include <bila/error.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <span>

namespace bila {
inline namespace v0_1 {

/// An interface to the caller's own thread pool. `run` calls task(context, i) once for each 0 <= i < n, on any threads, and returns
/// when all tasks are done.
class executor {
 public:
  virtual ~executor() = default;
  virtual void run(index_t n, void (*task)(void* context, index_t i), void* context) = 0;
};

/// Runs a call on the processor's cores. The result has the same bits for every number of threads.
struct cpu {
  int threads = 1;  // at most this many; 0: one per processor that the process may use. A small call uses one, see form/README.md.
  bila::executor* executor = nullptr;   // the caller's thread pool; null: the pool of the process
  std::span<std::byte> workspace = {};  // at least workspace_bytes(...); empty: memory of the process, see release_memory
};

namespace detail {
inline namespace BILA_UNIT {

inline error_message validate(const cpu& backend) {
  return backend.threads >= 0 ? error_message() : message("cpu.threads = ", backend.threads, ", it must be >= 0");
}

inline index_t threads_of(const cpu& backend) { return backend.threads == 0 ? hardware_threads() : backend.threads; }

/// How a call is divided into tasks. The result does not depend on this division.
struct schedule {
  index_t segments, splits, tasks, workers;
  std::size_t bytes_per_slot, shared_bytes;  // memory of each worker; memory of all tasks; multiples of the alignment
  index_t halves = 1;                        // halves of a split that run at the same time
  std::size_t two_sided_bytes = 0;           // memory that the halves of one split share

  std::size_t bytes() const { return shared_bytes + static_cast<std::size_t>(workers) * bytes_per_slot + kernel::arena::alignment; }
};

/// The schedule of tasks that share nothing, each with `scratch` bytes. The backend must be valid.
inline schedule schedule_of(const cpu& backend, index_t tasks, std::size_t scratch) {
  return {1, 1, tasks, std::clamp<index_t>(tasks, 1, threads_of(backend)), scratch, 0};
}

inline error_message check_workspace(const cpu& backend, const schedule& s) {
  if (backend.workspace.empty() || backend.workspace.size() >= s.bytes()) return {};
  return message("cpu.workspace has ", backend.workspace.size(), " bytes, this call needs ", s.bytes());
}

/// Carries an exception of a task, such as one from a user's mask, to the calling thread. A pool or an executor never sees
/// exceptions.
class first_failure {
 public:
  /// Runs the task; returns false if it threw.
  template <class Task>
  bool run(const Task& task) {
#if BILA_EXCEPTIONS
    try {
      task();
    } catch (...) {
      if (!seen_.test_and_set()) thrown_ = std::current_exception();
      return false;
    }
#else
    task();
#endif
    return true;
  }

  void rethrow() const {
    if (thrown_ != nullptr) std::rethrow_exception(thrown_);
  }

 private:
  std::atomic_flag seen_ = ATOMIC_FLAG_INIT;
  std::exception_ptr thrown_;
};

/// Runs work(task, arena, shared) for 0 <= task < tasks. Each of `workers` threads has its own arena and takes the next task that
/// is not taken. The shared memory comes first, before the arenas. After a task has thrown, no other task starts.
template <class Work>
void run_tasks(const cpu& backend, const schedule& s, const call_memory& memory, const Work& work) {
  struct call {
    const Work& work;
    const schedule& s;
    std::byte* shared;
    std::atomic<index_t> next;
    first_failure failure;
  } all{work, s, memory.aligned(), 0, {}};

  const auto run_slot = [](void* context, index_t slot) {
    call& c = *static_cast<call*>(context);
    const flush_denormals guard;
    std::byte* const mine = c.shared + c.s.shared_bytes + static_cast<std::size_t>(slot) * c.s.bytes_per_slot;
    for (index_t task = c.next.fetch_add(1); task < c.s.tasks; task = c.next.fetch_add(1))
      if (!c.failure.run([&] { c.work(task, kernel::arena(mine), c.shared); })) c.next = c.s.tasks;
  };
  if (s.workers == 1)
    run_slot(&all, 0);
  else if (backend.executor != nullptr)
    backend.executor->run(s.workers, run_slot, &all);
  else
    run_on_pool(s.workers, run_slot, &all);
  all.failure.rethrow();
}

}  // namespace BILA_UNIT
}  // namespace detail

}  // namespace v0_1
}  // namespace bila
