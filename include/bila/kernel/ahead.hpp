// SPDX-License-Identifier: Apache-2.0
// Tokens that will be wanted soon. Chunks of q, k, v and y are four streams that hardware prefetchers lose at every page, so a
// kernel asks for a few lines of the next chunk with each register tile.
#pragma once

#include <bila/view/tensor_view.hpp>

#if !defined(__GNUC__) && (defined(_M_X64) || defined(__SSE__))
#include <xmmintrin.h>
#endif

namespace bila::inline v0_1::kernel {

class ahead {
 public:
  /// The rows' memory, if each is contiguous.
  template <class T>
  void want(const rows<T>& x) {
    if (x.column_stride != 1 || x.count == 0 || wanted_ == most) return;
    const auto size = static_cast<index_t>(sizeof(T));
    streams_[wanted_++] = {reinterpret_cast<const char*>(x.data), x.count, x.width * size, x.row_stride * size};
  }

  /// Asks for the next lines.
  void ask(int lines) {
    for (; lines > 0 && asked_ < wanted_; --lines) {
      stream& s = streams_[asked_];
#if defined(__GNUC__)
      __builtin_prefetch(s.row + at_, 0, 2);
#elif defined(_M_X64) || defined(__SSE__)
      _mm_prefetch(s.row + at_, _MM_HINT_T0);
#endif
      at_ += line;
      if (at_ < s.bytes) continue;
      at_ = 0;
      s.row += s.stride;
      if (--s.rows == 0) ++asked_;
    }
  }

 private:
  static constexpr index_t line = 64;  // bytes
  static constexpr int most = 8;

  struct stream {
    const char* row;
    index_t rows, bytes, stride;
  };
  stream streams_[most];
  int wanted_ = 0, asked_ = 0;
  index_t at_ = 0;
};

}  // namespace bila::inline v0_1::kernel
