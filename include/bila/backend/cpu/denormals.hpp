// SPDX-License-Identifier: Apache-2.0
// Long products of decays pass through the denormal numbers, on which some processors are 10 to 100 times slower (full form, L =
// 512, gates around 1/2: 49 ms against 6 ms). While a task runs, results below the smallest normal number are therefore set to
// zero. On ARM denormal results are kept, because ARM's mode would also take denormal inputs for zero.
#pragma once

#include <cstdint>

#if defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#endif

namespace bila {
inline namespace v0_1 {
namespace detail {
inline namespace BILA_UNIT {

/// Flushes denormal results of this thread to zero during the object's lifetime. Denormal inputs keep their value.
class flush_denormals {
 public:
  flush_denormals() : before_(control()) { set_control(before_ | flush); }
  ~flush_denormals() { set_control((control() & ~flush) | (before_ & flush)); }  // exception flags that were raised stay raised
  flush_denormals(const flush_denormals&) = delete;
  flush_denormals& operator=(const flush_denormals&) = delete;

 private:
#if defined(__SSE2__) || defined(_M_X64)
  static constexpr std::uint64_t flush = 0x8000;  // MXCSR.FTZ
  static std::uint64_t control() { return _mm_getcsr(); }
  static void set_control(std::uint64_t word) { _mm_setcsr(static_cast<unsigned>(word)); }
#else
  static constexpr std::uint64_t flush = 0;
  static std::uint64_t control() { return 0; }
  static void set_control(std::uint64_t) {}
#endif

  std::uint64_t before_;
};

}  // namespace BILA_UNIT
}  // namespace detail
}  // namespace v0_1
}  // namespace bila
