// SPDX-License-Identifier: Apache-2.0
// Segments: ranges of tokens that see only each other. Offsets or lengths give the borders, not gates (MATH.md 1.4).
#pragma once

#include <bila/view/index_list.hpp>
#include <bila/view/tensor_view.hpp>

namespace bila {
inline namespace v0_1 {

/// Tokens [first, first + count) of one batch row.
struct segment {
  index_t first, count;
};

struct segments {
  index_list offsets, lengths;
  index_t L;

  /// The number of segments per batch row.
  BILA_SHARED index_t count() const { return offsets.empty() ? 1 : static_cast<index_t>(offsets.size()) - 1; }

  BILA_SHARED segment operator()(index_t b, index_t n) const {
    const auto at = static_cast<std::size_t>(n);
    if (!offsets.empty()) return {offsets[at], offsets[at + 1] - offsets[at]};
    if (!lengths.empty()) return {0, lengths[static_cast<std::size_t>(b)]};
    return {0, L};
  }
};

}  // namespace v0_1
}  // namespace bila
