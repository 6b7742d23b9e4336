// SPDX-License-Identifier: Apache-2.0
// The law that everything else leans on: on the device, too, every form gives the numbers of the definition, for every mask, norm,
// direction and type.
#include "cuda/support/laws.hpp"

namespace {

using test::index_t;

/// All masks, norms and directions on one shape; the other options are drawn.
void check_shape(const test::sizes& size) {
  test::random_source random(static_cast<std::uint64_t>(5201 + size.L * 100 + size.Dk));
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto direction : test::all_directions) {
        auto x = test::random_lesson(random, size, kind, norm);
        test::draw_options(random, x.x);
        x.x.direction = direction;
        check_forward_in_all_types(test::device_forms, x);
      }
}

}  // namespace

TEST_CASE("empty shapes") {
  for (const test::sizes& size : {test::sizes{1, 2, 0, 3, 5}, test::sizes{0, 2, 4, 3, 5}, test::sizes{2, 0, 4, 3, 5}})
    check_shape(size);
}

TEST_CASE("unit axes and very short sequences") {
  for (const test::sizes& size : {test::sizes{1, 1, 1, 1, 1}, test::sizes{2, 1, 1, 3, 8}, test::sizes{1, 3, 2, 13, 16},
                                  test::sizes{2, 2, 3, 16, 17}, test::sizes{2, 1, 5, 17, 33}})
    check_shape(size);
}

TEST_CASE("one block and a bit") { check_shape({2, 2, 33, 16, 32}); }

TEST_CASE("several blocks, a chunk and a bit") { check_shape({1, 2, 150, 32, 24}); }

TEST_CASE("a head as models have it") { check_shape({2, 1, 197, 64, 64}); }
