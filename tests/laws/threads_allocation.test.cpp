// SPDX-License-Identifier: Apache-2.0
// Once the workspace is warm, a call allocates nothing, on one thread or on several. Counted where all memory comes from: malloc
// and its relatives with the GNU C library, operator new where a sanitizer has taken malloc.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

namespace {

std::atomic<long> allocations{0};

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif

#if defined(__GLIBC__) && !defined(SANITIZED)

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept { return ++allocations, __libc_malloc(bytes); }
void* calloc(std::size_t count, std::size_t bytes) noexcept { return ++allocations, __libc_calloc(count, bytes); }
void* realloc(void* memory, std::size_t bytes) noexcept { return ++allocations, __libc_realloc(memory, bytes); }
void* memalign(std::size_t alignment, std::size_t bytes) noexcept { return ++allocations, __libc_memalign(alignment, bytes); }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept { return ++allocations, __libc_memalign(alignment, bytes); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  ++allocations;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? 12 : 0;  // ENOMEM
}
}

#else

namespace {

void* counted(std::size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes + (bytes == 0));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* counted(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const auto step = static_cast<std::size_t>(alignment);
  void* const memory = std::aligned_alloc(step, (bytes + step - 1) / step * step + (bytes == 0) * step);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return counted(bytes, alignment); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return counted(bytes, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#endif

namespace {

template <class T>
long allocations_of(const test::any_form& form, const test::problem<T>& x, const bila::cpu& backend) {
  auto y = x.output();
  const auto mask = x.mask();
  const auto in = x.inputs();
  test::attend<T>(backend, form, mask, x.norm, in, y.view());
  const long before = allocations;
  test::attend<T>(backend, form, mask, x.norm, in, y.view());
  return allocations - before;
}

}  // namespace

TEST_CASE("allocations are seen") {
  void* volatile memory = nullptr;  // or a compiler leaves out what it sees through
  const long before = allocations;
  memory = ::operator new(100);
  CHECK(allocations - before == 1);
  ::operator delete(memory);

  const long between = allocations;
  memory = ::operator new(100, std::align_val_t(64));
  CHECK(allocations - between == 1);
  ::operator delete(memory, std::align_val_t(64));

#if defined(__GLIBC__) && !defined(SANITIZED)
  const long after = allocations;
  memory = std::malloc(100);
  std::free(memory);
  CHECK(allocations - after == 1);
#endif
}

TEMPLATE_TEST_CASE("the second call allocates nothing", "", float, double) {
  test::random_source random(861);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto& [size, offsets, lengths] :
           {std::tuple<test::sizes, std::vector<test::index_t>, std::vector<test::index_t>>{{2, 3, 200, 9, 40}, {}, {}},
            {{1, 1, 300, 16, 64}, {}, {}},
            {{1, 1, 5, 3, 2}, {}, {}},
            {{1, 2, 200, 9, 40}, {0, 7, 7, 150, 200}, {}},
            {{2, 1, 200, 9, 40}, {}, {200, 3}}}) {
        auto x = test::random_problem<TestType>(random, size, kind, norm);
        x.offsets = offsets;
        x.lengths = lengths;
        for (const auto& form : test::all_forms)
          for (const int threads : {1, 2}) {
            INFO(test::name_of(form) << ", " << threads << " threads: " << x.name());
            CHECK(allocations_of(form, x, {.threads = threads}) == 0);
          }
      }
}

TEST_CASE("with a workspace of the caller's the first call allocates nothing either") {
  test::random_source random(862);
  const auto x = test::random_problem<float>(random, {2, 3, 500, 19, 70}, test::mask_kind::source, bila::norm::row_sum{1e-6});
  for (const auto& form : test::all_forms) {
    auto y = x.output();
    const auto mask = x.mask();
    const auto in = x.inputs();
    std::vector<std::byte> memory(test::workspace_bytes<float>({}, form, mask, x.norm, in, y.view()));
    const long before = allocations;
    test::attend<float>({.workspace = memory}, form, mask, x.norm, in, y.view());
    INFO(test::name_of(form));
    CHECK(allocations - before == 0);
  }
}
