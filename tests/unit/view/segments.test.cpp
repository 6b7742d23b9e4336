// SPDX-License-Identifier: Apache-2.0
// The ranges of tokens that see each other.
#include "support/catch.hpp"

#include <bila/view/segments.hpp>

#include <array>

namespace {

using bila::index_t;

void check(const bila::segment& piece, index_t first, index_t count) {
  CHECK(piece.first == first);
  CHECK(piece.count == count);
}

}  // namespace

TEST_CASE("without offsets and lengths a batch row is one segment") {
  const bila::segments whole{{}, {}, 7};
  CHECK(whole.count() == 1);
  check(whole(0, 0), 0, 7);
  check(whole(3, 0), 0, 7);
}

TEST_CASE("offsets cut the batch row, empty segments included") {
  const std::array<index_t, 6> offsets{0, 3, 3, 4, 9, 9};
  const bila::segments packed{offsets, {}, 9};
  CHECK(packed.count() == 5);
  check(packed(0, 0), 0, 3);
  check(packed(0, 1), 3, 0);
  check(packed(0, 2), 3, 1);
  check(packed(0, 3), 4, 5);
  check(packed(0, 4), 9, 0);
}

TEST_CASE("lengths keep a prefix of each batch row") {
  const std::array<index_t, 3> lengths{4, 0, 9};
  const bila::segments prefixes{{}, lengths, 9};
  CHECK(prefixes.count() == 1);
  check(prefixes(0, 0), 0, 4);
  check(prefixes(1, 0), 0, 0);
  check(prefixes(2, 0), 0, 9);
}
