// SPDX-License-Identifier: Apache-2.0
// The mask whose queries do not read through the gap next to them.
#pragma once

#include <bila/mask/concepts.hpp>

#include <tuple>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace mask {

/// A query does not read through the gap next to it, and its own token has a weight for each channel (RWKV-6):
///
///     q_i M_ij k_j = sum_d q_id k_jd exp(f_{j+1,d} + ... + f_{i-1,d})   for j < i,   the mirror image with b for j > i
///                    sum_d q_id u_d k_id                                for j = i
///
///     bila::mask::exclusive_read rwkv{gates, bila::tensor_view<const float>{u, {1, H, 1, Dk}, {0, Dk, 0, 1}}};
///
/// bonuses: u, [1, H, 1, Dk], or [1, H / n, 1, Dk] for groups of n heads. Both directions count the bonus once. inputs::diagonal
/// multiplies it. A call throws if the shape is another, or if a bonus is not finite.
/// Source: RWKV-6 (arXiv 2404.05892).
template <class Mask, class T>
struct exclusive_read {
  static_assert(channelled<Mask>, "bila::mask::exclusive_read: the first argument is a mask with decays per channel");
  static_assert(log_decay_number<T>, "bila::mask: bonuses are float or double");

  Mask mask;
  tensor_view<const T> bonuses;  // [1, H, 1, Dk]

  BILA_SHARED constexpr exclusive_read(const Mask& gaps, tensor_view<const T> u) : mask(gaps), bonuses(u) {}

  BILA_SHARED index_t own_heads() const { return bonuses.heads(); }
  BILA_SHARED double bonus(index_t h, index_t d) const { return static_cast<double>(bonuses(0, h, 0, d)); }

  BILA_ALWAYS_INLINE error_message validate(index_t, index_t H, index_t) const {
    if (bonuses.extents != per_axis{1, bonuses.heads(), 1, bonuses.features()} || !bila::detail::makes_groups(bonuses.heads(), H))
      return message("bonuses has shape ", bila::detail::shape_in_words(bonuses), ", it must be [1, ", H,
                     ", 1, Dk], or have heads that divide ", H);
    if (const index_t channels = mask.channels(); bonuses.features() != channels)
      return message("bonuses has ", bonuses.features(), " channels but the gates have ", channels);
    return bila::detail::check_view("bonuses", bonuses);
  }

  BILA_ALWAYS_INLINE auto parameters() const { return std::tuple(bonuses); }
};

template <class Mask, class T>
exclusive_read(Mask, tensor_view<T>) -> exclusive_read<Mask, std::remove_const_t<T>>;

}  // namespace mask
}  // namespace v0_1
}  // namespace bila
