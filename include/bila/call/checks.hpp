// SPDX-License-Identifier: Apache-2.0
// The checks that all backends share. They read shapes and options, not the values in tensors.
#pragma once

#include <bila/call/inputs.hpp>
#include <bila/config.hpp>
#include <bila/error.hpp>
#include <bila/mask/concepts.hpp>
#include <bila/view/number.hpp>

#include <tuple>

namespace bila {
inline namespace v0_1 {

namespace detail {
inline namespace BILA_UNIT {

/// In cross attention the mask and the options must not depend on the order of tokens.
template <class T>
BILA_NOINLINE error_message check_cross(bool orders_tokens, bool has_gaps, const inputs<T>& in, const geometry& size) {
  const bool ordered_options = in.direction != direction::both || !is_exactly(in.diagonal, 1) || !in.offsets.empty();
  if (!is_cross(in, size) || (!orders_tokens && !ordered_options)) return {};  // a correct call allocates no message
  const error_message what = size.Lk == size.L ? error_message("key_lengths is given, so keys are not the queries' tokens")
                                               : message("k has length ", size.Lk, " but q has ", size.L);
  if (orders_tokens) return message(what, ": ", has_gaps ? "a mask with decay" : "a pairwise mask", " needs them equal");
  return message(what, ": direction, diagonal and offsets need them equal");
}

/// Checks the shapes of a mask's parameters, and its reach if it has one, for a y of B batch rows, H heads and L tokens.
template <class Mask>
BILA_NOINLINE error_message check_parameters(const Mask& mask, index_t B, index_t H, index_t L) {
  error_message wrong;
  if constexpr (checks_itself<Mask>) wrong = mask.validate(B, H, L);
  if (wrong.empty() && !makes_groups(heads_of(mask, H), H))
    return message("the mask has ", heads_of(mask, H), " heads, which do not divide the ", H, " heads of y");
  return wrong.empty() ? check_band(mask, B, H) : wrong;
}

/// Calls check_cross and check_parameters.
template <class Mask, class T>
error_message check_mask_shape(const Mask& mask, const inputs<T>& in, const geometry& size) {
  error_message wrong = check_cross(orders_tokens<Mask>, gapped<Mask>, in, size);
  return wrong.empty() ? check_parameters(mask, size.B, size.H, size.L) : wrong;
}

/// Checks the views of a mask's parameters, which a user's mask may not check itself, then that no output overlaps the parameters.
template <class Mask>
error_message check_gates_apart(named_tensors outputs, const Mask& mask) {
  error_message wrong;
  if constexpr (has_parameters<Mask>)
    std::apply(
        [&](const auto&... gates) {
          ((wrong.empty() ? void(wrong = check_view("a parameter of the mask", gates)) : void()), ...);
          if (!wrong.empty()) return;
          for (const named_tensor& out : outputs)
            if ((may_overlap(out.memory, footprint(gates)) || ...))
              wrong = message(out.name, " overlaps the gates of the mask in memory");
        },
        mask.parameters());
  return wrong;
}

/// The properties of a call on which the use of states depends: see check_state_use.
struct state_rules {
  bool form_carries, mask_has_gaps, norm_uses_row_sum;
  direction looks;           // the call's direction
  index_t decays = 1;        // log decays of a state: 1, or Dk for a mask with decays per channel
  bool weighs_keys = false;  // whether the mask gives keys a weight
};

/// Returns what is wrong with a form or a norm by itself; empty if nothing is.
template <class Policy>
error_message check_itself(const Policy& policy) {
  if constexpr (requires { policy.validate(); })
    return policy.validate();
  else
    return {};
}

/// A state needs a form that carries states, a mask with gaps, a call direction that uses the state, and z for a norm of row sums.
template <class T>
BILA_NOINLINE error_message check_state_use(const char* name, const state<T>& x, direction opposite, const state_rules& rules) {
  if (!x.given()) return {};
  if (!rules.form_carries) return message(name, " is given, but form::full carries no state: recurrent and chunkwise do");
  if (!rules.mask_has_gaps) return message(name, " is given, but a mask without gaps has no state");
  if (rules.looks == opposite) return message(name, " is given, but the direction of the call does not look there");
  if (x.log_scale.data != nullptr && !rules.weighs_keys)
    return message(name, ".log_scale is given, but only the states of mask::weighed_keys have a scale");
  if (x.log_decay.data != nullptr && x.log_decay.features() != rules.decays)
    return message(name, ".log_decay has ", x.log_decay.features(), " numbers per head, the mask needs ", rules.decays);
  if (rules.norm_uses_row_sum && x.S.data != nullptr && x.z.data == nullptr)
    return message(name, ".z is missing, and the norm uses the row sum");
  return {};
}

template <class T>
BILA_NOINLINE error_message check_states(const inputs<T>& in, const outputs<T>& out, const state_rules& rules) {
  for (const error_message& wrong : {
           check_state_use("initial_forward", in.initial_forward, direction::backward, rules),
           check_state_use("initial_backward", in.initial_backward, direction::forward, rules),
           check_state_use("final_forward", out.final_forward, direction::backward, rules),
           check_state_use("final_backward", out.final_backward, direction::forward, rules),
       })
    if (!wrong.empty()) return wrong;
  return {};
}

}  // namespace BILA_UNIT
}  // namespace detail

}  // namespace v0_1
}  // namespace bila
