// SPDX-License-Identifier: Apache-2.0
// What the device's gradient is held against, held against the CPU's. Needs no device.
#include "cuda/support/gradient_definition.hpp"
#include "support/catch.hpp"

#include <string>

namespace {

using test::index_t;
using test::mask_kind;

/// The largest difference, in units of 1e-11 of the spread.
template <class T>
double far(const test::tensor<T>& found, const test::slope& exact) {
  double worst = 0;
  std::size_t at = 0;
  found.for_each([&](const T& x, index_t, index_t, index_t, index_t) {
    const double difference = std::fabs(x - exact.value[at]), allowed = 1e-11 * exact.spread[at] + 1e-290;
    if (difference != 0) worst = std::fmax(worst, std::isnan(difference) ? INFINITY : difference / allowed);
    ++at;
  });
  return worst;
}

double far(double found, const test::slope& exact) {
  return found == exact.value[0] ? 0 : std::fabs(found - exact.value[0]) / (1e-11 * exact.spread[0]);
}

void check(const test::lesson<double>& x, const test::any_form& form) {
  const auto found = learn(form, x);
  const auto exact = test::step_by_definition(x);
  INFO(test::name_of(form) << ": " << x.name());
  CHECK(far(found.y, exact.y) <= 1);
  if (x.row_sums()) CHECK(far(found.row_sum, exact.row_sum) <= 1);
  CHECK(far(found.q, exact.q) <= 1);
  CHECK(far(found.k, exact.k) <= 1);
  CHECK(far(found.v, exact.v) <= 1);
  CHECK(far(found.log_forward, exact.log_forward) <= 1);
  CHECK(far(found.log_backward, exact.log_backward) <= 1);
  if (x.has_log_decay()) CHECK(far(found.log_decay, exact.log_decay) <= 1);
  CHECK(far(found.scale, exact.scale) <= 1);
  CHECK(far(found.diagonal, exact.diagonal) <= 1);
  const auto check_state = [&](const test::carried<double>& state, const test::state_slopes& slopes) {
    if (!state.given()) return;
    CHECK(far(state.S, slopes.S) <= 1);
    if (x.row_sums()) CHECK(far(state.z, slopes.z) <= 1);
    if (state.log_decay.extent(0) > 0) CHECK(far(state.log_decay, slopes.log_decay) <= 1);
  };
  check_state(found.final_forward, exact.final_forward);
  check_state(found.final_backward, exact.final_backward);
  check_state(found.initial_forward, exact.initial_forward);
  check_state(found.initial_backward, exact.initial_backward);
}

}  // namespace

TEST_CASE("the closed forms are the CPU's gradient") {
  test::random_source random(5101);
  std::size_t turn = 0;
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto direction : test::all_directions)
        for (const bool states : {false, true})
          for (const int cut : {0, 1, 2}) {
            auto x = test::random_lesson(random, {.B = cut == 1 ? 1 : 2, .H = 4, .L = 37, .Dk = 3, .Dv = 5, .Hq = 2, .Hk = 1}, kind,
                                         norm);
            x.x.direction = direction;
            x.x.diagonal = std::array{1.0, 0.0, 2.0, 0.3}[turn % 4];
            x.x.scale = std::array{1.0, 0.125, -0.5}[turn % 3];
            if (cut == 1) x.x.offsets = {0, 1, 1, 20, 37};
            if (cut == 2) x.x.lengths = {37, 9};
            if (states) add_states(x, random);
            if (turn % 5 == 0 && kind != mask_kind::fixed)
              x.x.gates.for_each([&](double& gate, index_t, index_t, index_t, index_t) {
                if (random.below(9) == 0) gate = -INFINITY;
              });
            test::leave_rows_at_kinks(x, 1e-6);
            ++turn;
            check(x, states ? test::any_form(bila::form::chunkwise{.size = 8}) : test::any_form(bila::form::full{}));
          }
}
