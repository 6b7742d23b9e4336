// SPDX-License-Identifier: Apache-2.0
// Faults at the edges: tensors without elements, states in parts, numbers that float cannot hold. What is asked for is written,
// what is not is left alone.
#include "faults/faults.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

#include <optional>
#include <vector>

using namespace faults;
using test::learn;
using test::lesson;

namespace {

lesson<double> step(const test::sizes& size, mask_kind kind, const test::any_norm& norm = bila::norm::row_sum{1e-3}) {
  test::random_source random(5100);
  return test::random_lesson(random, size, kind, norm);
}

template <class T>
bool all_equal(const tensor<T>& x, double wanted) {
  bool all = true;
  x.for_each([&](const T& a, index_t, index_t, index_t, index_t) { all = all && a == wanted; });
  return all;
}

bool untouched(const tensor<double>& x) {
  bool all = true;
  x.for_each([&](double a, index_t, index_t, index_t, index_t) { all = all && std::isnan(a); });
  return all;
}

/// Zero states of every sequence.
test::carried<double> zeros(const lesson<double>& x) {
  const test::sizes& size = x.x.size;
  test::carried<double> state{{x.sequences(), size.H, size.Dk, size.Dv}, {x.sequences(), size.H, size.Dk, 1}, {}};
  state.S.fill(0), state.z.fill(0);
  return state;
}

void attend(const test::any_form& form, const lesson<double>& x, const bila::inputs<double>& in, const bila::outputs<double>& out) {
  test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, in, out);
}

void differentiate(const test::any_form& form, const lesson<double>& x, const test::learned<double>& kept,
                   const bila::gradients<double>& to) {
  test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(kept), given_to(x), to);
}

}  // namespace

TEST_CASE("E1: the gap before a state that is not given has the gradient zero, whatever else is asked for", "[gradient]") {
  for (const mask_kind kind : test::all_masks)
    for (const index_t L : {0, 1, 40})
      for (const test::any_form& form : linear_forms) {
        const auto x = step({.B = 2, .H = 2, .L = L, .Dk = 3, .Dv = 4}, kind);
        auto to = learn(form, x);
        for (const bool with_state : {false, true}) {
          tensor<double> before(2, 2, 1, 1), after(2, 2, 1, 1);
          test::carried<double> S = zeros(x), R = zeros(x);
          bila::gradients<double> wanted;
          if (with_state) wanted.initial_forward = S.view(), wanted.initial_backward = R.view();
          wanted.initial_forward.log_decay = before.view(), wanted.initial_backward.log_decay = after.view();
          differentiate(form, x, to, wanted);
          CAPTURE(x.name(), test::name_of(form), with_state);
          CHECK(all_equal(before, 0));
          CHECK(all_equal(after, 0));
        }
      }
}

TEST_CASE("E2: parts of a state are checked, read and written each on its own", "[streaming]") {
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::source})
    for (const test::any_form& form : {test::any_form{bila::form::recurrent{}}, test::any_form{bila::form::chunkwise{.size = 8}},
                                       test::any_form{bila::form::automatic{}}}) {
      auto x = step({.H = 2, .L = 30, .Dk = 3, .Dv = 4}, kind);
      test::random_source random(5101);
      add_states(x, random);
      const auto whole = learn(form, x);
      CAPTURE(x.name(), test::name_of(form));
      // z alone
      auto to = room_for(x);
      auto out = outputs_of(to);
      out.final_forward.S = out.final_backward.S = {};
      attend(form, x, x.inputs(), out);
      CHECK(same_bits(to.final_forward.z, whole.final_forward.z));
      CHECK(same_bits(to.final_backward.z, whole.final_backward.z));
      // z alone of an initial state is a state whose S is zero
      auto no_S = x;
      no_S.initial_forward.S.fill(0);
      const auto expected = learn(form, no_S);
      auto in = x.inputs();
      in.initial_forward.S = {};
      to = room_for(x);
      attend(form, x, in, outputs_of(to));
      CHECK(same_bits(to.y, expected.y));
      CHECK(same_bits(to.final_forward.z, expected.final_forward.z));
      // each has a shape
      out = outputs_of(to);
      out.final_forward.S = {}, out.final_forward.z.extents[2] = 2;
      CHECK(test::has_all(test::refusal([&] { attend(form, x, x.inputs(), out); }), {"final_forward.z", "[1, 2, 2, 1]"}));
      auto wanted = gradients_of(to);
      wanted.initial_forward.S = wanted.initial_forward.z = {};
      wanted.initial_forward.log_decay.extents[1] = 1;
      CHECK(test::has_all(test::refusal([&] { differentiate(form, x, whole, wanted); }),
                          {"initial_forward.log_decay", "[1, 1, 1, 1]"}));
    }
}

TEST_CASE("E3: without a norm that uses it, z is neither read nor written, in empty sequences too", "[streaming]") {
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::source})
    for (const test::any_form& form : linear_forms) {
      auto x = step({.H = 2, .L = 9, .Dk = 3, .Dv = 4}, kind, bila::norm::none{});
      x.x.offsets = {0, 4, 4, 9};
      test::random_source random(5102);
      add_states(x, random);
      const auto found = learn(form, x);
      for (auto* const state : {&x.initial_forward, &x.initial_backward, &x.by_forward, &x.by_backward})
        state->z.fill(test::not_a_number<double>);
      const auto again = learn(form, x);
      CAPTURE(x.name(), test::name_of(form));
      CHECK(same_bits(again, found));
      for (const auto* const state : {&found.final_forward, &found.final_backward, &found.initial_forward, &found.initial_backward})
        CHECK(untouched(state->z));
      CHECK(same_bits(cut(found.final_forward.S, {.b = 1, .H = 2, .L = 3}), cut(x.initial_forward.S, {.b = 1, .H = 2, .L = 3})));
    }
}

TEST_CASE("E4: values without features leave the row sums and z as they are with some", "[shape]") {
  for (const mask_kind kind : test::all_masks)
    for (const bool states : {false, true})
      for (const test::any_form& form : test::all_forms) {
        if (states && std::holds_alternative<bila::form::full>(form)) continue;
        auto x = step({.B = 2, .H = 2, .L = 50, .Dk = 3, .Dv = 1}, kind);
        test::random_source random(5103);
        if (states) add_states(x, random);
        x.x.v.fill(0), x.dy.fill(0);
        if (states) x.by_forward.S.fill(0), x.by_backward.S.fill(0);
        const auto expected = learn(form, x);
        auto none = x;
        none.x.size.Dv = 0;
        none.x.v = tensor<double>(2, 2, 50, 0), none.dy = tensor<double>(2, 2, 50, 0);
        if (states)
          for (auto* const state : {&none.initial_forward, &none.initial_backward, &none.by_forward, &none.by_backward})
            state->S = tensor<double>(2, 2, 3, 0);
        CAPTURE(x.name(), test::name_of(form));
        for (const int threads : {1, 3}) {
          const auto found = learn(form, none, {.threads = threads});
          CHECK(same_bits(found.row_sum, expected.row_sum));
          CHECK(distance(found.q, expected.q) <= 1e-13);
          CHECK(distance(found.k, expected.k) <= 1e-13);
          CHECK(distance(found.log_forward, expected.log_forward) <= 1e-13);
          if (!states) continue;
          CHECK(same_bits(found.final_forward.z, expected.final_forward.z));
          CHECK(same_bits(found.final_backward.z, expected.final_backward.z));
          CHECK(distance(found.initial_forward.z, expected.initial_forward.z) <= 1e-13);
          CHECK(distance(found.initial_backward.log_decay, expected.initial_backward.log_decay) <= 1e-13);
        }
      }
}

TEST_CASE("E5: keys that no query sees are in the final states", "[streaming]") {
  for (const test::any_form& form : linear_forms) {
    const auto seen = step({.B = 2, .H = 2, .L = 3, .Dk = 3, .Dv = 4, .Lk = 70}, mask_kind::all_ones);
    auto x = seen;
    test::random_source random(5104);
    add_states(x, random);
    auto to = room_for(x), without = to;
    attend(form, x, x.inputs(), outputs_of(to));
    auto in = x.inputs();
    in.q.extents[2] = 0;
    auto out = outputs_of(without);
    out.y.extents[2] = 0, out.row_sum.extents[2] = 0;
    attend(form, x, in, out);
    CAPTURE(test::name_of(form));
    CHECK(same_bits(without.final_forward.S, to.final_forward.S));
    CHECK(same_bits(without.final_forward.z, to.final_forward.z));
    CHECK(same_bits(without.final_backward.S, to.final_backward.S));
    CHECK(untouched(without.y));
  }
}

TEST_CASE("E6: gradients of heads that no head of y reads are zero", "[gradient]") {
  for (const test::any_form& form : test::all_forms) {
    const auto x = step({.B = 2, .H = 2, .L = 5, .Dk = 3, .Dv = 4}, mask_kind::all_ones);
    auto to = room_for(x);
    auto in = x.inputs();
    const auto headless = [](auto view) {
      view.extents[1] = 0;
      return view;
    };
    bila::gradients<double> wanted;
    wanted.q = to.q.view(), wanted.k = to.k.view(), wanted.v = to.v.view(), wanted.scale = &to.scale,
    wanted.diagonal = &to.diagonal;
    test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, in,
                                {headless(x.dy.view()), headless(bila::tensor_view<const double>(to.row_sum.view()))},
                                {headless(x.dy.view())}, wanted);
    CHECK(all_equal(to.q, 0));
    CHECK(all_equal(to.k, 0));
    CHECK(all_equal(to.v, 0));
    CHECK(to.scale == 0);
    CHECK(to.diagonal == 0);
  }
}

TEST_CASE("E7: a scale or diagonal that float cannot hold is refused, its gradient where it is as good as zero", "[numerical]") {
  const auto x = test::stored_as<float>(step({.H = 1, .L = 6, .Dk = 2, .Dv = 2}, mask_kind::source, bila::norm::none{}));
  auto to = learn(bila::form::full{}, x);
  const auto refused = [&](double scale, double diagonal, double* of) {
    auto moved = x;
    moved.x.scale = scale, moved.x.diagonal = diagonal;
    bila::gradients<float> wanted;
    wanted.q = to.q.view(), wanted.scale = of;
    return test::refusal([&] {
      test::backward_pass<float>(test::layer::eigen, {}, bila::form::full{}, moved.x.mask(), moved.x.norm, moved.inputs(),
                                 saved_of(to), given_to(moved), wanted);
    });
  };
  for (const double scale : {0.0, 1e-50, -1e-45, 1e-39}) {
    CHECK(test::has_all(refused(scale, 1, &to.scale), {"scale", "gradient"}));
    CHECK(refused(scale, 1, nullptr).empty());
  }
  CHECK(refused(1e-37, 1, &to.scale).empty());
  CHECK(std::isfinite(to.scale));
  CHECK(test::has_all(refused(1e39, 1, nullptr), {"scale = 1e+39", "float"}));
  CHECK(test::has_all(refused(1, -1e300, nullptr), {"diagonal = -1e+300", "float"}));
}
