// SPDX-License-Identifier: Apache-2.0
// The mask of data-dependent decay: each token has a gate.
#pragma once

#include <bila/mask/concepts.hpp>

#include <tuple>

namespace bila {
inline namespace v0_1 {

/// Which token's gate gives the decay of gap t, between tokens t-1 and t. The conventions differ as soon as gates differ.
enum class gate {
  later,    ///< a_t both ways: the published formula; M is symmetric, and a_0 is not used
  source,   ///< a_{t-1} forwards, a_t backwards: LION's code
  target,   ///< a_t forwards, a_{t-1} backwards: a double scan over the flipped sequence (Vim); the transpose of source
  earlier,  ///< a_{t-1} both ways: `later` on the reversed sequence
};

namespace mask {

/// M_ij is the product of the gates between tokens i and j (LION-S). With log gates a_t = log lambda_t:
///
///     later:   f_t = a_t      b_t = a_t         source:  f_t = a_{t-1}  b_t = a_t
///     target:  f_t = a_t      b_t = a_{t-1}     earlier: f_t = a_{t-1}  b_t = a_{t-1}
///
/// log_decay: [B, H, L], the log decay a_t of each token, <= 0, or [B, H / n, L] for groups of n heads. -inf, a gate of exactly
/// zero, cuts the sequence. The convention has no default. A call throws if the shape is not [B, H, L, 1] or [B, H / n, L, 1], or
/// if a value in use is above 1e-6 or NaN.
/// Source: LION (arXiv 2502.16249), the selective mask.
template <class T>
struct selective_decay {
  static_assert(log_decay_number<T>, "bila::mask: log decays are float or double");

  tensor_view<const T> log_decay;  // [B, H, L, 1]
  gate crossing;

  BILA_SHARED constexpr selective_decay(tensor_view<const T> log_gates, gate convention)
      : log_decay(log_gates), crossing(convention) {}

  static constexpr gap gaps = gap::per_token;

  BILA_SHARED index_t heads() const { return log_decay.heads(); }

  BILA_SHARED double log_forward(index_t b, index_t h, index_t t) const {
    return static_cast<double>(log_decay(b, h, token(direction::forward, t), 0));
  }
  BILA_SHARED double log_backward(index_t b, index_t h, index_t t) const {
    return static_cast<double>(log_decay(b, h, token(direction::backward, t), 0));
  }

  /// The token whose gate gives the decay of gap t, crossed in direction `way`.
  BILA_SHARED index_t token(direction way, index_t t) const {
    const gate before = way == direction::forward ? gate::source : gate::target;
    return crossing == gate::earlier || crossing == before ? t - 1 : t;
  }

  BILA_ALWAYS_INLINE error_message validate(index_t B, index_t H, index_t L) const {
    return detail::check_gates("log_decay", log_decay, B, H, L);
  }
  BILA_ALWAYS_INLINE std::string parameter_of(direction way, index_t b, index_t h, index_t t) const {
    return message("log_decay[b = ", b, ", h = ", h, ", t = ", token(way, t), "]");
  }

  /// The gradient of a_t: the sum of the gradients of the gaps that use a_t (MATH.md 4.5). f(u) and g(u) are the gradients of gap u
  /// of the segment, crossed forwards and backwards, 0 < u < count.
  template <class F, class G>
  BILA_SHARED double gradient_of(index_t t, index_t count, const F& f, const G& g) const {
    const index_t forward = t - token(direction::forward, 0), backward = t - token(direction::backward, 0);
    return (forward > 0 && forward < count ? f(forward) : 0.0) + (backward > 0 && backward < count ? g(backward) : 0.0);
  }

  template <class Real>
  BILA_ALWAYS_INLINE void pull_back(index_t b, index_t h, index_t first, index_t count, const double* f, const double* g,
                                    const tensor_view<Real>& to) const {
    for (index_t t = 0; t < count; ++t)
      to(b, h, first + t, 0) = static_cast<Real>(gradient_of(
          t, count, [f](index_t u) { return f[u]; }, [g](index_t u) { return g[u]; }));
  }

  BILA_ALWAYS_INLINE auto parameters() const { return std::tuple(log_decay); }
};

template <class T>
selective_decay(tensor_view<T>, gate) -> selective_decay<std::remove_const_t<T>>;

}  // namespace mask

}  // namespace v0_1
}  // namespace bila
