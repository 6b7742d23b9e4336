// SPDX-License-Identifier: Apache-2.0
// Whether two strided tensors share memory. Only the checks use this: an output may not overlap an input, nor itself.
#pragma once

#include <bila/config.hpp>
#include <bila/error.hpp>
#include <bila/view/shape.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

namespace bila {
inline namespace v0_1 {
namespace detail {
inline namespace BILA_UNIT {

/// The memory of a tensor that passed check_view, without its type.
struct footprint {
  index_t data = 0;
  per_axis extents{}, strides{};  // strides in bytes, 0 on axes of extent 1
  index_t size = 0;               // bytes of an element

  footprint() = default;

  template <class T>
  explicit footprint(const tensor_view<T>& x, std::size_t bytes_of_a_number = sizeof(T))
      : data(static_cast<index_t>(reinterpret_cast<std::uintptr_t>(x.data))),
        extents(x.extents),
        size(static_cast<index_t>(bytes_of_a_number)) {
    for (std::size_t axis = 0; axis < 4; ++axis) strides[axis] = extents[axis] > 1 ? x.strides[axis] * size : 0;
    if (x.data == nullptr) extents = {};
  }

  bool empty() const { return std::find(extents.begin(), extents.end(), 0) != extents.end(); }

  friend bool operator==(const footprint&, const footprint&) = default;
};

inline std::string strides_in_words(const footprint& x) {
  return numbers_in_words({x.strides[0] / x.size, x.strides[1] / x.size, x.strides[2] / x.size, x.strides[3] / x.size});
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

/// Sorts the axes by stride. Returns false if each stride is at least the number of bytes that the axes of smaller stride span.
inline bool shares_memory_with_itself(const footprint& x) {
  if (x.empty()) return false;
  std::array<std::pair<index_t, index_t>, 4> axes;  // (|stride|, extent)
  for (std::size_t axis = 0; axis < 4; ++axis) axes[axis] = {std::abs(x.strides[axis]), x.extents[axis]};
  std::sort(axes.begin(), axes.end(),
            [](const auto& a, const auto& b) { return a < b; });  // a lambda gives each unit a std::sort of its own: see BILA_UNIT
  index_t reach = x.size;
  for (const auto& [stride, extent] : axes) {
    if (extent <= 1) continue;
    if (stride < reach) return true;
    reach += stride * (extent - 1);
  }
  return false;
}

/// One term of the distance between an element of one tensor and an element of another: stride times a number in [least, most].
struct step {
  index_t stride, least, most;
};

/// Whether steps, sorted by decreasing stride, can add up to a distance in [low, high]. Returns true if the answer would need more
/// than `patience` calls.
///
/// Splits the steps into longer and shorter ones. The sum of the longer steps is a multiple of their greatest common divisor. The
/// sum of the shorter steps lies between two bounds. If no split excludes [low, high], the function tries each multiple of the
/// longest step recursively; few multiples pass the bounds. Cold: called only for tensors whose address ranges intersect.
[[gnu::cold]] BILA_NOINLINE inline bool may_reach(std::span<const step> steps, index_t low, index_t high, int& patience) {
  if (--patience < 0) return true;
  const auto below = [](index_t a, index_t b) { return a / b - (a % b < 0 ? 1 : 0); };  // floor(a / b)
  index_t first = 0, last = 0, divisor = 0;                                             // first, last: times of the longest step
  for (std::size_t n = 0; n <= steps.size(); ++n) {
    index_t from = low, to = high;  // bounds of the sum of the n longest steps
    for (const step& other : steps.subspan(n)) from -= other.stride * other.most, to -= other.stride * other.least;
    if (n > 0) divisor = std::gcd(divisor, steps[n - 1].stride);
    if (n == 0 ? from > 0 || to < 0 : below(to, divisor) * divisor < from) return false;
    if (n == 1) first = (std::max)(steps[0].least, -below(-from, divisor)), last = (std::min)(steps[0].most, below(to, divisor));
  }
  if (steps.empty()) return true;
  for (index_t times = first; times <= last; ++times) {
    const index_t there = steps[0].stride * times;
    if (may_reach(steps.subspan(1), low - there, high - there, patience)) return true;
  }
  return false;
}

/// Returns false only if x and y provably share no byte: their ranges are apart, or x and y are interleaved like q, k and v in one
/// packed buffer, by heads, tokens or features.
inline bool may_overlap(const footprint& x, const footprint& y) {
  if (x.empty() || y.empty()) return false;
  const address_range a = addresses_of(x), b = addresses_of(y);
  if (a.last <= b.first || b.last <= a.first) return false;
  std::array<step, 8> steps{};
  std::size_t count = 0;
  const auto add = [&](index_t stride, index_t least, index_t most) {
    if (stride == 0) return;
    if (stride < 0) stride = -stride, std::swap(least, most), least = -least, most = -most;
    const auto known = std::find_if(steps.begin(), steps.end(), [stride](const step& s) { return s.stride == stride; });
    step& to = known == steps.end() ? steps[count++] : *known;
    to = {stride, to.least + least, to.most + most};
  };
  for (std::size_t axis = 0; axis < 4; ++axis) {
    add(y.strides[axis], 0, y.extents[axis] - 1);
    add(x.strides[axis], 1 - x.extents[axis], 0);
  }
  std::sort(steps.begin(), steps.end(), [](const step& s, const step& t) { return s.stride > t.stride; });
  const index_t apart = y.data - x.data;  // elements overlap if y's starts 1 - y.size to x.size - 1 bytes after x's
  int patience = 1000;
  return may_reach({steps.data(), count}, 1 - y.size - apart, x.size - 1 - apart, patience);
}

/// A tensor of a call, and its name in an error message.
struct named_tensor {
  const char* name;
  footprint memory;
  std::string_view replaced_by = {};  // for an input: name of the output that may have exactly the same memory
};

using named_tensors = std::span<const named_tensor>;

/// Checks that no output overlaps an input.
inline error_message check_apart(named_tensors outputs, named_tensors inputs) {
  for (const named_tensor& out : outputs)
    for (const named_tensor& in : inputs)
      if (!(in.memory == out.memory && in.replaced_by == out.name) && may_overlap(out.memory, in.memory))
        return message(out.name, " overlaps ", in.name, " in memory");
  return {};
}

/// Checks that no output overlaps itself, an input, or another output.
inline error_message check_overlaps(named_tensors outputs, named_tensors inputs) {
  for (const named_tensor& out : outputs) {
    if (shares_memory_with_itself(out.memory))
      return message(out.name, ": two of its elements share memory (strides ", strides_in_words(out.memory), ")");
    if (error_message wrong = check_apart({&out, 1}, inputs); !wrong.empty()) return wrong;
    if (error_message wrong = check_apart({&out, 1}, outputs.first(static_cast<std::size_t>(&out - outputs.data())));
        !wrong.empty())
      return wrong;
  }
  return {};
}

}  // namespace BILA_UNIT
}  // namespace detail
}  // namespace v0_1
}  // namespace bila
