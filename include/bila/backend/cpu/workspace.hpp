// SPDX-License-Identifier: Apache-2.0
// The memory of a running call. A call owns the memory from its first task to its last. Another call that starts meanwhile, on any
// thread, gets other memory. Between calls the process keeps the memory, so that later calls of the same size allocate nothing.
#pragma once

#include <bila/kernel/arena.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

namespace bila {
inline namespace v0_1 {

namespace detail {

/// The header of a block of memory. The bytes that a call may use follow the header.
struct alignas(64) block_of_memory {
  std::size_t bytes;
};

/// The idle blocks of the process, shared by all units. Each block is either in one slot or owned by one call, so no lock is
/// needed. After fork() a child might never get a lock, because the thread that held it does not exist in the child.
inline constinit std::array<std::atomic<block_of_memory*>, 64> idle_memory{};
inline constinit std::atomic<unsigned> threads_seen{0};

}  // namespace detail

namespace detail {
inline namespace BILA_UNIT {

static_assert(sizeof(block_of_memory) == kernel::arena::alignment);

inline block_of_memory* allocate_block(std::size_t bytes) {
  void* const memory = ::operator new(sizeof(block_of_memory) + bytes, std::align_val_t(kernel::arena::alignment));
  return new (memory) block_of_memory{bytes};
}

inline void release_block(block_of_memory* block) { ::operator delete(block, std::align_val_t(kernel::arena::alignment)); }

/// The slot that this thread tries first. It usually holds the block of the thread's last call.
inline std::size_t first_place() {
  thread_local const unsigned number = threads_seen++;
  return number % idle_memory.size();
}

/// Returns an idle block of at least `bytes` bytes. If the first block found is too small, replaces it with a new block.
inline block_of_memory* take_memory(std::size_t bytes) {
  const std::size_t first = first_place();
  for (std::size_t n = 0; n < idle_memory.size(); ++n) {
    std::atomic<block_of_memory*>& place = idle_memory[(first + n) % idle_memory.size()];
    block_of_memory* const block = place.load() == nullptr ? nullptr : place.exchange(nullptr);
    if (block == nullptr) continue;
    if (block->bytes >= bytes) return block;
    release_block(block);  // before the allocation, so that the peak is not the sum of both blocks
    break;
  }
  return allocate_block(bytes);
}

inline void give_back(block_of_memory* block) {
  const std::size_t first = first_place();
  for (std::size_t n = 0; n < idle_memory.size(); ++n) {
    block_of_memory* nothing = nullptr;
    if (idle_memory[(first + n) % idle_memory.size()].compare_exchange_strong(nothing, block)) return;
  }
  release_block(block);
}

/// The memory of a call while the call runs: the caller's workspace, or a block of the process.
class call_memory {
 public:
  call_memory(std::span<std::byte> callers, std::size_t bytes)
      : block_(callers.empty() ? take_memory(bytes) : nullptr),
        start_(callers.empty() ? reinterpret_cast<std::byte*>(block_ + 1) : callers.data()) {}
  ~call_memory() {
    if (block_ != nullptr) give_back(block_);
  }
  call_memory(const call_memory&) = delete;
  call_memory& operator=(const call_memory&) = delete;

  /// The workspace may start anywhere. The call uses it from the next aligned byte on.
  std::byte* aligned() const {
    const auto past = reinterpret_cast<std::uintptr_t>(start_) % kernel::arena::alignment;
    return start_ + (kernel::arena::alignment - past) % kernel::arena::alignment;
  }

 private:
  block_of_memory* block_;
  std::byte* start_;
};

}  // namespace BILA_UNIT
}  // namespace detail

inline namespace BILA_UNIT {

/// Frees the memory, of all threads, that the process keeps for later calls without a workspace. Calls that are running keep their
/// memory.
inline void release_memory() {
  for (std::atomic<detail::block_of_memory*>& place : detail::idle_memory)
    if (detail::block_of_memory* const block = place.exchange(nullptr); block != nullptr) detail::release_block(block);
}

}  // namespace BILA_UNIT

}  // namespace v0_1
}  // namespace bila
