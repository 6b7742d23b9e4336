// SPDX-License-Identifier: Apache-2.0
// Faults that users of linear attention have met elsewhere, kept out by a test each: work, memory, threads that nobody asked for.
#include "allocation/count.hpp"
#include "faults/faults.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <thread>
#include <vector>

using namespace faults;
using test::allocations;

namespace {

std::size_t bytes_for(const test::any_form& form, const test::problem<float>& x) {
  return test::workspace_bytes<float>({}, form, x.mask(), x.norm, x.inputs(), x.output().view());
}

/// A call that is ready to run, so that nothing but the call itself is counted.
class prepared {
 public:
  prepared(const test::any_form& form, const test::problem<float>& x, const bila::cpu& backend)
      : form_(form), mask_(x.mask()), norm_(x.norm), in_(x.inputs()), backend_(backend), y_(x.output()), out_(y_.view()) {}

  long allocations_of_a_run() {
    const long before = allocations();
    test::attend<float>(backend_, form_, mask_, norm_, in_, out_);
    return allocations() - before;
  }

 private:
  test::any_form form_;
  test::any_mask mask_;
  test::any_norm norm_;
  bila::inputs<float> in_;
  bila::cpu backend_;
  tensor<float> y_;
  bila::tensor_view<float> out_;
};

}  // namespace

#if defined(__linux__)
std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

/// Whether no more than `most` threads are left in the end: join() returns a moment before the kernel drops a thread from its list.
bool no_more_threads_than(std::ptrdiff_t most) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (threads_of_this_process() > most) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// The first test of this program, before anything has started a pool.
TEST_CASE("P7: threads that would cost more than they bring are not started", "[performance]") {
  const auto attend_with = [](index_t L) {
    const auto x = sample({.L = L, .Dk = 64, .Dv = 64});
    auto y = x.output();
    bila::attend(bila::cpu{.threads = 3}, bila::form::chunkwise{}, bila::mask::all_ones{}, bila::norm::row_sum{1e-6}, x.inputs(),
                 y.view());
  };
  const std::ptrdiff_t before = threads_of_this_process();
  attend_with(500);
  CHECK(threads_of_this_process() == before);
  attend_with(5000);
  CHECK(threads_of_this_process() > before);
}
#endif

TEST_CASE("P1, A9: automatic is right at the lengths of images, and changes over where its rule says", "[performance]") {
  const auto many = sample({.B = 32, .H = 8, .L = 197, .Dk = 64, .Dv = 64});
  const tensor<float> y = run(bila::form::automatic{}, many);
  const part last_head{.b = 31, .h = 7, .L = 197};
  const auto one = cut(many, last_head);
  CHECK(one.worst_error(cut(y, last_head), one.exact()) <= 1);

  const auto takes_the_form_of = [](const test::any_form& form, index_t L, mask_kind kind) {
    const auto x = sample({.L = L, .Dk = 64, .Dv = 64}, kind);
    return same_bits(run(bila::form::automatic{}, x), run(form, x));
  };
  const index_t crossover = 148;  // 16 + (4 D D + 450) / (2 D), rounded up
  CHECK(takes_the_form_of(bila::form::full{}, crossover - 1, mask_kind::source));
  CHECK_FALSE(takes_the_form_of(bila::form::full{}, crossover, mask_kind::source));
  CHECK(takes_the_form_of(bila::form::chunkwise{}, crossover, mask_kind::source));
  CHECK(takes_the_form_of(bila::form::full{}, 63, mask_kind::all_ones));  // D = 64
  CHECK_FALSE(takes_the_form_of(bila::form::full{}, 64, mask_kind::all_ones));
  CHECK(takes_the_form_of(bila::form::chunkwise{}, 64, mask_kind::all_ones));
}

TEST_CASE("P2, P8: two hundred lengths, and not one allocation once the workspace has grown (host)", "[performance]") {
  for (const test::any_form& form : test::all_forms)
    for (const int threads : {1, 2}) {
      CAPTURE(test::name_of(form), threads);
      const auto longest = sample({.H = 2, .L = 200, .Dk = 8, .Dv = 8});
      prepared(form, longest, {.threads = threads}).allocations_of_a_run();
      long during = 0;
      for (index_t L = 1; L <= 200; ++L) {
        const auto x = sample({.H = 2, .L = L, .Dk = 8, .Dv = 8});
        during += prepared(form, x, {.threads = threads}).allocations_of_a_run();
      }
      CHECK(during == 0);

      std::vector<std::byte> memory(bytes_for(form, longest) * static_cast<std::size_t>(threads));
      CHECK(prepared(form, longest, {.threads = threads, .workspace = memory}).allocations_of_a_run() == 0);
    }
  // The count itself counts: a call that finds no memory left by others allocates its own.
  bila::release_memory();
  long first = 0, second = 0;
  std::thread([&] {
    const auto x = sample({.L = 50, .Dk = 8, .Dv = 8});
    prepared call(bila::form::chunkwise{}, x, {});
    first = call.allocations_of_a_run();
    second = call.allocations_of_a_run();
  }).join();
  CHECK(first >= 1);
  CHECK(second == 0);
}

TEST_CASE("P4: a large batch of short sequences in the other layout needs no more memory than one", "[performance]") {
  const auto x = sample({.B = 4096, .L = 16, .Dk = 64, .Dv = 64}), one = sample({.L = 16, .Dk = 64, .Dv = 64});
  auto tokens_first = x;
  for (auto* input : {&tokens_first.q, &tokens_first.k, &tokens_first.v}) *input = input->laid_out(test::layout::blhd);
  CHECK(bytes_for(bila::form::automatic{}, tokens_first) == bytes_for(bila::form::automatic{}, one));
  CHECK(
      same_bits(test::evaluate(bila::form::automatic{}, tokens_first, {}, test::layout::blhd).y, run(bila::form::automatic{}, x)));
}

TEST_CASE("P5: the second direction costs one number per token, not a second set of states", "[performance]") {
  const index_t L = 8192, D = 64;
  const auto bytes = [](const test::any_form& form, index_t length, bila::direction way) {
    auto x = sample({.L = length, .Dk = D, .Dv = D});
    x.direction = way;
    return bytes_for(form, x);
  };
  for (const test::any_form& form : linear_forms) {
    CHECK(bytes(form, 2 * L, bila::direction::both) - bytes(form, L, bila::direction::both) <= L * sizeof(float));
    CHECK(bytes(form, L, bila::direction::both) - bytes(form, L, bila::direction::forward) <= L * sizeof(float));
    CHECK(bytes(form, L, bila::direction::both) < L * D * sizeof(float));
  }
  CHECK(bytes(bila::form::full{}, 2 * L, bila::direction::both) == bytes(bila::form::full{}, L, bila::direction::both));
}

#if defined(__linux__)
TEST_CASE("P6: one thread starts none, several share one pool, however many callers there are", "[performance]") {
  const std::ptrdiff_t callers = 4;
  for (const int threads : {1, 3}) {
    const auto x = sample({.H = 4, .L = 300, .Dk = 16, .Dv = 16});
    const tensor<float> y = run(bila::form::chunkwise{}, x, {.threads = threads});  // starts the pool if it is wanted
    const std::ptrdiff_t before = threads_of_this_process(),
                         hardware = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    if (threads > 1) CHECK(before <= 1 + std::max<std::ptrdiff_t>(threads - 1, hardware - 1));

    std::atomic<bool> same = true;
    std::atomic<std::ptrdiff_t> most = 0, running = callers;
    std::vector<std::thread> threads_of_the_user;
    for (std::ptrdiff_t caller = 0; caller < callers; ++caller)
      threads_of_the_user.emplace_back([&] {
        for (int repetition = 0; repetition < 5; ++repetition)
          if (!same_bits(test::evaluate(bila::form::chunkwise{}, x, {.threads = threads}).y, y)) same = false;
        --running;
      });
    while (running > 0) most = std::max<std::ptrdiff_t>(most, threads_of_this_process());
    for (std::thread& thread : threads_of_the_user) thread.join();
    CHECK(same);
    CHECK(most <= before + callers);
    CHECK(no_more_threads_than(before));
  }
}
#endif
