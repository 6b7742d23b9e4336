// SPDX-License-Identifier: Apache-2.0
// The CPU backend: how many threads, whose threads, whose memory. It cuts a call into tasks and knows nothing of what they compute.
#pragma once

#include <bila/backend/denormals.hpp>
#include <bila/backend/pool.hpp>
#include <bila/backend/workspace.hpp>
#include <bila/error.hpp>
#include <bila/view/tensor_view.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace bila::inline v0_1 {

/// Somebody else's threads. `run` calls task(context, i) once for each 0 <= i < n, on any threads, and returns when all are done.
class executor {
 public:
  virtual ~executor() = default;
  virtual void run(index_t n, void (*task)(void* context, index_t i), void* context) = 0;
};

/// Runs a call on the processor's cores. The result has the same bits for every number of threads.
struct cpu {
  int threads = 1;                     // at most this many; 0: all that the hardware has. With 1 no thread is started.
  bila::executor* executor = nullptr;  // whose threads; null: a pool shared by the process
  std::span<std::byte> workspace = {}; // at least workspace_bytes(...); empty: memory that the calling thread keeps
};

namespace detail {

inline complaint check(const cpu& backend) {
  return backend.threads >= 0 ? complaint() : sentence("cpu.threads = ", backend.threads, ", it must be >= 0");
}

inline index_t threads_of(const cpu& backend) { return backend.threads == 0 ? hardware_threads() : backend.threads; }

/// A caller's memory may start anywhere; the first slot starts at the next aligned byte.
inline std::size_t bytes_for(index_t slots, std::size_t bytes_per_slot) {
  return static_cast<std::size_t>(slots) * bytes_per_slot + kernel::arena::alignment;
}

/// Runs work(task, arena) for 0 <= task < tasks. Each of `slots` threads takes the next task that is left and has its own arena.
template <class Work>
void run_tasks(const cpu& backend, index_t tasks, index_t slots, std::size_t bytes_per_slot, const Work& work) {
  const std::size_t bytes = bytes_for(slots, bytes_per_slot);
  const std::span<std::byte> memory = backend.workspace.empty() ? workspace_of_this_thread(bytes) : backend.workspace;
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());

  struct call {
    const Work& work;
    std::byte* base;
    std::size_t bytes_per_slot;
    index_t tasks;
    std::atomic<index_t> next;
  } all{work, memory.data() + (kernel::arena::alignment - address % kernel::arena::alignment) % kernel::arena::alignment,
        bytes_per_slot, tasks, 0};

  const auto run_slot = [](void* context, index_t slot) {
    call& c = *static_cast<call*>(context);
    const flush_denormals guard;
    for (index_t task = c.next.fetch_add(1); task < c.tasks; task = c.next.fetch_add(1))
      c.work(task, kernel::arena(c.base + static_cast<std::size_t>(slot) * c.bytes_per_slot));
  };
  if (slots == 1)
    run_slot(&all, 0);
  else if (backend.executor != nullptr)
    backend.executor->run(slots, run_slot, &all);
  else
    run_on_pool(slots, run_slot, &all);
}

}  // namespace detail

}  // namespace bila::inline v0_1
