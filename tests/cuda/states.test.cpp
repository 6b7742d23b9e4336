// SPDX-License-Identifier: Apache-2.0
// States in and out: what pieces give, one after the other, is what the whole gives; what states are and what their gradients are
// follows from the closed forms.
#include "cuda/support/laws.hpp"

#include <utility>

namespace {

using bila::bf16;
using bila::direction;
using bila::f16;
using test::index_t;
using test::lesson;
using test::mask_kind;

constexpr double cut = -std::numeric_limits<double>::infinity();

template <class T>
test::tensor<T> tokens(const test::tensor<T>& x, index_t first, index_t L) {
  if (x.extent(2) == 1) return x;
  test::tensor<T> part(x.extent(0), x.extent(1), L, x.extent(3));
  part.for_each([&](T& to, index_t b, index_t h, index_t l, index_t d) { to = x(b, h, first + l, d); });
  return part;
}

/// Tokens [first, first + L) as a lesson of their own. Its gaps are given one by one, as the whole's mask has them: a gate before a
/// piece's first token may be the decay of a gap inside it.
template <class T>
lesson<T> piece(const lesson<T>& x, index_t first, index_t L) {
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

template <class T>
test::carried<float> state_like(const lesson<T>& x, bool enters) {
  const test::sizes& size = x.x.size;
  test::carried<float> state{{x.sequences(), size.H, size.Dk, size.Dv}, {x.sequences(), size.H, size.Dk, 1}, {}};
  if (enters) state.log_decay = {x.sequences(), size.H, 1, 1};
  return state;
}

/// The state that `from` ended in, entering by the gap before (forward) or after (backward) the piece.
template <class T>
test::carried<float> entering(const test::carried<float>& from, const lesson<T>& whole, direction way, index_t gap) {
  auto state = from;
  const test::gap_logs gaps = whole.x.gaps();
  const auto& logs = way == direction::forward ? gaps.forward : gaps.backward;
  state.log_decay = {from.S.extent(0), from.S.extent(1), 1, 1};
  state.log_decay.for_each([&](float& to, index_t b, index_t h, index_t, index_t) {
    to = logs.empty() ? 0 : static_cast<float>(logs[static_cast<std::size_t>((b * whole.x.size.H + h) * whole.x.size.L + gap)]);
  });
  return state;
}

/// Asks for final states; the numbers do not matter to the forward pass.
template <class T>
void ask_for_finals(lesson<T>& x) {
  if (x.looks(direction::forward)) x.by_forward = state_like(x, false);
  if (x.looks(direction::backward)) x.by_backward = state_like(x, false);
}

/// That part of the definition's y which belongs to tokens [first, first + L).
test::slope part_of(const test::slope& y, const test::sizes& size, index_t first, index_t L) {
  test::slope part;
  for (index_t row = 0; row < size.B * size.H; ++row)
    for (index_t n = first * size.Dv; n < (first + L) * size.Dv; ++n) {
      const auto at = static_cast<std::size_t>(row * size.L * size.Dv + n);
      part.value.push_back(y.value[at]), part.spread.push_back(y.spread[at]);
    }
  return part;
}

}  // namespace

TEMPLATE_TEST_CASE("a step with states at both ends, packed, padded or neither", "", float, bf16, f16) {
  test::random_source random(5801);
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const direction way : test::all_directions) {
        const index_t cut_as = random.below(3);
        auto x = test::random_lesson(random, {.B = cut_as == 1 ? 1 : 2, .H = 2, .L = 150, .Dk = 16, .Dv = 20, .Hv = 1}, kind, norm);
        test::draw_options(random, x.x);
        x.x.direction = way;
        if (cut_as == 1) x.x.offsets = {0, 1, 1, 40, 150};
        if (cut_as == 2) x.x.lengths = {150, 33};
        add_states(x, random);
        check_step(test::stateful_forms, test::lesson_for<TestType>(x));
      }
}

TEMPLATE_TEST_CASE("states of wide heads, and over several chunks", "", float, bf16) {
  test::random_source random(5802);
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::source})
    for (const test::sizes& size :
         {test::sizes{1, 1, 700, 32, 40}, test::sizes{1, 1, 140, 128, 96}, test::sizes{1, 1, 140, 200, 256}}) {
      auto x = test::random_lesson(random, size, kind, bila::norm::row_sum{1e-6});
      add_states(x, random);
      x.x.gates.for_each([](double& gate, index_t, index_t, index_t, index_t) { gate *= 0.02; });
      check_step(test::stateful_forms, test::lesson_for<TestType>(x));
    }
}

TEMPLATE_TEST_CASE("two pieces are one run: the forward state goes left to right, the backward state right to left", "", float,
                   bf16, f16) {
  test::random_source random(5803);
  constexpr index_t left = 200, right = 312;
  for (const mask_kind kind : test::all_masks)
    for (const auto& form : test::stateful_forms) {
      auto wide =
          test::random_lesson(random, {.B = 2, .H = 2, .L = left + right, .Dk = 16, .Dv = 16}, kind, test::random_norm(random));
      wide.x.diagonal = 0.5;
      const auto x = test::lesson_for<TestType>(wide);
      const auto exact = test::step_by_definition(x).y;
      auto first = piece(x, 0, left), second = piece(x, left, right);
      // The state of one piece does not need the output of the other direction, so each is asked for in a first run.
      ask_for_finals(first), ask_for_finals(second);
      first.initial_backward = entering(test::device::evaluate(form, second).to.final_backward, x, direction::backward, left);
      const auto a = test::device::evaluate(form, first);
      second.initial_forward = entering(a.to.final_forward, x, direction::forward, left);
      const auto b = test::device::evaluate(form, second);
      INFO(test::words(form, x));
      CHECK(a.intact);
      CHECK(b.intact);
      test::check_good("left", judge<TestType>(a.to.y, part_of(exact, x.x.size, 0, left)));
      test::check_good("right", judge<TestType>(b.to.y, part_of(exact, x.x.size, left, right)));
    }
}

TEST_CASE("streaming a few tokens at a time, the state updated in place, is the causal run") {
  test::random_source random(5804);
  for (const mask_kind kind : test::all_masks)
    for (const auto& form : test::stateful_forms) {
      auto wide = test::random_lesson(random, {.B = 2, .H = 2, .L = 60, .Dk = 16, .Dv = 24}, kind, test::random_norm(random));
      wide.x.direction = direction::forward;
      const auto x = test::lesson_for<float>(wide);
      const auto exact = test::step_by_definition(x).y;
      auto state = state_like(x, true);
      state.S.fill(0), state.z.fill(0);
      const test::gap_logs gaps = x.x.gaps();
      INFO(test::words(form, x));
      for (index_t t = 0, n = 1; t < 60; t += n, n = std::min<index_t>(n % 5 + 1, 60 - t)) {
        auto some = piece(x, t, n);
        state.log_decay.for_each([&](float& log, index_t b, index_t h, index_t, index_t) {
          log =
              gaps.forward.empty() || t == 0 ? 0 : static_cast<float>(gaps.forward[static_cast<std::size_t>((b * 2 + h) * 60 + t)]);
        });
        auto to = test::device::room_for_outputs(some);
        test::image memory;
        auto in = test::device::in(memory, some.x.inputs());
        const auto mask = test::device::in(memory, some.x.mask());
        const bila::outputs<float> out{
            memory.out(to.y.view()), {}, {memory.in_place(state.S.view()), memory.in_place(state.z.view())}};
        in.initial_forward = {out.final_forward.S, out.final_forward.z, memory.in(std::as_const(state.log_decay).view())};
        memory.upload();
        CHECK(
            test::device::run(memory, test::device::workspace_bytes<float>(form, mask, x.x.norm, in, out), {},
                              [&](const test::device::on& at) { test::device::attend<float>(at, form, mask, x.x.norm, in, out); }));
        test::check_good("y", judge<float>(to.y, part_of(exact, x.x.size, t, n)));
      }
    }
}

TEST_CASE("no initial state is a state of zeros, and asking for final states changes no bit of the output") {
  test::random_source random(5805);
  for (const mask_kind kind : test::all_masks)
    for (const auto& form : test::stateful_forms) {
      auto wide = test::random_lesson(random, {.B = 2, .H = 2, .L = 300, .Dk = 16, .Dv = 16}, kind, bila::norm::row_sum{1e-6});
      add_states(wide, random);
      auto x = test::lesson_for<bf16>(wide);
      for (auto* const state : {&x.initial_forward, &x.initial_backward}) state->S.fill(0), state->z.fill(0);
      auto none = x;
      none.initial_forward = none.initial_backward = {};
      auto plain = none;
      plain.by_forward = plain.by_backward = {};
      const auto with = test::device::evaluate(form, x).to, without = test::device::evaluate(form, none).to;
      INFO(test::words(form, x));
      CHECK(same_bits(with, without));
      // automatic takes a form that has states, and the mask of ones keeps no states of chunks if none is asked for.
      const auto y = test::device::evaluate(form, plain).to.y;
      if (form.index() != 3 && kind != mask_kind::all_ones) CHECK(same_bits(with.y, y));
    }
}

TEST_CASE("an empty sequence passes its state on, and its gradient back") {
  test::random_source random(5806);
  for (const mask_kind kind : test::all_masks)
    for (const auto& form : test::stateful_forms)
      for (const bool packed : {true, false}) {
        auto wide =
            test::random_lesson(random, {.B = packed ? 1 : 3, .H = 2, .L = 9, .Dk = 5, .Dv = 6}, kind, bila::norm::row_sum{1e-6});
        if (packed)
          wide.x.offsets = {0, 4, 4, 9};
        else
          wide.x.lengths = {9, 0, 3};
        add_states(wide, random);
        const auto x = test::lesson_for<bf16>(wide);
        const auto found = test::device::learn(form, x).to;
        bool same = true;
        for (index_t h = 0; h < 2; ++h)
          for (index_t c = 0; c < 5; ++c) {
            for (index_t d = 0; d < 6; ++d)
              same = same && found.final_forward.S(1, h, c, d) == x.initial_forward.S(1, h, c, d) &&
                     found.final_backward.S(1, h, c, d) == x.initial_backward.S(1, h, c, d) &&
                     found.initial_forward.S(1, h, c, d) == x.by_forward.S(1, h, c, d) &&
                     found.initial_backward.S(1, h, c, d) == x.by_backward.S(1, h, c, d);
            same = same && found.final_forward.z(1, h, c) == x.initial_forward.z(1, h, c) &&
                   found.initial_backward.z(1, h, c) == x.by_backward.z(1, h, c);
          }
        INFO(test::words(form, x));
        CHECK(same);
        for (index_t h = 0; h < 2; ++h) {
          CHECK(found.initial_forward.log_decay(1, h, 0) == 0);
          CHECK(found.initial_backward.log_decay(1, h, 0) == 0);
        }
      }
}

TEST_CASE("a call without tokens passes states on") {
  test::random_source random(5807);
  for (const auto& form : test::stateful_forms) {
    auto wide =
        test::random_lesson(random, {.B = 2, .H = 2, .L = 0, .Dk = 5, .Dv = 6}, mask_kind::source, bila::norm::row_sum{1e-6});
    add_states(wide, random);
    const auto x = test::lesson_for<float>(wide);
    const auto found = test::device::learn(form, x).to;
    INFO(test::words(form, x));
    CHECK(same_bits(found.final_forward.S, x.initial_forward.S));
    CHECK(same_bits(found.final_backward.z, x.initial_backward.z));
    CHECK(same_bits(found.initial_forward.S, x.by_forward.S));
    CHECK(same_bits(found.initial_backward.z, x.by_backward.z));
  }
}

TEST_CASE("a state without a log decay counts as decayed already, one that enters by a decay of zero is none and has no gradient") {
  test::random_source random(5808);
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::target})
    for (const auto& form : test::stateful_forms) {
      auto wide = test::random_lesson(random, {.B = 1, .H = 2, .L = 140, .Dk = 16, .Dv = 16}, kind, bila::norm::row_sum{1e-6});
      add_states(wide, random);
      auto x = test::lesson_for<float>(wide);
      auto decayed = x;
      decayed.initial_forward.log_decay = {}, decayed.initial_backward.log_decay = {};
      check_step(std::array{form}, decayed);

      x.initial_forward.log_decay.fill(static_cast<float>(cut)), x.initial_backward.log_decay.fill(static_cast<float>(cut));
      const auto found = test::device::learn(form, x).to;
      const auto exact = test::step_by_definition(x);
      INFO(test::words(form, x));
      check_outputs(x, found, exact);
      check_gradients(x, found, exact);
      bool zero = true;
      for (const auto* state : {&found.initial_forward, &found.initial_backward})
        for (const auto* t : {&state->S, &state->z, &state->log_decay})
          t->for_each([&zero](const float& g, index_t, index_t, index_t, index_t) { zero = zero && g == 0; });
      CHECK(zero);
    }
}
