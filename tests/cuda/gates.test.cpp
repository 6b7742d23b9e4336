// SPDX-License-Identifier: Apache-2.0
// Gates of exactly zero, log -inf, are borders that nothing crosses; strong ones underflow to zero and not to NaN; those near one
// do not drift. Positive log decays, which the device does not refuse, count as zero; a NaN gives NaN.
#include "cuda/support/laws.hpp"

#include <limits>

namespace {

using bila::bf16;
using bila::f16;
using test::index_t;
using test::mask_kind;

constexpr double cut = -std::numeric_limits<double>::infinity();

const std::vector<mask_kind> per_token{mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::earlier,
                                       mask_kind::two_sided};

template <class Value>
void fill_gates(test::lesson<double>& x, const Value& value) {
  for (auto* const gates : {&x.x.gates, &x.x.other_gates})
    gates->for_each([&](double& gate, index_t, index_t, index_t, index_t) { gate = value(); });
}

}  // namespace

TEST_CASE("zero gates anywhere") {
  test::random_source random(5701);
  for (const auto kind : per_token)
    for (const index_t one_in : {2, 5, 40}) {
      auto x = test::random_lesson(random, {1, 2, 290, 16, 20}, kind, bila::norm::row_sum{1e-6});
      test::draw_options(random, x.x);
      for (auto* const gates : {&x.x.gates, &x.x.other_gates})
        gates->for_each([&](double& gate, index_t, index_t, index_t, index_t) {
          if (random.below(one_in) == 0) gate = cut;
        });
      check_forward_in_all_types(test::device_forms, x);
    }
}

TEST_CASE("gradients with zero gates; that of a dead gap is exactly zero") {
  test::random_source random(5702);
  for (const auto kind : per_token) {
    auto x = test::random_lesson(random, {1, 2, 150, 16, 20}, kind, test::random_norm(random));
    for (auto* const gates : {&x.x.gates, &x.x.other_gates})
      gates->for_each([&](double& gate, index_t, index_t, index_t, index_t) {
        if (random.below(7) == 0) gate = random.below(2) == 0 ? cut : -2000;
      });
    check_step_in_all_types(test::device_forms, x);
    const auto in_bf16 = test::lesson_for<bf16>(x);
    const auto gaps = x.x.gaps();
    for (const auto& form : test::device_forms) {
      const auto found = test::device::learn(form, in_bf16).to;
      bool dead = true;
      for (index_t h = 0; h < 2; ++h)
        for (index_t t = 1; t < 150; ++t) {
          const auto at = static_cast<std::size_t>(h * 150 + t);
          if (gaps.forward[at] == cut) dead = dead && found.log_forward(0, h, t) == 0;
          if (gaps.backward[at] == cut) dead = dead && found.log_backward(0, h, t) == 0;
        }
      INFO(test::words(form, in_bf16));
      CHECK(dead);
    }
  }
}

TEMPLATE_TEST_CASE("nothing crosses a zero gate, not even the largest numbers", "", float, bf16, f16) {
  test::random_source random(5703);
  const auto large = TestType(std::is_same_v<TestType, f16> ? 6e4f : 1e30f);
  for (const index_t border : {1, 16, 24, 64, 128, 149, 256, 299})
    for (const auto& form : test::device_forms)
      for (const bool forward : {true, false}) {
        auto x = test::lesson_for<TestType>(
            test::random_lesson(random, {1, 1, 300, 16, 6}, mask_kind::two_sided, bila::norm::row_sum{1e-6}));
        (forward ? x.x.gates : x.x.other_gates)(0, 0, border) = cut;
        x.x.direction = forward ? bila::direction::forward : bila::direction::backward;
        const auto before = test::device::evaluate(form, x).to.y;
        x.x.v.for_each([&](TestType& value, index_t, index_t, index_t l, index_t) {
          if ((l < border) == forward) value = large;
        });
        const auto after = test::device::evaluate(form, x).to.y;
        bool beyond = true;
        after.for_each([&](const TestType& value, index_t b, index_t h, index_t l, index_t d) {
          if ((l < border) != forward) beyond = beyond && static_cast<float>(value) == static_cast<float>(before(b, h, l, d));
        });
        INFO(test::words(form, x) << ", border " << border << (forward ? ", forward" : ", backward"));
        CHECK(beyond);
      }
}

TEST_CASE("strong gates, alone and now and then") {
  test::random_source random(5704);
  for (const auto kind : {mask_kind::fixed, mask_kind::source, mask_kind::two_sided}) {
    for (const double log : {-1.4, -20.0, -100.0, -1000.0}) {
      auto x = test::random_lesson(random, {1, 2, 290, 16, 20}, kind, bila::norm::row_sum{0});
      fill_gates(x, [&] { return log; });
      check_forward_in_all_types(test::device_forms, x);
      check_step_in_all_types(test::device_forms, x);
    }
    auto mixed = test::random_lesson(random, {1, 2, 290, 16, 20}, kind, bila::norm::row_sum{1e-6});
    fill_gates(mixed, [&] { return random.below(3) == 0 ? -100 : random.uniform(-1e-4, 0); });
    check_forward_in_all_types(test::device_forms, mixed);
    check_step_in_all_types(test::device_forms, mixed);
    fill_gates(mixed, [&] { return random.below(30) == 0 ? std::log(1e-30) : std::log(0.99); });
    check_forward_in_all_types(test::device_forms, mixed);
    check_step_in_all_types(test::device_forms, mixed);
  }
}

TEST_CASE("gates near one over a long sequence, all numbers positive") {
  test::random_source random(5705);
  for (const auto kind : {mask_kind::fixed, mask_kind::source})
    for (const double log : {-1e-7, -1e-5, -1e-3}) {
      auto x = test::random_lesson(random, {1, 1, 8192, 8, 8}, kind, bila::norm::row_sum{1e-6});
      x.x.norm = bila::norm::none{};
      x.x.v.fill_uniform(random, 0.1, 1);
      if (kind == mask_kind::fixed)
        x.x.gates.fill(log);
      else
        x.x.gates.fill_uniform(random, 2 * log, 0);
      const auto in_float = test::lesson_for<float>(x);
      check_forward(test::device_forms, in_float, test::long_definition(in_float.x.inputs(), in_float.x.gaps(), in_float.x.rule()));
      const auto in_bf16 = test::lesson_for<bf16>(x);
      check_forward(test::device_forms, in_bf16, test::long_definition(in_bf16.x.inputs(), in_bf16.x.gaps(), in_bf16.x.rule()));
    }
}

TEST_CASE("all ones, gates of one and positive gates are the same numbers, in outputs and gradients") {
  test::random_source random(5706);
  for (const double log : {0.0, 9e-7, 0.25})
    for (const auto& norm : test::all_norms) {
      auto x = test::random_lesson(random, {1, 2, 170, 16, 20}, mask_kind::all_ones, norm);
      test::draw_options(random, x.x);
      for (const auto kind : test::all_masks) {
        auto same = x;
        same.x.kind = kind;
        same.x.gates = kind == mask_kind::fixed ? test::tensor<double>(1, 2, 1, 1) : test::tensor<double>(1, 2, 170, 1);
        same.x.other_gates = test::tensor<double>(1, 2, 170, 1);
        fill_gates(same, [&] { return log; });
        check_step(test::device_forms, test::lesson_for<float>(same));
      }
    }
}

TEST_CASE("a gate that is NaN gives NaN where it is crossed, and nowhere else") {
  test::random_source random(5707);
  for (const auto& form : test::device_forms) {
    auto x = test::lesson_for<bf16>(test::random_lesson(random, {2, 2, 300, 16, 8}, mask_kind::two_sided, bila::norm::none{}));
    const auto clean = test::device::evaluate(form, x).to.y;
    x.x.gates(1, 0, 140) = test::not_a_number<double>;
    x.x.direction = bila::direction::forward;
    const auto before = test::device::evaluate(form, x).to.y;
    INFO(test::words(form, x));
    for (index_t d = 0; d < 8; ++d) {
      CHECK(std::isnan(static_cast<float>(before(1, 0, 140, d))));
      CHECK(std::isnan(static_cast<float>(before(1, 0, 299, d))));
    }
    x.x.direction = bila::direction::both;
    const auto y = test::device::evaluate(form, x).to.y;
    bool others = true;
    y.for_each([&](const bf16& value, index_t b, index_t h, index_t l, index_t d) {
      if (b != 1 || h != 0) others = others && value.bits == clean(b, h, l, d).bits;
    });
    CHECK(others);
  }
}

TEMPLATE_TEST_CASE("gates that groups of heads share are those gates repeated, bit for bit; their gradients are summed", "", float,
                   bf16) {
  test::random_source random(5708);
  for (const auto kind : {mask_kind::fixed, mask_kind::source, mask_kind::earlier, mask_kind::two_sided})
    for (const index_t heads : {1, 2, 3})
      for (const bool ragged : {false, true}) {
        auto repeated = test::random_lesson(random, {2, 6, 290, 16, 20}, kind, bila::norm::row_sum{1e-6});
        if (ragged) repeated.x.lengths = {290, 133};
        auto grouped = repeated;
        for (const auto member : {&test::problem<double>::gates, &test::problem<double>::other_gates}) {
          auto &all = repeated.x.*member, &few = grouped.x.*member;
          few = test::tensor<double>(all.extent(0), heads, all.extent(2), 1);
          few.for_each([&](double& gate, index_t b, index_t h, index_t l, index_t) { gate = all(b, h, l); });
          all.for_each([&](double& gate, index_t b, index_t h, index_t l, index_t) { gate = few(b, h / (6 / heads), l); });
        }
        for (const auto& form : test::device_forms) {
          const auto x = test::lesson_for<TestType>(grouped);
          const auto found = test::device::learn(form, x), alike = test::device::learn(form, test::lesson_for<TestType>(repeated));
          INFO(test::words(form, x) << ", gates of " << heads << " heads");
          CHECK((found.intact && same_bits(found.to.y, alike.to.y) && same_bits(found.to.q, alike.to.q)));
          CHECK((same_bits(found.to.k, alike.to.k) && same_bits(found.to.log_forward, alike.to.log_forward)));
          if (!x.has_log_decay()) continue;
          test::tensor<double> sum(x.x.gates.extent(0), heads, x.x.gates.extent(2), 1), size = sum;
          sum.fill(0), size.fill(0);
          alike.to.log_decay.for_each([&](const float& g, index_t b, index_t h, index_t l, index_t) {
            sum(b, h / (6 / heads), l) += static_cast<double>(g);
            size(b, h / (6 / heads), l) += std::fabs(static_cast<double>(g));
          });
          bool near = true;
          found.to.log_decay.for_each([&](const float& g, index_t b, index_t h, index_t l, index_t) {
            near = near && std::fabs(static_cast<double>(g) - sum(b, h, l)) <= 2e-7 * size(b, h, l);
          });
          CHECK(near);
        }
      }
}
