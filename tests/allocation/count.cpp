// SPDX-License-Identifier: Apache-2.0
// A unit of its own: a compiler that sees operator new next to its use takes malloc and free for a mismatched pair.
#include <cstdlib>

#include "allocation/count.hpp"

#include <atomic>
#include <cstddef>
#include <new>

namespace {

std::atomic<long> count{0};

}  // namespace

long test::allocations() { return count; }

#if TEST_COUNTS_MALLOC

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t number, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept { return ++count, __libc_malloc(bytes); }
void* calloc(std::size_t number, std::size_t bytes) noexcept { return ++count, __libc_calloc(number, bytes); }
void* realloc(void* memory, std::size_t bytes) noexcept { return ++count, __libc_realloc(memory, bytes); }
void* memalign(std::size_t alignment, std::size_t bytes) noexcept { return ++count, __libc_memalign(alignment, bytes); }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept { return ++count, __libc_memalign(alignment, bytes); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  ++count;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? 12 : 0;  // ENOMEM
}
}

#else

namespace {

void* counted(std::size_t bytes, std::size_t alignment) noexcept {
  ++count;
  return std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}

void* counted_or_throw(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  if (void* const memory = counted(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// All of them: a sanitizer's own versions do not call each other.
void* operator new(std::size_t bytes) { return counted_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return counted_or_throw(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t to) { return counted_or_throw(bytes, static_cast<std::size_t>(to)); }
void* operator new[](std::size_t bytes, std::align_val_t to) { return counted_or_throw(bytes, static_cast<std::size_t>(to)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#endif
