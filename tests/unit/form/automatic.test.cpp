// SPDX-License-Identifier: Apache-2.0
// Which form `automatic` takes: full while it costs less than chunkwise, by a segment's own shape.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <bila/form/automatic.hpp>

#include <vector>

namespace {

using bila::index_t;
using test::mask_kind;

using bila::form::choice;

template <class Mask>
choice pick(index_t L, index_t Dk, index_t Dv, bila::direction way = bila::direction::both) {
  return bila::form::automatic::pick({L, Dk, Dv}, Mask::gaps, way, 1);
}

/// Whether the bits are those of this form.
bool takes(const test::any_form& form, const test::problem<float>& x) {
  return same_bits(test::evaluate<float>(bila::form::automatic{}, x).y, test::evaluate<float>(form, x).y);
}

}  // namespace

TEST_CASE("with gaps, full iff L < C + (4 Dk Dv + 450) / (Dk + Dv)") {
  using mask = bila::mask::selective_decay<float>;
  CHECK(pick<mask>(147, 64, 64) == choice::full);  // 16 + 16834 / 128 = 147.5
  CHECK(pick<mask>(148, 64, 64) == choice::chunkwise);
  CHECK(pick<mask>(62, 16, 16) == choice::full);  // 16 + 1474 / 32 = 62.1
  CHECK(pick<mask>(63, 16, 16) == choice::chunkwise);
  CHECK(pick<bila::mask::fixed_decay<float>>(71, 16, 48) == choice::full);  // 16 + 3522 / 64 = 71.03
  CHECK(pick<bila::mask::two_sided<float>>(72, 48, 16) == choice::chunkwise);
  CHECK(pick<bila::mask::all_ones>(40, 16, 16, bila::direction::forward) == choice::full);  // no global state that way
}

TEST_CASE("without gaps, full iff L < 2 Dk Dv / (Dk + Dv)") {
  CHECK(pick<bila::mask::all_ones>(15, 16, 16) == choice::full);
  CHECK(pick<bila::mask::all_ones>(16, 16, 16) == choice::chunkwise);
  CHECK(pick<bila::mask::all_ones>(23, 16, 48) == choice::full);
  CHECK(pick<bila::mask::all_ones>(24, 16, 48) == choice::chunkwise);
}

TEST_CASE("a state is never given to the full form") {  // tests/foreign: a mask of pairs always is
  for (const index_t D : {16, 192})
    CHECK(bila::form::automatic::pick({1, D, D}, bila::gap::per_token, bila::direction::both, 1, true) == choice::chunkwise);
}

TEST_CASE("the bits are those of the form that the rule names") {
  test::random_source random(501);
  const auto with = [&](const test::any_form& form, index_t L, index_t D, mask_kind kind,
                        bila::direction direction = bila::direction::both) {
    auto x = test::random_problem<float>(random, {1, 1, L, D, D}, kind, bila::norm::row_sum{1e-6});
    x.direction = direction;
    return takes(form, x);
  };
  for (const mask_kind kind : {mask_kind::source, mask_kind::fixed}) {
    CHECK(with(bila::form::full{}, 62, 16, kind));
    CHECK(with(bila::form::chunkwise{}, 63, 16, kind));
    CHECK(with(bila::form::full{}, 401, 192, kind));  // 16 + 147906 / 384 = 401.2
    CHECK(with(bila::form::chunkwise{}, 402, 192, kind));
    CHECK_FALSE(with(bila::form::full{}, 63, 16, kind));
    CHECK_FALSE(with(bila::form::full{}, 402, 192, kind));
  }
  CHECK(with(bila::form::full{}, 15, 16, mask_kind::all_ones));
  CHECK(with(bila::form::chunkwise{}, 16, 16, mask_kind::all_ones));
  CHECK(with(bila::form::full{}, 62, 16, mask_kind::all_ones, bila::direction::forward));
  CHECK(with(bila::form::chunkwise{}, 63, 16, mask_kind::all_ones, bila::direction::forward));
}

TEST_CASE("segments choose for themselves") {
  test::random_source random(502);
  auto x = test::random_problem<float>(random, {1, 1, 300, 16, 16}, mask_kind::two_sided, bila::norm::row_sum{1e-6});
  x.offsets = {0, 30, 300};
  const auto y = test::evaluate<float>(bila::form::automatic{}, x).y, full = test::evaluate<float>(bila::form::full{}, x).y,
             chunkwise = test::evaluate<float>(bila::form::chunkwise{}, x).y;
  bool short_one = true, long_one = true;
  for (index_t l = 0; l < 300; ++l)
    for (index_t d = 0; d < 16; ++d) (l < 30 ? short_one : long_one) &= y(0, 0, l, d) == (l < 30 ? full : chunkwise)(0, 0, l, d);
  CHECK(short_one);
  CHECK(long_one);
}
