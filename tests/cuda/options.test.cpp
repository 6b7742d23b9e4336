// SPDX-License-Identifier: Apache-2.0
// Directions, diagonal and scale, heads that share inputs, keys that are not the queries' tokens.
#include "cuda/support/laws.hpp"

namespace {

using test::index_t;
using test::mask_kind;

}  // namespace

TEST_CASE("every direction with every diagonal weight") {
  test::random_source random(5401);
  for (const auto kind : test::all_masks)
    for (const auto direction : test::all_directions)
      for (const double diagonal : {0.0, 0.3, 1.0, 2.0}) {
        auto x = test::random_lesson(random, {1, 2, 75, 16, 20}, kind, test::random_norm(random));
        x.x.direction = direction;
        x.x.diagonal = diagonal;
        check_forward_in_all_types(test::device_forms, x);
      }
}

TEST_CASE("any scale, zero among them") {
  test::random_source random(5402);
  for (const auto& norm : test::all_norms)
    for (const double scale : {0.0, 1e-3, -1.0, 64.0}) {
      auto x = test::random_lesson(random, {1, 2, 75, 16, 20}, mask_kind::source, norm);
      x.x.scale = scale;
      check_forward_in_all_types(test::device_forms, x);
    }
}

TEST_CASE("a token that is far larger than the others leaves nothing behind where its weight is zero") {
  test::random_source random(5403);
  for (const auto kind : test::all_masks)
    for (const auto direction : test::all_directions)
      for (const double diagonal : {0.0, 1e-3, 2.0}) {
        auto x = test::random_lesson(random, {1, 1, 40, 6, 5}, kind, test::random_norm(random));
        x.x.direction = direction;
        x.x.diagonal = diagonal;
        for (index_t c = 0; c < 6; ++c) {
          x.x.q(0, 0, 20, c) *= 64;
          x.x.k(0, 0, 20, c) *= 64;
        }
        check_forward_in_all_types(test::device_forms, x);
      }
}

TEST_CASE("heads that share q, k or v") {
  test::random_source random(5404);
  for (const auto kind : test::all_masks)
    for (const auto& [Hq, Hk, Hv] : std::vector<std::array<index_t, 3>>{{6, 1, 1}, {6, 3, 2}, {1, 6, 6}, {2, 3, 6}, {1, 1, 1}}) {
      auto x = test::random_lesson(random, {.B = 2, .H = 6, .L = 140, .Dk = 16, .Dv = 24, .Hq = Hq, .Hk = Hk, .Hv = Hv}, kind,
                                   test::random_norm(random));
      test::draw_options(random, x.x);
      check_forward_in_all_types(test::device_forms, x);
    }
}

TEST_CASE("cross attention of the mask of ones") {
  test::random_source random(5405);
  for (const auto& norm : test::all_norms)
    for (const index_t L : {1, 3, 64, 129})
      for (const index_t Lk : {1, 5, 130, 300}) {
        if (L == Lk) continue;
        const auto x =
            test::random_lesson(random, {.B = 2, .H = 2, .L = L, .Dk = 16, .Dv = 24, .Hk = 1, .Lk = Lk}, mask_kind::all_ones, norm);
        check_forward_in_all_types(test::device_forms, x);
      }
}
