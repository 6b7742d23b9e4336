// SPDX-License-Identifier: Apache-2.0
// Do two strided tensors share memory? Used by the checks only: an output may not overlap an input, nor itself.
#pragma once

#include <bila/error.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>
#include <utility>

namespace bila::inline v0_1::detail {

template <class T>
std::string shape_in_words(const tensor_view<T>& x) {
  return sentence("[", x.extents[0], ", ", x.extents[1], ", ", x.extents[2], ", ", x.extents[3], "]");
}

/// Where a tensor lies in memory, its type forgotten.
struct footprint {
  index_t data = 0;               // the address
  per_axis extents{}, strides{};  // strides in bytes
  index_t size = 0;               // bytes of an element

  footprint() = default;

  template <class T>
  explicit footprint(const tensor_view<T>& x)
      : data(static_cast<index_t>(reinterpret_cast<std::uintptr_t>(x.data))),
        extents(x.extents),
        strides(x.strides),
        size(static_cast<index_t>(sizeof(T))) {
    for (index_t& stride : strides) stride *= size;
    if (x.data == nullptr) extents = {};
  }

  bool empty() const { return std::find(extents.begin(), extents.end(), 0) != extents.end(); }
};

inline std::string strides_in_words(const footprint& x) {
  const auto in_elements = [&x](std::size_t axis) { return x.strides[axis] / x.size; };
  return sentence("[", in_elements(0), ", ", in_elements(1), ", ", in_elements(2), ", ", in_elements(3), "]");
}

/// Half-open range of addresses that a non-empty tensor touches.
struct address_range {
  index_t first, last;
};

inline address_range addresses_of(const footprint& x) {
  address_range range{x.data, x.data + x.size};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    const index_t reach = (x.extents[axis] - 1) * x.strides[axis];
    (reach < 0 ? range.first : range.last) += reach;
  }
  return range;
}

/// True unless, with the axes ordered by stride, each stride steps over all that the smaller ones reach.
inline bool shares_memory_with_itself(const footprint& x) {
  if (x.empty()) return false;
  std::array<std::pair<index_t, index_t>, 4> axes;  // (|stride|, extent)
  for (std::size_t axis = 0; axis < 4; ++axis) axes[axis] = {std::abs(x.strides[axis]), x.extents[axis]};
  std::sort(axes.begin(), axes.end());
  index_t reach = x.size;
  for (const auto& [stride, extent] : axes) {
    if (extent <= 1) continue;
    if (stride < reach) return true;
    reach += stride * (extent - 1);
  }
  return false;
}

/// Whether the blocks that the strides of at most `limit` bytes span lie apart within the common divisor of all longer strides.
inline bool interleaved(const footprint& x, const footprint& y, index_t limit) {
  index_t period = 0;
  const auto block = [&period, limit](footprint view) {
    for (std::size_t axis = 0; axis < 4; ++axis) {
      if (view.extents[axis] <= 1 || std::abs(view.strides[axis]) <= limit) continue;
      period = std::gcd(period, view.strides[axis]);
      view.extents[axis] = 1;
    }
    return addresses_of(view);
  };
  const address_range a = block(x), b = block(y);
  if (period == 0) return false;
  const index_t distance = ((b.first - a.first) % period + period) % period;  // from a block of x up to the next of y
  return distance >= a.last - a.first && period - distance >= b.last - b.first;
}

/// False only if the two provably share no byte: their ranges are apart, or they are interleaved like q, k and v in one packed
/// buffer.
inline bool may_overlap(const footprint& x, const footprint& y) {
  if (x.empty() || y.empty()) return false;
  const address_range a = addresses_of(x), b = addresses_of(y);
  if (a.last <= b.first || b.last <= a.first) return false;
  for (const footprint* view : {&x, &y})
    for (const index_t stride : view->strides)
      if (interleaved(x, y, std::abs(stride))) return false;
  return true;
}

/// A tensor of a call and its name in the error.
struct named_tensor {
  const char* name;
  footprint memory;
};

using named_tensors = std::span<const named_tensor>;

/// No output may overlap itself, an input, or another output.
inline complaint check_overlaps(named_tensors outputs, named_tensors inputs) {
  for (const named_tensor& out : outputs) {
    if (shares_memory_with_itself(out.memory))
      return sentence(out.name, ": two of its elements share memory (strides ", strides_in_words(out.memory), ")");
    for (const named_tensor& in : inputs)
      if (may_overlap(out.memory, in.memory)) return sentence(out.name, " overlaps ", in.name, " in memory");
    for (const named_tensor& other : outputs)
      if (&other < &out && may_overlap(out.memory, other.memory)) return sentence(out.name, " overlaps ", other.name, " in memory");
  }
  return {};
}

}  // namespace bila::inline v0_1::detail
