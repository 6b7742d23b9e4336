// SPDX-License-Identifier: Apache-2.0
// All tensors of one call in one piece of device memory. What is not an element of an output (inputs, the holes of layouts, guards
// of NaN around every tensor) must be the same bytes after the call.
#pragma once

#include "cuda/support/device.hpp"

#include <bila/view/tensor_view.hpp>

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace test {

class image {
 public:
  /// shift: elements between an aligned address and the first one of each tensor.
  explicit image(bila::index_t shift = 0) : shift_(shift) {}

  /// The tensor on the device; a view without data stays one.
  template <class T>
  bila::tensor_view<const T> in(const bila::tensor_view<const T>& x) {
    return placed(x, nullptr, true);
  }

  /// The same to be written: x gets the elements back. They are 0xff on the device first, a NaN of any type.
  template <class T>
  bila::tensor_view<T> out(const bila::tensor_view<T>& x) {
    return placed(x, x.data, false);
  }

  /// An output that starts with what x holds.
  template <class T>
  bila::tensor_view<T> in_place(const bila::tensor_view<T>& x) {
    return placed(x, x.data, true);
  }

  void upload() {
    bytes_.resize(bytes_.size() + guard, 0xff);
    device::write(device::memory(), bytes_.data(), bytes_.size());
    device::finish();
  }

  /// Fills the outputs; false if any other byte has changed.
  bool download() {
    std::vector<unsigned char> after(bytes_.size());
    device::read(after.data(), device::memory(), after.size());
    for (const piece& x : outputs_)
      x.for_each([&](std::ptrdiff_t at) {
        unsigned char* const there = bytes_.data() + x.first + at;
        std::memcpy(there, after.data() + x.first + at, x.size);
        std::memcpy(x.host + at, there, x.size);
      });
    return bytes_ == after;
  }

 private:
  static constexpr std::size_t guard = 512, alignment = 256;

  /// An output: where its first element is, counted in bytes, and where its elements go.
  struct piece {
    std::ptrdiff_t first;
    unsigned char* host;
    bila::per_axis extents, strides;  // strides in bytes
    std::size_t size;                 // bytes of an element

    template <class Function>
    void for_each(const Function& f) const {
      for (bila::index_t b = 0; b < extents[0]; ++b)
        for (bila::index_t h = 0; h < extents[1]; ++h)
          for (bila::index_t l = 0; l < extents[2]; ++l)
            for (bila::index_t d = 0; d < extents[3]; ++d)
              f(static_cast<std::ptrdiff_t>(b * strides[0] + h * strides[1] + l * strides[2] + d * strides[3]));
    }
  };

  template <class T>
  bila::tensor_view<T> placed(const bila::tensor_view<T>& x, std::remove_const_t<T>* host, bool filled) {
    if (x.data == nullptr) return x;
    constexpr auto size = static_cast<bila::index_t>(sizeof(T));
    bila::index_t low = 0, high = x.empty() ? 0 : size;
    bila::per_axis strides = x.strides;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      strides[axis] *= size;
      const bila::index_t reach = x.empty() ? 0 : (x.extents[axis] - 1) * strides[axis];
      (reach < 0 ? low : high) += reach;
    }
    const std::size_t start =
        (bytes_.size() + guard + alignment - 1) / alignment * alignment + static_cast<std::size_t>(shift_ * size);
    bytes_.resize(start + static_cast<std::size_t>(high - low), 0xff);
    if (bytes_.size() + guard > device::memory_size())
      throw std::runtime_error("test: more tensors than device::memory has room for");
    if (high > low)
      std::memcpy(bytes_.data() + start, reinterpret_cast<const unsigned char*>(x.data) + low,
                  static_cast<std::size_t>(high - low));
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(start) - low;
    if (host != nullptr) {
      outputs_.push_back({first, reinterpret_cast<unsigned char*>(host), x.extents, strides, sizeof(T)});
      if (!filled) outputs_.back().for_each([&](std::ptrdiff_t at) { std::memset(bytes_.data() + first + at, 0xff, sizeof(T)); });
    }
    return {reinterpret_cast<T*>(device::memory() + first), x.extents, x.strides};
  }

  bila::index_t shift_;
  std::vector<unsigned char> bytes_;
  std::vector<piece> outputs_;
};

}  // namespace test
