// SPDX-License-Identifier: Apache-2.0
// The norm that does not divide.
#pragma once

#include <bila/norm/concepts.hpp>

namespace bila {
inline namespace v0_1 {
namespace norm {

/// y_i = N_i, where N includes the score scale (Mamba-2, GLA, LION's language models).
struct none {
  static constexpr bool uses_row_sum = false;

  template <class Real>
  BILA_SHARED constexpr quotient<Real> operator()(Real, Real scale) const {
    return {scale, Real(1)};
  }

  /// For masks that weigh keys: y = s N / unit.
  template <class Real>
  BILA_SHARED constexpr quotient<Real> operator()(Real, Real scale, Real unit) const {
    return {scale / unit, Real(1)};
  }

  /// dy_y is the dot product dy . y.
  template <class Real>
  BILA_SHARED constexpr bila::slope<Real> slope(Real, Real scale, Real dy_y) const {
    return {scale, Real(0), dy_y / scale};
  }

  template <class Real>
  BILA_SHARED constexpr bila::slope<Real> slope(Real, Real scale, Real dy_y, Real unit) const {
    return {scale / unit, Real(0), dy_y / scale};
  }
};

}  // namespace norm
}  // namespace v0_1
}  // namespace bila
