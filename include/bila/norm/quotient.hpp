// SPDX-License-Identifier: Apache-2.0
// Division of whole rows: one factor per row, if the factor loses no accuracy.
#pragma once

#include <bila/config.hpp>
#include <bila/norm/concepts.hpp>
#include <bila/view/number.hpp>
#include <bila/view/tensor_view.hpp>

#include <cmath>

namespace bila {
inline namespace v0_1 {
namespace norm {
inline namespace BILA_UNIT {

/// Whether N_i may be multiplied by factor / divisor. This is false if factor / divisor or 1 / divisor overflows or is denormal,
/// and if the divisor is zero: y_i is then zero even if N_i is NaN.
template <class Real>
bool has_row_scale(const quotient<Real>& row) {
  if (detail::is_exactly(row.divisor, 0)) return false;
  const Real inverse = 1 / row.divisor;
  return !detail::is_finite(static_cast<double>(row.divisor)) ||
         (std::isnormal(inverse) && (detail::is_exactly(row.factor, 0) || std::isnormal(row.factor * inverse)));
}

/// Writes scales_i with y_i = scales_i N_i, where quotient_of(i) is the quotient of row i. Returns false if some rows have no such
/// factor. These rows get scale 1, and the caller must divide them.
template <class Real, class Quotient>
bool scales_of(Real* scales, index_t n, const Quotient& quotient_of) {
  bool all = true;
  for (index_t i = 0; i < n; ++i) {
    const quotient<Real> row = quotient_of(i);
    const bool has_scale = has_row_scale(row);
    scales[i] = has_scale ? row.factor * (1 / row.divisor) : Real(1);
    all = all && has_scale;
  }
  return all;
}

/// scales_of() for rows with sums z.
template <class Real, class Norm>
bool row_scales(Real* scales, const Real* z, index_t n, const Norm& norm, double scale) {
  return scales_of(scales, n,
                   [=, &norm](index_t i) { return norm(Norm::uses_row_sum ? z[i] : Real(0), static_cast<Real>(scale)); });
}

}  // namespace BILA_UNIT
}  // namespace norm
}  // namespace v0_1
}  // namespace bila
