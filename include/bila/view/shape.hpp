// SPDX-License-Identifier: Apache-2.0
// Checks of a single tensor: its extents and strides must be valid, and its shape must be the expected one.
#pragma once

#include <bila/config.hpp>
#include <bila/error.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <cmath>
#include <string>

namespace bila {
inline namespace v0_1 {
namespace detail {
inline namespace BILA_UNIT {

inline std::string numbers_in_words(const per_axis& x) { return message("[", x[0], ", ", x[1], ", ", x[2], ", ", x[3], "]"); }

template <class T>
std::string shape_in_words(const tensor_view<T>& x) {
  return numbers_in_words(x.extents);
}

/// The limit for the numbers in a tensor, and for the elements over which its strides reach. Indices, their sums and bytes then fit
/// easily into 64 bits.
inline constexpr double most_numbers = 0x1p48;

/// Checks that a tensor, with broadcast axes expanded, stays within most_numbers. The check computes in double, which does not
/// overflow. An extent of 0 counts as 1.
BILA_NOINLINE inline error_message check_reach(const char* name, const per_axis& extents, const per_axis& strides) {
  double numbers = 1, reach = 0;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    const double extent = (std::max)(static_cast<double>(extents[axis]), 1.0);
    numbers *= extent;
    reach += std::abs(static_cast<double>(strides[axis])) * (extent - 1);
  }
  if (numbers > most_numbers) return message(name, " has shape ", numbers_in_words(extents), ", more than 2^48 numbers");
  if (reach > most_numbers)
    return message(name, " has strides ", numbers_in_words(strides), " and shape ", numbers_in_words(extents),
                   ", which reach over more than 2^48 numbers");
  return {};
}

template <class T>
error_message check_view(const char* name, const tensor_view<T>& x) {
  static constexpr const char* axes[] = {"batch", "head", "length", "feature"};
  for (std::size_t axis = 0; axis < 4; ++axis)
    if (x.extents[axis] < 0)
      return message(name, ": the extent of axis ", axes[axis], " is ", x.extents[axis], ", it must be >= 0");
  if (x.data == nullptr && !x.empty())
    return message(name, ": the data pointer is null but the shape is ", shape_in_words(x), ", which is not empty");
  return check_reach(name, x.extents, x.strides);
}

/// Checks a tensor that need not be given: if it has data, its shape must be `wanted`.
template <class T>
error_message check_extents(const char* name, const tensor_view<T>& x, per_axis wanted) {
  if (x.data == nullptr) return {};
  if (x.extents == wanted) return check_view(name, x);
  return message(name, " has shape ", shape_in_words(x), ", it must be ", numbers_in_words(wanted));
}

}  // namespace BILA_UNIT
}  // namespace detail
}  // namespace v0_1
}  // namespace bila
