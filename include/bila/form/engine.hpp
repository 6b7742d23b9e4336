// SPDX-License-Identifier: Apache-2.0
// What a form can compute, said at compile time. A mask keeps the past in one kind of memory; a form has an engine for each kind
// that it can compute, and the entry point picks it. A pair without an engine does not compile.
#pragma once

#include <bila/config.hpp>
#include <bila/mask/concepts.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// How the past is kept. pairs: not at all, every pair has a weight of its own. gaps: in a state that decays from token to token.
enum class memory { pairs, gaps };

/// What a mask offers decides.
template <class Mask>
requires(pairwise<Mask> || gapped<Mask>) inline constexpr memory memory_of = gapped<Mask> ? memory::gaps : memory::pairs;

/// What computes `Form` for a kind of memory. A specialisation has
///
///     static constexpr bool carries_states;  // whether initial and final states have a meaning
///     static Engine of(const Form& form);    // with plan, splits, run and gradient(); for a two-sided sweep
///                                            // also plan_two_sided_sweep and halves
///
/// and several kinds may have one engine. No specialisation: the form refuses the kind.
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
