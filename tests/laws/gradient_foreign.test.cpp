// SPDX-License-Identifier: Apache-2.0
// Gradients through what a user brings: a mask that only knows pairs, a mask of gaps, a norm, gates in float.
#include "support/catch.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace {

using test::index_t;
using test::mask_kind;
using test::tensor;

/// Any weights at all.
struct table {
  const tensor<double>* weights;  // [B, H, L, L]
  double weight(index_t b, index_t h, index_t i, index_t j) const { return (*weights)(b, h, i, j); }
};

/// The gaps of a lesson's mask, as a mask without parameters.
struct own_gaps {
  const test::gap_logs* gaps_;
  index_t H, L;
  static constexpr bila::gap gaps = bila::gap::per_token;
  double log_forward(index_t b, index_t h, index_t t) const {
    return gaps_->forward[static_cast<std::size_t>((b * H + h) * L + t)];
  }
  double log_backward(index_t b, index_t h, index_t t) const {
    return gaps_->backward[static_cast<std::size_t>((b * H + h) * L + t)];
  }
};

/// n(Z) = 1 + Z^2: y = s N / (1 + s^2 Z^2).
struct one_plus_square {
  static constexpr bool uses_row_sum = true;

  template <class Real>
  bila::quotient<Real> operator()(Real Z, Real scale) const {
    return {scale, 1 + scale * scale * Z * Z};
  }

  template <class Real>
  bila::slope<Real> slope(Real Z, Real scale, Real dy_y) const {
    const Real n = 1 + scale * scale * Z * Z;
    return {scale / n, -2 * scale * scale * Z * dy_y / n, dy_y / scale - 2 * scale * Z * Z * dy_y / n};
  }
};

template <class Form, class Mask, class Norm>
test::learned<double> learn_with(const Form& form, const Mask& mask, const Norm& norm, const test::lesson<double>& x) {
  auto to = room_for(x);
  auto all = gradients_of(to);
  all.log_decay = {};
  if constexpr (!bila::gapped<Mask>) all.log_forward = all.log_backward = {};
  bila::attend(form, mask, norm, x.inputs(), outputs_of(to));
  bila::gradient(form, mask, norm, x.inputs(), saved_of(to), given_to(x), all);
  return to;
}

double plain_loss(const test::lesson<double>& x, const table& mask) {
  double loss = 0;
  const auto& size = x.x.size;
  for (index_t h = 0; h < size.H; ++h)
    for (index_t i = 0; i < size.L; ++i)
      for (index_t j = 0; j < size.L; ++j) {
        if ((x.x.direction == bila::direction::forward && j > i) || (x.x.direction == bila::direction::backward && j < i)) continue;
        double score = 0, along = 0;
        for (index_t c = 0; c < size.Dk; ++c) score += x.x.q(0, h, i, c) * x.x.k(0, h, j, c);
        for (index_t d = 0; d < size.Dv; ++d) along += x.dy(0, h, i, d) * x.x.v(0, h, j, d);
        loss += x.x.scale * score * mask.weight(0, h, i, j) * (i == j ? x.x.diagonal : 1) * along;
      }
  return loss;
}

/// loss is quadratic or linear in each of q, k, v alone, so its central difference is exact but for rounding.
template <class Loss>
void check_coordinates(test::lesson<double>& x, const test::learned<double>& found, const Loss& loss, double h, double tolerance) {
  for (const auto& [value, slope] : {std::pair{&x.x.q, &found.q}, {&x.x.k, &found.k}, {&x.x.v, &found.v}})
    slope->for_each([&, to = value](const double& g, index_t b, index_t head, index_t l, index_t d) {
      if (l % 17 != 0 && l % 23 != 1) return;
      double& number = (*to)(b, head, l, d);
      const double at = number;
      number = at + h;
      const double up = loss();
      number = at - h;
      const double down = loss();
      number = at;
      CHECK(g == Approx((up - down) / (2 * h)).epsilon(tolerance).margin(tolerance));
    });
}

/// Whether query i of batch row b sees key j.
bool sees(const test::problem<double>& x, index_t b, index_t i, index_t j) {
  if ((x.direction == bila::direction::forward && j > i) || (x.direction == bila::direction::backward && j < i)) return false;
  for (const index_t border : x.offsets)
    if ((i < border) != (j < border)) return false;
  return x.lengths.empty() || std::max(i, j) < x.lengths[static_cast<std::size_t>(b)];
}

/// sum(dy y) by its definition, with the norm row_sum or none.
long double loss_of_weights(const test::lesson<double>& x, const tensor<double>& weights) {
  long double loss = 0;
  const test::problem<double>& p = x.x;
  const auto* const sum = std::get_if<bila::norm::row_sum>(&p.norm);
  for (index_t b = 0; b < p.size.B; ++b)
    for (index_t h = 0; h < p.size.H; ++h)
      for (index_t i = 0; i < p.size.L; ++i) {
        long double along = 0, Z = 0;
        for (index_t j = 0; j < p.size.L; ++j) {
          if (!sees(p, b, i, j)) continue;
          long double score = 0, dy_v = 0;
          for (index_t c = 0; c < p.size.Dk; ++c) score += static_cast<long double>(p.q(b, h, i, c)) * p.k(b, h / 2, j, c);
          for (index_t d = 0; d < p.size.Dv; ++d) dy_v += static_cast<long double>(x.dy(b, h, i, d)) * p.v(b, h, j, d);
          score *= weights(b, h, i, j) * (i == j ? p.diagonal : 1.0);
          along += score * dy_v;
          Z += score;
        }
        if (Z != 0 || along != 0) loss += sum == nullptr ? p.scale * along : along / (Z + sum->eps);
      }
  return loss;
}

}  // namespace

TEST_CASE("gradients through a mask that only knows pairs, over several tiles") {
  test::random_source random(3501);
  for (const index_t L : {5, 150})
    for (const auto direction : test::all_directions) {
      auto x = test::random_lesson(random, {.H = 2, .L = L, .Dk = 3, .Dv = 2}, mask_kind::all_ones, bila::norm::none{});
      x.x.direction = direction, x.x.diagonal = 1.5, x.x.scale = 0.5;
      tensor<double> weights(1, 2, L, L);
      weights.fill_uniform(random, -1, 1);
      const table mask{&weights};
      const auto found = learn_with(bila::form::full{}, mask, bila::norm::none{}, x);
      CHECK(same_bits(found, learn_with(bila::form::automatic{}, mask, bila::norm::none{}, x)));
      check_coordinates(
          x, found, [&] { return plain_loss(x, mask); }, 0.5, 1e-10);
      CHECK(found.scale == Approx(plain_loss(x, mask) / x.x.scale).epsilon(1e-10));
      auto off = x, on = x;
      off.x.diagonal = 0, on.x.diagonal = 1;
      CHECK(found.diagonal == Approx(plain_loss(on, mask) - plain_loss(off, mask)).epsilon(1e-10));
    }
}

TEST_CASE("gradients through a user's mask of gaps are those of the library's with the same gaps") {
  test::random_source random(3502);
  for (const auto& norm : {bila::norm::row_sum{1e-6}}) {
    const auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = 50, .Dk = 3, .Dv = 4}, mask_kind::source, norm);
    const test::gap_logs gaps = x.x.gaps();
    const own_gaps mask{&gaps, 2, 50};
    const auto expected = learn(bila::form::chunkwise{.size = 16}, x);
    auto found = learn_with(bila::form::chunkwise{.size = 16}, mask, norm, x);
    found.log_decay = expected.log_decay;
    CHECK(same_bits(found, expected));
  }
}

TEST_CASE("gradients through a user's norm are the derivatives") {
  test::random_source random(3503);
  auto x = test::random_lesson(random, {.H = 2, .L = 18, .Dk = 3, .Dv = 2}, mask_kind::source, bila::norm::max_one{});
  x.x.scale = 0.5;
  const auto mask = std::get<2>(x.x.mask());
  const auto loss_at = [&](double scale) {
    auto in = x.inputs();
    in.scale = scale;
    tensor<double> y(1, 2, 18, 2);
    bila::attend(bila::form::recurrent{}, mask, one_plus_square{}, in, y.view());
    double loss = 0;
    y.for_each([&](const double& value, index_t b, index_t h, index_t l, index_t d) { loss += value * x.dy(b, h, l, d); });
    return loss;
  };
  const auto check = [&](const auto& form) {
    const auto found = learn_with(form, mask, one_plus_square{}, x);
    check_coordinates(
        x, found, [&] { return loss_at(0.5); }, 1e-5, 1e-8);
    CHECK(found.scale == Approx((loss_at(0.5 + 1e-5) - loss_at(0.5 - 1e-5)) / 2e-5).epsilon(1e-8));
  };
  check(bila::form::full{});
  check(bila::form::chunkwise{.size = 5});
}

TEST_CASE("gates in float have the gradient of the same gates in double") {
  test::random_source random(3504);
  auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = 30, .Dk = 3, .Dv = 4}, mask_kind::target, bila::norm::none{});
  tensor<float> gates(2, 2, 30, 1);
  gates.fill_uniform(random, -1.5, 0);
  x.x.gates = test::converted<double>(gates);
  auto to = room_for(x);
  const bila::mask::selective_decay mask{std::as_const(gates).view(), bila::gate::target};
  bila::attend(bila::form::chunkwise{.size = 8}, mask, bila::norm::none{}, x.inputs(), outputs_of(to));
  bila::gradient(bila::form::chunkwise{.size = 8}, mask, bila::norm::none{}, x.inputs(), saved_of(to), given_to(x),
                 gradients_of(to));
  CHECK(same_bits(to, learn(bila::form::chunkwise{.size = 8}, x)));
}

TEST_CASE("max_one at a row sum of exactly one has the slope of the constant") {
  for (const double v : {0.5, -3.0}) {
    const double q = 1, k = 1, dy = 2;
    double y = 0, row_sum = 0, dq = 0, dk = 0, dv = 0;
    const bila::inputs<double> in{bila::bhld(&q, 1, 1, 1, 1), bila::bhld(&k, 1, 1, 1, 1), bila::bhld(&v, 1, 1, 1, 1)};
    bila::attend(bila::form::full{}, bila::mask::all_ones{}, bila::norm::max_one{}, in,
                 bila::outputs<double>{bila::bhld(&y, 1, 1, 1, 1), bila::bhl(&row_sum, 1, 1, 1)});
    CHECK(y == v);
    bila::gradients<double> to;
    to.q = bila::bhld(&dq, 1, 1, 1, 1), to.k = bila::bhld(&dk, 1, 1, 1, 1), to.v = bila::bhld(&dv, 1, 1, 1, 1);
    bila::gradient(bila::form::full{}, bila::mask::all_ones{}, bila::norm::max_one{}, in,
                   bila::saved<double>{bila::bhld(&y, 1, 1, 1, 1), bila::bhl(&row_sum, 1, 1, 1)},
                   bila::output_gradients<double>{bila::bhld(&dy, 1, 1, 1, 1)}, to);
    CHECK(dq == 2 * v);
    CHECK(dk == 2 * v);
    CHECK(dv == 2);
  }
}

TEST_CASE(
    "gradients by the weights of a mask that only knows pairs, one by one; of pairs that do not see each other they are zero") {
  test::random_source random(3507);
  for (const index_t L : {6, 140})
    for (const int pieces : {0, 1, 2})
      for (const auto direction : test::all_directions)
        for (const bool sums : {false, true}) {
          const test::any_norm any = sums ? test::any_norm{bila::norm::row_sum{1e-3}} : test::any_norm{bila::norm::none{}};
          const index_t B = pieces == 1 ? 1 : 2;
          auto x = test::random_lesson(random, {.B = B, .H = 2, .L = L, .Dk = 3, .Dv = 2, .Hk = 1}, mask_kind::all_ones, any);
          x.x.direction = direction, x.x.diagonal = 1.5, x.x.scale = 0.5;
          if (pieces == 1) x.x.offsets = {0, 2, 2, L};
          if (pieces == 2) x.x.lengths = {L - 2, 0};
          tensor<double> weights(B, 2, L, L), slopes(B, 2, L, L), towards(B, 2, L, L);
          weights.fill_uniform(random, 0.2, 1);
          weights(0, 0, 1, 2) = weights(0, 0, 2, 1) = 0;  // a weight of zero has a gradient like any other
          towards.fill_uniform(random, -1, 1);
          const table mask{&weights};
          const auto learn_weights = [&](const bila::cpu& backend, const auto& form, const auto& norm, tensor<double>& to) {
            auto room = room_for(x);
            bila::attend(backend, form, mask, norm, x.inputs(), outputs_of(room));
            bila::gradients<double> wanted;
            wanted.weights = to.view();
            bila::gradient(backend, form, mask, norm, x.inputs(), saved_of(room), given_to(x), wanted);
          };
          const auto learn_both = [&](const bila::cpu& backend, const auto& form, tensor<double>& to) {
            if (sums)
              learn_weights(backend, form, bila::norm::row_sum{1e-3}, to);
            else
              learn_weights(backend, form, bila::norm::none{}, to);
          };
          learn_both({}, bila::form::full{}, slopes);
          INFO("L = " << L << ", pieces = " << pieces << ", " << test::name_of(direction) << ", " << test::name_of(any));

          const auto moved = [&](double t) {
            tensor<double> to = weights;
            to.for_each([&](double& w, index_t b, index_t h, index_t i, index_t j) { w += t * towards(b, h, i, j); });
            return loss_of_weights(x, to);
          };
          long double along = 0;
          bool hidden_are_zero = true;
          slopes.for_each([&](const double& slope, index_t b, index_t h, index_t i, index_t j) {
            along += static_cast<long double>(slope) * towards(b, h, i, j);
            hidden_are_zero = hidden_are_zero && (sees(x.x, b, i, j) || slope == 0);
          });
          constexpr double step = 0x1p-12;
          CHECK(static_cast<double>(along) == Approx(static_cast<double>((moved(step) - moved(-step)) / (2 * step))).epsilon(1e-5));
          CHECK((hidden_are_zero && slopes.intact()));
          if (L > 6) {
            tensor<double> again(B, 2, L, L);
            learn_both(test::spread({.threads = 3}), bila::form::automatic{}, again);
            CHECK(same_bits(again, slopes));
            continue;
          }
          slopes.for_each([&](const double& slope, index_t b, index_t h, index_t i, index_t j) {
            tensor<double> up = weights, down = weights;
            up(b, h, i, j) += step, down(b, h, i, j) -= step;
            const long double rise = (loss_of_weights(x, up) - loss_of_weights(x, down)) / (2 * step);
            CHECK(slope == Approx(static_cast<double>(rise)).epsilon(1e-5).margin(1e-7));
          });
        }
}

TEST_CASE("gradients by weights are refused for masks of gaps, and in another shape") {
  test::random_source random(3508);
  const auto x = test::random_lesson(random, {.H = 2, .L = 5, .Dk = 3, .Dv = 2}, mask_kind::all_ones, bila::norm::none{});
  auto room = room_for(x);
  tensor<double> weights(1, 2, 5, 5);
  weights.fill(1);
  tensor<double> to(1, 2, 5, 4);
  bila::gradients<double> wanted;
  const auto words = [&](const auto& mask) {
    return test::refusal(
        [&] { bila::gradient(bila::form::full{}, mask, bila::norm::none{}, x.inputs(), saved_of(room), given_to(x), wanted); });
  };
  wanted.weights = to.view();
  CHECK(test::has_all(words(table{&weights}), {"gradients.weights", "[1, 2, 5, 4]", "[1, 2, 5, 5]"}));
  wanted.weights = weights.view();
  CHECK(test::has_all(words(bila::mask::all_ones{}), {"gradients.weights", "gaps"}));
}
