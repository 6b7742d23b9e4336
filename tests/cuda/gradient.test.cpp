// SPDX-License-Identifier: Apache-2.0
// The gradient of everything that a call reads is that of the closed forms, which oracle.test.cpp holds against the CPU's in
// double: for every mask, norm, direction, form and type.
#include "cuda/support/laws.hpp"

#include <utility>

namespace {

using bila::bf16;
using bila::f16;
using test::index_t;
using test::mask_kind;

}  // namespace

TEST_CASE("all masks, norms and directions") {
  test::random_source random(6001);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto direction : test::all_directions) {
        auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 150, .Dk = 16, .Dv = 24}, kind, norm);
        test::draw_options(random, x.x);
        x.x.direction = direction;
        check_step_in_all_types(test::device_forms, x);
      }
}

TEST_CASE("gradients at lengths around blocks, tiles and chunks") {
  test::random_source random(6002);
  for (const index_t L : {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 197, 200, 257, 520})
    for (const auto kind :
         {mask_kind::all_ones, mask_kind::fixed, one_of(random, std::vector{mask_kind::source, mask_kind::target}),
          one_of(random, std::vector{mask_kind::later, mask_kind::earlier, mask_kind::two_sided})}) {
      auto x = test::random_lesson(random, {.B = 1, .H = 1, .L = L, .Dk = 32, .Dv = 16}, kind, test::random_norm(random));
      test::draw_options(random, x.x);
      check_step_in_all_types(test::device_forms, x);
    }
}

TEST_CASE("gradients of head sizes that are no power of two, and of two kinds") {
  test::random_source random(6003);
  for (const auto& [Dk, Dv] : std::vector<std::pair<index_t, index_t>>{{1, 1},
                                                                       {1, 256},
                                                                       {256, 1},
                                                                       {5, 17},
                                                                       {17, 5},
                                                                       {40, 64},
                                                                       {64, 40},
                                                                       {64, 64},
                                                                       {64, 65},
                                                                       {72, 96},
                                                                       {96, 72},
                                                                       {128, 128},
                                                                       {128, 200},
                                                                       {200, 128},
                                                                       {256, 256}})
    for (const auto kind : {mask_kind::source, mask_kind::all_ones}) {
      auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 70, .Dk = Dk, .Dv = Dv}, kind, test::random_norm(random));
      test::draw_options(random, x.x);
      check_step_in_all_types(test::device_forms, x);
    }
}

TEST_CASE("gradients of wide heads over several chunks") {
  test::random_source random(6004);
  for (const auto& [Dk, Dv] : std::vector<std::pair<index_t, index_t>>{{128, 128}, {256, 200}}) {
    auto x =
        test::random_lesson(random, {.B = 1, .H = 1, .L = 300, .Dk = Dk, .Dv = Dv}, mask_kind::source, bila::norm::row_sum{1e-6});
    for (auto* const gates : {&x.x.gates, &x.x.other_gates}) gates->fill_uniform(random, -0.1, 0);
    check_step_in_all_types(test::device_forms, x);
  }
}

TEST_CASE("heads that share q, k or v share its gradient; the fixed mask's is summed over the batch") {
  test::random_source random(6005);
  for (const auto kind : test::all_masks)
    for (const auto& [Hq, Hk, Hv] : std::vector<std::array<index_t, 3>>{{6, 1, 1}, {6, 3, 2}, {1, 6, 6}, {2, 3, 6}, {1, 1, 1}}) {
      auto x = test::random_lesson(random, {.B = 2, .H = 6, .L = 90, .Dk = 16, .Dv = 24, .Hq = Hq, .Hk = Hk, .Hv = Hv}, kind,
                                   test::random_norm(random));
      test::draw_options(random, x.x);
      check_step_in_all_types(test::device_forms, x);
    }
}

TEST_CASE("several chunks, slow decays") {
  test::random_source random(6006);
  for (const auto kind : test::all_masks) {
    auto x = test::random_lesson(random, {.B = 1, .H = 1, .L = 1500, .Dk = 16, .Dv = 8}, kind, test::random_norm(random));
    test::draw_options(random, x.x);
    for (auto* const gates : {&x.x.gates, &x.x.other_gates}) gates->fill_uniform(random, -0.02, 0);
    // As a loss is scaled for f16: row sums of so many tokens make dy / n(Z) smaller than its least normal number.
    if (x.row_sums()) x.dy.for_each([](double& value, index_t, index_t, index_t, index_t) { value *= 256; });
    check_step_in_all_types(test::device_forms, x);
  }
}

TEST_CASE("seventy thousand heads of three tokens have gradients, too") {
  test::random_source random(6007);
  for (const auto& [B, H] : std::vector<std::pair<index_t, index_t>>{{700, 100}, {1, 70000}}) {
    const auto x =
        test::lesson_for<bf16>(test::random_lesson(random, {B, H, 3, 8, 8}, mask_kind::fixed, bila::norm::row_sum{1e-6}));
    check_step(test::device_forms, x, test::step_by_definition(x));
  }
}

TEST_CASE("sixty-five thousand tokens: the CPU's gradient in double") {
  test::random_source random(6008);
  for (const auto& norm : {test::any_norm(bila::norm::none{}), test::any_norm(bila::norm::row_sum{1e-6})}) {
    auto wide = test::random_lesson(random, {.B = 1, .H = 1, .L = 65537, .Dk = 16, .Dv = 16}, mask_kind::source, norm);
    wide.x.gates.fill_uniform(random, -0.05, 0);
    wide.x.scale = 0.25;
    const auto x = test::lesson_for<float>(wide);
    const auto exact = learn(bila::form::chunkwise{}, test::stored_as<double>(x));
    for (const auto& form : test::stateful_forms) {
      const auto found = test::device::learn(form, x);
      INFO(test::words(form, x));
      CHECK(found.intact);
      // Relative to the largest, so the 1e-5 of bounds.hpp bounds cancellations of up to a factor of three as well; the gates' are
      // differences of sums over a chunk.
      CHECK(distance(test::converted<double>(found.to.q), exact.q) < 3e-5);
      CHECK(distance(test::converted<double>(found.to.k), exact.k) < 3e-5);
      CHECK(distance(test::converted<double>(found.to.v), exact.v) < 3e-5);
      CHECK(distance(test::converted<double>(found.to.log_forward), exact.log_forward) < 2e-4);
      CHECK(distance(test::converted<double>(found.to.log_backward), exact.log_backward) < 2e-4);
    }
  }
}
