// SPDX-License-Identifier: Apache-2.0
// The concept of a normaliser: a norm divides a row of N by a function of the row's sum over keys.
#pragma once

#include <bila/config.hpp>

#include <concepts>

namespace bila {
inline namespace v0_1 {

/// The result of a norm for one row: y = factor N / divisor, with N unscaled (MATH.md 3.1). A divisor of zero gives y = 0.
template <class Real>
struct quotient {
  Real factor, divisor;
};

/// The gradient through a norm, with N and Z unscaled (MATH.md 3.2): dN = numerator dy, dZ = row_sum. `scale` is the token's part
/// in the gradient of the scale.
template <class Real>
struct slope {
  Real numerator, row_sum, scale;
};

/// A normaliser n(Z) over keys, as the softmax denominator is; not a layer norm. norm(Z, s), with the unscaled row sum Z and the
/// score scale s, returns the quotient that equals s N / n(s Z).
template <class Norm>
concept normaliser = requires(const Norm& norm, double x) {
  { Norm::uses_row_sum } -> std::convertible_to<bool>;
  { norm(x, x) } -> std::same_as<quotient<double>>;
};

/// A normaliser for masks that weigh keys. N and Z of a row are then relative: the true ones are N / unit and Z / unit, and `unit`
/// is what a true sum of one becomes, e^{-m_i} (MATH.md 6.2). norm(Z, s, unit) returns the quotient of the relative N. For a row
/// without keys N and Z are 0, and unit is infinite in float and close to the largest number in double.
template <class Norm>
concept relative_normaliser = normaliser<Norm> && requires(const Norm& norm, double x) {
  { norm(x, x, x) } -> std::same_as<quotient<double>>;
};

/// A normaliser that has a gradient.
template <class Norm>
concept differentiable_normaliser = normaliser<Norm> && requires(const Norm& norm, double x) {
  { norm.slope(x, x, x) } -> std::same_as<slope<double>>;
};

/// A normaliser that has a gradient for masks that weigh keys, with respect to the relative N and Z.
template <class Norm>
concept differentiable_relative_normaliser = relative_normaliser<Norm> && requires(const Norm& norm, double x) {
  { norm.slope(x, x, x, x) } -> std::same_as<slope<double>>;
};

}  // namespace v0_1
}  // namespace bila
