// SPDX-License-Identifier: Apache-2.0
// The GPU as a test sees it: memory with guards, streams, graphs. No CUDA header is needed to include this.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

struct CUstream_st;

namespace test::device {

using stream = CUstream_st*;

/// Why nothing can run here, in CUDA's words; empty when it can.
std::string why_none();

/// Device memory for the tensors of one call; the same for every call.
std::byte* memory();
std::size_t memory_size();

/// Much device memory, for as long as one test needs it; null if there is none.
std::byte* large_memory(std::size_t bytes);
void release_large_memory();

void write(void* to, const void* from, std::size_t bytes);
void read(void* to, const void* from, std::size_t bytes);

/// So many bytes of device memory, each of them `junk`, with guards around; another one than `memory`. `misaligned`: one byte off.
std::span<std::byte> workspace(std::size_t bytes, unsigned char junk, bool misaligned = false);
/// Whether the guards of the last workspace are as they were.
bool workspace_intact();

/// Waits for all that was started, and throws what CUDA has to say about it.
void finish();

/// What CUDA remembers of a call that it refused.
void forget_refusal();

/// A stream of its own, which waits for no other.
class own_stream {
 public:
  own_stream();
  ~own_stream();
  own_stream(const own_stream&) = delete;
  own_stream& operator=(const own_stream&) = delete;
  stream get() const { return stream_; }
  bool busy() const;

 private:
  stream stream_;
};

/// Captures what f starts on the stream in a CUDA graph, in the mode in which CUDA refuses whatever may not be captured, and then
/// launches the graph so many times.
void capture(stream on, const std::function<void()>& f, int times);

/// Keeps a stream busy for about so many milliseconds.
void delay(stream on, int milliseconds);

}  // namespace test::device
