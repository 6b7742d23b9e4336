// SPDX-License-Identifier: Apache-2.0
// What a normaliser is: the division of a row by a function of its sum over keys.
#pragma once

#include <bila/config.hpp>

#include <concepts>

namespace bila::inline v0_1 {

/// How a row leaves a form: y = factor N / divisor, with N unscaled; a divisor of zero gives y = 0.
template <class Real>
struct quotient {
  Real factor, divisor;
};

/// How a loss enters a form again: dN = numerator dy, dZ = row_sum, and the token's part in the gradient of the scale, all with N
/// and Z unscaled.
template <class Real>
struct slope {
  Real numerator, row_sum, scale;
};

/// A normaliser n(Z). From the unscaled row sum Z and the score scale s it gives the quotient that equals s N / n(s Z).
template <class Norm>
concept normaliser = requires(const Norm& norm, double x) {
  { Norm::uses_row_sum } -> std::convertible_to<bool>;
  { norm(x, x) } -> std::same_as<quotient<double>>;
};

/// A normaliser that a gradient can pass.
template <class Norm>
concept differentiable_normaliser = normaliser<Norm> && requires(const Norm& norm, double x) {
  { norm.slope(x, x, x) } -> std::same_as<slope<double>>;
};

}  // namespace bila::inline v0_1
