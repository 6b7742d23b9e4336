// SPDX-License-Identifier: Apache-2.0
// Packed segments are sequences run one at a time, and so are the valid parts of a padded batch; what lies in the pads is never
// read.
#include "cuda/support/laws.hpp"

#include <cstring>

namespace {

using bila::bf16;
using bila::f16;
using test::index_t;
using test::mask_kind;

/// Tokens [first, last) of batch row b, as a call of its own.
template <class T>
test::problem<T> part(const test::problem<T>& x, index_t b, index_t first, index_t last) {
  auto result = x;
  result.size.B = 1;
  result.size.L = last - first;
  result.offsets.clear();
  result.lengths.clear();
  const auto cut = [&](auto& to, const auto& from) {
    to = {1, from.extent(1), last - first, from.extent(3)};
    to.for_each([&](auto& y, index_t, index_t h, index_t l, index_t d) { y = from(b, h, first + l, d); });
  };
  cut(result.q, x.q);
  cut(result.k, x.k);
  cut(result.v, x.v);
  if (x.kind != mask_kind::fixed) cut(result.gates, x.gates);
  cut(result.other_gates, x.other_gates);
  return result;
}

/// Tokens [first, last) of batch row b of y are, bit for bit, those of the part alone.
template <class T>
bool equals_part(const test::tensor<T>& y, const test::any_form& form, const test::problem<T>& x, index_t b, index_t first,
                 index_t last) {
  const auto own = test::device::evaluate(form, part(x, b, first, last)).to.y;
  bool same = true;
  own.for_each([&](const T& value, index_t, index_t h, index_t l, index_t d) {
    same = same && std::memcmp(&value, &y(b, h, first + l, d), sizeof(T)) == 0;
  });
  return same;
}

/// automatic looks at the longest sequence of a call, so a short one may have other bits alone.
bool chooses(const test::any_form& form) { return std::holds_alternative<bila::form::automatic>(form); }

/// Everything that is read at a pad becomes NaN.
template <class T>
void poison_pads(test::lesson<T>& x) {
  const auto is_pad = [&](index_t b, index_t l) { return l >= x.x.lengths[static_cast<std::size_t>(b)]; };
  for (auto* const t : {&x.x.q, &x.x.k, &x.x.v, &x.dy})
    t->for_each([&](T& value, index_t b, index_t, index_t l, index_t) {
      if (is_pad(b, l)) value = T(test::not_a_number<float>);
    });
  for (auto* const t : {&x.x.gates, &x.x.other_gates})
    if (t->extent(2) == x.x.size.L)
      t->for_each([&](double& value, index_t b, index_t, index_t l, index_t) {
        if (is_pad(b, l)) value = test::not_a_number<double>;
      });
}

}  // namespace

TEMPLATE_TEST_CASE("packed is one at a time", "", float, bf16, f16) {
  test::random_source random(5601);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms) {
      auto lesson = test::random_lesson(random, {.B = 1, .H = 2, .L = 611, .Dk = 24, .Dv = 17, .Hv = 1}, kind, norm);
      test::draw_options(random, lesson.x);
      lesson.x.offsets = {0, 0, 3, 8, 8, 24, 88, 89, 216, 600, 611, 611};
      const auto x = test::lesson_for<TestType>(lesson);
      const auto exact = x.x.exact();
      for (const auto& form : test::device_forms) {
        INFO(test::words(form, x));
        const auto found = test::device::evaluate(form, x);
        CHECK(found.intact);
        test::check_good("y", judge(found.to.y, exact));
        for (std::size_t n = 1; n < x.x.offsets.size() && !chooses(form); ++n)
          CHECK(equals_part(found.to.y, form, x.x, 0, x.x.offsets[n - 1], x.x.offsets[n]));
      }
    }
}

TEMPLATE_TEST_CASE("one segment is no segment", "", float, bf16) {
  test::random_source random(5602);
  for (const auto& form : test::device_forms) {
    auto x = test::lesson_for<TestType>(
        test::random_lesson(random, {.B = 1, .H = 2, .L = 450, .Dk = 32, .Dv = 17}, mask_kind::source, bila::norm::row_sum{1e-6}));
    INFO(test::words(form, x));
    const auto whole = test::device::evaluate(form, x).to.y;
    x.x.offsets = {0, 450};
    CHECK(same_bits(test::device::evaluate(form, x).to.y, whole));
    x.x.offsets = {0, 0, 450, 450};
    CHECK(same_bits(test::device::evaluate(form, x).to.y, whole));
    x.x.offsets.clear();
    x.x.lengths = {450};
    CHECK(same_bits(test::device::evaluate(form, x).to.y, whole));
  }
}

TEST_CASE("gaps at the borders of segments are never read") {
  test::random_source random(5603);
  for (const auto kind : {mask_kind::later, mask_kind::two_sided})
    for (const auto& form : test::device_forms) {
      auto x = test::lesson_for<bf16>(test::random_lesson(random, {1, 2, 150, 16, 16}, kind, bila::norm::row_sum{1e-6}));
      x.x.offsets = {0, 50, 51, 150};
      const auto clean = test::device::learn(form, x).to;
      for (index_t h = 0; h < 2; ++h)
        for (const index_t border : {0, 50, 51})
          x.x.gates(0, h, border) = x.x.other_gates(0, h, border) = test::not_a_number<double>;
      INFO(test::words(form, x));
      CHECK(same_bits(test::device::learn(form, x).to, clean));
    }
}

TEMPLATE_TEST_CASE("lengths: each row is its valid part alone, pads are exactly zero and never read", "", float, bf16, f16) {
  test::random_source random(5604);
  for (const auto kind : test::all_masks) {
    auto lesson =
        test::random_lesson(random, {.B = 6, .H = 2, .L = 331, .Dk = 16, .Dv = 33, .Hk = 1}, kind, test::random_norm(random));
    test::draw_options(random, lesson.x);
    lesson.x.lengths = {331, 0, 1, 64, 130, 300};
    auto x = test::lesson_for<TestType>(lesson);
    const auto exact = x.x.exact();
    poison_pads(x);
    for (const auto& form : test::device_forms) {
      INFO(test::words(form, x));
      const auto found = test::device::evaluate(form, x);
      CHECK(found.intact);
      test::check_good("y", judge(found.to.y, exact));
      bool zero = true;
      found.to.y.for_each([&](const TestType& y, index_t b, index_t, index_t l, index_t) {
        const TestType nothing{};
        if (l >= x.x.lengths[static_cast<std::size_t>(b)]) zero = zero && std::memcmp(&y, &nothing, sizeof y) == 0;
      });
      if (x.row_sums())
        found.to.row_sum.for_each([&](const float& Z, index_t b, index_t, index_t l, index_t) {
          if (l >= x.x.lengths[static_cast<std::size_t>(b)]) zero = zero && Z == 0;
        });
      CHECK(zero);
      for (index_t b = 0; b < 6 && !chooses(form); ++b)
        CHECK(equals_part(found.to.y, form, x.x, b, 0, x.x.lengths[static_cast<std::size_t>(b)]));
    }
  }
}

TEMPLATE_TEST_CASE("a step over packed segments, and over rows with pads of NaN", "", float, bf16, f16) {
  test::random_source random(5605);
  for (const auto kind : test::all_masks)
    for (const bool packed : {true, false}) {
      auto lesson = test::random_lesson(random, {.B = packed ? 1 : 4, .H = 2, .L = 190, .Dk = 16, .Dv = 20, .Hk = 1}, kind,
                                        test::random_norm(random));
      test::draw_options(random, lesson.x);
      if (packed)
        lesson.x.offsets = {0, 0, 1, 17, 17, 160, 190};
      else
        lesson.x.lengths = {190, 0, 1, 150};
      auto x = test::lesson_for<TestType>(lesson);
      leave_rows_at_kinks(x, test::precision<TestType>::spread);
      const auto exact = test::step_by_definition(x);
      if (!packed) poison_pads(x);
      check_step(test::device_forms, x, exact);
    }
}

TEST_CASE("many segments, most of them short or empty") {
  test::random_source random(5606);
  for (const auto kind : {mask_kind::all_ones, mask_kind::source}) {
    auto lesson = test::random_lesson(random, {.B = 1, .H = 2, .L = 3000, .Dk = 16, .Dv = 16}, kind, bila::norm::row_sum{1e-6});
    lesson.x.offsets = {0};
    while (lesson.x.offsets.back() < 3000)
      lesson.x.offsets.push_back(
          std::min<index_t>(3000, lesson.x.offsets.back() + (random.below(40) == 0 ? 200 : random.below(6))));
    check_forward_in_all_types(test::device_forms, lesson);
    check_step_in_all_types(test::device_forms, lesson);
  }
}
