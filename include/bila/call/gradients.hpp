// SPDX-License-Identifier: Apache-2.0
// The inputs and outputs of the gradient, and the checks of them that all backends share.
#pragma once

#include <bila/call/checks.hpp>

#include <cmath>
#include <limits>

namespace bila {
inline namespace v0_1 {

/// The outputs of the forward pass that the gradient reads: y and, if the norm uses it, the row sum. These take sizeof(T) Dv +
/// sizeof(real_of<T>) bytes per token and head. The gradient needs nothing else but the inputs.
template <class T>
struct saved {
  tensor_view<const T> y = {};                 // [B, H, L, Dv]
  tensor_view<const real_of<T>> row_sum = {};  // [B, H, L, 1]
};

/// The gradient of the loss with respect to the outputs of attend. Any strides are allowed: a broadcast gradient has strides of
/// zero. If the forward call computed only final states, y and saved::y are not given, and q is not read.
template <class T>
struct output_gradients {
  tensor_view<const T> y = {};                 // [B, H, L, Dv]
  state<const real_of<T>> final_forward = {};  // empty: the loss does not depend on this state
  state<const real_of<T>> final_backward = {};
};

/// The gradients of the loss with respect to the inputs of attend. Those whose view or pointer is null are not computed. The others
/// are overwritten.
template <class T>
struct gradients {
  tensor_view<T> q = {}, k = {}, v = {};      // shapes of inputs::q, k, v
  tensor_view<real_of<T>> log_decay = {};     // shape of the mask's log_decay; sums over the heads that share a gate
  tensor_view<real_of<T>> log_forward = {};   // [B, H, L, 1 or Dk] of the gap before each token; 0 at a segment's first token
  tensor_view<real_of<T>> log_backward = {};  // [B, H, L, 1 or Dk] of the same gaps, crossed backwards
  double* scale = nullptr;
  double* diagonal = nullptr;
  state<real_of<T>> initial_forward = {};  // log_decay, if given: for the gap between state and sequence
  state<real_of<T>> initial_backward = {};
  tensor_view<real_of<T>> weights = {};     // [B, H, L, L] of M_ij of a pairwise mask, 0 where query i does not
                                            // see key j; the caller sums it for masks with fewer parameters
  tensor_view<real_of<T>> log_weight = {};  // of mask::weighed_keys: shape of its log_weights
  tensor_view<real_of<T>> beta = {};        // of rule::delta with one beta for both directions
  tensor_view<real_of<T>> beta_forward = {}, beta_backward = {};      // of rule::delta with two betas
  tensor_view<real_of<T>> bonus = {};                                 // of mask::exclusive_read: [1, H, 1, Dk]
  tensor_view<real_of<T>> levels_forward = {}, levels_backward = {};  // of mask::log_linear: [B, H, L, levels]
};

namespace detail {
inline namespace BILA_UNIT {

/// The parameter that a mask or rule has besides its gaps.
enum class own_parameter { none, log_weight, beta, betas, levels, bonus };

/// A gradient with respect to an own_parameter. way: the direction of the parameter; forward if it serves both directions.
template <class Real>
struct own_gradient {
  const char* name;
  own_parameter of;
  direction way;
  const tensor_view<Real>& to;
};

template <class T>
std::array<own_gradient<real_of<T>>, 7> own_gradients(const gradients<T>& to) {
  constexpr direction forward = direction::forward, backward = direction::backward;
  return {{{"gradients.log_weight", own_parameter::log_weight, forward, to.log_weight},
           {"gradients.beta", own_parameter::beta, forward, to.beta},
           {"gradients.beta_forward", own_parameter::betas, forward, to.beta_forward},
           {"gradients.beta_backward", own_parameter::betas, backward, to.beta_backward},
           {"gradients.bonus", own_parameter::bonus, forward, to.bonus},
           {"gradients.levels_forward", own_parameter::levels, forward, to.levels_forward},
           {"gradients.levels_backward", own_parameter::levels, backward, to.levels_backward}}};
}

/// Checks that the mask has the parameters whose own_gradients are given, and checks the shapes of these gradients.
template <class T>
BILA_NOINLINE error_message check_own_gradients(const gradients<T>& to, own_parameter own, const per_axis& shape) {
  for (const auto& gradient : own_gradients(to)) {
    if (gradient.to.data == nullptr) continue;
    if (gradient.of != own) return message(gradient.name, " is given, but this mask has no parameter of that name");
    if (error_message wrong = check_extents(gradient.name, gradient.to, shape); !wrong.empty()) return wrong;
  }
  return {};
}

template <class Mask, class T>
inline constexpr bool has_log_decay = false;

template <gapped Mask, class T>
inline constexpr bool has_log_decay<Mask, T> = pulls_back<Mask, real_of<T>>&& has_parameters<Mask>;

/// Whether x is a normal number in Real, the type of the computation. Tasks flush denormal results to zero.
template <class Real>
bool keeps_digits(double x) {
  return std::abs(static_cast<Real>(x)) >= (std::numeric_limits<Real>::min)();
}

/// Whether the caller wants gradients of single gaps, and not only of the mask's parameters.
template <class T>
bool wants_gaps(const gradients<T>& to) {
  return to.log_forward.data != nullptr || to.log_backward.data != nullptr || to.initial_forward.log_decay.data != nullptr ||
         to.initial_backward.log_decay.data != nullptr;
}

/// The names and memory of all tensors that a gradient call writes.
template <class T>
std::array<named_tensor, 20> written_to(const gradients<T>& to) {
  return {{{"gradients.q", footprint(to.q)},
           {"gradients.k", footprint(to.k)},
           {"gradients.v", footprint(to.v)},
           {"gradients.log_decay", footprint(to.log_decay)},
           {"gradients.log_forward", footprint(to.log_forward)},
           {"gradients.log_backward", footprint(to.log_backward)},
           {"gradients.initial_forward.S", footprint(to.initial_forward.S, to.initial_forward.bytes())},
           {"gradients.initial_forward.z", footprint(to.initial_forward.z, to.initial_forward.bytes())},
           {"gradients.initial_forward.log_decay", footprint(to.initial_forward.log_decay)},
           {"gradients.initial_backward.S", footprint(to.initial_backward.S, to.initial_backward.bytes())},
           {"gradients.initial_backward.z", footprint(to.initial_backward.z, to.initial_backward.bytes())},
           {"gradients.initial_backward.log_decay", footprint(to.initial_backward.log_decay)},
           {"gradients.weights", footprint(to.weights)},
           {"gradients.log_weight", footprint(to.log_weight)},
           {"gradients.beta", footprint(to.beta)},
           {"gradients.beta_forward", footprint(to.beta_forward)},
           {"gradients.beta_backward", footprint(to.beta_backward)},
           {"gradients.bonus", footprint(to.bonus)},
           {"gradients.levels_forward", footprint(to.levels_forward)},
           {"gradients.levels_backward", footprint(to.levels_backward)}}};
}

/// Checks all tensors of a gradient call except the mask's: shapes, views, overlap. Reads no values.
template <class T>
BILA_NOINLINE error_message check_gradient_tensors(const state_rules& rules, const inputs<T>& in, const saved<T>& kept,
                                                   const output_gradients<T>& dy, const gradients<T>& to) {
  if (error_message wrong = validate(in, kept.y); !wrong.empty()) return wrong;
  const geometry size = geometry_of(in, kept.y);
  if (is_cross(in, size))
    for (const auto& [name, wanted] :
         {std::pair("diagonal", to.diagonal != nullptr), std::pair("log_forward", to.log_forward.data != nullptr),
          std::pair("log_backward", to.log_backward.data != nullptr)})
      if (wanted) return message("gradients.", name, " is given, but in cross attention no key is a query's own token");
  if (dy.y.extents != kept.y.extents) return message("dy has shape ", shape_in_words(dy.y), " but y has ", shape_in_words(kept.y));
  if (rules.norm_uses_row_sum && kept.row_sum.data == nullptr && size.B > 0 && size.H > 0 && size.L > 0)
    return message("row_sum is missing: the norm uses it, and attend writes it to outputs::row_sum");
  for (const auto& [name, wanted] : {std::pair("forward", to.initial_forward.log_scale.data != nullptr),
                                     std::pair("backward", to.initial_backward.log_scale.data != nullptr)})
    if (wanted) return message("gradients.initial_", name, ".log_scale is given, but its gradient is that of log_decay");
  if (to.scale != nullptr && !keeps_digits<real_of<T>>(in.scale))
    return message("scale = ", in.scale, ": its gradient needs N, of which y keeps nothing");
  const per_axis tokens{size.B, size.H, size.L, 1}, gaps{size.B, size.H, size.L, rules.decays};
  const index_t sequences = sequences_of(in, size);
  for (const error_message& words : {
           check_view("dy", dy.y),
           check_extents("row_sum", kept.row_sum, tokens),
           check_extents("gradients.q", to.q, in.q.extents),
           check_extents("gradients.k", to.k, in.k.extents),
           check_extents("gradients.v", to.v, in.v.extents),
           check_view("gradients.log_decay", to.log_decay),
           check_extents("gradients.log_forward", to.log_forward, gaps),
           check_extents("gradients.log_backward", to.log_backward, gaps),
           check_extents("gradients.weights", to.weights, {size.B, size.H, size.L, size.L}),
           check_state_storage("final_forward's gradient", dy.final_forward),
           check_state_storage("final_backward's gradient", dy.final_backward),
           check_state_storage("gradients.initial_forward", to.initial_forward),
           check_state_storage("gradients.initial_backward", to.initial_backward),
           check_state("final_forward's gradient", dy.final_forward, sequences, size),
           check_state("final_backward's gradient", dy.final_backward, sequences, size),
           check_state("gradients.initial_forward", to.initial_forward, sequences, size),
           check_state("gradients.initial_backward", to.initial_backward, sequences, size),
           check_states(in, outputs<T>{}, rules),
           check_state_use("the gradient of final_forward", dy.final_forward, direction::backward, rules),
           check_state_use("the gradient of final_backward", dy.final_backward, direction::forward, rules),
           check_state_use("gradients.initial_forward", to.initial_forward, direction::backward, rules),
           check_state_use("gradients.initial_backward", to.initial_backward, direction::forward, rules),
       })
    if (!words.empty()) return words;
  const named_tensor read[] = {{"y", footprint(kept.y)}, {"row_sum", footprint(kept.row_sum)}, {"dy", footprint(dy.y)}};
  const auto &f = dy.final_forward, &b = dy.final_backward;
  const named_tensor final[] = {{"the gradient of final_forward.S", footprint(f.S, f.bytes()), "gradients.initial_forward.S"},
                                {"the gradient of final_forward.z", footprint(f.z, f.bytes()), "gradients.initial_forward.z"},
                                {"the gradient of final_backward.S", footprint(b.S, b.bytes()), "gradients.initial_backward.S"},
                                {"the gradient of final_backward.z", footprint(b.z, b.bytes()), "gradients.initial_backward.z"}};
  const auto written = written_to(to);
  const auto inputs_read = read_by(in);
  const auto initial = initial_states_of(in);
  error_message wrong = check_overlaps(written, inputs_read);
  for (const named_tensors others : {named_tensors(read), named_tensors(initial), named_tensors(final)})
    if (wrong.empty()) wrong = check_apart(written, others);
  return wrong;
}

/// Checks that the wanted gradients exist for the mask. log_decay: the shape of the mask's parameter; null if the mask has none.
template <class T>
BILA_NOINLINE error_message check_wanted(const gradients<T>& to, bool is_gapped, const per_axis* log_decay) {
  if (to.log_decay.data != nullptr && log_decay == nullptr)
    return "gradients.log_decay is given, but this mask has no parameter of that name: ask for log_forward and log_backward";
  if (to.log_decay.data != nullptr && to.log_decay.extents != *log_decay)
    return message("gradients.log_decay has shape ", shape_in_words(to.log_decay), ", it must be ", numbers_in_words(*log_decay));
  if (is_gapped && to.weights.data != nullptr)
    return "gradients.weights is given, but this mask is made of gaps: ask for log_forward and log_backward";
  if (!is_gapped && (to.log_forward.data != nullptr || to.log_backward.data != nullptr))
    return "gradients.log_forward or log_backward is given, but this mask has no gaps";
  return {};
}

/// Checks the mask and its wanted gradients, except for the values of the mask.
template <class Mask, class T>
BILA_NOINLINE error_message check_gradient_mask(const Mask& mask, const inputs<T>& in, const gradients<T>& to,
                                                const geometry& size) {
  error_message wrong = check_mask_shape(mask, in, size);
  if constexpr (has_log_decay<Mask, T>) {
    const per_axis shape = std::get<0>(mask.parameters()).extents;
    if (wrong.empty()) wrong = check_wanted(to, gapped<Mask>, &shape);
  } else {
    if (wrong.empty()) wrong = check_wanted(to, gapped<Mask>, nullptr);
  }
  if (wrong.empty()) wrong = check_own_gradients(to, own_parameter::none, {});
  return wrong.empty() ? check_gates_apart(written_to(to), mask) : wrong;
}

}  // namespace BILA_UNIT
}  // namespace detail

}  // namespace v0_1
}  // namespace bila
