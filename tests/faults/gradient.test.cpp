// SPDX-License-Identifier: Apache-2.0
// Faults that users of linear attention have met elsewhere, kept out by a test each: gradients, and states that a sequence carries.
#include "faults/faults.hpp"

#include "support/gradient.hpp"
#include "support/refusal.hpp"

#include <bila/mask/gates.hpp>

#include <algorithm>
#include <vector>

using namespace faults;

namespace {

using bila::direction;
using test::learned;
using test::lesson;

const double infinity = std::numeric_limits<double>::infinity();

lesson<double> step(const test::sizes& size, mask_kind kind, const test::any_norm& norm = bila::norm::none{},
                    std::uint64_t stream = 5001) {
  test::random_source random(stream);
  return test::random_lesson(random, size, kind, norm);
}

template <class T>
bool all_finite(const tensor<T>& x) {
  bool all = true;
  x.for_each([&](const T& value, index_t, index_t, index_t, index_t) { all = all && std::isfinite(static_cast<double>(value)); });
  return all;
}

void check_differences(const test::any_form& form, const lesson<double>& x, const learned<double>& found) {
  test::random_source random(5002);
  const auto [worst, where] = test::directional(x, random).judge(found);
  INFO(test::name_of(form) << " at " << where << ": " << x.name());
  CHECK(worst <= 1);
}

void check_differences(const test::any_form& form, const lesson<double>& x) { check_differences(form, x, learn(form, x)); }

test::carried<double> zeros(const lesson<double>& x) {
  test::carried<double> state{
      {x.sequences(), x.x.size.H, x.x.size.Dk, x.x.size.Dv}, {x.sequences(), x.x.size.H, x.x.size.Dk, 1}, {}};
  state.S.fill(0), state.z.fill(0);
  return state;
}

/// A lambda instead of a log decay.
void set_gates(lesson<double>& x, test::random_source& random, double low, double high) {
  x.x.gates.for_each([&](double& gate, index_t, index_t, index_t, index_t) { gate = std::log(random.uniform(low, high)); });
}

}  // namespace

TEST_CASE("N4: strong decay, log lambda = -5 at L = 256 and C = 64, has a finite gradient: that of differences", "[numerical]") {
  for (const mask_kind kind : {mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::two_sided}) {
    auto x = step({.L = 256, .Dk = 4, .Dv = 4}, kind);
    x.x.gates.fill(-5), x.x.other_gates.fill(-5), x.dy.fill(1);
    for (const test::any_form& form : three_forms(64)) {
      const auto found = learn(form, x);
      CHECK(all_finite(found.log_forward));
      check_differences(form, x, found);
      const auto narrow = learn(form, test::stored_as<float>(x));
      CHECK(all_finite(narrow.log_decay));
      CHECK(all_finite(narrow.q));
    }
  }
}

TEST_CASE("N14: exp(-exp(w)) of half inputs, w in {-20, 0, 20}, is never NaN", "[numerical]") {
  for (const mask_kind kind : {mask_kind::source, mask_kind::target}) {
    auto wide = step({.B = 1, .H = 2, .L = 12, .Dk = 4, .Dv = 4}, kind);
    tensor<bila::f16> w(1, 2, 12, 1);
    w.for_each([](bila::f16& x, index_t, index_t, index_t l, index_t) {
      x = bila::f16(l % 3 == 0 ? -20.0f : l % 3 == 1 ? 0.0f : 20.0f);
    });
    bila::gates::log_decays(bila::gates::double_exponential{}, w.view(), wide.x.gates.view());
    CHECK(wide.x.gates(0, 0, 0) == -std::exp(-20.0));
    CHECK(wide.x.gates(0, 0, 1) == -1);
    CHECK(wide.x.gates(0, 0, 2) == -std::exp(20.0));
    const auto x = test::stored_as<bila::f16>(wide);
    for (const test::any_form& form : three_forms(5)) {
      const auto found = learn(form, x);
      tensor<float> dw(1, 2, 12, 1);
      bila::gates::pull_back(bila::gates::double_exponential{}, w.view(), found.log_decay.view(), dw.view());
      for (const auto* t : {&found.y, &found.q, &found.k, &found.v}) CHECK(all_finite(test::converted<float>(*t)));
      CHECK(all_finite(dw));
    }
  }
}

TEST_CASE("S4: gradients with Dk != Dv are those of differences", "[shape]") {
  for (const auto& [Dk, Dv] : {std::array<index_t, 2>{8, 48}, {48, 8}, {17, 13}})
    for (const test::any_form& form : three_forms(8))
      for (const auto& norm : test::all_norms) {
        auto x = step({.B = 1, .H = 2, .L = 21, .Dk = Dk, .Dv = Dv}, mask_kind::source, norm);
        x.x.scale = 0.25;
        leave_kinks(x);
        check_differences(form, x);
      }
}

TEST_CASE("S5: at Dv = 128 the gradient does not depend on how work is cut into threads or chunks", "[shape]") {
  const auto x = step({.L = 150, .Dk = 16, .Dv = 128}, mask_kind::source, bila::norm::row_sum{1e-6});
  const auto whole = learn(bila::form::full{}, x);
  for (const int threads : {1, 2, 4})
    for (const index_t size : {16, 64, 150}) {
      const test::any_form form = bila::form::chunkwise{.size = size};
      CHECK(distance(learn(form, x, {.threads = threads}), whole) <= 1e-12);
      CHECK(same_bits(learn(form, x, {.threads = threads}), learn(form, x)));
    }
  // Each half of the values alone: their q and k gradients add up, unless tiles overwrite each other.
  auto left = step({.L = 150, .Dk = 16, .Dv = 128}, mask_kind::source), right = left;
  const auto both = left;
  left.dy.for_each([](double& g, index_t, index_t, index_t, index_t d) { g *= d < 64; });
  right.dy.for_each([](double& g, index_t, index_t, index_t, index_t d) { g *= d >= 64; });
  for (const test::any_form& form : three_forms(64)) {
    auto sum = learn(form, left).q;
    const auto other = learn(form, right).q;
    sum.for_each([&](double& g, index_t b, index_t h, index_t l, index_t d) { g += other(b, h, l, d); });
    CHECK(distance(sum, learn(form, both).q) <= 1e-12);
  }
}

TEST_CASE("S15: a broadcast, transposed or reversed gradient is its dense copy, bit for bit", "[shape]") {
  for (const test::any_form& form : three_forms(32)) {
    auto x = step({.B = 2, .H = 2, .L = 50, .Dk = 8, .Dv = 8}, mask_kind::source, bila::norm::row_sum{1e-6});
    const auto with = [&](const bila::tensor_view<const double>& dy) {
      auto to = room_for(x);
      test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), outputs_of(to));
      test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(to), {dy},
                                  gradients_of(to));
      return to;
    };
    const auto dense = learn(form, x);
    for (const auto where : {test::layout::transposed, test::layout::reversed}) {
      const auto other = x.dy.laid_out(where);
      CHECK(same_bits(with(other.view()), dense));
    }
    const double one = 1;
    x.dy.fill(one);
    const auto ones = learn(form, x);
    CHECK(same_bits(with({&one, {2, 2, 50, 8}, {0, 0, 0, 0}}), ones));
    x.x.v = x.x.v.laid_out(test::layout::transposed);
    CHECK(same_bits(learn(form, x), ones));
  }
}

TEST_CASE("G2: a loss on the final state of one head gives every other head's gates no gradient", "[gradient]") {
  for (const test::any_form& form : linear_forms) {
    auto x = step({.B = 2, .H = 3, .L = 20, .Dk = 3, .Dv = 4}, mask_kind::source, bila::norm::row_sum{1e-6});
    x.dy.fill(0);
    x.by_forward = zeros(x);
    for (index_t c = 0; c < 3; ++c)
      for (index_t d = 0; d < 4; ++d) x.by_forward.S(0, 0, c, d) = 1;
    const auto found = learn(form, x);
    bool own = false, others = false;
    found.log_decay.for_each(
        [&](const double& g, index_t b, index_t h, index_t, index_t) { (b == 0 && h == 0 ? own : others) |= g != 0; });
    CHECK(own);
    CHECK_FALSE(others);
    check_differences(form, x, found);
  }
}

TEST_CASE("G3: no gate, a fixed lambda of 1 and gates of 1 give the same outputs and gradients", "[gradient]") {
  for (const test::any_form& form : three_forms(16))
    for (const auto& norm : test::all_norms) {
      auto ones = step({.B = 2, .H = 2, .L = 50, .Dk = 4, .Dv = 5}, mask_kind::all_ones, norm);
      const auto expected = learn(form, ones);
      for (const mask_kind kind : test::all_masks) {
        auto x = ones;
        x.x.kind = kind;
        x.x.gates = kind == mask_kind::fixed ? tensor<double>(1, 2, 1, 1) : tensor<double>(2, 2, 50, 1);
        x.x.gates.fill(0), x.x.other_gates.fill(0);
        const auto found = learn(form, x);
        CAPTURE(x.name(), test::name_of(form));
        CHECK(distance(found.y, expected.y) <= 1e-12);
        CHECK(distance(found.q, expected.q) <= 1e-12);
        CHECK(distance(found.k, expected.k) <= 1e-12);
        CHECK(distance(found.v, expected.v) <= 1e-12);
        CHECK(distance(found.log_forward, expected.log_forward) <= 1e-12);
        CHECK(distance(found.log_backward, expected.log_backward) <= 1e-12);
      }
    }
}

TEST_CASE("G4: grouped heads, two segments and a raw decay through a sigmoid: the gradient is that of differences", "[gradient]") {
  test::random_source random(5003);
  tensor<double> raw(1, 4, 17, 1), d_raw(1, 4, 17, 1);
  raw.fill_uniform(random, -3, 3);
  for (const test::any_form& form : three_forms(4)) {
    auto x =
        step({.B = 1, .H = 4, .L = 17, .Dk = 3, .Dv = 2, .Hq = 4, .Hk = 2, .Hv = 2}, mask_kind::source, bila::norm::row_sum{1e-6});
    x.x.offsets = {0, 6, 17};
    const bila::gates::log_sigmoid gate;
    const auto loss = [&] {
      bila::gates::log_decays(gate, raw.view(), x.x.gates.view());
      return by_definition(x).loss;
    };
    loss();
    const auto found = learn(form, x);
    check_differences(form, x, found);
    bila::gates::pull_back(gate, raw.view(), found.log_decay.view(), d_raw.view());
    d_raw.for_each([&](const double& slope, index_t b, index_t h, index_t t, index_t) {
      const double at = raw(b, h, t);
      raw(b, h, t) = at + 0x1p-18;
      const test::wide up = loss();
      raw(b, h, t) = at - 0x1p-18;
      const test::wide down = loss();
      raw(b, h, t) = at;
      CHECK(slope == Approx(static_cast<double>((up - down) * 0x1p17L)).epsilon(1e-8).margin(1e-9));
    });
  }
}

TEST_CASE("G5: the tail of a chunk is outside the sequence even if a zero activates to a decay of one half", "[gradient]") {
  test::random_source random(5004);
  tensor<double> raw(1, 1, 8, 1);
  raw.fill_uniform(random, -2, 2);
  for (index_t t = 5; t < 8; ++t) raw(0, 0, t) = 0;
  for (const mask_kind kind : {mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::earlier})
    for (const test::any_form& form : three_forms(4)) {
      auto padded = step({.L = 8, .Dk = 3, .Dv = 2}, kind, bila::norm::row_sum{1e-6});
      padded.x.lengths = {5};
      bila::gates::log_decays(bila::gates::log_sigmoid{}, raw.view(), padded.x.gates.view());
      auto exact = lesson<double>{cut(padded.x, {.L = 5}), cut(padded.dy, {.L = 5})};
      exact.x.other_gates = tensor<double>(1, 1, 5, 1);
      const auto found = learn(form, padded), alone = learn(form, exact);
      check_differences(form, exact, alone);
      for (index_t t = 0; t < 5; ++t) CHECK(found.log_decay(0, 0, t) == alone.log_decay(0, 0, t));
      for (index_t t = 5; t < 8; ++t) CHECK(found.log_decay(0, 0, t) == 0);
    }
}

TEST_CASE("G6: each head's gradient, lambda (.1, .5, .99), is that of the head alone", "[gradient]") {
  const std::array lambda{0.1, 0.5, 0.99};
  for (const mask_kind kind : {mask_kind::fixed, mask_kind::source, mask_kind::two_sided})
    for (const test::any_form& form : three_forms(16)) {
      auto x = step({.H = 3, .L = 60, .Dk = 4, .Dv = 5}, kind, bila::norm::row_sum{1e-6});
      for (auto* const gates : {&x.x.gates, &x.x.other_gates})
        gates->for_each(
            [&](double& gate, index_t, index_t h, index_t, index_t) { gate = std::log(lambda[static_cast<std::size_t>(h)]); });
      const auto found = learn(form, x);
      for (index_t h = 0; h < 3; ++h) {
        const part of{.h = h, .L = 60};
        auto alone = lesson<double>{cut(x.x, of), cut(x.dy, of)};
        if (kind != mask_kind::two_sided) alone.x.other_gates = tensor<double>(1, 1, 60, 1);
        const auto solo = learn(form, alone);
        CHECK(same_bits(cut(found.q, of), solo.q));
        CHECK(same_bits(cut(found.k, of), solo.k));
        CHECK(same_bits(cut(found.v, of), solo.v));
        CHECK(same_bits(cut(found.log_forward, of), solo.log_forward));
        CHECK(same_bits(cut(found.log_backward, of), solo.log_backward));
        if (x.has_log_decay()) CHECK(same_bits(cut(found.log_decay, of), solo.log_decay));
      }
    }
}

TEST_CASE("G7: the gradient through a returned state is not dropped", "[gradient]") {
  for (const test::any_form& form : linear_forms) {
    auto x = step({.B = 2, .H = 2, .L = 40, .Dk = 3, .Dv = 4}, mask_kind::target);
    x.dy.fill(0);
    x.by_forward = zeros(x);
    x.by_forward.S.fill(1);
    const auto found = learn(form, x);
    const auto non_zero = [](const tensor<double>& g) {
      bool any = false;
      g.for_each([&](const double& value, index_t, index_t, index_t, index_t) { any = any || value != 0; });
      return any;
    };
    CHECK(non_zero(found.k));
    CHECK(non_zero(found.v));
    CHECK_FALSE(non_zero(found.q));
    check_differences(form, x, found);
  }
  // The full form has no state to return, and says so.
  auto x = step({.L = 4, .Dk = 2, .Dv = 2}, mask_kind::source);
  x.by_forward = zeros(x);
  auto to = room_for(x);
  CHECK(test::has_all(test::refusal([&] {
                        test::backward_pass<double>(test::layer::eigen, {}, bila::form::full{}, x.x.mask(), x.x.norm, x.inputs(),
                                                    saved_of(to), given_to(x), gradients_of(to));
                      }),
                      {"final_forward", "form::full"}));
}

TEST_CASE("G8: bf16, L = 197, H = 3, D = 64, lambda in (.8, 1): gradients are finite and within 2e-2 of double", "[gradient]") {
  for (const auto& norm : test::all_norms)
    for (const test::any_form& form : test::all_forms) {
      test::random_source random(5005);
      auto wide = step({.H = 3, .L = 197, .Dk = 64, .Dv = 64}, mask_kind::source, norm);
      set_gates(wide, random, 0.8, 1);
      wide.x.scale = 0.125;
      const auto x = test::stored_as<bila::bf16>(wide);
      const auto found = learn(form, x);
      const auto exact = learn(form, test::stored_as<double>(x));
      CAPTURE(wide.name(), test::name_of(form));
      CHECK(distance(test::converted<double>(found.y), exact.y) <= 2e-2);
      CHECK(distance(test::converted<double>(found.q), exact.q) <= 2e-2);
      CHECK(distance(test::converted<double>(found.k), exact.k) <= 2e-2);
      CHECK(distance(test::converted<double>(found.v), exact.v) <= 2e-2);
      CHECK(distance(test::converted<double>(found.log_decay), exact.log_decay) <= 2e-2);
    }
}

TEST_CASE("G9: gradients overwrite buffers that hold something else", "[gradient]") {
  for (const test::any_form& form : test::all_forms) {
    const auto x =
        step({.B = 2, .H = 4, .L = 40, .Dk = 3, .Dv = 5, .Hq = 2, .Hk = 1}, mask_kind::source, bila::norm::row_sum{1e-6});
    auto to = learn(form, x);
    const auto once = to;
    for (const double junk : {0.0, 7.0, infinity}) {
      for (auto* const t : {&to.q, &to.k, &to.v, &to.log_decay, &to.log_forward, &to.log_backward}) t->fill(junk);
      to.scale = to.diagonal = junk;
      test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(once), given_to(x),
                                  gradients_of(to));
      CHECK(same_bits(to, once));
    }
  }
}

TEST_CASE("R2: twenty gradients, one result", "[reproducibility]") {
  const auto x = test::stored_as<float>(
      step({.B = 2, .H = 3, .L = 200, .Dk = 16, .Dv = 48, .Hk = 1}, mask_kind::source, bila::norm::row_sum{1e-6}));
  for (const test::any_form& form : test::all_forms) {
    const auto first = learn(form, x);
    for (int repetition = 0; repetition < 20; ++repetition)
      CHECK(same_bits(learn(form, x, {.threads = 1 + repetition % 3}), first));
  }
}

TEST_CASE("T2: L = 512 in two pieces of 200 and 312 is one run, for S and for z", "[streaming]") {
  constexpr index_t L = 512, left = 200, right = 312;
  for (const test::any_form& form : linear_forms) {
    auto x = step({.B = 1, .H = 2, .L = L, .Dk = 8, .Dv = 8}, mask_kind::two_sided, bila::norm::row_sum{1e-6});
    const auto whole = test::evaluate(form, x.x).y;
    auto first = lesson<double>{cut(x.x, {.H = 2, .L = left}), cut(x.dy, {.H = 2, .L = left})};
    auto second = lesson<double>{cut(x.x, {.H = 2, .l = left, .L = right}), cut(x.dy, {.H = 2, .l = left, .L = right})};
    const auto enters = [&](test::carried<double> state, const tensor<double>& gates) {
      state.log_decay = tensor<double>(1, 2, 1, 1);
      for (index_t h = 0; h < 2; ++h) state.log_decay(0, h, 0) = gates(0, h, left);
      return state;
    };
    second.by_backward = zeros(second);
    first.initial_backward = enters(learn(form, second).final_backward, x.x.other_gates);
    first.by_forward = zeros(first);
    const auto a = learn(form, first);
    second.initial_forward = enters(a.final_forward, x.x.gates);
    const auto b = learn(form, second);
    CHECK(distance(a.y, cut(whole, {.H = 2, .L = left})) <= 1e-12);
    CHECK(distance(b.y, cut(whole, {.H = 2, .l = left, .L = right})) <= 1e-12);
  }
}

TEST_CASE("T3: a single token has states and gradients like any sequence", "[streaming]") {
  for (const index_t L : {1, 2})
    for (const test::any_form& form : linear_forms)
      for (const mask_kind kind : test::all_masks) {
        auto x = step({.B = 2, .H = 2, .L = L, .Dk = 3, .Dv = 4}, kind, bila::norm::row_sum{1e-6});
        test::random_source random(5006);
        add_states(x, random);
        check_differences(form, x);
      }
}

TEST_CASE("T4: storage is typed, and states are float", "[streaming]") {
  STATIC_REQUIRE(std::is_same_v<decltype(bila::outputs<bila::f16>::final_forward), bila::state<float>>);
  STATIC_REQUIRE(std::is_same_v<decltype(bila::inputs<bila::bf16>::initial_forward), bila::state<const float>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<bila::tensor_view<bila::f16>, bila::tensor_view<const bila::bf16>>);
  // One bit pattern, two types, two answers: each its own.
  auto wide = step({.L = 20, .Dk = 4, .Dv = 4}, mask_kind::source);
  const auto half = test::stored_as<bila::f16>(wide);
  auto brain = test::stored_as<bila::bf16>(wide);
  const auto exact = learn(bila::form::recurrent{}, wide);
  CHECK(distance(test::converted<double>(learn(bila::form::recurrent{}, half).y), exact.y) < 4 * 0x1p-11);
  CHECK(distance(test::converted<double>(learn(bila::form::recurrent{}, brain).y), exact.y) < 4 * 0x1p-8);
  brain.x.q.for_each([&](bila::bf16& x, index_t b, index_t h, index_t l, index_t d) { x.bits = half.x.q(b, h, l, d).bits; });
  CHECK(distance(test::converted<double>(learn(bila::form::recurrent{}, brain).y), exact.y) > 0.5);
}

TEST_CASE("T7: no initial state and a state of zeros are identical", "[streaming]") {
  for (const test::any_form& form : linear_forms)
    for (const mask_kind kind : test::all_masks) {
      auto x = step({.B = 2, .H = 2, .L = 70, .Dk = 8, .Dv = 8}, kind, bila::norm::row_sum{1e-6});
      const auto none = learn(form, x);
      x.initial_forward = x.initial_backward = zeros(x);
      const auto zero = learn(form, x);
      CHECK(same_bits(zero.y, none.y));
      CHECK(same_bits(zero.q, none.q));
      CHECK(same_bits(zero.k, none.k));
      CHECK(same_bits(zero.v, none.v));
      CHECK(same_bits(zero.log_forward, none.log_forward));
    }
}

TEST_CASE("T8: pads inside the second streamed piece have no effect", "[streaming]") {
  for (const test::any_form& form : linear_forms)
    for (const mask_kind kind : test::all_masks) {
      test::random_source random(5007);
      auto padded = step({.L = 30, .Dk = 4, .Dv = 4}, kind, bila::norm::row_sum{1e-6});
      add_states(padded, random);
      auto exact = padded;
      padded.x.lengths = {18};
      for (auto* const t : {&padded.x.q, &padded.x.k, &padded.x.v, &padded.dy, &padded.x.gates, &padded.x.other_gates})
        if (t->extent(2) == 30)
          t->for_each([](double& x, index_t, index_t, index_t l, index_t) {
            if (l >= 18) x = test::not_a_number<double>;
          });
      exact.x = cut(exact.x, {.L = 18});
      exact.dy = cut(exact.dy, {.L = 18});
      exact.x.other_gates = cut(padded.x.other_gates, {.L = 18});
      const auto found = learn(form, padded), alone = learn(form, exact);
      CAPTURE(padded.name(), test::name_of(form));
      CHECK(same_bits(cut(found.y, {.L = 18}), alone.y));
      CHECK(same_bits(found.final_forward.S, alone.final_forward.S));
      CHECK(same_bits(found.final_backward.z, alone.final_backward.z));
      CHECK(same_bits(found.initial_forward.S, alone.initial_forward.S));
      CHECK(same_bits(found.initial_backward.log_decay, alone.initial_backward.log_decay));
    }
}

TEST_CASE("gradients are refused in words that name the argument", "[gradient]") {
  const auto x = step({.B = 1, .H = 2, .L = 5, .Dk = 3, .Dv = 4}, mask_kind::source, bila::norm::row_sum{1e-6});
  auto to = room_for(x);
  const bila::form::chunkwise form;
  const auto refused = [&](const lesson<double>& of, const bila::saved<double>& kept, const bila::output_gradients<double>& dy,
                           const bila::gradients<double>& wanted) {
    return test::refusal(
        [&] { test::backward_pass<double>(test::layer::eigen, {}, form, of.x.mask(), of.x.norm, of.inputs(), kept, dy, wanted); });
  };
  test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), outputs_of(to));
  const auto kept = saved_of(to);
  const auto dy = given_to(x);
  const auto all = gradients_of(to);

  auto wrong_dy = dy;
  wrong_dy.y.extents[2] = 4;
  CHECK(test::has_all(refused(x, kept, wrong_dy, all), {"dy", "[1, 2, 4, 4]", "[1, 2, 5, 4]"}));
  wrong_dy = dy, wrong_dy.y.data = nullptr;
  CHECK(test::has_all(refused(x, kept, wrong_dy, all), {"dy", "null"}));
  CHECK(test::has_all(refused(x, {kept.y}, dy, all), {"row_sum", "missing"}));
  auto wrong_sum = kept;
  wrong_sum.row_sum.extents[1] = 1;
  CHECK(test::has_all(refused(x, wrong_sum, dy, all), {"row_sum", "[1, 1, 5, 1]", "[1, 2, 5, 1]"}));
  auto unscaled = x;
  unscaled.x.scale = 0;
  CHECK(test::has_all(refused(unscaled, kept, dy, all), {"scale = 0"}));
  auto no_scale = all;
  no_scale.scale = nullptr;

  for (const auto& [member, name] : {std::pair{&bila::gradients<double>::q, "gradients.q"},
                                     {&bila::gradients<double>::k, "gradients.k"},
                                     {&bila::gradients<double>::v, "gradients.v"},
                                     {&bila::gradients<double>::log_decay, "gradients.log_decay"},
                                     {&bila::gradients<double>::log_forward, "gradients.log_forward"},
                                     {&bila::gradients<double>::log_backward, "gradients.log_backward"}}) {
    auto wrong = all;
    (wrong.*member).extents[2] = 4;
    CHECK(test::has_all(refused(x, kept, dy, wrong), {name}));
    wrong = all;
    (wrong.*member).data = const_cast<double*>(x.x.k.view().data);
    CHECK(test::has_all(refused(x, kept, dy, wrong), {name, "overlap"}));
    wrong = all;
    (wrong.*member).data = const_cast<double*>(x.dy.view().data);
    CHECK(test::has_all(refused(x, kept, dy, wrong), {name, "overlap", "dy"}));
  }
  auto wrong = all;
  wrong.v = wrong.q = {to.v.view().data, all.v.extents, all.v.strides};
  wrong.q.extents[3] = 3;
  CHECK(test::has_all(refused(x, kept, dy, wrong), {"gradients.q", "gradients.v", "overlap"}));
  wrong = all, wrong.k.strides[2] = 0;
  CHECK(test::has_all(refused(x, kept, dy, wrong), {"gradients.k"}));

  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::two_sided}) {
    auto without = x;
    without.x.kind = kind;
    CHECK(test::has_all(refused(without, kept, dy, all), {"log_decay", "log_forward"}));
  }
  auto positive = x;
  positive.x.gates(0, 1, 2) = 0.5;
  CHECK(test::has_all(refused(positive, kept, dy, all), {"log_decay", "h = 1", "0.5"}));

  auto state = zeros(x);
  auto with_state = all;
  with_state.initial_forward = state.view();
  with_state.initial_forward.z = {};
  CHECK(test::has_all(refused(x, kept, dy, with_state), {"initial_forward", "z", "row sum"}));
  with_state.initial_forward = state.view();
  auto backward = x;
  backward.x.direction = direction::backward;
  CHECK(test::has_all(refused(backward, kept, dy, with_state), {"initial_forward", "direction"}));
  std::vector<std::byte> little(8);
  CHECK(test::has_all(test::refusal([&] {
                        test::backward_pass<double>(test::layer::eigen, {.workspace = little}, form, x.x.mask(), x.x.norm,
                                                    x.inputs(), kept, dy, all);
                      }),
                      {"workspace", "8"}));

  // Nor can a tensor reach further than memory (F5).
  constexpr index_t far = index_t{1} << 62;
  wrong_dy = dy, wrong_dy.y.strides[2] = far;
  CHECK(test::has_all(refused(x, kept, wrong_dy, all), {"dy has strides", "2^48"}));
  wrong_sum = kept, wrong_sum.row_sum.strides[1] = -far;
  CHECK(test::has_all(refused(x, wrong_sum, dy, all), {"row_sum has strides", "2^48"}));
  wrong = all, wrong.k.strides[1] = far;
  CHECK(test::has_all(refused(x, kept, dy, wrong), {"gradients.k has strides", "2^48"}));
  wrong = all, wrong.log_decay.strides[2] = far;
  CHECK(test::has_all(refused(x, kept, dy, wrong), {"gradients.log_decay has strides", "2^48"}));
  wrong = all, wrong.initial_backward = state.view(), wrong.initial_backward.S.strides[1] = far;
  CHECK(test::has_all(refused(x, kept, dy, wrong), {"gradients.initial_backward.S has strides", "2^48"}));

  // None of them has written anything.
  CHECK(std::isnan(to.q(0, 0, 0, 0)));
  CHECK(std::isnan(to.log_decay(0, 1, 4)));
  CHECK(std::isnan(to.scale));
  CHECK(refused(x, kept, dy, all).empty());
  CHECK(refused(unscaled, kept, dy, no_scale).empty());
}

TEST_CASE("what is written may not lie where gates or states are read", "[gradient]") {
  test::random_source random(5008);
  auto x = step({.B = 1, .H = 1, .L = 40, .Dk = 1, .Dv = 1}, mask_kind::source, bila::norm::row_sum{1e-6});
  add_states(x, random);
  const bila::form::chunkwise form{.size = 8};
  auto to = learn(form, x);
  const auto kept = to;
  const auto clean = x;
  const auto backward = [&](const bila::gradients<double>& wanted) {
    return test::refusal([&] {
      test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(kept), given_to(x),
                                  wanted);
    });
  };
  const auto forward = [&](const bila::outputs<double>& out) {
    return test::refusal([&] { test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), out); });
  };
  // The gates: dq of one pass would be read as decays by the next.
  auto wanted = gradients_of(to);
  wanted.q = x.x.gates.view();
  CHECK(test::has_all(backward(wanted), {"gradients.q", "overlap"}));
  x = clean;
  auto out = outputs_of(to);
  out.row_sum = x.x.gates.view();
  CHECK(test::has_all(forward(out), {"row_sum", "overlap"}));
  // The states: one direction would start from what the other has written.
  x = clean, wanted = gradients_of(to);
  wanted.initial_backward.S = x.initial_forward.S.view();
  CHECK(test::has_all(backward(wanted), {"gradients.initial_backward", "overlap"}));
  x = clean, out = outputs_of(to);
  out.final_backward.S = x.initial_forward.S.view();
  CHECK(test::has_all(forward(out), {"final_backward", "overlap"}));
}

TEST_CASE("a state, and the gradient by one, takes the place of what it is made from, exactly or not at all (F4)", "[gradient]") {
  test::random_source random(5009);
  for (const auto& form : {test::any_form(bila::form::recurrent{}), test::any_form(bila::form::chunkwise{.size = 8})}) {
    auto x = step({.B = 2, .H = 2, .L = 40, .Dk = 3, .Dv = 3}, mask_kind::source, bila::norm::row_sum{1e-6});
    add_states(x, random);
    const auto good = learn(form, x);
    auto to = test::room_for(x);
    const auto forward = [&](const bila::outputs<double>& out) {
      return test::refusal(
          [&] { test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), out); });
    };
    const auto backward = [&](const bila::gradients<double>& wanted) {
      return test::refusal([&] {
        test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(good), given_to(x),
                                    wanted);
      });
    };
    const auto shifted = [](bila::tensor_view<double> view) { return view.data += view.strides[1], view; };  // a head further on
    const auto transposed = [](bila::tensor_view<double> view) { return std::swap(view.strides[2], view.strides[3]), view; };

    auto wanted = gradients_of(to);
    wanted.initial_forward.S = shifted(x.by_forward.S.view());
    CHECK(test::has_all(backward(wanted), {"gradients.initial_forward.S overlaps the gradient of final_forward.S"}));
    wanted.initial_forward.S = transposed(x.by_forward.S.view());
    CHECK(test::has_all(backward(wanted), {"gradients.initial_forward.S overlaps the gradient of final_forward.S"}));
    wanted.initial_forward.S = x.by_backward.S.view();
    CHECK(test::has_all(backward(wanted), {"gradients.initial_forward.S overlaps the gradient of final_backward.S"}));
    wanted = gradients_of(to), wanted.initial_backward.z = x.by_backward.S.view(), wanted.initial_backward.z.extents[3] = 1;
    CHECK(test::has_all(backward(wanted), {"gradients.initial_backward.z overlaps the gradient of final_backward.S"}));
    auto out = outputs_of(to);
    out.final_backward.S = transposed(x.initial_backward.S.view());
    CHECK(test::has_all(forward(out), {"final_backward.S overlaps initial_backward.S"}));
    out.final_backward.S = shifted(x.initial_backward.S.view());
    CHECK(test::has_all(forward(out), {"final_backward.S overlaps initial_backward.S"}));
    CHECK(std::isnan(to.y(0, 0, 0)));  // nothing has been written

    wanted = gradients_of(to);
    wanted.initial_forward.S = x.by_forward.S.view(), wanted.initial_forward.z = x.by_forward.z.view();
    wanted.initial_backward.S = x.by_backward.S.view(), wanted.initial_backward.z = x.by_backward.z.view();
    CHECK(backward(wanted).empty());
    CHECK(same_bits(x.by_forward.S, good.initial_forward.S));
    CHECK(same_bits(x.by_forward.z, good.initial_forward.z));
    CHECK(same_bits(x.by_backward.S, good.initial_backward.S));
    CHECK(same_bits(x.by_backward.z, good.initial_backward.z));
    CHECK(same_bits(to.log_decay, good.log_decay));
    out = outputs_of(to);
    out.final_forward.S = x.initial_forward.S.view(), out.final_forward.z = x.initial_forward.z.view();
    out.final_backward.S = x.initial_backward.S.view(), out.final_backward.z = x.initial_backward.z.view();
    CHECK(forward(out).empty());
    CHECK(same_bits(x.initial_forward.S, good.final_forward.S));
    CHECK(same_bits(x.initial_forward.z, good.final_forward.z));
    CHECK(same_bits(x.initial_backward.S, good.final_backward.S));
    CHECK(same_bits(x.initial_backward.z, good.final_backward.z));
    CHECK(same_bits(to.y, good.y));
  }
}
