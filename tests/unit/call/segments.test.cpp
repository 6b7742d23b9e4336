// SPDX-License-Identifier: Apache-2.0
// The ranges of tokens that see each other.
#include "support/catch.hpp"

#include <bila/call/segments.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

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

TEST_CASE("offsets and lengths may be 32 or 64 bits wide, in any container that has a name") {
  const auto check_list = [](const bila::index_list& list) {
    CHECK((!list.empty() && list.size() == 3 && list[0] == 0 && list[1] == -5 && list[2] == 7));
  };
  const std::vector<std::int32_t> narrow{0, -5, 7};
  std::vector<std::int64_t> wide{0, -5, 7};
  const std::array<std::int32_t, 3> array{0, -5, 7};
  std::int64_t plain[] = {0, -5, 7};
  check_list(narrow), check_list(wide), check_list(array), check_list(plain);
  check_list(std::span(narrow)), check_list(std::span(plain)), check_list(std::span<const std::int64_t, 3>(plain));
  check_list(bila::index_list(narrow));
  bila::index_list list = narrow;
  list = wide, list = std::span<const std::int32_t>(array);
  check_list(list);
  list = {};
  CHECK((list.empty() && list.size() == 0));
  const std::vector<std::int32_t> none;
  list = none;
  CHECK(list.empty());
  const bila::segments packed{array, {}, 7};
  CHECK(packed.count() == 2);
  check(packed(0, 1), -5, 12);
  constexpr static std::int32_t offsets[] = {0, 3, 9};
  static_assert(bila::index_list(offsets)[2] == 9);
}
