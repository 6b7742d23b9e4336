// SPDX-License-Identifier: Apache-2.0
// A tensor that owns its memory and surrounds every element with poison: before it, after it and in the holes of its layout.
// Whoever reads the poison gets a NaN into the result; whoever writes it is found by `intact`.
#pragma once

#include "support/random.hpp"

#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

namespace test {

using bila::index_t;

/// How the four axes lie in memory.
enum class layout {
  bhld,        // contiguous
  blhd,        // contiguous, heads inside tokens
  packed,      // a slice of rows three times as wide plus five, and one element off any alignment
  strided,     // holes between all elements
  transposed,  // features outside tokens: a column-major matrix per head
  reversed,    // negative strides on all axes
};

inline constexpr std::array all_layouts{layout::bhld,    layout::blhd,       layout::packed,
                                        layout::strided, layout::transposed, layout::reversed};

inline const char* name_of(layout where) {
  switch (where) {
    case layout::bhld:
      return "bhld";
    case layout::blhd:
      return "blhd";
    case layout::packed:
      return "packed";
    case layout::strided:
      return "strided";
    case layout::transposed:
      return "transposed";
    case layout::reversed:
      return "reversed";
  }
  return "";
}

template <class T>
inline constexpr T not_a_number = std::numeric_limits<T>::quiet_NaN();

template <class T>
class tensor {
 public:
  tensor() : tensor(0, 0, 0, 0) {}

  /// All elements are NaN at first.
  tensor(index_t B, index_t H, index_t L, index_t D, layout where = layout::bhld, T poison = not_a_number<T>)
      : extents_{B, H, L, D}, poison_(poison) {
    switch (where) {
      case layout::bhld:
        strides_ = {H * L * D, L * D, D, 1};
        break;
      case layout::blhd:
        strides_ = {L * H * D, D, H * D, 1};
        break;
      case layout::packed: {
        const index_t row = 3 * H * D + 5;
        strides_ = {L * row, D, row, 1};
        first_ = 1;
        break;
      }
      case layout::strided:
        strides_ = {H * (L * (2 * D + 1) + 3), L * (2 * D + 1) + 3, 2 * D + 1, 2};
        break;
      case layout::transposed:
        strides_ = {H * L * D, L * D, 1, L};
        break;
      case layout::reversed:
        strides_ = {-H * L * D, -L * D, -D, -1};
        break;
    }
    index_t before = 0, after = 0;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      const index_t reach = std::max<index_t>(extents_[axis] - 1, 0) * strides_[axis];
      (reach < 0 ? before : after) += reach;
    }
    first_ += guard - before;
    memory_.assign(static_cast<std::size_t>(first_ + after + 1 + guard), poison_);
    for_each([](T& x, index_t, index_t, index_t, index_t) { x = not_a_number<T>; });
  }

  bila::tensor_view<T> view() { return {memory_.data() + first_, extents_, strides_}; }
  bila::tensor_view<const T> view() const { return {memory_.data() + first_, extents_, strides_}; }

  index_t extent(std::size_t axis) const { return extents_[axis]; }

  T& operator()(index_t b, index_t h, index_t l, index_t d = 0) { return memory_[place(b, h, l, d)]; }
  const T& operator()(index_t b, index_t h, index_t l, index_t d = 0) const { return memory_[place(b, h, l, d)]; }

  /// f(element, b, h, l, d) for every element, in logical order.
  template <class Function>
  void for_each(const Function& f) {
    for (index_t b = 0; b < extents_[0]; ++b)
      for (index_t h = 0; h < extents_[1]; ++h)
        for (index_t l = 0; l < extents_[2]; ++l)
          for (index_t d = 0; d < extents_[3]; ++d) f((*this)(b, h, l, d), b, h, l, d);
  }

  template <class Function>
  void for_each(const Function& f) const {
    const_cast<tensor*>(this)->for_each([&f](const T& x, index_t b, index_t h, index_t l, index_t d) { f(x, b, h, l, d); });
  }

  void fill(T value) {
    for_each([value](T& x, index_t, index_t, index_t, index_t) { x = value; });
  }

  void fill_uniform(random_source& random, double low, double high) {
    for_each([&](T& x, index_t, index_t, index_t, index_t) { x = static_cast<T>(random.uniform(low, high)); });
  }

  /// The same elements in another layout.
  tensor laid_out(layout where, T poison = not_a_number<T>) const {
    tensor result(extents_[0], extents_[1], extents_[2], extents_[3], where, poison);
    result.for_each([this](T& x, index_t b, index_t h, index_t l, index_t d) { x = (*this)(b, h, l, d); });
    return result;
  }

  /// No byte outside the elements has changed since construction.
  bool intact() const {
    std::vector<T> expected(memory_.size(), poison_);
    for_each([&](const T& x, index_t, index_t, index_t, index_t) { expected[static_cast<std::size_t>(&x - memory_.data())] = x; });
    return std::memcmp(expected.data(), memory_.data(), memory_.size() * sizeof(T)) == 0;
  }

  /// Bitwise: the same extents and elements, whatever the layouts; NaN equals NaN of the same bits, 0 does not equal -0.
  friend bool same_bits(const tensor& x, const tensor& y) {
    bool same = x.extents_ == y.extents_;
    if (same)
      x.for_each([&](const T& a, index_t b, index_t h, index_t l, index_t d) {
        same = same && std::memcmp(&a, &y(b, h, l, d), sizeof(T)) == 0;
      });
    return same;
  }

 private:
  static constexpr index_t guard = 67;  // elements; more than the widest packet, and odd so that no layout is aligned

  std::size_t place(index_t b, index_t h, index_t l, index_t d) const {
    return static_cast<std::size_t>(first_ + b * strides_[0] + h * strides_[1] + l * strides_[2] + d * strides_[3]);
  }

  bila::per_axis extents_, strides_{};
  T poison_;
  index_t first_ = 0;
  std::vector<T> memory_;
};

}  // namespace test
