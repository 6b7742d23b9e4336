// SPDX-License-Identifier: Apache-2.0
// Packed segments are sequences run one at a time, and so are the valid parts of a padded batch: bit for bit, and what lies in the
// pads is never read.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

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
  const auto own = test::evaluate(form, part(x, b, first, last)).y;
  bool same = true;
  own.for_each([&](const T& value, index_t, index_t h, index_t l, index_t d) {
    same = same && std::memcmp(&value, &y(b, h, first + l, d), sizeof(T)) == 0;
  });
  return same;
}

}  // namespace

TEMPLATE_TEST_CASE("packed is one at a time", "", float, double) {
  test::random_source random(801);
  for (const auto kind : test::all_masks)
    for (const auto direction : test::all_directions)
      for (const auto& norm : test::all_norms) {
        auto x = test::random_problem<TestType>(random, {1, 2, 211, 6, 17}, kind, norm);
        x.direction = direction;
        x.diagonal = 0.5;
        x.offsets = {0, 0, 3, 8, 8, 72, 73, 210, 211, 211};
        const auto exact = x.exact();
        for (const auto& form : test::all_forms) {
          const auto [y, intact] = test::evaluate(form, x);
          INFO(test::name_of(form) << ": " << x.name());
          CHECK(intact);
          for (std::size_t n = 1; n < x.offsets.size(); ++n) CHECK(equals_part(y, form, x, 0, x.offsets[n - 1], x.offsets[n]));
          CHECK(x.worst_error(y, exact) <= 1);
        }
      }
}

TEMPLATE_TEST_CASE("one segment is no segment", "", float, double) {
  test::random_source random(802);
  auto x = test::random_problem<TestType>(random, {1, 2, 150, 6, 17}, mask_kind::source, bila::norm::row_sum{1e-6});
  for (const auto& form : test::all_forms) {
    x.offsets.clear();
    const auto whole = test::evaluate(form, x).y;
    x.offsets = {0, 150};
    CHECK(same_bits(test::evaluate(form, x).y, whole));
    x.offsets = {0, 0, 150, 150};
    CHECK(same_bits(test::evaluate(form, x).y, whole));
    x.offsets.clear();
    x.lengths = {150};
    CHECK(same_bits(test::evaluate(form, x).y, whole));
    x.lengths.clear();
  }
}

TEMPLATE_TEST_CASE("segment borders are gaps of -inf in both directions", "", float, double) {
  test::random_source random(803);
  for (const auto& form : test::all_forms) {
    auto x = test::random_problem<TestType>(random, {1, 1, 200, 6, 5}, mask_kind::two_sided, bila::norm::row_sum{1e-6});
    auto cut = x;
    x.offsets = {0, 3, 70, 134, 200};
    for (const index_t border : {3, 70, 134})
      cut.gates(0, 0, border) = cut.other_gates(0, 0, border) = -std::numeric_limits<double>::infinity();
    INFO(test::name_of(form));
    CHECK(x.worst_error(test::evaluate(form, cut).y, x.exact()) <= 1);
    CHECK(x.worst_error(test::evaluate(form, x).y, cut.exact()) <= 1);
  }
}

TEMPLATE_TEST_CASE("gaps at the borders of segments are never read", "", float, double) {
  test::random_source random(804);
  for (const auto kind : {mask_kind::later, mask_kind::two_sided})
    for (const auto& form : test::all_forms) {
      auto x = test::random_problem<TestType>(random, {1, 2, 150, 6, 5}, kind, bila::norm::row_sum{1e-6});
      x.offsets = {0, 50, 51, 150};
      const auto clean = test::evaluate(form, x).y;
      for (index_t h = 0; h < 2; ++h)
        for (const index_t border : {0, 50, 51}) x.gates(0, h, border) = x.other_gates(0, h, border) = std::nan("");
      CHECK(same_bits(test::evaluate(form, x).y, clean));
    }
}

TEST_CASE("offsets and lengths of 32 bits are those of 64, bit for bit") {
  test::random_source random(858);
  auto x = test::random_problem<float>(random, {1, 2, 100, 5, 6}, mask_kind::source, bila::norm::row_sum{1e-6});
  const auto same = [&](const std::vector<std::int32_t>& offsets, const std::vector<std::int32_t>& lengths) {
    auto y = x.output();
    bila::inputs<float> in = x.inputs();
    in.offsets = offsets, in.lengths = lengths;
    test::attend<float>({}, bila::form::chunkwise{}, x.mask(), x.norm, in, y.view());
    return same_bits(y, test::evaluate(bila::form::chunkwise{}, x).y);
  };
  x.offsets = {0, 17, 17, 100};
  CHECK(same({0, 17, 17, 100}, {}));
  x.offsets.clear(), x.lengths = {41};
  CHECK(same({}, {41}));
}

TEMPLATE_TEST_CASE("lengths: each row is its valid part alone, pads are exactly zero and never read", "", float, double) {
  test::random_source random(805);
  for (const auto kind : test::all_masks)
    for (const auto direction : test::all_directions)
      for (const auto& norm : test::all_norms) {
        auto x = test::random_problem<TestType>(random, {5, 2, 131, 6, 17}, kind, norm);
        x.direction = direction;
        x.lengths = {131, 0, 1, 64, 70};
        for (index_t b = 0; b < 5; ++b)
          for (index_t h = 0; h < 2; ++h)
            for (index_t l = x.lengths[static_cast<std::size_t>(b)]; l < 131; ++l) {
              for (index_t d = 0; d < 6; ++d) x.q(b, h, l, d) = x.k(b, h, l, d) = static_cast<TestType>(std::nan(""));
              for (index_t d = 0; d < 17; ++d) x.v(b, h, l, d) = static_cast<TestType>(std::nan(""));
              if (kind != mask_kind::fixed) x.gates(b, h, l) = std::nan("");
              x.other_gates(b, h, l) = std::nan("");
            }
        for (const auto& form : test::all_forms)
          for (const int threads : {1, 3}) {
            const auto [y, intact] = test::evaluate(form, x, {.threads = threads});
            INFO(test::name_of(form) << ", " << threads << " threads: " << x.name());
            CHECK(intact);
            bool zero = true;
            for (index_t b = 0; b < 5; ++b) {
              const index_t valid = x.lengths[static_cast<std::size_t>(b)];
              CHECK(equals_part(y, form, x, b, 0, valid));
              for (index_t h = 0; h < 2; ++h)
                for (index_t l = valid; l < 131; ++l)
                  for (index_t d = 0; d < 17; ++d) zero = zero && y(b, h, l, d) == 0 && !std::signbit(y(b, h, l, d));
            }
            CHECK(zero);
          }
      }
}
