// SPDX-License-Identifier: Apache-2.0
// Aligned memory that grows once and is kept: the workspace of a calling thread that brings none of its own.
#pragma once

#include <bila/kernel/arena.hpp>

#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace bila::inline v0_1::detail {

class growing_buffer {
 public:
  std::span<std::byte> at_least(std::size_t bytes) {
    if (bytes > size_) {
      memory_.reset();  // first, so that the peak is the larger of the two and not their sum
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kernel::arena::alignment))));
      size_ = bytes;
    }
    return {memory_.get(), size_};
  }

 private:
  struct release {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(kernel::arena::alignment)); }
  };
  std::unique_ptr<std::byte, release> memory_;
  std::size_t size_ = 0;
};

inline std::span<std::byte> workspace_of_this_thread(std::size_t bytes) {
  thread_local growing_buffer buffer;
  return buffer.at_least(bytes);
}

}  // namespace bila::inline v0_1::detail
