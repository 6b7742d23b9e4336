// SPDX-License-Identifier: Apache-2.0
// Which masks a form can compute, decided at compile time. A mask's kind of memory says how sums over tokens are kept under this
// mask: in no state, in one state, or in several. A form has an engine for each kind that it can compute, and the entry point picks
// the engine. A pair of form and mask without an engine does not compile.
#pragma once

#include <bila/config.hpp>
#include <bila/mask/concepts.hpp>

#include <type_traits>
#include <utility>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// How sums over tokens are kept under a mask. mask/concepts.hpp has a concept for each kind.
enum class memory {
  pairs,               // in no state: every pair of tokens has its own weight
  gaps,                // in a state that decays at each gap
  weighed_gaps,        // the same, and keys have weights
  channels,            // in a state whose rows decay at each gap, each row in its own way
  exclusive_channels,  // the same, and a query does not read through the gap next to it
  levels,              // in a state for each level of a binary tree over the tokens
  delta,               // in a state that decays at each gap, and in which a token replaces a part of the value of its key
  channel_delta        // the same, in a state whose rows decay at each gap, each in its own way
};

/// The kind of memory of a mask or rule.
template <any_mask Mask>
consteval memory find_memory() {
  if constexpr (ruled<Mask>)
    return gapped<std::remove_cvref_t<decltype(std::declval<const Mask&>().mask)>> ? memory::delta : memory::channel_delta;
  else if constexpr (leveled<Mask>)
    return memory::levels;
  else if constexpr (reads_exclusively<Mask>)
    return memory::exclusive_channels;
  else if constexpr (weighs_keys<Mask>)
    return memory::weighed_gaps;
  else if constexpr (channelled<Mask>)
    return memory::channels;
  else
    return gapped<Mask> ? memory::gaps : memory::pairs;
}

template <any_mask Mask>
inline constexpr memory memory_of = find_memory<Mask>();

/// The engine that computes `Form` for a kind of memory. A specialisation has
///
///     static constexpr bool carries_states;  // whether initial and final states have a meaning
///     static Engine of(const Form& form);    // Engine has plan, splits, run and gradient(); for a two-sided sweep
///                                            // also plan_two_sided_sweep and halves
///
/// Several kinds of memory may share one engine. An engine without gradient() has no gradient. A form without a specialisation for
/// a kind refuses that kind.
template <class Form, memory Kind>
struct engine_of;

template <class Form, memory Kind>
concept has_engine = requires(const Form& form) {
  engine_of<Form, Kind>::of(form);
};

/// Whether the engine also computes the gradient.
template <class Form, memory Kind>
concept has_gradient = has_engine<Form, Kind> && requires(const Form& form) {
  engine_of<Form, Kind>::of(form).gradient();
};

/// Whether a type is a form at all.
template <class Form>
concept any = has_engine<Form, memory::pairs> || has_engine<Form, memory::gaps>;

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
