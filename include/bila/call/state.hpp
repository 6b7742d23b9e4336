// SPDX-License-Identifier: Apache-2.0
// The state at the start or the end of a sequence. A sequence that is computed in pieces passes it from piece to piece.
#pragma once

#include <bila/config.hpp>
#include <bila/view/storage.hpp>
#include <bila/view/tensor_view.hpp>

#include <cstddef>
#include <type_traits>

namespace bila {
inline namespace v0_1 {

/// The type in which a state's numbers are stored. computed: the type of the computation, float or double.
enum class state_storage { computed, bf16, f16 };

namespace detail {

template <class T>
inline constexpr bool is_16_bit = std::is_same_v<std::remove_const_t<T>, bf16> || std::is_same_v<std::remove_const_t<T>, f16>;

template <class T>
using decay_in_state = std::conditional_t<is_16_bit<T>, std::conditional_t<std::is_const_v<T>, const float, float>, T>;

}  // namespace detail

/// The sum of the decayed keys and values on one side of the sequence: S = sum_j w_j k_j v_j^T, z = sum_j w_j k_j.
///
/// Shapes: S [n, H, Dk, Dv], z [n, H, Dk, 1], with n sequences: batch rows, or packed segments. z is required if the norm uses the
/// row sum, and is otherwise neither read nor written. An initial state enters through the gap between the state and the sequence.
/// The gap's log decay is log_decay [n, H, 1, 1], <= 0; if log_decay is empty, the decay is 1. S or z without data is not given: in
/// an initial state it counts as zero, in a final state it is not written.
///
/// Only with mask::weighed_keys: the true state is e^{log_scale} times S and z, log_scale [n, H, 1, 1], a number or -inf. Without
/// log_scale an initial state is the true one, and the true final state is written, which may overflow.
///
/// A call takes state<float>, or state<double> if it computes in double. state<bf16> and state<f16> convert to state<float>: a call
/// widens the 16-bit numbers when it reads them, and rounds once when it writes them.
template <class T>
struct state {
  tensor_view<T> S, z;
  tensor_view<detail::decay_in_state<T>> log_decay = {}, log_scale = {};
  state_storage stored = state_storage::computed;  // the true type of S and z; only the conversion below sets it

  BILA_SHARED constexpr bool given() const {
    return S.data != nullptr || z.data != nullptr || log_decay.data != nullptr || log_scale.data != nullptr;
  }

  /// The bytes of one number of S or z.
  BILA_SHARED constexpr std::size_t bytes() const { return stored == state_storage::computed ? sizeof(T) : sizeof(bf16); }

  template <class U>
  requires(!std::is_const_v<T> && std::is_same_v<U, const T>) BILA_SHARED constexpr operator state<U>() const {
    return {S, z, log_decay, log_scale, stored};
  }

  template <class U>
  requires(detail::is_16_bit<T> && (std::is_same_v<U, const float> || (std::is_same_v<U, float> && !std::is_const_v<T>)))  //
      BILA_ALWAYS_INLINE
      operator state<U>() const {
    return {tensor_view<U>{reinterpret_cast<U*>(S.data), S.extents, S.strides},
            tensor_view<U>{reinterpret_cast<U*>(z.data), z.extents, z.strides}, log_decay, log_scale,
            std::is_same_v<std::remove_const_t<T>, bf16> ? state_storage::bf16 : state_storage::f16};
  }
};

}  // namespace v0_1
}  // namespace bila
