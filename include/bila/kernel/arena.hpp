// SPDX-License-Identifier: Apache-2.0
// Scratch memory: a form places its tiles in an arena. On an arena without memory the same code counts the bytes that it needs.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/tile.hpp>

#include <algorithm>
#include <cstddef>

namespace bila {
inline namespace v0_1 {
namespace kernel {
inline namespace BILA_UNIT {

class arena {
 public:
  static constexpr std::size_t alignment = 64;  // bytes: a cache line, and the widest packet

  /// An arena that only counts bytes.
  arena() = default;
  explicit arena(std::byte* aligned_memory) : base_(aligned_memory) {}

  std::size_t used() const { return used_; }

  /// Takes the next `bytes` bytes, a multiple of the alignment.
  std::byte* take(std::size_t bytes) {
    std::byte* const result = base_ == nullptr ? nullptr : base_ + used_;
    used_ += bytes;
    return result;
  }

  /// Memory for n numbers, rounded up to whole packets. The content is whatever was there before.
  template <class Kernel, class Real>
  Real* numbers(index_t n) {
    const auto count = static_cast<std::size_t>(round_up(n, Kernel::template lanes<Real>));
    Real* result = base_ == nullptr ? nullptr : reinterpret_cast<Real*>(base_ + used_);
    used_ += (count * sizeof(Real) + alignment - 1) / alignment * alignment;
    return result;
  }

  /// Memory as numbers() gives, all zero: for a vector whose last packet is used as a whole before all of it is written.
  template <class Kernel, class Real>
  Real* zeros(index_t n) {
    Real* const result = numbers<Kernel, Real>(n);
    if (result != nullptr) std::fill_n(result, round_up(n, Kernel::template lanes<Real>), Real(0));
    return result;
  }

  /// A padded tile, not initialised. If the stride were a multiple of 512 bytes, a column would use only an eighth of the L1
  /// cache's sets.
  template <class Kernel, class Real>
  tile<Real> padded(index_t rows, index_t columns) {
    constexpr index_t lanes = Kernel::template lanes<Real>;
    index_t stride = round_up(columns, lanes);
    if (stride * static_cast<index_t>(sizeof(Real)) % 512 == 0) stride += lanes;
    return {numbers<Kernel, Real>(rows * stride), rows, columns, stride};
  }

 private:
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila
