// SPDX-License-Identifier: Apache-2.0
// Any length, any head size up to 256, any number of heads. Each mask once per shape, its other options drawn.
#include "cuda/support/laws.hpp"

namespace {

using bila::bf16;
using bila::f16;
using test::index_t;
using test::mask_kind;

void check_shape(const test::sizes& size) {
  test::random_source random(static_cast<std::uint64_t>(5301 + size.L * 1000 + size.Dk * 7 + size.Dv));
  for (const auto kind : test::all_masks) {
    auto x = test::random_lesson(random, size, kind, test::random_norm(random));
    test::draw_options(random, x.x);
    check_forward_in_all_types(test::device_forms, x);
  }
}

/// One head, by the definition that is linear in L.
template <class T, class Forms>
void check_long(const Forms& forms, const test::lesson<T>& x, const test::answer& exact) {
  for (const test::any_form& form : forms) {
    INFO(test::words(form, x));
    const auto found = test::device::evaluate(form, x);
    CHECK(found.intact);
    test::check_good("y", judge(found.to.y, exact));
  }
}

template <class T>
test::answer long_exact(const test::lesson<T>& x) {
  return test::long_definition(x.x.inputs(), x.x.gaps(), x.x.rule());
}

}  // namespace

TEST_CASE("lengths around blocks, tiles and chunks") {
  for (const index_t L : {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 197, 200, 257}) check_shape({1, 2, L, 64, 32});
}

TEST_CASE("head sizes that are no power of two, and of two kinds") {
  for (const auto& [Dk, Dv] : std::vector<std::pair<index_t, index_t>>{{1, 1},
                                                                       {1, 256},
                                                                       {256, 1},
                                                                       {5, 17},
                                                                       {17, 5},
                                                                       {32, 32},
                                                                       {33, 31},
                                                                       {40, 64},
                                                                       {64, 40},
                                                                       {65, 64},
                                                                       {64, 128},
                                                                       {72, 96},
                                                                       {96, 72},
                                                                       {128, 128},
                                                                       {129, 128},
                                                                       {128, 200},
                                                                       {200, 128},
                                                                       {255, 3},
                                                                       {256, 256}})
    check_shape({1, 2, 70, Dk, Dv});
}

TEST_CASE("wide heads over several chunks") {
  for (const auto& [Dk, Dv] : std::vector<std::pair<index_t, index_t>>{{128, 128}, {200, 96}, {256, 256}})
    check_shape({1, 1, 300, Dk, Dv});
}

TEST_CASE("a thousand tokens and four thousand") {
  test::random_source random(5302);
  for (const index_t L : {1000, 4097})
    for (const auto kind : test::all_masks) {
      auto x = test::random_lesson(random, {1, 1, L, 64, 48}, kind, test::random_norm(random));
      test::draw_options(random, x.x);
      for (auto* const gates : {&x.x.gates, &x.x.other_gates}) gates->fill_uniform(random, -0.2, 0);
      const auto in_float = test::lesson_for<float>(x);
      check_long(test::device_forms, in_float, long_exact(in_float));
      const auto in_bf16 = test::lesson_for<bf16>(x);
      const auto exact = long_exact(in_bf16);
      check_long(test::device_forms, in_bf16, exact);
      check_long(test::device_forms, test::stored_as<f16>(in_bf16), exact);
    }
}

TEST_CASE("sixty-five thousand tokens, decays near one") {
  test::random_source random(5303);
  for (const auto kind : {mask_kind::source, mask_kind::all_ones, mask_kind::fixed}) {
    auto x = test::random_lesson(random, {1, 1, 65537, 32, 32}, kind, bila::norm::row_sum{1e-6});
    for (auto* const gates : {&x.x.gates, &x.x.other_gates}) gates->fill_uniform(random, -0.002, 0);
    // In f16 the sums of all keys would be too large: its largest number is 65504.
    const auto in_bf16 = test::lesson_for<bf16>(x);
    const auto exact = long_exact(in_bf16);
    check_long(test::device_forms, in_bf16, exact);
    check_long(test::device_forms, test::stored_as<float>(in_bf16), exact);
  }
}

TEST_CASE("seventy thousand heads of three tokens") {
  test::random_source random(5304);
  for (const auto& [B, H] : std::vector<std::pair<index_t, index_t>>{{700, 100}, {70000, 1}, {1, 70000}})
    for (const auto kind : {mask_kind::all_ones, mask_kind::source}) {
      auto x = test::random_lesson(random, {B, H, 3, 16, 16}, kind, bila::norm::row_sum{1e-6});
      const auto in_bf16 = test::lesson_for<bf16>(x);
      const auto exact = in_bf16.x.exact();
      check_forward(test::device_forms, in_bf16, exact);
      check_forward(test::device_forms, test::stored_as<float>(in_bf16), exact);
      check_forward(test::device_forms, test::stored_as<f16>(in_bf16), exact);
    }
}
