// SPDX-License-Identifier: Apache-2.0
// What the tests of known faults share: problems whose right answer can be seen, and the check against the definition.
#pragma once

#include "support/catch.hpp"
#include "support/problem.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace faults {

using test::index_t;
using test::mask_kind;
using test::tensor;

/// full, recurrent and chunkwise.
inline std::array<test::any_form, 3> three_forms(index_t chunk) {
  return {bila::form::full{}, bila::form::recurrent{}, bila::form::chunkwise{.size = chunk}};
}

/// The two that are linear in the length, for long sequences.
inline const std::array<test::any_form, 2> linear_forms{bila::form::recurrent{}, bila::form::chunkwise{}};

/// A random problem, the same for the same arguments.
inline test::problem<float> sample(const test::sizes& size, mask_kind kind = mask_kind::source,
                                   const test::any_norm& norm = bila::norm::row_sum{1e-6}, std::uint64_t stream = 1) {
  test::random_source random(stream);
  return test::random_problem<float>(random, size, kind, norm);
}

/// A part of a batch: heads [h, h + H) and tokens [l, l + L) of batch row b.
struct part {
  index_t b = 0, h = 0, H = 1, l = 0, L = 1;
};

/// Those elements as a tensor of their own; what is the same for all tokens, as a gate of a fixed decay, stays whole.
template <class T>
tensor<T> cut(const tensor<T>& x, const part& of) {
  const bool per_head = x.extent(2) == 1;
  tensor<T> result(1, of.H, per_head ? 1 : of.L, x.extent(3));
  result.for_each([&](T& value, index_t, index_t h, index_t l, index_t d) {
    value = x(per_head ? 0 : of.b, of.h + h, per_head ? 0 : of.l + l, d);
  });
  return result;
}

/// The call that has only these heads and tokens.
template <class T>
test::problem<T> cut(test::problem<T> x, const part& of) {
  x.size = {.B = 1, .H = of.H, .L = of.L, .Dk = x.size.Dk, .Dv = x.size.Dv};
  for (auto* input : {&x.q, &x.k, &x.v}) *input = cut(*input, of);
  x.gates = cut(x.gates, of);
  if (x.kind == mask_kind::two_sided) x.other_gates = cut(x.other_gates, of);
  x.offsets.clear(), x.lengths.clear();
  return x;
}

/// q = k = v = 1 with one feature: without a norm, y_i is the sum of row i of the mask.
template <class T = float>
test::problem<T> row_sums(mask_kind kind, index_t L) {
  test::random_source random(0);
  auto x = test::random_problem<T>(random, {.L = L}, kind, bila::norm::none{});
  x.q.fill(1), x.k.fill(1), x.v.fill(1);
  return x;
}

/// The same with the identity for v: y is the mask.
template <class T = float>
test::problem<T> whole_mask(mask_kind kind, index_t L) {
  test::random_source random(0);
  auto x = test::random_problem<T>(random, {.L = L, .Dv = L}, kind, bila::norm::none{});
  x.q.fill(1), x.k.fill(1);
  x.v.for_each([](T& v, index_t, index_t, index_t l, index_t d) { v = l == d; });
  return x;
}

/// The output, after a look at the memory around it and around the inputs.
template <class T>
tensor<T> run(const test::any_form& form, const test::problem<T>& x, const bila::cpu& backend = {}) {
  CAPTURE(x.name(), test::name_of(form));
  auto [y, intact] = test::evaluate(form, x, backend);
  CHECK(intact);
  return std::move(y);
}

template <class T, class Good>
void check_all(const tensor<T>& y, const Good& good) {
  bool all = true;
  y.for_each([&](const T& value, index_t, index_t, index_t, index_t) { all = all && good(value); });
  CHECK(all);
}

template <class T>
void check_against_definition(const test::any_form& form, const test::problem<T>& x, const test::answer& exact) {
  CAPTURE(x.name(), test::name_of(form));
  CHECK(x.worst_error(run(form, x), exact) <= 1);
}

/// Whether a part of the output has the bits that it would have alone.
template <class T>
bool as_if_alone(const test::any_form& form, const test::problem<T>& x, const tensor<T>& y, const part& of) {
  return same_bits(run(form, cut(x, of)), cut(y, of));
}

template <class T>
T largest_difference(const tensor<T>& x, const tensor<T>& y) {
  T largest = 0;
  x.for_each([&](const T& value, index_t b, index_t h, index_t l, index_t d) {
    const T difference = std::fabs(value - y(b, h, l, d));
    largest = std::isnan(difference) ? std::numeric_limits<T>::infinity() : std::fmax(largest, difference);
  });
  return largest;
}

}  // namespace faults
