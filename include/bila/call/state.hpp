// SPDX-License-Identifier: Apache-2.0
// The state that a sequence starts from or ends in: what a long sequence hands from piece to piece.
#pragma once

#include <bila/config.hpp>
#include <bila/view/storage.hpp>
#include <bila/view/tensor_view.hpp>

#include <cstddef>
#include <type_traits>

namespace bila {
inline namespace v0_1 {

/// What the numbers of a state are stored in: what is computed in, or 16 bits.
enum class state_storage { computed, bf16, f16 };

namespace detail {

template <class T>
inline constexpr bool is_16_bit = std::is_same_v<std::remove_const_t<T>, bf16> || std::is_same_v<std::remove_const_t<T>, f16>;

template <class T>
using decay_in_state = std::conditional_t<is_16_bit<T>, std::conditional_t<std::is_const_v<T>, const float, float>, T>;

}  // namespace detail

/// The sum of decayed keys and values of all tokens on one side, S = sum_j w_j k_j v_j^T, z = sum_j w_j k_j.
///
/// Shapes: S [n, H, Dk, Dv], z [n, H, Dk, 1], one for each sequence: batch row, or packed segment. z is needed when the norm uses
/// the row sum, and neither read nor written when it does not. An initial state enters by the gap between it and the sequence,
/// whose log decay is log_decay [n, H, 1, 1], <= 0; left empty, the state counts as decayed already. A view without data is not
/// given: as part of an initial state it is the same as zeros, as part of a final one it is not wanted.
///
/// A call takes state<float>, or state<double> for double. state<bf16> and state<f16> convert to state<float>: their numbers are
/// widened when they are read, and rounded once when they are written.
template <class T>
struct state {
  tensor_view<T> S, z;
  tensor_view<detail::decay_in_state<T>> log_decay = {};
  state_storage stored = state_storage::computed;  // what S and z really point to; set by the conversion below alone

  BILA_SHARED constexpr bool given() const { return S.data != nullptr || z.data != nullptr || log_decay.data != nullptr; }

  /// Of a number of S or z.
  BILA_SHARED constexpr std::size_t bytes() const { return stored == state_storage::computed ? sizeof(T) : sizeof(bf16); }

  template <class U>
  requires(!std::is_const_v<T> && std::is_same_v<U, const T>) BILA_SHARED constexpr operator state<U>() const {
    return {S, z, log_decay, stored};
  }

  template <class U>
  requires(detail::is_16_bit<T> && (std::is_same_v<U, const float> || (std::is_same_v<U, float> && !std::is_const_v<T>)))  //
      BILA_ALWAYS_INLINE
      operator state<U>() const {
    return {tensor_view<U>{reinterpret_cast<U*>(S.data), S.extents, S.strides},
            tensor_view<U>{reinterpret_cast<U*>(z.data), z.extents, z.strides}, log_decay,
            std::is_same_v<std::remove_const_t<T>, bf16> ? state_storage::bf16 : state_storage::f16};
  }
};

}  // namespace v0_1
}  // namespace bila
