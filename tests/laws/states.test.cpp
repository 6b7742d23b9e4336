// SPDX-License-Identifier: Apache-2.0
// States carry a sequence from piece to piece: what pieces give, one after the other, is what the whole gives.
#include "support/catch.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

#include <vector>

namespace {

using bila::direction;
using test::index_t;
using test::lesson;
using test::mask_kind;
using test::tensor;

const std::vector<test::any_form> stateful{bila::form::recurrent{}, bila::form::chunkwise{.size = 24}, bila::form::automatic{}};

/// Tokens [first, first + L) of every row.
tensor<double> tokens(const tensor<double>& x, index_t first, index_t L) {
  if (x.extent(2) == 1) return x;
  tensor<double> part(x.extent(0), x.extent(1), L, x.extent(3));
  part.for_each([&](double& to, index_t b, index_t h, index_t l, index_t d) { to = x(b, h, first + l, d); });
  return part;
}

/// Those tokens as a lesson of their own. Its gaps are given one by one, as the whole's mask has them: a gate before a piece's
/// first token may be the decay of a gap inside it.
lesson<double> piece(const lesson<double>& x, index_t first, index_t L) {
  const test::sizes& size = x.x.size;
  auto part = x;
  part.x.size.L = L;
  for (auto* const t : {&part.x.q, &part.x.k, &part.x.v, &part.dy}) *t = tokens(*t, first, L);
  if (x.x.kind == mask_kind::all_ones) return part;
  const test::gap_logs gaps = x.x.gaps();
  part.x.kind = mask_kind::two_sided;
  part.x.gates = part.x.other_gates = {size.B, size.H, L, 1};
  const auto at = [&](index_t b, index_t h, index_t l) { return static_cast<std::size_t>((b * size.H + h) * size.L + first + l); };
  part.x.gates.for_each([&](double& to, index_t b, index_t h, index_t l, index_t) { to = gaps.forward[at(b, h, l)]; });
  part.x.other_gates.for_each([&](double& to, index_t b, index_t h, index_t l, index_t) { to = gaps.backward[at(b, h, l)]; });
  return part;
}

/// Room for a final state, or an initial one to be written into.
test::carried<double> state_like(const lesson<double>& x, bool enters) {
  const test::sizes& size = x.x.size;
  test::carried<double> state{{x.sequences(), size.H, size.Dk, size.Dv}, {x.sequences(), size.H, size.Dk, 1}, {}};
  if (enters) state.log_decay = {x.sequences(), size.H, 1, 1};
  return state;
}

/// The state that `from` ended in, entering by the gap before (forward) or after (backward) token t of the whole.
test::carried<double> entering(const test::carried<double>& from, const lesson<double>& whole, direction way, index_t gap) {
  auto state = from;
  const test::gap_logs gaps = whole.x.gaps();
  const auto& logs = way == direction::forward ? gaps.forward : gaps.backward;
  state.log_decay = {from.S.extent(0), from.S.extent(1), 1, 1};
  state.log_decay.for_each([&](double& to, index_t b, index_t h, index_t, index_t) {
    to = logs.empty() ? 0 : logs[static_cast<std::size_t>((b * whole.x.size.H + h) * whole.x.size.L + gap)];
  });
  return state;
}

test::learned<double> forward_only(const test::any_form& form, const lesson<double>& x) {
  auto to = room_for(x);
  test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), outputs_of(to));
  return to;
}

/// Every lesson that asks for final states needs a loss by them; its numbers do not matter to the forward pass.
void ask_for_finals(lesson<double>& x) {
  if (x.looks(direction::forward)) x.by_forward = state_like(x, false);
  if (x.looks(direction::backward)) x.by_backward = state_like(x, false);
}

void check_states(const test::carried<double>& found, const test::carried<double>& whole, bool row_sums) {
  CHECK(distance(found.S, whole.S) <= 1e-12);
  if (row_sums) CHECK(distance(found.z, whole.z) <= 1e-12);
}

}  // namespace

TEST_CASE("two pieces are one run: the forward state goes left to right, the backward state right to left") {
  test::random_source random(3301);
  constexpr index_t left = 200, right = 312;
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const direction way : test::all_directions)
        for (const test::any_form& form : stateful) {
          auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = left + right, .Dk = 3, .Dv = 4}, kind, norm);
          x.x.direction = way, x.x.diagonal = 0.5;
          ask_for_finals(x);
          leave_kinks(x);
          const auto whole = forward_only(form, x);

          auto first = piece(x, 0, left), second = piece(x, left, right);
          // The state of one piece does not need the output of the other direction, so each is asked for in a first run.
          if (x.looks(direction::backward)) {
            const auto from = forward_only(form, second).final_backward;
            first.initial_backward = entering(from, x, direction::backward, left);
          }
          const auto a = forward_only(form, first);
          if (x.looks(direction::forward)) second.initial_forward = entering(a.final_forward, x, direction::forward, left);
          const auto b = forward_only(form, second);

          INFO(test::name_of(form) << ": " << x.name());
          CHECK(distance(a.y, tokens(whole.y, 0, left)) <= 1e-12);
          CHECK(distance(b.y, tokens(whole.y, left, right)) <= 1e-12);
          if (x.looks(direction::forward)) check_states(b.final_forward, whole.final_forward, x.row_sums());
          if (x.looks(direction::backward)) check_states(a.final_backward, whole.final_backward, x.row_sums());
        }
}

TEST_CASE("outputs and final states are the definition's") {
  test::random_source random(3302);
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const direction way : test::all_directions)
        for (const test::any_form& form : stateful) {
          auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 60, .Dk = 3, .Dv = 4, .Hv = 1}, kind, norm);
          x.x.direction = way;
          x.x.offsets = {0, 1, 1, 40, 60};
          add_states(x, random);
          const auto found = forward_only(form, x);
          const auto exact = test::by_definition(x);
          INFO(test::name_of(form) << ": " << x.name());
          CHECK(found.intact());
          const auto far = [](const tensor<double>& t, const std::vector<test::wide>& from) {
            std::size_t at = 0;
            test::wide largest = 0, difference = 0;
            t.for_each([&](const double& value, index_t, index_t, index_t, index_t) {
              const test::wide gap = std::fabs(value - from[at]);
              difference = std::fmax(difference, std::isnan(gap) ? std::numeric_limits<test::wide>::infinity() : gap);
              largest = std::fmax(largest, std::fabs(from[at++]));
            });
            return static_cast<double>(difference / largest);
          };
          CHECK(far(found.y, exact.y) <= 1e-13);
          if (x.looks(direction::forward)) CHECK(far(found.final_forward.S, exact.S_forward) <= 1e-13);
          if (x.looks(direction::backward)) CHECK(far(found.final_backward.S, exact.S_backward) <= 1e-13);
          if (!x.row_sums()) continue;
          if (x.looks(direction::forward)) CHECK(far(found.final_forward.z, exact.z_forward) <= 1e-13);
          if (x.looks(direction::backward)) CHECK(far(found.final_backward.z, exact.z_backward) <= 1e-13);
        }
}

TEST_CASE("no initial state is a state of zeros, bit for bit, in outputs and gradients") {
  test::random_source random(3303);
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const test::any_form& form : stateful) {
        auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = 70, .Dk = 3, .Dv = 4}, kind, norm);
        add_states(x, random);
        for (auto* const state : {&x.initial_forward, &x.initial_backward}) state->S.fill(0), state->z.fill(0);
        auto none = x;
        none.initial_forward = none.initial_backward = {};
        const auto with = learn(form, x);
        auto without = learn(form, none);
        without.initial_forward = with.initial_forward, without.initial_backward = with.initial_backward;
        INFO(test::name_of(form) << ": " << x.name());
        CHECK(same_bits(with, without));
      }
}

TEST_CASE("asking for final states changes no bit of the output, and neither does threading") {
  test::random_source random(3304);
  for (const mask_kind kind : {mask_kind::fixed, mask_kind::source, mask_kind::two_sided})
    for (const auto& norm : test::all_norms)
      for (const test::any_form& form : stateful) {
        auto x = test::random_lesson(random, {.B = 1, .H = 1, .L = 200, .Dk = 8, .Dv = 64}, kind, norm);
        const auto plain = test::evaluate(form, x.x).y;
        ask_for_finals(x);
        auto to = room_for(x);
        test::forward_pass<double>(test::layer::eigen, {.threads = 3}, form, x.x.mask(), x.x.norm, x.inputs(), outputs_of(to));
        INFO(test::name_of(form) << ": " << x.name());
        if (form.index() != 3) CHECK(same_bits(to.y, plain));  // automatic takes the form that has states
        CHECK(same_bits(to.final_forward.S, forward_only(form, x).final_forward.S));
        CHECK(same_bits(to.final_backward.S, forward_only(form, x).final_backward.S));
      }
}

TEST_CASE("final states of packed segments are those of the segments alone") {
  test::random_source random(3305);
  for (const mask_kind kind : test::all_masks)
    for (const test::any_form& form : stateful) {
      auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 90, .Dk = 3, .Dv = 4}, kind, bila::norm::row_sum{1e-6});
      x.x.offsets = {0, 30, 30, 31, 90};
      ask_for_finals(x);
      const auto packed = forward_only(form, x);
      for (std::size_t n = 0; n + 1 < x.x.offsets.size(); ++n) {
        const index_t first = x.x.offsets[n], L = x.x.offsets[n + 1] - first;
        if (L == 0) continue;
        auto alone = x;
        alone.x.offsets.clear();
        alone = piece(alone, first, L);
        ask_for_finals(alone);
        const auto found = forward_only(form, alone);
        INFO(test::name_of(form) << ": " << x.name() << " segment " << n);
        for (index_t h = 0; h < 2; ++h)
          for (index_t c = 0; c < 3; ++c) {
            const auto s = static_cast<index_t>(n);
            for (index_t d = 0; d < 4; ++d) {
              CHECK(packed.final_forward.S(s, h, c, d) == Approx(found.final_forward.S(0, h, c, d)).epsilon(1e-13));
              CHECK(packed.final_backward.S(s, h, c, d) == Approx(found.final_backward.S(0, h, c, d)).epsilon(1e-13));
            }
            CHECK(packed.final_forward.z(s, h, c) == Approx(found.final_forward.z(0, h, c)).epsilon(1e-13));
          }
      }
    }
}

TEST_CASE("an empty sequence passes its state on, and its gradient back") {
  test::random_source random(3306);
  for (const mask_kind kind : test::all_masks)
    for (const test::any_form& form : stateful)
      for (const bool packed : {true, false}) {
        auto x =
            test::random_lesson(random, {.B = packed ? 1 : 3, .H = 2, .L = 9, .Dk = 2, .Dv = 3}, kind, bila::norm::row_sum{1e-6});
        if (packed)
          x.x.offsets = {0, 4, 4, 9};
        else
          x.x.lengths = {9, 0, 3};
        add_states(x, random);
        const auto found = learn(form, x);
        INFO(test::name_of(form) << ": " << x.name());
        for (index_t h = 0; h < 2; ++h) {
          for (index_t c = 0; c < 2; ++c) {
            for (index_t d = 0; d < 3; ++d) {
              CHECK(found.final_forward.S(1, h, c, d) == x.initial_forward.S(1, h, c, d));
              CHECK(found.final_backward.S(1, h, c, d) == x.initial_backward.S(1, h, c, d));
              CHECK(found.initial_forward.S(1, h, c, d) == x.by_forward.S(1, h, c, d));
              CHECK(found.initial_backward.S(1, h, c, d) == x.by_backward.S(1, h, c, d));
            }
            CHECK(found.final_forward.z(1, h, c) == x.initial_forward.z(1, h, c));
            CHECK(found.initial_backward.z(1, h, c) == x.by_backward.z(1, h, c));
          }
          CHECK(found.initial_forward.log_decay(1, h, 0) == 0);
          CHECK(found.initial_backward.log_decay(1, h, 0) == 0);
        }
      }
}

TEST_CASE("streaming a token at a time, the state updated in place, is the causal run") {
  test::random_source random(3307);
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const test::any_form& form : stateful) {
        auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = 40, .Dk = 3, .Dv = 4}, kind, norm);
        x.x.direction = direction::forward;
        leave_kinks(x);
        const auto whole = test::evaluate(form, x.x).y;
        auto state = state_like(x, true);
        state.S.fill(0), state.z.fill(0);
        const test::gap_logs gaps = x.x.gaps();
        double worst = 0;
        for (index_t t = 0; t < 40; ++t) {
          auto one = piece(x, t, 1);
          auto to = room_for(one);
          state.log_decay.for_each([&](double& log, index_t b, index_t h, index_t, index_t) {
            log = gaps.forward.empty() || t == 0 ? 0 : gaps.forward[static_cast<std::size_t>((b * 2 + h) * 40 + t)];
          });
          bila::inputs<double> in = one.inputs();
          in.initial_forward = std::as_const(state).view();
          bila::outputs<double> out{to.y.view()};
          out.final_forward = {state.S.view(), state.z.view()};
          test::forward_pass<double>(test::layer::eigen, {}, form, one.x.mask(), norm, in, out);
          worst = std::fmax(worst, distance(to.y, tokens(whole, t, 1)));
        }
        INFO(test::name_of(form) << ": " << x.name());
        CHECK(worst <= 1e-12);
      }
}

TEST_CASE("a state without a log decay counts as decayed already") {
  test::random_source random(3308);
  for (const test::any_form& form : stateful) {
    auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 30, .Dk = 3, .Dv = 4}, mask_kind::target, bila::norm::row_sum{1e-6});
    add_states(x, random);
    auto decayed = x;
    for (auto* const state : {&decayed.initial_forward, &decayed.initial_backward}) {
      state->S.for_each([&](double& s, index_t n, index_t h, index_t, index_t) { s *= std::exp(state->log_decay(n, h, 0)); });
      state->z.for_each([&](double& s, index_t n, index_t h, index_t, index_t) { s *= std::exp(state->log_decay(n, h, 0)); });
      state->log_decay = {};
    }
    INFO(test::name_of(form));
    CHECK(distance(forward_only(form, decayed).y, forward_only(form, x).y) <= 1e-14);
  }
}

TEST_CASE("a state that enters by a decay of zero is no state, and has no gradient") {
  test::random_source random(3312);
  for (const mask_kind kind : test::all_masks)
    for (const test::any_form& form : stateful) {
      auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 30, .Dk = 3, .Dv = 4}, kind, bila::norm::row_sum{1e-6});
      add_states(x, random);
      x.initial_forward.log_decay.fill(-std::numeric_limits<double>::infinity());
      x.initial_backward.log_decay.fill(-std::numeric_limits<double>::infinity());
      auto none = x;
      none.initial_forward = none.initial_backward = {};
      const auto found = learn(form, x), expected = learn(form, none);
      INFO(test::name_of(form) << ": " << x.name());
      CHECK(distance(found.y, expected.y) <= 1e-15);
      CHECK(distance(found.q, expected.q) <= 1e-14);
      bool zero = true;
      for (const auto* state : {&found.initial_forward, &found.initial_backward})
        for (const auto* t : {&state->S, &state->z, &state->log_decay})
          t->for_each([&zero](const double& g, index_t, index_t, index_t, index_t) { zero = zero && g == 0; });
      CHECK(zero);
    }
}

TEST_CASE("gradients through two pieces are those of the whole") {
  test::random_source random(3309);
  constexpr index_t left = 20, right = 31;
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::fixed, mask_kind::source, mask_kind::two_sided})
    for (const auto& norm : test::all_norms)
      for (const test::any_form& form : stateful) {
        auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = left + right, .Dk = 3, .Dv = 4}, kind, norm);
        x.x.direction = direction::forward;
        x.by_forward = state_like(x, false);
        x.by_forward.S.fill_uniform(random, -1, 1);
        x.by_forward.z.fill_uniform(random, -1, 1);
        leave_kinks(x);
        const auto whole = learn(form, x);

        auto first = piece(x, 0, left), second = piece(x, left, right);
        second.initial_forward = entering(forward_only(form, first).final_forward, x, direction::forward, left);
        const auto b = learn(form, second);
        first.by_forward = {b.initial_forward.S, b.initial_forward.z, {}};
        if (!x.row_sums()) first.by_forward.z.fill(0);
        const auto a = learn(form, first);

        INFO(test::name_of(form) << ": " << x.name());
        for (const auto member : {&test::learned<double>::q, &test::learned<double>::k, &test::learned<double>::v}) {
          CHECK(distance(a.*member, tokens(whole.*member, 0, left)) <= 1e-12);
          CHECK(distance(b.*member, tokens(whole.*member, left, right)) <= 1e-12);
        }
        CHECK(distance(a.log_forward, tokens(whole.log_forward, 0, left)) <= 1e-12);
        const auto border = tokens(whole.log_forward, left, 1);
        for (index_t row = 0; row < 2; ++row)
          for (index_t h = 0; h < 2; ++h) CHECK(b.initial_forward.log_decay(row, h, 0) == Approx(border(row, h, 0)).epsilon(1e-11));
      }
}

TEST_CASE("the full form refuses states in one sentence") {
  test::random_source random(3310);
  auto x = test::random_lesson(random, {.B = 1, .H = 1, .L = 5, .Dk = 2, .Dv = 3}, mask_kind::source, bila::norm::none{});
  const bila::form::full full;
  auto finals = x;
  ask_for_finals(finals);
  CHECK(test::has_all(test::refusal([&] { forward_only(full, finals); }), {"final_forward", "form::full"}));
  add_states(x, random);
  x.by_forward = x.by_backward = {};
  CHECK(test::has_all(test::refusal([&] { forward_only(full, x); }), {"initial_forward", "form::full"}));
  x.initial_forward = {};
  CHECK(test::has_all(test::refusal([&] { learn(full, x); }), {"initial_backward", "form::full"}));
}

TEST_CASE("states that a call cannot use are refused") {
  test::random_source random(3311);
  auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 5, .Dk = 2, .Dv = 3}, mask_kind::source, bila::norm::row_sum{1e-6});
  add_states(x, random);
  const bila::form::chunkwise form;
  const auto call = [&](const bila::inputs<double>& in, const bila::outputs<double>& out) {
    return test::refusal([&] { test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, in, out); });
  };
  auto to = room_for(x);
  const bila::outputs<double> out{to.y.view()};

  auto in = x.inputs();
  CHECK(call(in, out).empty());
  in.direction = direction::backward;
  CHECK(test::has_all(call(in, out), {"initial_forward", "direction"}));
  in = x.inputs(), in.initial_backward.z = {};
  CHECK(test::has_all(call(in, out), {"initial_backward.z", "row sum"}));
  in = x.inputs(), in.initial_forward.S.extents[2] = 3;
  CHECK(test::has_all(call(in, out), {"initial_forward.S", "[1, 2, 3, 3]", "[1, 2, 2, 3]"}));
  x.initial_forward.log_decay(0, 1, 0) = 0.25;
  CHECK(test::has_all(call(x.inputs(), out), {"initial_forward.log_decay", "h = 1", "0.25"}));
  x.initial_forward.log_decay(0, 1, 0) = test::not_a_number<double>;
  CHECK(test::has_all(call(x.inputs(), out), {"initial_forward.log_decay", "h = 1"}));
  CHECK(std::isnan(to.row_sum(0, 0, 0)));
}
