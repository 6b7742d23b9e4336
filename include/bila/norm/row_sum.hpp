// SPDX-License-Identifier: Apache-2.0
// Division by the row sum.
#pragma once

#include <bila/error.hpp>
#include <bila/norm/concepts.hpp>
#include <bila/view/number.hpp>

namespace bila {
inline namespace v0_1 {
namespace norm {

/// y_i = N_i / (Z_i + eps), where N and Z do not include the score scale, which cancels. y_i = 0 where Z_i + eps = 0.
///
/// eps is added to the unscaled row sum in every form. A call throws unless eps is finite and >= 0. Linear transformers use 1e-6.
/// Source: LION (arXiv 2502.16249), scaling by the row sum; Katharopoulos et al. (arXiv 2006.16236).
struct row_sum {
  double eps = 0;

  static constexpr bool uses_row_sum = true;

  template <class Real>
  BILA_SHARED constexpr quotient<Real> operator()(Real Z, Real) const {
    return {Real(1), Z + static_cast<Real>(eps)};
  }

  /// For masks that weigh keys: y = N / (Z + eps unit).
  template <class Real>
  BILA_SHARED constexpr quotient<Real> operator()(Real Z, Real, Real unit) const {
    return {Real(1), detail::is_exactly(eps, 0) ? Z : Z + static_cast<Real>(eps) * unit};  // unit may be infinite
  }

  /// y does not depend on the scale. A row that was set to zero passes no gradient.
  template <class Real>
  BILA_SHARED constexpr bila::slope<Real> slope(Real Z, Real, Real dy_y) const {
    const Real n = Z + static_cast<Real>(eps);
    if (detail::is_exactly(n, 0)) return {Real(0), Real(0), Real(0)};
    return {Real(1) / n, -dy_y / n, Real(0)};
  }

  template <class Real>
  BILA_SHARED constexpr bila::slope<Real> slope(Real Z, Real scale, Real dy_y, Real unit) const {
    const Real n = (*this)(Z, scale, unit).divisor;
    if (detail::is_exactly(n, 0)) return {Real(0), Real(0), Real(0)};
    return {Real(1) / n, -dy_y / n, Real(0)};
  }

  BILA_ALWAYS_INLINE error_message validate() const {
    return detail::is_finite(eps) && eps >= 0 ? error_message() : message("eps = ", eps, ", it must be finite and >= 0");
  }
};

}  // namespace norm
}  // namespace v0_1
}  // namespace bila
