// SPDX-License-Identifier: Apache-2.0
// The mask of plain linear attention.
#pragma once

#include <bila/mask/concepts.hpp>

namespace bila {
inline namespace v0_1 {
namespace mask {

/// M_ij = 1: every query sees every key with the same weight (LION-LIT, linear transformer). Gaps: f = b = 0.
/// Source: LION (arXiv 2502.16249), full linear attention.
struct all_ones {
  static constexpr gap gaps = gap::none;

  BILA_SHARED double log_forward(index_t, index_t, index_t) const { return 0; }
  BILA_SHARED double log_backward(index_t, index_t, index_t) const { return 0; }
};

}  // namespace mask
}  // namespace v0_1
}  // namespace bila
