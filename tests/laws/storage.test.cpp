// SPDX-License-Identifier: Apache-2.0
// 16-bit tensors are storage: a call gives what the same call gives in float, rounded once.
#include "support/catch.hpp"
#include "support/gradient.hpp"

#include <vector>

namespace {

using bila::bf16;
using bila::f16;
using test::index_t;
using test::mask_kind;

/// Half the distance from 1 to the next number, and the smallest normal number.
template <class T>
constexpr double unit = std::is_same_v<T, bf16> ? 0x1p-8 : 0x1p-11;
template <class T>
constexpr double smallest = std::is_same_v<T, bf16> ? 0x1p-126 : 0x1p-14;

struct shape {
  test::sizes size;
  std::vector<index_t> offsets = {}, lengths = {};
};

const std::vector<shape> shapes{
    {{.B = 2, .H = 4, .L = 70, .Dk = 5, .Dv = 19, .Hq = 2, .Hk = 4, .Hv = 1}},
    {{.B = 1, .H = 2, .L = 61, .Dk = 16, .Dv = 16, .Hk = 1}, {0, 20, 20, 21, 61}},
    {{.B = 2, .H = 1, .L = 150, .Dk = 3, .Dv = 33}, {}, {150, 9}},
};

}  // namespace

TEMPLATE_TEST_CASE("outputs of 16-bit inputs are within one rounding of float's bound", "", bf16, f16) {
  test::random_source random(3401);
  for (const shape& at : shapes)
    for (const mask_kind kind : test::all_masks)
      for (const auto& norm : test::all_norms) {
        auto wide = test::random_lesson(random, at.size, kind, norm);
        wide.x.offsets = at.offsets, wide.x.lengths = at.lengths;
        wide.x.scale = 0.4;
        const auto x = test::stored_as<TestType>(wide).x;
        const auto exact = x.exact();
        for (const auto& form : test::all_forms) {
          test::tensor<TestType> y(at.size.B, at.size.H, at.size.L, at.size.Dv);
          test::forward_pass<TestType>(test::layer::eigen, {}, form, x.mask(), norm, x.inputs(), bila::outputs<TestType>{y.view()});
          test::wide worst = 0;
          y.for_each([&](const TestType& value, index_t b, index_t h, index_t l, index_t d) {
            const std::size_t place = exact.place(b, h, l, d);
            const test::wide in_float = test::bound<float>(exact, place, at.size.L, at.size.Dk);
            const test::wide allowed =
                in_float + unit<TestType> * (std::fmax(std::fabs(exact.y[place]) + in_float, test::wide(smallest<TestType>)));
            const test::wide off = std::fabs(test::wide(static_cast<float>(value)) - exact.y[place]) / allowed;
            worst = std::fmax(worst, std::isnan(off) ? std::numeric_limits<test::wide>::infinity() : off);
          });
          INFO(test::name_of(form) << ": " << wide.name());
          CHECK(worst <= 1);
        }
      }
}

TEMPLATE_TEST_CASE("16-bit steps have the bits of float's, rounded once, however many heads share an input", "", bf16, f16) {
  test::random_source random(3402);
  for (const shape& at : shapes)
    for (const mask_kind kind : test::all_masks)
      for (const auto& norm : test::all_norms)
        for (const bool states : {false, true}) {
          auto wide = test::random_lesson(random, at.size, kind, norm);
          wide.x.offsets = at.offsets, wide.x.lengths = at.lengths;
          wide.x.scale = 0.4;
          if (states) add_states(wide, random);
          const auto x = test::stored_as<TestType>(wide);
          const auto in_float = test::stored_as<float>(x);
          for (const auto& form : test::all_forms) {
            if (states && form.index() == 0) continue;
            INFO(test::name_of(form) << ": " << wide.name());
            const auto found = learn(form, x);
            CHECK(found.intact());
            auto expected = room_for(in_float);
            test::forward_pass<float>(test::layer::eigen, {}, form, in_float.x.mask(), norm, in_float.inputs(),
                                      outputs_of(expected));
            CHECK(same_bits(found.y, test::converted<TestType>(expected.y)));
            // What the way back reads of y is what was stored.
            expected.y = test::converted<float>(found.y);
            test::backward_pass<float>(test::layer::eigen, {}, form, in_float.x.mask(), norm, in_float.inputs(), saved_of(expected),
                                       given_to(in_float), gradients_of(expected));
            CHECK(same_bits(found.q, test::converted<TestType>(expected.q)));
            CHECK(same_bits(found.k, test::converted<TestType>(expected.k)));
            CHECK(same_bits(found.v, test::converted<TestType>(expected.v)));
            for (const auto member : {&test::learned<float>::row_sum, &test::learned<float>::log_decay,
                                      &test::learned<float>::log_forward, &test::learned<float>::log_backward}) {
              const auto& mine = member == &test::learned<float>::row_sum       ? found.row_sum
                                 : member == &test::learned<float>::log_decay   ? found.log_decay
                                 : member == &test::learned<float>::log_forward ? found.log_forward
                                                                                : found.log_backward;
              CHECK(same_bits(mine, expected.*member));
            }
            CHECK(same_bits(found.final_forward.S, expected.final_forward.S));
            CHECK(same_bits(found.initial_backward.S, expected.initial_backward.S));
            CHECK(found.scale == expected.scale);
            CHECK(found.diagonal == expected.diagonal);
          }
        }
}

TEMPLATE_TEST_CASE("16-bit gradients of all forms agree within the rounding of what is stored", "", bf16, f16) {
  test::random_source random(3403);
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : test::all_norms) {
      const auto x =
          test::stored_as<TestType>(test::random_lesson(random, {.B = 1, .H = 2, .L = 100, .Dk = 8, .Dv = 8, .Hk = 1}, kind, norm));
      const auto exact = learn(bila::form::full{}, test::stored_as<double>(x));
      for (const auto& form : test::all_forms) {
        const auto found = learn(form, x);
        INFO(test::name_of(form) << ": " << test::stored_as<double>(x).name());
        // One rounding of the gradient and, in dy . y, one of y, relative to the largest: a row's y counts once, with weight dy.
        CHECK(distance(test::converted<double>(found.q), exact.q) <= 4 * unit<TestType>);
        CHECK(distance(test::converted<double>(found.k), exact.k) <= 4 * unit<TestType>);
        CHECK(distance(test::converted<double>(found.v), exact.v) <= 2 * unit<TestType>);
        CHECK(distance(test::converted<double>(found.log_forward), exact.log_forward) <= 4 * unit<TestType>);
      }
    }
}

TEMPLATE_TEST_CASE("16-bit tensors in any layout and on any number of threads hold the same bits", "", bf16, f16) {
  test::random_source random(3404);
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::source, mask_kind::two_sided})
    for (const auto& form : test::all_forms) {
      auto x = test::stored_as<TestType>(test::random_lesson(random, {.B = 2, .H = 4, .L = 70, .Dk = 5, .Dv = 19, .Hq = 2, .Hk = 1},
                                                             kind, bila::norm::row_sum{1e-6}));
      const auto dense = learn(form, x);
      for (const auto where : test::all_layouts) {
        x.x.q = x.x.q.laid_out(where), x.x.k = x.x.k.laid_out(where), x.x.v = x.x.v.laid_out(where), x.dy = x.dy.laid_out(where);
        for (const int threads : {1, 3, 5}) {
          INFO(test::name_of(form) << " in " << name_of(where) << " on " << threads);
          CHECK(same_bits(learn(form, x, {.threads = threads}), dense));
        }
      }
    }
}

TEMPLATE_TEST_CASE("a NaN in a 16-bit value reaches its column of the output, and no other", "", bf16, f16) {
  test::random_source random(3405);
  for (const auto& form : test::all_forms) {
    auto x =
        test::stored_as<TestType>(test::random_lesson(random, {.L = 40, .Dk = 3, .Dv = 4}, mask_kind::source, bila::norm::none{}));
    x.x.v(0, 0, 11, 2) = TestType(std::numeric_limits<float>::quiet_NaN());
    const auto found = learn(form, x);
    for (index_t l = 0; l < 40; ++l) {
      CHECK(std::isnan(static_cast<float>(found.y(0, 0, l, 2))));
      CHECK_FALSE(std::isnan(static_cast<float>(found.y(0, 0, l, 1))));
    }
  }
}
