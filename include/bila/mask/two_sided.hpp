// SPDX-License-Identifier: Apache-2.0
// The mask whose gaps are given directly.
#pragma once

#include <bila/mask/concepts.hpp>

#include <tuple>

namespace bila {
inline namespace v0_1 {
namespace mask {

/// M_ij = exp(f_{j+1} + ... + f_i) below the diagonal, exp(b_{i+1} + ... + b_j) above the diagonal.
///
/// forward_gaps f, backward_gaps b: [B, H, L], the log decay of gap t, between tokens t-1 and t, <= 0. Error messages call them
/// log_forward and log_backward. -inf cuts the sequence. Entry 0 is not used. Both may have H / n heads, for groups of n heads. A
/// call throws if a shape is not [B, H, L, 1] or [B, H / n, L, 1], or if a value in use is above 1e-6 or NaN.
template <class T>
struct two_sided {
  static_assert(log_decay_number<T>, "bila::mask: log decays are float or double");

  tensor_view<const T> forward_gaps, backward_gaps;  // [B, H, L, 1]

  static constexpr gap gaps = gap::per_token;

  BILA_SHARED index_t heads() const { return forward_gaps.heads(); }

  BILA_SHARED double log_forward(index_t b, index_t h, index_t t) const { return static_cast<double>(forward_gaps(b, h, t, 0)); }
  BILA_SHARED double log_backward(index_t b, index_t h, index_t t) const { return static_cast<double>(backward_gaps(b, h, t, 0)); }

  BILA_ALWAYS_INLINE error_message validate(index_t B, index_t H, index_t L) const {
    error_message wrong = detail::check_gates("log_forward", forward_gaps, B, H, L);
    if (wrong.empty()) wrong = detail::check_gates("log_backward", backward_gaps, B, H, L);
    if (wrong.empty() && forward_gaps.heads() != backward_gaps.heads())
      return message("log_forward has ", forward_gaps.heads(), " heads but log_backward has ", backward_gaps.heads());
    return wrong;
  }
  BILA_ALWAYS_INLINE std::string parameter_of(direction way, index_t b, index_t h, index_t t) const {
    return message(way == direction::forward ? "log_forward" : "log_backward", "[b = ", b, ", h = ", h, ", t = ", t, "]");
  }
  BILA_ALWAYS_INLINE auto parameters() const { return std::tuple(forward_gaps, backward_gaps); }
};

template <class T, class U>
two_sided(tensor_view<T>, tensor_view<U>) -> two_sided<std::remove_const_t<T>>;

}  // namespace mask
}  // namespace v0_1
}  // namespace bila
