// SPDX-License-Identifier: Apache-2.0
// Equal tokens: every addition to a sum rounds the same way, so nothing cancels. What is right is a geometric sum.
#include "support/catch.hpp"
#include "support/gradient.hpp"

#include <cmath>

namespace {

using test::any_form;
using test::index_t;
using test::tensor;
using test::wide;

constexpr float x = 1.1f, v = 1.3f;  // of q and k; of v
constexpr wide promised = 1e-5L;     // relative, for L up to 1e6

/// 1 + lambda + ... + lambda^(n-1)
wide geometric(wide log_decay, index_t n) {
  return log_decay == 0 ? static_cast<wide>(n) : std::expm1(log_decay * static_cast<wide>(n)) / std::expm1(log_decay);
}

/// sum_j lambda^|i-j| over all tokens, those up to i, or those from i on.
wide mask_row(wide log_decay, index_t i, index_t L, bila::direction direction) {
  const wide before = geometric(log_decay, i + 1), after = geometric(log_decay, L - i);
  return direction == bila::direction::forward ? before : direction == bila::direction::backward ? after : before + after - 1;
}

void meet(wide& worst, wide found, wide exact) {
  const wide off = std::fabs(found / exact - 1);
  worst = std::isnan(off) ? std::numeric_limits<wide>::infinity() : std::fmax(worst, off);
}

test::lesson<float> equal_tokens(index_t L, index_t D, double log_decay, bila::direction direction) {
  test::lesson<float> lesson;
  lesson.x.size = {.L = L, .Dk = D, .Dv = D};
  lesson.x.kind = log_decay == 0 ? test::mask_kind::all_ones : test::mask_kind::fixed;
  lesson.x.norm = bila::norm::none{};
  lesson.x.direction = direction;
  lesson.x.q = lesson.x.k = lesson.x.v = lesson.dy = tensor<float>(1, 1, L, D);
  lesson.x.gates = tensor<double>(1, 1, 1, 1);
  lesson.x.gates.fill(log_decay);
  lesson.x.q.fill(x), lesson.x.k.fill(x), lesson.x.v.fill(v), lesson.dy.fill(v);
  return lesson;
}

/// y without a norm, row sums, final states, and the gradients of the loss sum(v y) by q, k, v and the passed states.
void check(const any_form& form, index_t L, index_t D, double log_decay, bila::direction direction, bool gradients) {
  auto lesson = equal_tokens(L, D, log_decay, direction);
  const bool carries = !std::holds_alternative<bila::form::full>(form);
  INFO(test::name_of(form) << ", L = " << L << ", D = " << D << ", log decay " << log_decay << ", " << test::name_of(direction));
  const auto decay = static_cast<wide>(log_decay);
  const wide width = static_cast<wide>(D), xx = static_cast<wide>(x) * x;
  tensor<float> y(1, 1, L, D), row_sum(1, 1, L, 1);
  test::carried<float> forward, backward;
  if (carries && lesson.looks(bila::direction::forward)) forward = {tensor<float>(1, 1, D, D), tensor<float>(1, 1, D, 1), {}};
  if (carries && lesson.looks(bila::direction::backward)) backward = {tensor<float>(1, 1, D, D), tensor<float>(1, 1, D, 1), {}};
  wide worst = 0;

  test::forward_pass<float>(test::layer::eigen, {}, form, lesson.x.mask(), bila::norm::row_sum{}, lesson.inputs(),
                            {y.view(), row_sum.view(), forward.view(), backward.view()});
  for (index_t i = 0; i < L; ++i) meet(worst, row_sum(0, 0, i, 0), width * xx * mask_row(decay, i, L, direction));
  for (auto* state : {&forward, &backward}) {
    if (!state->given()) continue;
    state->S.for_each([&](float s, index_t, index_t, index_t, index_t) { meet(worst, s, wide(x) * v * geometric(decay, L)); });
    state->z.for_each([&](float s, index_t, index_t, index_t, index_t) { meet(worst, s, wide(x) * geometric(decay, L)); });
  }
  CHECK(worst <= promised);

  worst = 0;
  test::forward_pass<float>(test::layer::eigen, {}, form, lesson.x.mask(), lesson.x.norm, lesson.inputs(), {y.view()});
  y.for_each([&](float found, index_t, index_t, index_t i, index_t) {
    meet(worst, found, width * xx * v * mask_row(decay, i, L, direction));
  });
  CHECK(worst <= promised);
  if (!gradients) return;

  // dq_i = sum_j M_ij (dy_i . v_j) k_j, dk_j and dv_j the same of the mask's transpose.
  worst = 0;
  tensor<float> dq(1, 1, L, D), dk(1, 1, L, D), dv(1, 1, L, D);
  bila::gradients<float> to;
  to.q = dq.view(), to.k = dk.view(), to.v = dv.view();
  test::backward_pass<float>(test::layer::eigen, {}, form, lesson.x.mask(), lesson.x.norm, lesson.inputs(), {y.view()},
                             {lesson.dy.view()}, to);
  for (index_t i = 0; i < L; ++i) {
    const wide row = mask_row(decay, i, L, direction), column = mask_row(decay, L - 1 - i, L, direction);
    for (index_t d = 0; d < D; ++d) {
      meet(worst, dq(0, 0, i, d), width * v * v * x * row);
      meet(worst, dk(0, 0, i, d), width * v * v * x * column);
      meet(worst, dv(0, 0, i, d), width * xx * v * column);
    }
  }
  CHECK(worst <= promised);
}

const any_form linear[] = {bila::form::recurrent{}, bila::form::chunkwise{}, bila::form::chunkwise{.size = 4},
                           bila::form::chunkwise{.size = 128}};

}  // namespace

TEST_CASE("a million equal tokens") {
  for (const double log_decay : {0.0, std::log1p(-std::ldexp(1.0, -28))}) {
    check(bila::form::chunkwise{}, 1000000, 2, log_decay, bila::direction::both, true);
    check(bila::form::recurrent{}, 1000000, 2, log_decay, bila::direction::both, false);
  }
  check(bila::form::chunkwise{.size = 4}, 1000000, 2, 0, bila::direction::forward, false);
}

TEST_CASE("equal tokens, lengths and decays between") {
  for (const double log_decay : {0.0, -std::ldexp(1.0, -24), -std::ldexp(1.0, -16), -std::ldexp(1.0, -9)})
    for (const auto direction : test::all_directions)
      for (const any_form& form : linear) check(form, 20000, 2, log_decay, direction, direction == bila::direction::both);
}

TEST_CASE("equal tokens of 64 features, and the full form") {
  for (const double log_decay : {0.0, -std::ldexp(1.0, -20)}) {
    for (const any_form& form : linear) check(form, 4096, 64, log_decay, bila::direction::both, true);
    check(bila::form::full{}, 2048, 64, log_decay, bila::direction::both, true);
  }
  check(bila::form::full{}, 20000, 1, 0, bila::direction::both, false);
}
