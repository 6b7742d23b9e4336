// SPDX-License-Identifier: Apache-2.0
// What a process does around a call: threads that wait inside one and call again, masks that throw, memory that runs out, fork().
#include "faults.hpp"
#include "support/catch.hpp"

#include <bila/bila.hpp>

#include <cstdlib>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace {

using bila::index_t;
using test::mask_kind;

/// Calls attend once more between two tasks, as a thread of oneTBB does that waits and takes another task meanwhile.
struct re_entering : bila::executor {
  std::function<void()> again;

  void run(index_t n, void (*task)(void*, index_t), void* context) override {
    for (index_t i = 0; i < n; ++i) {
      task(context, i);
      if (const auto call = std::exchange(again, nullptr)) call();
    }
  }
};

struct throws_at {
  index_t h, i;
  double weight(index_t, index_t head, index_t query, index_t) const {
    if (head == h && query == i) throw std::runtime_error("a mask of the user's");
    return 1;
  }
};

}  // namespace

TEST_CASE("U1: a call inside a call has memory of its own", "[process]") {
  const auto outer = faults::sample({.L = 300, .Dk = 16, .Dv = 16}, mask_kind::fixed);
  for (const index_t L : {300, 40, 900}) {
    const auto inner = faults::sample({.H = 2, .L = L, .Dk = 16, .Dv = 16}, mask_kind::source, bila::norm::row_sum{1e-6}, 2);
    for (const test::any_form& form : test::all_forms) {
      const auto expected = test::evaluate(form, outer).y, expected_inside = test::evaluate(form, inner).y;
      test::tensor<float> inside;
      re_entering executor;
      executor.again = [&] { inside = test::evaluate(form, inner).y; };
      const auto found = test::evaluate(form, outer, {.threads = 2, .executor = &executor}).y;
      INFO(test::name_of(form) << ", L = " << L << " inside");
      CHECK(same_bits(found, expected));
      CHECK(same_bits(inside, expected_inside));
    }
  }
}

TEST_CASE("U4: what a mask throws reaches the caller, and the pool lives on", "[process]") {
  const index_t H = 8, L = 1000, D = 32;
  test::tensor<float> q(1, H, L, D), y(1, H, L, D);
  q.fill(0.1f);
  const bila::inputs<float> in{q.view(), q.view(), q.view()};
  const auto expected = faults::sample({.H = 4, .L = 300, .Dk = 16, .Dv = 16});
  for (const int threads : {1, 2, 4})
    for (const index_t h : {0, 3, 7}) {
      std::string words;
      try {
        bila::attend(bila::cpu{.threads = threads}, bila::form::full{}, throws_at{h, 500}, bila::norm::none{}, in, y.view());
      } catch (const std::runtime_error& error) {
        words = error.what();
      }
      CHECK(words == "a mask of the user's");
      CHECK(same_bits(test::evaluate<float>(bila::form::chunkwise{}, expected, {.threads = 4}).y,
                      test::evaluate<float>(bila::form::chunkwise{}, expected).y));
    }
}

TEST_CASE("memory that calls have left is given back, and grows again", "[process]") {
  const auto x = faults::sample({.H = 3, .L = 300, .Dk = 16, .Dv = 16});
  const auto expected = test::evaluate<float>(bila::form::chunkwise{}, x).y;
  for (int n = 0; n < 3; ++n) {
    bila::release_memory();
    for (const auto& place : bila::detail::idle_memory) CHECK(place.load() == nullptr);
    CHECK(same_bits(test::evaluate<float>(bila::form::chunkwise{}, x).y, expected));
  }
}

#if defined(__linux__)

namespace {

/// The exit status of a child that runs this; 255 if it died.
template <class Run>
int in_a_child(const Run& run) {
  const pid_t child = fork();
  if (child == 0) {
    run();
    std::exit(0);  // with destructors of statics, as a program ends
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

}  // namespace

TEST_CASE("U3: a child of fork() ends well and can call", "[process]") {
  const auto x = faults::sample({.H = 4, .L = 300, .Dk = 16, .Dv = 16});
  const auto expected = test::evaluate<float>(bila::form::chunkwise{}, x, {.threads = 4}).y;
  CHECK(in_a_child([] {}) == 0);
  CHECK(in_a_child([&] {
          for (int n = 0; n < 3; ++n)
            if (!same_bits(test::evaluate<float>(bila::form::chunkwise{}, x, {.threads = 4}).y, expected)) std::exit(1);
          if (in_a_child([&] { test::evaluate<float>(bila::form::chunkwise{}, x, {.threads = 3}); }) != 0) std::exit(2);
        }) == 0);
  CHECK(same_bits(test::evaluate<float>(bila::form::chunkwise{}, x, {.threads = 4}).y, expected));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !(defined(__has_feature) && (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer)))
// Not under a sanitizer, whose own memory would not fit either.
TEST_CASE("U2: after a call that found no memory the next one works", "[process]") {
  const auto small = faults::sample({.L = 30, .Dk = 8, .Dv = 8});
  CHECK(in_a_child([&] {
          const auto expected = test::evaluate<float>(bila::form::chunkwise{}, small).y;
          rlimit limit{};
          getrlimit(RLIMIT_AS, &limit);
          limit.rlim_cur = rlim_t(1) << 31;
          setrlimit(RLIMIT_AS, &limit);
          const index_t L = 200000, D = 128;
          const std::vector<float> zeros(static_cast<std::size_t>(D));
          const auto x = [&](index_t width) {
            return bila::tensor_view<const float>{zeros.data(), {1, 1, L, width}, {0, 0, 0, 1}};
          };
          std::vector<float> dq(static_cast<std::size_t>(L * D));
          bila::gradients<float> to;
          to.q = bila::bhld(dq.data(), 1, 1, L, D);
          bool caught = false;
          try {
            bila::gradient(bila::form::chunkwise{1}, bila::mask::fixed_decay{bila::vec(zeros.data(), 1)}, bila::norm::none{},
                           bila::inputs<float>{x(D), x(D), x(D)}, {x(D)}, {x(D)}, to);
          } catch (const std::bad_alloc&) {
            caught = true;
          }
          if (!caught) std::exit(1);
          if (!same_bits(test::evaluate<float>(bila::form::chunkwise{}, small).y, expected)) std::exit(2);
        }) == 0);
}
#endif

TEST_CASE("U18: threads = 0 counts the processors that the process may use", "[process]") {
  CHECK(in_a_child([] {
          cpu_set_t one;
          CPU_ZERO(&one);
          CPU_SET(sched_getcpu(), &one);
          if (sched_setaffinity(0, sizeof one, &one) != 0) std::exit(3);
          if (bila::detail::threads_of({.threads = 0}) != 1) std::exit(1);
        }) == 0);
}

#endif
