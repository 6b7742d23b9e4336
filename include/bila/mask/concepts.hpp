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

/// A mask whose parameters may have fewer heads than y. Contiguous groups of y's heads share a head; `h` counts the mask's heads.
template <class Mask>
concept has_heads = requires(const Mask& mask) {
  { mask.heads() } -> std::convertible_to<index_t>;
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
/// per_head:   mask.pull_back(h, f, g, to), with f and g summed over all gaps of head h that are crossed forwards and backwards;
/// per_token:  mask.pull_back(b, h, first, count, f, g, to) for one segment; f[t], g[t] belong to gap first + t, 0 < t < count.
/// A GPU calls `gradient_of` instead: see fixed_decay (sums of a head) and selective_decay (one token). `to` has the shape of the
/// parameters. pull_back overwrites the entries of the head or segment.
template <class Mask, class Real>
concept pulls_back = requires(const Mask& mask, index_t n, double sum, const double* gaps, tensor_view<Real> to) {
  requires Mask::gaps == gap::per_head;
  mask.pull_back(n, sum, sum, to);
}
|| requires(const Mask& mask, index_t n, const double* gaps, tensor_view<Real> to) {
  requires Mask::gaps == gap::per_token;
  mask.pull_back(n, n, n, n, gaps, gaps, to);
};

/// The types of log decays: float or double. Sixteen bits are too few to tell a decay of 0.999 from 1.
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

/// Whether `heads` divides H, so that contiguous groups of y's heads share a head of the mask.
inline bool makes_groups(index_t heads, index_t H) { return heads == H || (heads > 0 && heads < H && H % heads == 0); }

template <class T>
error_message check_gates(const char* name, const tensor_view<const T>& x, index_t B, index_t H, index_t L) {
  if (x.extents != per_axis{B, x.heads(), L, 1} || !makes_groups(x.heads(), H))
    return message(name, " has shape ", shape_in_words(x), ", it must be [", B, ", ", H, ", ", L,
                   ", 1], or have heads that divide ", H);
  return check_view(name, x);
}

}  // namespace BILA_UNIT
}  // namespace detail

}  // namespace v0_1
}  // namespace bila
