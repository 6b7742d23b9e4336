// SPDX-License-Identifier: Apache-2.0
// The same bits each time, anywhere in a batch and as any head; the same numbers for every size of a chunk.
#include "cuda/support/laws.hpp"

namespace {

using bila::bf16;
using bila::f16;
using test::index_t;
using test::mask_kind;

/// Head h of batch row b, alone.
template <class T>
test::lesson<T> alone(const test::lesson<T>& x, index_t b, index_t h) {
  auto result = x;
  result.x.size.B = result.x.size.H = 1;
  const auto cut = [&](auto& to, const auto& from, index_t row) {
    to = {1, 1, from.extent(2), from.extent(3)};
    to.for_each([&](auto& y, index_t, index_t, index_t l, index_t d) { y = from(row, h, l, d); });
  };
  cut(result.x.q, x.x.q, b);
  cut(result.x.k, x.x.k, b);
  cut(result.x.v, x.x.v, b);
  cut(result.dy, x.dy, b);
  cut(result.x.gates, x.x.gates, x.x.kind == mask_kind::fixed ? 0 : b);
  cut(result.x.other_gates, x.x.other_gates, b);
  return result;
}

/// Head h of batch row b of `all` has the bits of `own`.
template <class T>
bool same_head(const test::tensor<T>& all, const test::tensor<T>& own, index_t b, index_t h) {
  auto part = own;
  part.for_each([&](T& value, index_t, index_t, index_t l, index_t d) { value = all(b, h, l, d); });
  return same_bits(part, own);
}

}  // namespace

TEMPLATE_TEST_CASE("place in the batch", "", float, bf16, f16) {
  test::random_source random(5901);
  for (const auto kind : test::all_masks) {
    const auto x = test::lesson_for<TestType>(test::random_lesson(random, {3, 4, 431, 16, 24}, kind, test::random_norm(random)));
    for (const auto& form : test::device_forms) {
      const auto all = test::device::learn(form, x).to;
      INFO(test::words(form, x));
      for (const auto& [b, h] : std::vector<std::pair<index_t, index_t>>{{0, 0}, {1, 3}, {2, 2}}) {
        const auto own = test::device::learn(form, alone(x, b, h)).to;
        CHECK(same_head(all.y, own.y, b, h));
        CHECK(same_head(all.q, own.q, b, h));
        CHECK(same_head(all.k, own.k, b, h));
        CHECK(same_head(all.v, own.v, b, h));
        CHECK(same_head(all.log_forward, own.log_forward, b, h));
        CHECK(same_head(all.log_backward, own.log_backward, b, h));
      }
    }
  }
}

TEMPLATE_TEST_CASE("a step twenty times, calls of other shapes in between", "", float, bf16, f16) {
  test::random_source random(5902);
  for (const auto kind : {mask_kind::all_ones, mask_kind::fixed, mask_kind::source, mask_kind::two_sided})
    for (const auto& form : test::device_forms) {
      auto wide = test::random_lesson(random, {.B = 2, .H = 4, .L = 700, .Dk = 64, .Dv = 64, .Hq = 2, .Hk = 1}, kind,
                                      bila::norm::row_sum{1e-6});
      if (form.index() != 0) add_states(wide, random);
      const auto x = test::lesson_for<TestType>(wide);
      const auto other = test::lesson_for<TestType>(test::random_lesson(random, {1, 1, 90, 20, 7}, kind, bila::norm::none{}));
      const auto first = test::device::learn(form, x);
      CHECK(first.intact);
      int equal = 0;
      for (int n = 1; n < 20; ++n) {
        if (n % 5 == 0) test::device::learn(form, other);
        equal += same_bits(test::device::learn(form, x).to, first.to);
      }
      INFO(test::words(form, x));
      CHECK(equal == 19);
    }
}

TEMPLATE_TEST_CASE("the size of a chunk is a matter of speed", "", float, bf16) {
  test::random_source random(5903);
  for (const auto kind : test::all_masks)
    for (const index_t L : {65, 300, 1100}) {
      auto x = test::lesson_for<TestType>(test::random_lesson(random, {1, 1, L, 8, 16}, kind, test::random_norm(random)));
      leave_rows_at_kinks(x, test::precision<TestType>::spread);
      const auto exact = test::step_by_definition(x);
      for (const index_t size : {1, 16, 100, 128, 129, 256, 384, 512, 1000, 1024, 5000})
        check_step(std::array{test::any_form(bila::form::chunkwise{.size = size})}, x, exact);
    }
}
