// SPDX-License-Identifier: Apache-2.0
// Do two strided tensors share memory? Used by the checks only: an output may not overlap an input, nor itself.
#pragma once

#include <bila/error.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace bila::inline v0_1::detail {

template <class T>
std::string shape_in_words(const tensor_view<T>& x) {
  return sentence("[", x.extents[0], ", ", x.extents[1], ", ", x.extents[2], ", ", x.extents[3], "]");
}

template <class T>
std::string strides_in_words(const tensor_view<T>& x) {
  return sentence("[", x.strides[0], ", ", x.strides[1], ", ", x.strides[2], ", ", x.strides[3], "]");
}

/// Half-open range of addresses that a non-empty tensor touches.
struct address_range {
  std::intptr_t first, last;
};

template <class T>
address_range addresses_of(const tensor_view<T>& x) {
  const auto base = reinterpret_cast<std::intptr_t>(x.data);
  address_range range{base, base + static_cast<std::intptr_t>(sizeof(T))};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    const index_t reach = (x.extents[axis] - 1) * x.strides[axis] * static_cast<index_t>(sizeof(T));
    (reach < 0 ? range.first : range.last) += reach;
  }
  return range;
}

/// True unless, with the axes ordered by stride, each stride steps over all that the smaller ones reach.
template <class T>
bool shares_memory_with_itself(const tensor_view<T>& x) {
  std::array<std::pair<index_t, index_t>, 4> axes;  // (|stride|, extent)
  for (std::size_t axis = 0; axis < 4; ++axis) axes[axis] = {std::abs(x.strides[axis]), x.extents[axis]};
  std::sort(axes.begin(), axes.end());
  index_t reach = 0;
  for (const auto& [stride, extent] : axes) {
    if (extent <= 1) continue;
    if (stride <= reach) return true;
    reach += stride * (extent - 1);
  }
  return false;
}

/// False only if the two provably share no byte: their ranges are apart, or they are interleaved like q, k and v in one packed
/// buffer, where all strides but the feature's have a common divisor and the rows lie apart within it.
template <class T, class U>
bool may_overlap(const tensor_view<T>& x, const tensor_view<U>& y) {
  if (x.empty() || y.empty()) return false;
  const address_range a = addresses_of(x), b = addresses_of(y);
  if (a.last <= b.first || b.last <= a.first) return false;

  index_t period = 0;  // bytes
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (x.extents[axis] > 1) period = std::gcd(period, x.strides[axis] * static_cast<index_t>(sizeof(T)));
    if (y.extents[axis] > 1) period = std::gcd(period, y.strides[axis] * static_cast<index_t>(sizeof(U)));
  }
  if (period == 0) return true;
  const auto one_row = [](auto view) {
    view.extents = {1, 1, 1, view.features()};
    return addresses_of(view);
  };
  const address_range p = one_row(x), q = one_row(y);
  const index_t distance = (((q.first - p.first) % period) + period) % period;  // from a row of x up to the next row of y
  return distance < p.last - p.first || period - distance < q.last - q.first;
}

}  // namespace bila::inline v0_1::detail
