// SPDX-License-Identifier: Apache-2.0
// The second gradient allocates nothing, on one thread or on several, nor does the first with a workspace of the caller's. Counted
// in operator new and, with the GNU C library, in malloc, which nobody gets around.
#include "support/catch.hpp"
#include "support/gradient.hpp"

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
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept { return ++allocations, __libc_malloc(bytes); }
void* memalign(std::size_t alignment, std::size_t bytes) noexcept { return ++allocations, __libc_memalign(alignment, bytes); }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept { return ++allocations, __libc_memalign(alignment, bytes); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  ++allocations;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? 12 : 0;  // ENOMEM
}
}

#else

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes + (bytes == 0))) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes + (bytes == 0));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const auto step = static_cast<std::size_t>(alignment);
  if (void* const memory = std::aligned_alloc(step, (bytes + step) / step * step)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#endif

namespace {

/// Of the last of `calls` gradients.
template <class T>
long allocations_of(const test::any_form& form, const test::lesson<T>& x, const bila::cpu& backend, int calls) {
  auto to = room_for(x);
  const auto mask = x.x.mask();
  const auto in = x.inputs();
  const auto dy = given_to(x);
  const auto wanted = gradients_of(to);
  const auto kept = saved_of(to);
  test::forward_pass<T>(test::layer::eigen, {}, form, mask, x.x.norm, in, outputs_of(to));
  long before = 0;
  for (int n = 0; n < calls; ++n) {
    before = allocations;
    test::backward_pass<T>(test::layer::eigen, backend, form, mask, x.x.norm, in, kept, dy, wanted);
  }
  return allocations - before;
}

}  // namespace

TEST_CASE("allocations are seen") {
  const long before = allocations;
  void* volatile memory = ::operator new(100);
  CHECK(allocations - before == 1);
  ::operator delete(memory);
}

TEMPLATE_TEST_CASE("the second gradient allocates nothing", "", float, double, bila::bf16) {
  test::random_source random(3701);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const bool states : {false, true}) {
        auto wide = test::random_lesson(random, {.B = 2, .H = 2, .L = 150, .Dk = 9, .Dv = 20, .Hk = 1}, kind, norm);
        if (states) add_states(wide, random);
        const auto x = test::stored_as<TestType>(wide);
        for (const auto& form :
             {test::any_form(bila::form::full{}), test::any_form(bila::form::recurrent{}),
              test::any_form(bila::form::chunkwise{.size = 24}),
              test::any_form(bila::form::chunkwise{.size = 8, .recompute = true}), test::any_form(bila::form::automatic{})})
          for (const int threads : {1, 2}) {
            if (states && form.index() == 0) continue;
            INFO(test::name_of(form) << ", " << threads << " threads: " << wide.name());
            CHECK(allocations_of(form, x, {.threads = threads}, 2) == 0);
          }
      }
}

TEST_CASE("with a workspace of the caller's the first gradient allocates nothing either") {
  test::random_source random(3702);
  const auto x = test::random_lesson(random, {.B = 2, .H = 3, .L = 500, .Dk = 19, .Dv = 70}, test::mask_kind::source,
                                     bila::norm::row_sum{1e-6});
  for (const auto& form : test::all_forms) {
    std::vector<std::byte> memory(test::backward_bytes<double>({}, form, x.inputs(), x.dy.view()));
    INFO(test::name_of(form));
    CHECK(allocations_of(form, x, {.workspace = memory}, 1) == 0);
  }
}
