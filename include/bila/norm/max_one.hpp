// SPDX-License-Identifier: Apache-2.0
// Division by the absolute row sum, or by one if the absolute row sum is smaller.
#pragma once

#include <bila/norm/concepts.hpp>
#include <bila/view/number.hpp>

namespace bila {
inline namespace v0_1 {
namespace norm {

/// y_i = N_i / max(|Z_i|, 1), where N and Z include the score scale (RetNet's written form, mLSTM without stabiliser).
/// Source: RetNet (arXiv 2307.08621), section 2.2.
struct max_one {
  static constexpr bool uses_row_sum = true;

  template <class Real>
  BILA_SHARED constexpr quotient<Real> operator()(Real Z, Real scale) const {
    const Real scaled = scale * Z, size = scaled < 0 ? -scaled : scaled;
    return {scale, size <= 1 ? Real(1) : size};
  }

  /// For masks that weigh keys: y = s N / max(|s Z|, unit), mLSTM with stabiliser.
  template <class Real>
  BILA_SHARED constexpr quotient<Real> operator()(Real Z, Real scale, Real unit) const {
    const Real scaled = scale * Z, size = scaled < 0 ? -scaled : scaled;
    return {scale, size <= unit ? unit : size};
  }

  /// At |scale Z| = 1, where max has a kink, the divisor counts as constant.
  template <class Real>
  BILA_SHARED constexpr bila::slope<Real> slope(Real Z, Real scale, Real dy_y) const {
    const Real scaled = scale * Z, size = scaled < 0 ? -scaled : scaled;
    if (size > 1) return {scale / size, -dy_y / Z, Real(0)};
    return {scale, Real(0), dy_y / scale};
  }

  template <class Real>
  BILA_SHARED constexpr bila::slope<Real> slope(Real Z, Real scale, Real dy_y, Real unit) const {
    const Real scaled = scale * Z, size = scaled < 0 ? -scaled : scaled;
    if (size > unit) return {scale / size, -dy_y / Z, Real(0)};
    if (detail::is_exactly(unit, 0)) return {Real(0), Real(0), Real(0)};
    return {scale / unit, Real(0), dy_y / scale};
  }
};

}  // namespace norm
}  // namespace v0_1
}  // namespace bila
