// SPDX-License-Identifier: Apache-2.0
// The masks of decay per channel: each channel of q and k has gates of its own.
#pragma once

#include <bila/mask/concepts.hpp>
#include <bila/mask/selective_decay.hpp>
#include <bila/view/number.hpp>
#include <bila/view/storage.hpp>

#include <tuple>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace mask {

/// Each channel d has the mask of selective_decay with gates of its own, log lambda_td = a_td:
///
///     q_i M_ij k_j = sum_d q_id k_jd exp(f_{j+1,d} + ... + f_{i,d}) below the diagonal,   with b above it
///
///     bila::mask::channel_decay gates{bila::bhld(log_alpha, B, H, L, Dk), bila::gate::target};
///
/// Models: GLA, HGRN-2 (with k from gates::one_minus_decay), diagonal state space models. f and b follow from a and the gate
/// convention as in selective_decay.
///
/// log_decay: [B, H, L, Dk], <= 0, float, double, bila::bf16 or bila::f16, or [B, H / n, L, Dk] for groups of n heads. -inf, a gate
/// of exactly zero, cuts the channel. No ratio of decays is formed, so gates of any strength are exact. With this mask the
/// log_decay of an initial state has a number for each channel: its last extent is Dk, not 1. A call throws if the shape of
/// log_decay is another, or if a value in use is above 1e-6 or NaN.
/// Source: GLA (arXiv 2312.06635), HGRN-2 (arXiv 2404.07904), LION (arXiv 2502.16249), table 1.
template <class T>
struct channel_decay {
  static_assert(storage<T>, "bila::mask: log decays of channels are float, double, bila::bf16 or bila::f16");

  tensor_view<const T> log_decay;  // [B, H, L, Dk]
  gate crossing;

  BILA_SHARED constexpr channel_decay(tensor_view<const T> log_gates, gate convention)
      : log_decay(log_gates), crossing(convention) {}

  BILA_SHARED index_t heads() const { return log_decay.heads(); }
  BILA_SHARED index_t channels() const { return log_decay.features(); }

  BILA_SHARED double log_forward(index_t b, index_t h, index_t t, index_t d) const {
    return static_cast<double>(log_decay(b, h, token(direction::forward, t), d));
  }
  BILA_SHARED double log_backward(index_t b, index_t h, index_t t, index_t d) const {
    return static_cast<double>(log_decay(b, h, token(direction::backward, t), d));
  }

  /// The token whose gates give the decays of gap t, crossed in direction `way`.
  BILA_SHARED index_t token(direction way, index_t t) const {
    const gate before = way == direction::forward ? gate::source : gate::target;
    return crossing == gate::earlier || crossing == before ? t - 1 : t;
  }

  /// The log decays of gaps [t, t + n) in memory: a row of Dk numbers for each gap.
  rows<const T> gate_rows(direction way, index_t b, index_t h, index_t t, index_t n) const {
    return head_rows(log_decay, b, h, token(way, t), n);
  }

  BILA_ALWAYS_INLINE error_message validate(index_t B, index_t H, index_t L) const {
    return bila::detail::check_gates("log_decay", log_decay, B, H, L, log_decay.features());
  }

  BILA_ALWAYS_INLINE auto parameters() const { return std::tuple(log_decay); }
};

template <class T>
channel_decay(tensor_view<T>, gate) -> channel_decay<std::remove_const_t<T>>;

/// The mask of decay per channel whose gaps are given directly, for each direction.
///
/// forward_gaps f, backward_gaps b: [B, H, L, Dk], the log decays of gap t, between tokens t-1 and t. Entry 0 is not used.
template <class T>
struct two_sided_channels {
  static_assert(storage<T>, "bila::mask: log decays of channels are float, double, bila::bf16 or bila::f16");

  tensor_view<const T> forward_gaps, backward_gaps;  // [B, H, L, Dk]

  BILA_SHARED index_t heads() const { return forward_gaps.heads(); }
  BILA_SHARED index_t channels() const { return forward_gaps.features(); }

  BILA_SHARED double log_forward(index_t b, index_t h, index_t t, index_t d) const {
    return static_cast<double>(forward_gaps(b, h, t, d));
  }
  BILA_SHARED double log_backward(index_t b, index_t h, index_t t, index_t d) const {
    return static_cast<double>(backward_gaps(b, h, t, d));
  }

  rows<const T> gate_rows(direction way, index_t b, index_t h, index_t t, index_t n) const {
    return head_rows(way == direction::forward ? forward_gaps : backward_gaps, b, h, t, n);
  }

  BILA_ALWAYS_INLINE error_message validate(index_t B, index_t H, index_t L) const {
    const index_t width = forward_gaps.features();
    error_message wrong = bila::detail::check_gates("forward_gaps", forward_gaps, B, H, L, width);
    if (wrong.empty()) wrong = bila::detail::check_gates("backward_gaps", backward_gaps, B, H, L, width);
    if (wrong.empty() && forward_gaps.heads() != backward_gaps.heads())
      return message("forward_gaps has ", forward_gaps.heads(), " heads but backward_gaps has ", backward_gaps.heads());
    return wrong;
  }

  BILA_ALWAYS_INLINE auto parameters() const { return std::tuple(forward_gaps, backward_gaps); }
};

template <class T, class U>
two_sided_channels(tensor_view<T>, tensor_view<U>) -> two_sided_channels<std::remove_const_t<T>>;

}  // namespace mask
}  // namespace v0_1
}  // namespace bila
