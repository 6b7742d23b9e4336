// SPDX-License-Identifier: Apache-2.0
// Which form `automatic` takes: full while it costs fewer operations than the linear form, by a segment's own shape.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <bila/form/automatic.hpp>

#include <vector>

namespace {

using bila::index_t;
using test::mask_kind;

struct window {
  double weight(index_t, index_t, index_t i, index_t j) const { return i - j <= 1 && j - i <= 1; }
};

template <class Mask>
bool full_is_cheaper(index_t L, index_t Dk, index_t Dv, bila::direction way = bila::direction::both) {
  return bila::form::automatic::prefers_full<Mask>({L, Dk, Dv}, way, 1);
}

/// Which form gave these bits: "full", "chunkwise", or neither.
std::string taken(const test::problem<float>& x) {
  const auto y = test::evaluate<float>(bila::form::automatic{}, x).y;
  const bool full = same_bits(y, test::evaluate<float>(bila::form::full{}, x).y);
  const bool chunkwise = same_bits(y, test::evaluate<float>(bila::form::chunkwise{}, x).y);
  return full && chunkwise ? "both" : full ? "full" : chunkwise ? "chunkwise" : "neither";
}

}  // namespace

TEST_CASE("with gaps, full iff L < C + 4 Dk Dv / (Dk + Dv)") {
  constexpr index_t C = bila::form::automatic::linear.size;
  using mask = bila::mask::selective_decay<float>;
  CHECK(full_is_cheaper<mask>(C + 127, 64, 64));
  CHECK_FALSE(full_is_cheaper<mask>(C + 128, 64, 64));
  CHECK(full_is_cheaper<mask>(C + 31, 16, 16));
  CHECK_FALSE(full_is_cheaper<mask>(C + 32, 16, 16));
  CHECK(full_is_cheaper<bila::mask::fixed_decay<float>>(C + 47, 16, 48));  // 4 * 16 * 48 / 64 = 48
  CHECK_FALSE(full_is_cheaper<bila::mask::fixed_decay<float>>(C + 48, 16, 48));
  CHECK_FALSE(full_is_cheaper<bila::mask::two_sided<float>>(C + 48, 48, 16));
  CHECK(full_is_cheaper<bila::mask::all_ones>(C + 31, 16, 16,
                                              bila::direction::forward));  // one direction of all ones has no global state
  CHECK_FALSE(full_is_cheaper<bila::mask::all_ones>(C + 32, 16, 16, bila::direction::backward));
}

TEST_CASE("without gaps, full iff L < 2 Dk Dv / (Dk + Dv)") {
  CHECK(full_is_cheaper<bila::mask::all_ones>(15, 16, 16));
  CHECK_FALSE(full_is_cheaper<bila::mask::all_ones>(16, 16, 16));
  CHECK(full_is_cheaper<bila::mask::all_ones>(23, 16, 48));
  CHECK_FALSE(full_is_cheaper<bila::mask::all_ones>(24, 16, 48));
}

TEST_CASE("a mask of pairs always takes the full form") { CHECK(full_is_cheaper<window>(1 << 20, 1, 1)); }

TEST_CASE("the bits are those of the form that the rule names") {
  constexpr index_t C = bila::form::automatic::linear.size;
  test::random_source random(501);
  const auto with_length = [&](index_t L, mask_kind kind, bila::direction direction = bila::direction::both) {
    auto x = test::random_problem<float>(random, {1, 1, L, 16, 16}, kind, bila::norm::row_sum{1e-6});
    x.direction = direction;
    return taken(x);
  };
  CHECK(with_length(C + 31, mask_kind::source) == "full");
  CHECK(with_length(C + 32, mask_kind::source) == "chunkwise");
  CHECK(with_length(C + 31, mask_kind::fixed) == "full");
  CHECK(with_length(C + 32, mask_kind::fixed) == "chunkwise");
  CHECK(with_length(15, mask_kind::all_ones) == "full");
  CHECK(with_length(16, mask_kind::all_ones) == "chunkwise");
  CHECK(with_length(C + 31, mask_kind::all_ones, bila::direction::forward) == "full");
  CHECK(with_length(C + 32, mask_kind::all_ones, bila::direction::forward) == "chunkwise");
}

TEST_CASE("segments choose for themselves") {
  test::random_source random(502);
  auto x = test::random_problem<float>(random, {1, 1, 300, 16, 16}, mask_kind::two_sided, bila::norm::row_sum{1e-6});
  x.offsets = {0, 50, 300};
  const auto y = test::evaluate<float>(bila::form::automatic{}, x).y, full = test::evaluate<float>(bila::form::full{}, x).y,
             chunkwise = test::evaluate<float>(bila::form::chunkwise{}, x).y;
  bool short_one = true, long_one = true;
  for (index_t l = 0; l < 300; ++l)
    for (index_t d = 0; d < 16; ++d) (l < 50 ? short_one : long_one) &= y(0, 0, l, d) == (l < 50 ? full : chunkwise)(0, 0, l, d);
  CHECK(short_one);
  CHECK(long_one);
}
