// SPDX-License-Identifier: Apache-2.0
// The delta rule: a token replaces a part of what the state holds for its key.
#pragma once

#include <bila/mask/concepts.hpp>

#include <tuple>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace rule {

/// The delta rule in both directions. Each direction carries a state S (Dk, Dv), which decays by the gaps of `mask`:
///
///     S_i = (I - beta_i k_i^T k_i) decay_i S_{i-1} + beta_i k_i^T v_i           forward; backward the same from the other end
///
/// y_i reads the states of both directions after token i, but counts the token's own beta_i (q_i . k_i) v_i once, not twice, times
/// inputs::diagonal. The rule takes the mask's place in a call:
///
///     bila::mask::selective_decay gates{bila::bhl(log_alpha, B, H, L), bila::gate::target};
///     bila::rule::delta memory{gates, bila::bhl(beta, B, H, L)};
///
/// mask::all_ones: DeltaNet. A scalar decay: Gated DeltaNet. mask::channel_decay: KDA. Keys should have unit length
/// (feature::l2_norm).
///
/// beta: [B, H, L], or [B, H / n, L] for groups of n heads, in [0, 2]; one for both directions, or one for each. A call throws if a
/// shape is not that of the tokens, if a beta in use is outside [0, 2] or NaN, in cross attention, or if the norm uses the row sum.
/// Source: DeltaNet (arXiv 2406.06484), Gated DeltaNet (arXiv 2412.06464), Kimi Delta Attention (arXiv 2510.26692).
template <class Mask, class T>
struct delta {
  static_assert(gapped<Mask> || channelled<Mask>, "bila::rule::delta: the first argument is a mask with gaps");
  static_assert(log_decay_number<T>, "bila::rule: betas are float or double");

  Mask mask;
  tensor_view<const T> beta_forward, beta_backward;  // [B, H, L, 1]
  bool shared;                                       // whether one beta serves both directions

  BILA_SHARED constexpr delta(const Mask& gaps, tensor_view<const T> beta)
      : mask(gaps), beta_forward(beta), beta_backward(beta), shared(true) {}
  BILA_SHARED constexpr delta(const Mask& gaps, tensor_view<const T> forward, tensor_view<const T> backward)
      : mask(gaps), beta_forward(forward), beta_backward(backward), shared(false) {}

  BILA_SHARED double strength(direction way, index_t b, index_t h, index_t t) const {
    return static_cast<double>((way == direction::forward ? beta_forward : beta_backward)(b, h, t, 0));
  }
  BILA_SHARED index_t own_heads() const { return beta_forward.heads(); }
  BILA_SHARED bool one_strength() const { return shared; }

  BILA_ALWAYS_INLINE error_message validate(index_t B, index_t H, index_t L) const {
    error_message wrong = bila::detail::check_gates(shared ? "beta" : "beta_forward", beta_forward, B, H, L);
    if (wrong.empty() && !shared) wrong = bila::detail::check_gates("beta_backward", beta_backward, B, H, L);
    if (wrong.empty() && beta_forward.heads() != beta_backward.heads())
      return message("beta_forward has ", beta_forward.heads(), " heads but beta_backward has ", beta_backward.heads());
    return wrong;
  }

  BILA_ALWAYS_INLINE auto parameters() const { return std::tuple(beta_forward, beta_backward); }
};

template <class Mask, class T>
delta(Mask, tensor_view<T>) -> delta<Mask, std::remove_const_t<T>>;
template <class Mask, class T, class U>
delta(Mask, tensor_view<T>, tensor_view<U>) -> delta<Mask, std::remove_const_t<T>>;

}  // namespace rule
}  // namespace v0_1
}  // namespace bila
