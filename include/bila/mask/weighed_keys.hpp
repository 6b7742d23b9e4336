// SPDX-License-Identifier: Apache-2.0
// The mask of keys that have weights of their own.
#pragma once

#include <bila/mask/concepts.hpp>

#include <tuple>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace mask {

/// M_ij = e^{w_j} (the weight of `mask`), on the diagonal too: e^{w_i} times inputs::diagonal. `mask` is any mask with scalar gaps.
///
///     bila::mask::selective_decay forget{bila::bhl(log_f, B, H, L), bila::gate::target};
///     bila::mask::weighed_keys memory{forget, bila::bhl(log_i, B, H, L)};
///
/// mLSTM: w = log of the input gate, with norm::max_one. Mamba-2: w = log Delta. GRFA: w = log(1 - g).
///
/// log_weights: [B, H, L], or [B, H / n, L] for groups of n heads: any finite number, or -inf, which removes the key. All sums are
/// kept relative to their largest weight, so weights of any size neither overflow nor vanish; outputs::row_sum then holds Z_i
/// e^{-m_i}, with m_i the largest log weight that query i sees. Cross attention is refused. A call throws if the shape is not that
/// of the tokens, or if a weight in use is +inf or NaN. Source: mLSTM (arXiv 2405.04517), Mamba-2 (arXiv 2405.21060), LION (arXiv
/// 2502.16249), table 1.
template <class Mask, class T>
struct weighed_keys {
  static_assert(gapped<Mask>, "bila::mask::weighed_keys: the first argument is a mask with gaps");
  static_assert(log_decay_number<T>, "bila::mask: log weights are float or double");

  Mask mask;
  tensor_view<const T> log_weights;  // [B, H, L, 1]

  BILA_SHARED constexpr weighed_keys(const Mask& gaps, tensor_view<const T> weights) : mask(gaps), log_weights(weights) {}

  BILA_SHARED double log_weight(index_t b, index_t h, index_t t) const { return static_cast<double>(log_weights(b, h, t, 0)); }
  BILA_SHARED index_t own_heads() const { return log_weights.heads(); }

  BILA_ALWAYS_INLINE error_message validate(index_t B, index_t H, index_t L) const {
    return bila::detail::check_gates("log_weights", log_weights, B, H, L);
  }

  BILA_ALWAYS_INLINE auto parameters() const { return std::tuple(log_weights); }
};

template <class Mask, class T>
weighed_keys(Mask, tensor_view<T>) -> weighed_keys<Mask, std::remove_const_t<T>>;

}  // namespace mask
}  // namespace v0_1
}  // namespace bila
