// SPDX-License-Identifier: Apache-2.0
// The mask with one decay for all tokens of a head.
#pragma once

#include <bila/mask/concepts.hpp>

#include <tuple>

namespace bila {
inline namespace v0_1 {
namespace mask {

/// M_ij = lambda^|i-j|, lambda = exp(log_decay) of the head (LION-D, RetNet). Gaps: f_t = b_t = log_decay.
///
/// log_decay: [H], the log decay per token, <= 0, or [H / n] for groups of n heads. A call throws if the shape is not [1, H, 1, 1]
/// or [1, H / n, 1, 1], or if a value is above 1e-6 or NaN.
/// Source: LION (arXiv 2502.16249), the fixed mask; RetNet (arXiv 2307.08621).
template <class T>
struct fixed_decay {
  static_assert(log_decay_number<T>, "bila::mask: log decays are float or double");

  tensor_view<const T> log_decay;  // [1, H, 1, 1]

  static constexpr gap gaps = gap::per_head;

  BILA_SHARED index_t heads() const { return log_decay.heads(); }

  BILA_SHARED double log_forward(index_t, index_t h, index_t) const { return static_cast<double>(log_decay(0, h, 0, 0)); }
  BILA_SHARED double log_backward(index_t, index_t h, index_t) const { return static_cast<double>(log_decay(0, h, 0, 0)); }

  BILA_ALWAYS_INLINE error_message validate(index_t, index_t H, index_t) const {
    return detail::check_gates("log_decay", log_decay, 1, H, 1);
  }
  BILA_ALWAYS_INLINE std::string parameter_of(direction, index_t, index_t h, index_t) const {
    return message("log_decay[h = ", h, "]");
  }

  /// The gradient of log_decay_h. f and g are the sums of the gradients of all gaps, crossed forwards and backwards, over the
  /// batch.
  BILA_SHARED double gradient_of(double f, double g) const { return f + g; }

  template <class Real>
  BILA_ALWAYS_INLINE void pull_back(index_t h, double f, double g, const tensor_view<Real>& to) const {
    to(0, h, 0, 0) = static_cast<Real>(gradient_of(f, g));
  }

  BILA_ALWAYS_INLINE auto parameters() const { return std::tuple(log_decay); }
};

template <class T>
fixed_decay(tensor_view<T>) -> fixed_decay<std::remove_const_t<T>>;

/// Chosen for a number in place of the tensor. The result is a compile-time error with the message below.
template <class Number>
requires std::is_arithmetic_v<Number>
struct fixed_decay<Number*> {
  explicit fixed_decay(Number) {
    static_assert(!std::is_arithmetic_v<Number>,
                  "bila::mask::fixed_decay: give a tensor with a log decay for each head, such as bila::vec(log_decay, H)");
  }
};

template <class Number>
requires std::is_arithmetic_v<Number> fixed_decay(Number)
->fixed_decay<Number*>;

}  // namespace mask
}  // namespace v0_1
}  // namespace bila
