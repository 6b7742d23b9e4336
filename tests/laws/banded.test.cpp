// SPDX-License-Identifier: Apache-2.0
// A mask of pairs that says how far its weights reach gives what the same mask gives without saying it, and is not asked beyond.
#include "support/catch.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

namespace {

using test::index_t;
using test::mask_kind;
using test::tensor;

/// Any weights for pairs that are at most so many tokens apart as the head's reach, zero for others.
struct window {
  const tensor<double>* weights;  // [B, H, L, L]
  std::array<index_t, 2> reaches;

  double weight(index_t b, index_t h, index_t i, index_t j) const {
    const index_t reach = reaches[static_cast<std::size_t>(h)];
    return i - j > reach || j - i > reach ? 0.0 : (*weights)(b, h, i, j);
  }
};

struct banded_window : window {
  index_t reach(index_t, index_t h) const { return reaches[static_cast<std::size_t>(h)]; }
};

/// Weights of one at any distance, counted as they are asked for.
struct counted {
  index_t limit;
  long* asked;
  index_t* farthest;

  double weight(index_t, index_t, index_t i, index_t j) const {
    ++*asked;
    *farthest = std::max({*farthest, i - j, j - i});
    return 1;
  }
  index_t reach(index_t, index_t) const { return limit; }
};

static_assert(bila::pairwise<window> && !bila::banded<window>);
static_assert(bila::pairwise<banded_window> && bila::banded<banded_window> && bila::banded<counted>);

template <class Form, class Mask, class Norm>
std::pair<test::learned<double>, tensor<double>> learn_all(const Form& form, const Mask& mask, const Norm& norm,
                                                           const test::lesson<double>& x, int threads = 1) {
  const auto& size = x.x.size;
  auto to = room_for(x);
  tensor<double> weights(size.B, size.H, size.L, size.L);
  auto all = gradients_of(to);
  all.log_decay = {}, all.log_forward = all.log_backward = {};
  all.weights = weights.view();
  bila::attend(bila::cpu{.threads = threads}, form, mask, norm, x.inputs(), outputs_of(to));
  bila::gradient(bila::cpu{.threads = threads}, form, mask, norm, x.inputs(), saved_of(to), given_to(x), all);
  return {std::move(to), std::move(weights)};
}

}  // namespace

TEST_CASE("a banded mask has the bits of the same mask without a reach, forwards and in the gradient") {
  test::random_source random(4401);
  constexpr auto any = std::numeric_limits<index_t>::max();
  for (const index_t L : {1, 5, 128, 400})
    for (const auto& reaches : {std::array<index_t, 2>{0, 1}, {3, 130}, {127, 128}, {257, any}})
      for (const auto direction : test::all_directions)
        for (const int pieces : {0, 1, 2}) {
          const bila::norm::row_sum norm{1e-3};
          const index_t B = pieces == 2 ? 2 : 1;
          auto x = test::random_lesson(random, {.B = B, .H = 2, .L = L, .Dk = 3, .Dv = 2}, mask_kind::all_ones, norm);
          x.x.direction = direction, x.x.diagonal = 1.5;
          if (pieces == 1) x.x.offsets = {0, L / 4, L / 4, L};
          if (pieces == 2) x.x.lengths = {L - 1, L / 2};
          tensor<double> weights(B, 2, L, L);
          weights.fill_uniform(random, 0.2, 1);
          const window plain{&weights, reaches};
          const banded_window banded{plain};
          const auto expected = learn_all(bila::form::full{}, plain, norm, x);
          INFO("L = " << L << ", reaches " << reaches[0] << ", " << reaches[1] << ", " << test::name_of(direction) << ", pieces "
                      << pieces);
          for (const int threads : {1, 3}) {
            const auto found = learn_all(bila::form::full{}, banded, norm, x, threads);
            CHECK(same_bits(found.first, expected.first));
            bool within = true, beyond = true;
            found.second.for_each([&](const double& slope, index_t b, index_t h, index_t i, index_t j) {
              const index_t reach = reaches[static_cast<std::size_t>(h)];
              if (i - j > reach || j - i > reach)
                beyond = beyond && slope == 0;
              else
                within = within && slope == expected.second(b, h, i, j);
            });
            CHECK((within && beyond && found.second.intact()));
          }
          CHECK(same_bits(learn_all(bila::form::automatic{}, banded, norm, x).first, expected.first));
        }
}

TEST_CASE("pairs beyond the reach count as zero, and the mask is asked for the others only, once a pass") {
  test::random_source random(4402);
  constexpr index_t L = 1000, limit = 20;
  const auto x = test::random_lesson(random, {.L = L, .Dk = 3, .Dv = 2}, mask_kind::all_ones, bila::norm::none{});
  tensor<double> ones(1, 1, L, L);
  ones.fill(1);
  const auto expected = learn_all(bila::form::full{}, window{&ones, {limit, limit}}, bila::norm::none{}, x);
  long asked = 0;
  index_t farthest = 0;
  const counted mask{limit, &asked, &farthest};
  const auto found = learn_all(bila::form::full{}, mask, bila::norm::none{}, x);
  CHECK(same_bits(found.first, expected.first));
  CHECK(farthest == limit);
  CHECK(asked == 2 * (L * (2 * limit + 1) - limit * (limit + 1)));  // the result, and its gradient
}

TEST_CASE("a negative reach is refused, with its head, before anything is written") {
  test::random_source random(4403);
  const auto x = test::random_lesson(random, {.H = 2, .L = 5, .Dk = 3, .Dv = 2}, mask_kind::all_ones, bila::norm::none{});
  tensor<double> weights(1, 2, 5, 5), y(1, 2, 5, 2);
  const banded_window mask{{&weights, {4, -1}}};
  const std::string words = test::refusal(
      [&] { bila::attend(bila::form::full{}, mask, bila::norm::none{}, x.inputs(), bila::outputs<double>{y.view()}); });
  CHECK(test::has_all(words, {"mask.reach(b = 0, h = 1) = -1", ">= 0"}));
  CHECK(same_bits(y, tensor<double>(1, 2, 5, 2)));
  auto to = room_for(x);
  bila::gradients<double> wanted;
  wanted.q = to.q.view();
  CHECK(test::has_all(test::refusal([&] {
                        bila::gradient(bila::form::full{}, mask, bila::norm::none{}, x.inputs(), saved_of(to), given_to(x), wanted);
                      }),
                      {"mask.reach(b = 0, h = 1) = -1"}));
}
