// SPDX-License-Identifier: Apache-2.0
// Prefetching of the next chunk's tokens. A chunk reads four streams, q, k, v and y, which hardware prefetchers lose at every page.
// So each step of a kernel's loops prefetches one cache line of the next chunk. Prefetching all lines at once, between two loops,
// would keep the multipliers waiting.
#pragma once

#include <bila/config.hpp>
#include <bila/view/tensor_view.hpp>

#if !defined(__GNUC__) && (defined(_M_X64) || defined(__SSE__))
#include <xmmintrin.h>
#endif

namespace bila {
inline namespace v0_1 {
namespace kernel {
inline namespace BILA_UNIT {

// g++ takes this function for one without effect, and drops a call that is not inlined at once.
BILA_ALWAYS_INLINE void prefetch_line(const char* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 0, 2);
#elif defined(_M_X64) || defined(__SSE__)
  _mm_prefetch(address, _MM_HINT_T0);
#endif
}

/// The memory that is still to be prefetched, in the order of the calls of add().
class prefetch_queue {
 public:
  /// The cache lines at addresses at, at + step, ...: one for each step of a loop. If `at` is null there are none.
  struct run {
    const char* at = nullptr;
    index_t step = 0;
  };

  /// Adds the memory of rows [first, first + n), if each row is contiguous.
  template <class T>
  BILA_NOINLINE void add(const rows<T>& x, index_t first, index_t n) {
    if (x.column_stride != 1 || n == 0 || x.width == 0 || added_ == most) return;
    const index_t bytes = x.width * static_cast<index_t>(sizeof(T)), stride = x.row_stride * static_cast<index_t>(sizeof(T));
    const char* const at = reinterpret_cast<const char*>(x.data) + first * stride;
    stream& s = streams_[added_++];
    s = stride == bytes ? stream{{at, line}, lines_in(n * bytes), 1} : stream{{at, stride}, n, lines_in(bytes)};
    if (taken_ == added_ - 1) begin();
  }

  /// Takes the lines for a loop of `steps` steps. A loop with more steps than lines prefetches memory behind the last row: counting
  /// the lines in the loop would cost more, 3 to 6 % of a chunk.
  BILA_ALWAYS_INLINE run take(index_t steps) {
    if (remaining_ <= 0) return {};
    const run taken = now_;
    now_.at += steps * now_.step;
    remaining_ -= steps;
    if (remaining_ <= 0) begin_next();
    return taken;
  }

 private:
  static constexpr index_t line = 64;  // bytes of a cache line
  static constexpr int most = 8;

  static index_t lines_in(index_t bytes) { return (bytes + line - 1) / line; }

  void begin() {
    now_ = streams_[taken_].first;
    remaining_ = streams_[taken_].length;
  }

  BILA_ALWAYS_INLINE void begin_next() {
    stream& s = streams_[taken_];
    s.first.at += line;
    if (--s.runs == 0) ++taken_;
    if (taken_ < added_) begin();
  }

  /// Contiguous rows are one run. Otherwise run r has cache line r of every row. `length` counts the lines of a run.
  struct stream {
    run first;
    index_t length, runs;
  };
  stream streams_[most];
  int added_ = 0, taken_ = 0;
  run now_;
  index_t remaining_ = 0;  // lines of now_ that are not taken yet
};

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila
