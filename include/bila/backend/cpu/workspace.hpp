// SPDX-License-Identifier: Apache-2.0
// The memory of a running call. A call owns it from its first task to its last: whoever calls again meanwhile, on this thread or on
// another, gets memory of its own. Between calls it is kept, so that nothing is allocated once it has grown.
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

/// The start of a block of memory; what a call may use follows it.
struct alignas(64) block_of_memory {
  std::size_t bytes;
};

/// The idle blocks of the process, of all units. Each is either in one slot or owned by one call, so no lock is needed: a child
/// of fork() finds no mutex that a thread it does not have would hold.
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

/// The slot that this thread tries first; it usually holds the block of its last call.
inline std::size_t first_place() {
  thread_local const unsigned number = threads_seen++;
  return number % idle_memory.size();
}

/// An idle block of at least so many bytes, or a new one in the place of one that is too small.
inline block_of_memory* take_memory(std::size_t bytes) {
  const std::size_t first = first_place();
  for (std::size_t n = 0; n < idle_memory.size(); ++n) {
    std::atomic<block_of_memory*>& place = idle_memory[(first + n) % idle_memory.size()];
    block_of_memory* const block = place.load() == nullptr ? nullptr : place.exchange(nullptr);
    if (block == nullptr) continue;
    if (block->bytes >= bytes) return block;
    release_block(block);  // first, so that the peak is the larger of the two and not their sum
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

/// A call's memory while it runs: the caller's own, or a block of the process's.
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

  /// A caller's memory may start anywhere; what is used of it starts at the next aligned byte.
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

/// Frees the memory that calls without a workspace of their own have left for the next ones, of all threads. Calls that run
/// meanwhile keep theirs.
inline void release_memory() {
  for (std::atomic<detail::block_of_memory*>& place : detail::idle_memory)
    if (detail::block_of_memory* const block = place.exchange(nullptr); block != nullptr) detail::release_block(block);
}

}  // namespace BILA_UNIT

}  // namespace v0_1
}  // namespace bila
