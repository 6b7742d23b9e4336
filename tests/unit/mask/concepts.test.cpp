// SPDX-License-Identifier: Apache-2.0
// What makes a type a mask.
#include "support/catch.hpp"
#include "support/refusal.hpp"

#include <bila/mask/all_ones.hpp>
#include <bila/mask/concepts.hpp>
#include <bila/mask/fixed_decay.hpp>
#include <bila/mask/selective_decay.hpp>
#include <bila/mask/two_sided.hpp>

#include <string>
#include <vector>

namespace {

using bila::index_t;

struct window {
  double weight(index_t, index_t, index_t i, index_t j) const { return i - j <= 1 && j - i <= 1; }
};

struct banded_window : window {
  int reach(index_t, index_t) const { return 1; }
};

struct own_gaps {
  static constexpr bila::gap gaps = bila::gap::per_token;
  float log_forward(index_t, index_t, index_t) const { return -1; }
  float log_backward(index_t, index_t, index_t) const { return -2; }
};

struct own_ones {
  static constexpr bila::gap gaps = bila::gap::none;
  double log_forward(index_t, index_t, index_t) const { return 0; }
  double log_backward(index_t, index_t, index_t) const { return 0; }
};

struct one_direction_missing {
  static constexpr bila::gap gaps = bila::gap::per_token;
  double log_forward(index_t, index_t, index_t) const { return 0; }
};

struct kind_missing {
  double log_forward(index_t, index_t, index_t) const { return 0; }
  double log_backward(index_t, index_t, index_t) const { return 0; }
};

struct weight_is_text {
  std::string weight(index_t, index_t, index_t, index_t) const { return "1"; }
};

}  // namespace

TEST_CASE("a mask is what offers weights or gaps") {
  using namespace bila;
  STATIC_REQUIRE((pairwise<window> && !gapped<window>));
  STATIC_REQUIRE((gapped<own_gaps> && !pairwise<own_gaps>));
  STATIC_REQUIRE(
      (!gapped<one_direction_missing> && !gapped<kind_missing> && !pairwise<weight_is_text> && !gapped<int> && !pairwise<int>));
  STATIC_REQUIRE((gapped<mask::all_ones> && gapped<mask::fixed_decay<float>> && gapped<mask::selective_decay<double>> &&
                  gapped<mask::two_sided<float>>));
}

TEST_CASE("only a mask without gaps does not order the tokens") {
  using namespace bila;
  STATIC_REQUIRE((!orders_tokens<mask::all_ones> && !orders_tokens<own_ones>));
  STATIC_REQUIRE((orders_tokens<window> && orders_tokens<own_gaps> && orders_tokens<mask::fixed_decay<float>>));
}

TEST_CASE("what a mask may offer besides") {
  using namespace bila;
  STATIC_REQUIRE((checks_itself<mask::fixed_decay<float>> && !checks_itself<own_gaps>));
  STATIC_REQUIRE((has_heads<mask::two_sided<float>> && !has_heads<mask::all_ones> && !has_heads<own_gaps>));
  STATIC_REQUIRE((has_parameters<mask::two_sided<float>> && !has_parameters<window>));
  STATIC_REQUIRE((banded<banded_window> && pairwise<banded_window> && !banded<window> && !banded<mask::all_ones>));
  STATIC_REQUIRE((names_parameters<mask::selective_decay<float>> && !names_parameters<own_gaps>));
}
