// SPDX-License-Identifier: Apache-2.0
// The state that a sequence starts from or ends in: what a long sequence hands from piece to piece.
#pragma once

#include <bila/view/tensor_view.hpp>

namespace bila::inline v0_1 {

/// The sum of decayed keys and values of all tokens on one side, S = sum_j w_j k_j v_j^T, z = sum_j w_j k_j.
///
/// Shapes: S [n, H, Dk, Dv], z [n, H, Dk, 1], one for each sequence: batch row, or packed segment. z is needed when the norm uses
/// the row sum, and neither read nor written when it does not. An initial state enters by the gap between it and the sequence,
/// whose log decay is log_decay [n, H, 1, 1], <= 0; left empty, the state counts as decayed already. A view without data is not
/// given: as part of an initial state it is the same as zeros, as part of a final one it is not wanted.
template <class T>
struct state {
  tensor_view<T> S, z;
  tensor_view<T> log_decay = {};

  BILA_SHARED constexpr bool given() const { return S.data != nullptr || z.data != nullptr || log_decay.data != nullptr; }

  template <class U>
  requires(!std::is_const_v<T> && std::is_same_v<U, const T>) BILA_SHARED constexpr operator state<U>() const {
    return {S, z, log_decay};
  }
};

}  // namespace bila::inline v0_1
