// SPDX-License-Identifier: Apache-2.0
// Tokens that will be wanted soon. Chunks of q, k, v and y are four streams that hardware prefetchers lose at every page, so a
// kernel asks for a few lines of the next chunk with each register tile.
#pragma once

#include <bila/view/tensor_view.hpp>

#if !defined(__GNUC__) && (defined(_M_X64) || defined(__SSE__))
#include <xmmintrin.h>
#endif

#include <algorithm>

namespace bila::inline v0_1::kernel {

class ahead {
 public:
  /// The rows' memory, if each is contiguous.
  template <class T>
  void want(const rows<T>& x) {
    if (x.column_stride != 1 || x.count == 0 || wanted_ == most) return;
    const index_t bytes = x.width * static_cast<index_t>(sizeof(T)), stride = x.row_stride * static_cast<index_t>(sizeof(T));
    const char* const data = reinterpret_cast<const char*>(x.data);
    streams_[wanted_++] = stride == bytes ? stream{data, 1, x.count * bytes, 0} : stream{data, x.count, bytes, stride};
  }

  /// Asks for the next lines: a run of them costs one instruction each, and bookkeeping once.
  void ask(index_t lines) {
    while (lines > 0 && asked_ < wanted_) {
      stream& s = streams_[asked_];
      const index_t end = (std::min)(at_ + lines * line, s.bytes);
      const char* const row = s.row;  // a member would be read and written at each line
      index_t at = at_;
      for (; at + 4 * line <= end; at += 4 * line)
        prefetch(row + at), prefetch(row + at + line), prefetch(row + at + 2 * line), prefetch(row + at + 3 * line);
      for (; at < end; at += line) prefetch(row + at);
      lines -= (at - at_) / line;
      at_ = at;
      if (at < s.bytes) return;
      at_ = 0;
      s.row += s.stride;
      if (--s.rows == 0) ++asked_;
    }
  }

 private:
  static constexpr index_t line = 64;  // bytes
  static constexpr int most = 8;

  static void prefetch(const char* address) {
#if defined(__GNUC__)
    __builtin_prefetch(address, 0, 2);
#elif defined(_M_X64) || defined(__SSE__)
    _mm_prefetch(address, _MM_HINT_T0);
#endif
  }

  struct stream {  // rows that follow one another without a gap are one
    const char* row;
    index_t rows, bytes, stride;
  };
  stream streams_[most];
  int wanted_ = 0, asked_ = 0;
  index_t at_ = 0;
};

}  // namespace bila::inline v0_1::kernel
