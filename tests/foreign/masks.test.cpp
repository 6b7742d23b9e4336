// SPDX-License-Identifier: Apache-2.0
// Masks that a user would write: weights of pairs (a window, distances on an image) and decays of gaps (from a table, by name).
// They use the public face only; the right answer is the masked product, written out.
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/refusal.hpp"
#include "support/tensor.hpp"

#include <bila/bila.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace {

using bila::index_t;
using test::tensor;

constexpr index_t B = 2, H = 2, L = 150, Dk = 6, Dv = 5;

/// A token sees those at most `reach` away.
struct window {
  index_t reach;
  double weight(index_t, index_t, index_t i, index_t j) const { return i - j <= reach && j - i <= reach; }
};

/// The tokens are the pixels of an image, row by row; the weight falls with their distance, by another rate in each head.
struct image_distance {
  index_t width;
  std::array<double, H> rate;
  double weight(index_t, index_t h, index_t i, index_t j) const {
    const auto rows = static_cast<double>(i / width - j / width), columns = static_cast<double>(i % width - j % width);
    return std::exp(-rate[static_cast<std::size_t>(h)] * std::hypot(rows, columns));
  }
};

/// A decay for each kind of token, in float, looked up; 0 and 1 are among them.
struct decay_by_kind {
  std::array<float, 5> table;
  std::vector<int> kind;  // [B, L]

  static constexpr bila::gap gaps = bila::gap::per_token;

  double decay_of(index_t b, index_t t) const { return table[static_cast<std::size_t>(kind[static_cast<std::size_t>(b * L + t)])]; }
  double log_forward(index_t b, index_t, index_t t) const { return std::log(decay_of(b, t)); }
  double log_backward(index_t b, index_t h, index_t t) const { return static_cast<double>(h + 1) * std::log(decay_of(b, t - 1)); }
};

/// One decay per head and direction, which knows its shape, its memory and its name.
struct named_decay {
  bila::tensor_view<const double> down, up;  // [1, H, 1, 1]

  static constexpr bila::gap gaps = bila::gap::per_head;

  double log_forward(index_t, index_t h, index_t) const { return down(0, h, 0, 0); }
  double log_backward(index_t, index_t h, index_t) const { return up(0, h, 0, 0); }
  std::string validate(index_t, index_t heads, index_t) const {
    return down.heads() == heads && up.heads() == heads ? "" : "named_decay has " + std::to_string(down.heads()) + " heads";
  }
  auto parameters() const { return std::tuple(down, up); }
  std::string parameter_of(bila::direction way, index_t, index_t h, index_t) const {
    return (way == bila::direction::forward ? "down[" : "up[") + std::to_string(h) + "]";
  }
};

static_assert(bila::pairwise<window> && !bila::gapped<window>);
static_assert(bila::pairwise<image_distance> && !bila::gapped<image_distance>);
static_assert(bila::gapped<decay_by_kind> && !bila::pairwise<decay_by_kind>);
static_assert(bila::gapped<named_decay> && bila::checks_itself<named_decay> && bila::has_parameters<named_decay> &&
              bila::names_parameters<named_decay>);

/// M(i, j) of a mask, from its weights or from the sum of its log decays.
template <class Mask>
double weight_of(const Mask& mask, index_t b, index_t h, index_t i, index_t j) {
  if constexpr (bila::pairwise<Mask>) {
    return mask.weight(b, h, i, j);
  } else {
    double log = 0;
    for (index_t t = j + 1; t <= i; ++t) log += mask.log_forward(b, h, t);
    for (index_t t = i + 1; t <= j; ++t) log += mask.log_backward(b, h, t);
    return std::exp(log);
  }
}

struct tokens {
  tensor<double> q{B, H, L, Dk}, k{B, H, L, Dk}, v{B, H, L, Dv};
  bila::inputs<double> in{q.view(), k.view(), v.view()};

  tokens() {
    test::random_source random(1);
    q.fill_uniform(random, 0.1, 1), k.fill_uniform(random, 0.1, 1), v.fill_uniform(random, -1, 1);
  }
};

/// (A V) / (A 1) with A = (Q K^T) o M; what of M the options hide is zero.
template <class Mask, class Sees>
tensor<double> definition(const bila::inputs<double>& in, const Mask& mask, const Sees& sees) {
  tensor<double> y(B, H, L, Dv);
  for (index_t b = 0; b < B; ++b)
    for (index_t h = 0; h < H; ++h)
      for (index_t i = 0; i < L; ++i) {
        std::array<double, Dv> N{};
        double Z = 0;
        for (index_t j = 0; j < L; ++j) {
          if (!sees(i, j)) continue;
          double score = 0;
          for (index_t c = 0; c < Dk; ++c) score += in.q(b, h, i, c) * in.k(b, h, j, c);
          score *= weight_of(mask, b, h, i, j) * (i == j ? in.diagonal : 1);
          Z += score;
          for (index_t d = 0; d < Dv; ++d) N[static_cast<std::size_t>(d)] += score * in.v(b, h, j, d);
        }
        for (index_t d = 0; d < Dv; ++d) y(b, h, i, d) = Z == 0 ? 0 : N[static_cast<std::size_t>(d)] / Z;
      }
  return y;
}

/// All terms of Z are positive and |v| <= 1, so the error is below the number of roundings: 3 per crossed gap, Dk + 4 per pair and
/// 2 per sum, in the library and here.
constexpr double tolerance = 2 * (3 * L + Dk + 4 + 2 * L) * std::numeric_limits<double>::epsilon();

template <class Form, class Mask, class Sees>
void check(const Form& form, const Mask& mask, const bila::inputs<double>& in, const Sees& sees) {
  tensor<double> y(B, H, L, Dv);
  bila::attend(bila::cpu{.threads = 2}, form, mask, bila::norm::row_sum{}, in, y.view());
  double worst = 0;
  const tensor<double> expected = definition(in, mask, sees);
  y.for_each([&](double value, index_t b, index_t h, index_t l, index_t d) {
    const double difference = std::fabs(value - expected(b, h, l, d));
    worst = difference <= worst ? worst : difference;  // NaN becomes the worst
  });
  CHECK(worst <= tolerance);
  CHECK(y.intact());
}

template <class Form, class Mask>
void check_with_options(const Form& form, const Mask& mask) {
  const tokens x;
  check(form, mask, x.in, [](index_t, index_t) { return true; });
  auto in = x.in;
  in.diagonal = 2;
  in.direction = bila::direction::forward;
  check(form, mask, in, [](index_t i, index_t j) { return j <= i; });
  in.direction = bila::direction::backward;
  check(form, mask, in, [](index_t i, index_t j) { return j >= i; });
}

}  // namespace

TEST_CASE("a user's window of pairs", "[foreign]") {
  check_with_options(bila::form::full{}, window{7});
  check_with_options(bila::form::automatic{}, window{0});
}

TEST_CASE("a user's distance on the grid of an image", "[foreign]") {
  const image_distance mask{15, {0.3, 1.5}};
  check_with_options(bila::form::full{}, mask);

  // Lengths hide pairs from a mask that knows nothing of them.
  const tokens x;
  auto in = x.in;
  const std::array<index_t, 2> lengths{90, 90};
  in.lengths = lengths;
  check(bila::form::full{}, mask, in, [](index_t i, index_t j) { return i < 90 && j < 90; });
}

TEST_CASE("a user's decays, from a table, different in each head and direction", "[foreign]") {
  decay_by_kind mask{{0.9f, 0.5f, 0.999f, 1.0f, 0.0f}, {}};
  test::random_source random(2);
  for (index_t n = 0; n < B * L; ++n) mask.kind.push_back(static_cast<int>(random.below(20) == 0 ? 4 : random.below(4)));
  check_with_options(bila::form::full{}, mask);
  check_with_options(bila::form::recurrent{}, mask);
  check_with_options(bila::form::chunkwise{.size = 32}, mask);
  check_with_options(bila::form::automatic{}, mask);
}

TEST_CASE("a user's mask that checks its shape, guards its memory and names its parameters", "[foreign]") {
  std::array<double, 3> down{-0.1, -0.7, -1}, up{-0.01, 0, -1};
  const named_decay mask{bila::vec<const double>(down.data(), H), bila::vec<const double>(up.data(), H)};
  check_with_options(bila::form::full{}, mask);
  check_with_options(bila::form::recurrent{}, mask);
  check_with_options(bila::form::chunkwise{.size = 32}, mask);

  const tokens x;
  tensor<double> y(B, H, L, Dv);
  const auto refusal_of = [&](const named_decay& m, const bila::tensor_view<double>& out) {
    return test::refusal([&] { bila::attend(bila::form::recurrent{}, m, bila::norm::row_sum{}, x.in, out); });
  };
  CHECK(test::has_all(refusal_of({bila::vec<const double>(down.data(), 3), mask.up}, y.view()), {"named_decay has 3 heads"}));
  up[1] = 0.25;
  CHECK(test::has_all(refusal_of(mask, y.view()), {"up[1] = 0.25"}));
  up[1] = 0;
  const named_decay inside_y{bila::vec<const double>(y.view().data, H), mask.up};
  CHECK(test::has_all(refusal_of(inside_y, y.view()), {"y overlaps the gates"}));
  CHECK(refusal_of(mask, y.view()).empty());
}

TEST_CASE("a user's mask without names still gets a sentence with the place and the value", "[foreign]") {
  decay_by_kind mask{{0.5f, 1.25f, 0, 0, 0}, std::vector<int>(B * L, 0)};
  mask.kind[L + 40] = 1;  // batch row 1, token 40: used by gap 40 forwards and by gap 41 backwards
  const tokens x;
  tensor<double> y(B, H, L, Dv);
  const auto sentence = [&](const auto& form) {
    return test::refusal([&] { bila::attend(form, mask, bila::norm::row_sum{}, x.in, y.view()); });
  };
  CHECK(test::has_all(sentence(bila::form::recurrent{}), {"log_forward", "b = 1", "h = 0", "t = 40", "0.223"}));
  CHECK(same_bits(y, tensor<double>(B, H, L, Dv)));
}
