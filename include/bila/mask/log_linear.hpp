// SPDX-License-Identifier: Apache-2.0
// The mask of log-linear attention: pairs have weights by their level in a binary tree over the tokens.
#pragma once

#include <bila/mask/concepts.hpp>

#include <tuple>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace mask {

/// Log-linear attention in both directions. `mask` is any mask with scalar gaps, (gaps) is the weight that it gives the pair, and
/// l(i, j) = bit_width(i xor j):
///
///     M_ij = w^F_i[l(i, j)] (gaps) for j < i,   w^B_i[l(i, j)] (gaps) for j > i,   diagonal (w^F_i[0] + w^B_i[0]) / 2
///
///     bila::mask::log_linear memory{gates, bila::bhld(w_forward, B, H, L, levels), bila::bhld(w_backward, B, H, L, levels)};
///
/// In a call of one direction the diagonal's weight is that direction's w_i[0]. Tokens count from their segment's start. Weights
/// may have any sign. forward, backward: [B, H, L, levels], or [B, H / n, L, levels] for groups of n heads. A segment of T tokens
/// has bit_width(T - 1) + 1 levels; `levels` must be at least that of the longest segment, and weights of further levels are not
/// read. Initial and final states and cross attention are refused. A call throws if a shape is wrong, or if a weight in use is not
/// finite. Source: log-linear attention (arXiv 2506.04761).
template <class Mask, class T>
struct log_linear {
  static_assert(gapped<Mask>, "bila::mask::log_linear: the first argument is a mask with gaps");
  static_assert(log_decay_number<T>, "bila::mask: weights of levels are float or double");

  Mask mask;
  tensor_view<const T> forward, backward;  // [B, H, L, levels]

  BILA_SHARED constexpr log_linear(const Mask& gaps, tensor_view<const T> weights_forward, tensor_view<const T> weights_backward)
      : mask(gaps), forward(weights_forward), backward(weights_backward) {}

  BILA_SHARED index_t levels() const { return forward.features(); }
  BILA_SHARED index_t own_heads() const { return forward.heads(); }
  BILA_SHARED double level(direction way, index_t b, index_t h, index_t t, index_t l) const {
    return static_cast<double>((way == direction::forward ? forward : backward)(b, h, t, l));
  }

  BILA_ALWAYS_INLINE error_message validate(index_t B, index_t H, index_t L) const {
    error_message wrong = bila::detail::check_gates("forward", forward, B, H, L, forward.features());
    if (wrong.empty()) wrong = bila::detail::check_gates("backward", backward, B, H, L, forward.features());
    if (wrong.empty() && forward.heads() != backward.heads())
      return message("forward has ", forward.heads(), " heads but backward has ", backward.heads());
    return wrong;
  }

  BILA_ALWAYS_INLINE auto parameters() const { return std::tuple(forward, backward); }
};

template <class Mask, class T, class U>
log_linear(Mask, tensor_view<T>, tensor_view<U>) -> log_linear<Mask, std::remove_const_t<T>>;

}  // namespace mask
}  // namespace v0_1
}  // namespace bila
