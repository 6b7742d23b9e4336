// SPDX-License-Identifier: Apache-2.0
// What a form may ask of a mask. A mask turns a model's parameters into weights, and knows nothing of q, k, v, chunks or threads.
// Any type with these members is a mask, without a base class or registration.
#pragma once

#include <bila/error.hpp>
#include <bila/view/direction.hpp>
#include <bila/view/shape.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <concepts>
#include <string>

namespace bila {
inline namespace v0_1 {

/// Granularity of decay: none (all log decays are zero), one log decay per head, or one log decay per token.
enum class gap { none, per_head, per_token };

/// A mask that can give any weight M_ij of batch row b and head h. Only form::full and form::automatic accept such a mask.
template <class Mask>
concept pairwise = requires(const Mask& mask, index_t n) {
  { mask.weight(n, n, n, n) } -> std::convertible_to<double>;
};

/// A pairwise mask whose weights are zero for pairs more than mask.reach(b, h) >= 0 tokens apart: weight() is not asked for them,
/// and form::full skips the blocks of such pairs. So a window takes time O(L reach). A gapped mask must not have this member.
template <class Mask>
concept banded = requires(const Mask& mask, index_t n) {
  { mask.reach(n, n) } -> std::convertible_to<index_t>;
};

/// A mask whose weights are products over gaps. With f_t and b_t the log decays of the gap between tokens t-1 and t,
///
///     M_ij = exp(f_{j+1} + ... + f_i) below the diagonal,   exp(b_{i+1} + ... + b_j) above it
///
/// f_t, b_t <= 0; -inf cuts the sequence. Gap 0 and gaps at the borders of segments are never read. Every form accepts this mask.
template <class Mask>
concept gapped = requires(const Mask& mask, index_t n) {
  { Mask::gaps } -> std::convertible_to<gap>;
  { mask.log_forward(n, n, n) } -> std::convertible_to<double>;
  { mask.log_backward(n, n, n) } -> std::convertible_to<double>;
};

/// A mask whose keys have a weight besides the gaps of `mask.mask`: M_ij = e^{w_j} (product over the gaps between i and j). w_j,
/// the log weight of key j, is any number or -inf, which removes the key.
template <class Mask>
concept weighs_keys = requires(const Mask& mask, index_t n) {
  requires gapped<std::remove_cvref_t<decltype(mask.mask)>>;
  { mask.log_weight(n, n, n) } -> std::convertible_to<double>;
};

/// A mask whose gaps have a log decay for each channel d of q and k:
///
///     q_i M_ij k_j = sum_d q_id k_jd exp(f_{j+1,d} + ... + f_{i,d}) below the diagonal,   with b above it
template <class Mask>
concept channelled = requires(const Mask& mask, index_t n) {
  { mask.log_forward(n, n, n, n) } -> std::convertible_to<double>;
  { mask.log_backward(n, n, n, n) } -> std::convertible_to<double>;
};

/// A mask by which a query does not read through the gap next to it: the decay between key j and query i is the product over the
/// gaps between them, except the one next to i. The query's own token has weight bonus(h, d) in channel d.
template <class Mask>
concept reads_exclusively = requires(const Mask& mask, index_t n) {
  requires channelled<std::remove_cvref_t<decltype(mask.mask)>>;
  { mask.bonus(n, n) } -> std::convertible_to<double>;
};

/// A mask whose pairs have a weight that depends on the query and on the level of the pair: M_ij = level(way, b, h, i, l(i, j))
/// times the gaps of `mask.mask`, l(i, j) = bit_width(i xor j), with tokens counted from the start of their segment.
template <class Mask>
concept leveled = requires(const Mask& mask, index_t n) {
  requires gapped<std::remove_cvref_t<decltype(mask.mask)>>;
  { mask.levels() } -> std::convertible_to<index_t>;
  { mask.level(direction::forward, n, n, n, n) } -> std::convertible_to<double>;
};

/// A rule that says how a token is written to the state; `mask` says how the state decays. strength(way, b, h, t) is beta_t of the
/// delta rule: the part that token t replaces of what the state holds for the token's key.
template <class Rule>
concept ruled = requires(const Rule& rule, index_t n) {
  requires gapped<std::remove_cvref_t<decltype(rule.mask)>> || channelled<std::remove_cvref_t<decltype(rule.mask)>>;
  { rule.strength(direction::forward, n, n, n) } -> std::convertible_to<double>;
};

/// Whether a type can take the mask's place in a call.
template <class Mask>
concept any_mask = pairwise<Mask> || gapped<Mask> || weighs_keys<Mask> || channelled<Mask> || reads_exclusively<Mask> ||
    leveled<Mask> || ruled<Mask>;

/// Whether a mask depends on the order of tokens. Cross attention needs a mask for which this is false.
template <class Mask>
inline constexpr bool orders_tokens = true;

template <gapped Mask>
inline constexpr bool orders_tokens<Mask> = Mask::gaps != gap::none;

/// A mask that can check the shapes of its own parameters against the shapes of a call.
template <class Mask>
concept checks_itself = requires(const Mask& mask, index_t n) {
  { mask.validate(n, n, n) } -> std::convertible_to<error_message>;
};

/// A mask whose parameters may have fewer heads than y. Contiguous groups of y's heads share a head; where a mask is asked with a
/// head h, h counts the mask's heads.
template <class Mask>
concept has_heads = requires(const Mask& mask) {
  { mask.heads() } -> std::convertible_to<index_t>;
};

/// A mask with decays per channel whose parameters say how many channels they have: as many as q and k.
template <class Mask>
concept has_channels = requires(const Mask& mask) {
  { mask.channels() } -> std::convertible_to<index_t>;
};

/// A mask or rule whose parameters besides the gaps may have fewer heads than y, as has_heads says for the gaps. The two numbers of
/// heads need not be equal.
template <class Mask>
concept has_own_heads = requires(const Mask& mask) {
  { mask.own_heads() } -> std::convertible_to<index_t>;
};

/// A mask whose parameters are tensors, which outputs must not overlap.
template <class Mask>
concept has_parameters = requires(const Mask& mask) {
  mask.parameters();
};

/// A mask that can name the parameter that gives the decay of a gap, for error messages.
template <class Mask>
concept names_parameters = requires(const Mask& mask, index_t n) {
  { mask.parameter_of(direction::forward, n, n, n) } -> std::convertible_to<std::string>;
};

/// A mask that turns the gradients of its gaps into the gradients of its parameters.
///
/// per_head:   mask.pull_back(h, f, g, to), with f, g the sums of the gradients of all gaps of head h, crossed forwards, backwards;
/// per_token:  mask.pull_back(b, h, first, count, f, g, to) for one segment; f[t], g[t] are those of gap first + t, 0 < t < count.
/// A GPU calls `gradient_of` instead: fixed_decay has the one for the sums of a head, selective_decay the one for a token. `to` has
/// the shape of the parameters. pull_back overwrites the entries of the head or segment.
template <class Mask, class Real>
concept pulls_back = requires(const Mask& mask, index_t n, double sum, const double* gaps, tensor_view<Real> to) {
  requires Mask::gaps == gap::per_head;
  mask.pull_back(n, sum, sum, to);
}
|| requires(const Mask& mask, index_t n, const double* gaps, tensor_view<Real> to) {
  requires Mask::gaps == gap::per_token;
  mask.pull_back(n, n, n, n, gaps, gaps, to);
};

/// The types in which masks and rules store log decays and their other parameters: float or double. Only log decays per channel may
/// also have 16 bits.
template <class T>
concept log_decay_number = std::same_as<T, float> || std::same_as<T, double>;

namespace detail {
inline namespace BILA_UNIT {

/// The number of heads of a mask's parameters; H, the heads of y, if the mask does not say.
template <class Mask>
index_t heads_of(const Mask& mask, index_t H) {
  if constexpr (has_heads<Mask>)
    return mask.heads();
  else
    return H;
}

/// The part of a mask or rule that has the gaps: its member `mask`, or the mask itself.
template <class Mask>
const auto& gaps_of(const Mask& mask) {
  if constexpr (weighs_keys<Mask> || leveled<Mask> || ruled<Mask> || reads_exclusively<Mask>)
    return mask.mask;
  else
    return mask;
}

/// Whether `heads` divides H, so that contiguous groups of y's heads share a head of the mask.
inline bool makes_groups(index_t heads, index_t H) { return heads == H || (heads > 0 && heads < H && H % heads == 0); }

template <class Mask>
error_message check_band(const Mask& mask, index_t B, index_t H) {
  if constexpr (banded<Mask>)
    for (index_t b = 0; b < B; ++b)
      for (index_t h = 0; h < heads_of(mask, H); ++h)
        if (const index_t reach = mask.reach(b, h); reach < 0)
          return message("mask.reach(b = ", b, ", h = ", h, ") = ", reach, ", it must be >= 0");
  return {};
}

template <class T>
error_message check_gates(const char* name, const tensor_view<const T>& x, index_t B, index_t H, index_t L, index_t width = 1) {
  if (x.extents != per_axis{B, x.heads(), L, width} || !makes_groups(x.heads(), H))
    return message(name, " has shape ", shape_in_words(x), ", it must be [", B, ", ", H, ", ", L, ", ", width,
                   "], or have heads that divide ", H);
  return check_view(name, x);
}

}  // namespace BILA_UNIT
}  // namespace detail

}  // namespace v0_1
}  // namespace bila
