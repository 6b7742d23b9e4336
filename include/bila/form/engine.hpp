// SPDX-License-Identifier: Apache-2.0
// Which masks a form can compute, decided at compile time. A mask keeps the past in one kind of memory. A form has an engine for
// each kind that it can compute, and the entry point picks the engine. A pair of form and mask without an engine does not compile.
#pragma once

#include <bila/config.hpp>
#include <bila/mask/concepts.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// How a mask keeps the past. pairs: not at all, every pair of tokens has its own weight. gaps: in a state that decays at each gap.
enum class memory { pairs, gaps };

/// The kind of memory of a mask: gaps if the mask is gapped, else pairs.
template <class Mask>
requires(pairwise<Mask> || gapped<Mask>) inline constexpr memory memory_of = gapped<Mask> ? memory::gaps : memory::pairs;

/// The engine that computes `Form` for a kind of memory. A specialisation has
///
///     static constexpr bool carries_states;  // whether initial and final states have a meaning
///     static Engine of(const Form& form);    // Engine has plan, splits, run and gradient(); for a two-sided sweep
///                                            // also plan_two_sided_sweep and halves
///
/// Several kinds of memory may share one engine. A form without a specialisation for a kind refuses that kind.
template <class Form, memory Kind>
struct engine_of;

template <class Form, memory Kind>
concept has_engine = requires(const Form& form) {
  engine_of<Form, Kind>::of(form);
};

/// Whether a type is a form at all.
template <class Form>
concept any = has_engine<Form, memory::pairs> || has_engine<Form, memory::gaps>;

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
