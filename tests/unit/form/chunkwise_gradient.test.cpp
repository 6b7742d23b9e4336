// SPDX-License-Identifier: Apache-2.0
// What the gradient keeps: memory by form, and a workspace of exactly that size.
#include "support/catch.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

#include <string>
#include <vector>

namespace {

using test::index_t;

test::lesson<float> lesson_of(index_t L, index_t D) {
  test::random_source random(4401);
  return test::stored_as<float>(
      test::random_lesson(random, {.L = L, .Dk = D, .Dv = D}, test::mask_kind::source, bila::norm::row_sum{1e-6}));
}

double bytes(const test::any_form& form, index_t L, index_t D) {
  const auto x = lesson_of(L, D);
  return static_cast<double>(test::backward_bytes<float>({}, form, x.inputs(), x.dy.view()));
}

}  // namespace

TEST_CASE("chunkwise keeps an adjoint per chunk, or with recomputation two per square root of the number of chunks") {
  constexpr index_t D = 64;
  const double state = D * (D + 1) * sizeof(float);
  const auto per_chunk = [&](bool recompute, index_t chunks) {
    const test::any_form form = bila::form::chunkwise{.size = 32, .recompute = recompute};
    return (bytes(form, 32 * chunks, D) - bytes(form, 32, D)) / state;
  };
  for (const index_t chunks : {64, 256}) {
    CHECK(per_chunk(false, chunks) >= 0.95 * static_cast<double>(chunks - 1));
    CHECK(per_chunk(false, chunks) <= 1.25 * static_cast<double>(chunks));
    const double root = std::sqrt(static_cast<double>(chunks));
    CHECK(per_chunk(true, chunks) <= 3 * root + 0.1 * static_cast<double>(chunks));
  }
}

TEST_CASE("no form keeps a state per token, nor the mask") {
  constexpr index_t L = 2048, D = 32;
  const double tokens = L * 2 * D * sizeof(float);
  for (const test::any_form& form : {test::any_form(bila::form::full{}), test::any_form(bila::form::recurrent{}),
                                     test::any_form(bila::form::chunkwise{.recompute = true})}) {
    INFO(test::name_of(form));
    CHECK(bytes(form, L, D) < 3 * tokens);
  }
}

TEST_CASE("the gradient's workspace is enough to the byte, and one byte less is refused") {
  for (const index_t L : {1, 77, 300})
    for (const int threads : {1, 3})
      for (const test::any_form& form :
           {test::any_form(bila::form::full{}), test::any_form(bila::form::recurrent{}),
            test::any_form(bila::form::chunkwise{.size = 24}), test::any_form(bila::form::chunkwise{.size = 5, .recompute = true}),
            test::any_form(bila::form::automatic{})}) {
        const auto x = lesson_of(L, 9);
        const std::size_t needed = test::backward_bytes<float>({.threads = threads}, form, x.inputs(), x.dy.view());
        constexpr std::size_t guard = 64;
        std::vector<std::byte> memory(needed + 2 * guard, std::byte{0xa5});
        auto to = learn(form, x);
        const auto expected = to;
        const auto call = [&](std::size_t size, std::size_t from) {
          const bila::cpu backend{.threads = threads, .workspace = {memory.data() + from, size}};
          test::backward_pass<float>(test::layer::eigen, backend, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(expected),
                                     given_to(x), gradients_of(to));
        };
        INFO(test::name_of(form) << " L=" << L << " threads=" << threads);
        for (const std::size_t from : {guard, guard + 1, guard + 37}) {
          std::fill(memory.begin(), memory.end(), std::byte{0xa5});
          call(needed, from);
          CHECK(same_bits(to, expected));
          bool untouched = true;
          for (std::size_t n = 0; n < memory.size(); ++n)
            if (n < from || n >= from + needed) untouched = untouched && memory[n] == std::byte{0xa5};
          CHECK(untouched);
        }
        CHECK(test::has_all(test::refusal([&] { call(needed - 1, guard); }), {"workspace", std::to_string(needed)}));
      }
}
