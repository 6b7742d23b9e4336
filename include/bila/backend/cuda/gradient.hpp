// SPDX-License-Identifier: Apache-2.0
// The gradient on a GPU. dN_i and dZ_i are the gradients of N_i and Z_i (MATH.md 4.1). The gradient is three masked products
// (MATH.md 4.3):
//
//     dq = op([dN, dZ], [v, 1], k; f, b)    dk = op([v, 1], [dN, dZ], q; b, f)    dv = op(k, q, dN; b, f)
//
// The keys of the product for dk are the values of the product for dv, and vice versa. Where registers suffice, one kernel computes
// dk and dv from the same tiles and states: see computes_dual in plan.hpp.
#pragma once

#include <bila/backend/cuda/attend.hpp>
#include <bila/backend/cuda/gradient_plan.hpp>
#include <bila/call/gradients.hpp>

namespace bila {
inline namespace v0_1 {

namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class Tiles, class Form, class Mask, class Norm, class T>
error_message check_gradient(const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const saved<T>& kept,
                             const output_gradients<T>& dy, const gradients<T>& to) {
  const bila::detail::state_rules rules{form::engine_of<Form, form::memory_of<Mask>>::carries_states, gapped<Mask>,
                                        Norm::uses_row_sum, in.direction};
  const geometry size = geometry_of(in, kept.y);
  error_message wrong = bila::detail::check_itself(form);
  if (wrong.empty()) wrong = bila::detail::check_itself(norm);
  if (wrong.empty() && !in.key_lengths.empty()) return "key_lengths is given, but on a GPU cross attention has no gradient";
  if (wrong.empty() && size.L != size.Lk)
    return message("k has length ", size.Lk, " but q has ", size.L, ": on a GPU the gradient needs them equal");
  if (wrong.empty()) wrong = bila::detail::check_gradient_tensors(rules, in, kept, dy, to);
  if (wrong.empty()) wrong = bila::detail::check_gradient_mask(mask, in, to, size);
  if (wrong.empty()) wrong = bila::detail::check_state_storage("initial_forward", in.initial_forward);
  if (wrong.empty()) wrong = bila::detail::check_state_storage("initial_backward", in.initial_backward);
  if (wrong.empty()) wrong = check_sizes<Tiles, Form>(size);
  if (!wrong.empty()) return wrong;
  if (to.log_decay.data != nullptr && !pulls_back_tokens<Mask> && !pulls_back_heads<Mask>)
    return "gradients.log_decay is given, but this mask has no gradient_of() for a kernel: ask for log_forward and log_backward";
  return {};
}

/// Launches the kernels of a gradient's plan, step by step.
template <class Tiles, class Mask, class Norm, class T>
struct gradient_run {
  launcher& launch;
  const gradient_plan<T>& plan;
  std::byte* workspace;
  const Mask& mask;
  const Norm& norm;
  const inputs<T>& in;
  const saved<T>& kept;
  const output_gradients<T>& dy;
  const gradients<T>& to;

  const index_t H = plan.size.H;
  const sequences s = plan.rows.in(workspace);
  const gap_table<exponent<T>> gaps = plan.gaps.in(workspace), swapped = plan.swapped.in(workspace);
  const state_table<T> states = plan.states.in(workspace), adjoints = plan.adjoints.in(workspace);
  const operand<T> q = operand_of(in.q, H), k = operand_of(in.k, H), v = operand_of(in.v, H);
  const operand<T> dN = operand_of(tensor_view<const T>(plan.dN_in(workspace)), H);
  const bool forward = in.direction != direction::backward, backward = in.direction != direction::forward;

  void operator()() const {
    if (plan.nothing) return clear();
    if (plan.rows.ragged) send_table(launch, s, plan.rows.table.in(workspace), segments_of(in, plan.size));
    through_norm();
    if (plan.weighted) launch_gap_weights(launch, plan.gap_weights, s, H, plan.rows, mask, borders_of(in), gaps, swapped);
    with_width<Tiles>(plan.width, [&](auto D) {
      if (plan.has_chunk_states) sum_up_states<D.value>();
      products<D.value>();
    });
    through_border(to.initial_forward, in.initial_forward.log_decay);
    through_border(to.initial_backward, in.initial_backward.log_decay);
    if (plan.of_gaps) gates();
  }

 private:
  /// Writes zeros: y has no batch rows or no heads, so the loss does not depend on the inputs.
  void clear() const {
    double* const sums[] = {to.scale, to.diagonal};
    for (double* const sum : sums)
      if (sum != nullptr) launch("add_up", add_up<>, grid{1, 32}, static_cast<const float*>(nullptr), index_t{0}, sum);
    const tensor_view<T> unread[] = {to.q, to.k, to.v};
    for (const tensor_view<T>& x : unread)
      if (x.data != nullptr) launch("clear_view", clear_view<T>, grid_of_tasks(numbers_of(x)), x);
  }

  /// Computes dN and dZ, and the gradients of the scale and the diagonal.
  void through_norm() const {
    float *const parts = plan.parts.in(workspace), *const numerators = plan.numerators.in(workspace),
                 *const dZ = plan.dZ.in(workspace);
    const norm_call<T> call{s,
                            H,
                            kept.y,
                            dy.y,
                            has_fast_rows(kept.y) && has_fast_rows(dy.y) && plan.size.Dv % 8 == 0,
                            kept.row_sum,
                            static_cast<float>(in.scale),
                            plan.dN_in(workspace),
                            dZ,
                            to.scale != nullptr ? parts : nullptr,
                            numerators};
    launch("pass_norm", pass_norm<T, Norm>, plan.pass_norm, call, norm, plan.entries);
    if (to.scale != nullptr) launch("add_up", add_up<>, grid{1, 1024}, parts, plan.entries, to.scale);
    if (to.diagonal == nullptr) return;
    launch("weigh_own", weigh_own<T>, grid_of_tasks(plan.entries * lanes_per_token), s, H, q, k, v, dy.y, numerators, dZ, parts,
           plan.entries);
    launch("add_up", add_up<>, grid{1, 1024}, parts, plan.entries, to.diagonal);
  }

  /// Computes the states that enter chunks, and the adjoints of states.
  template <int D>
  void sum_up_states() const {
    const index_t chunk = plan.chosen.chunk;
    const bool global = plan.chosen.algorithm == algorithm::global_state;
    const auto sum_up = [&](const chunk_states_call<T>& call) {
      launch("chunk_states", chunk_states<T, D, Tiles>, plan.chunk_states, call, plan.chunk_states.blocks);
    };
    sum_up({s, H, chunk, k, v, gaps, nullptr, states, global});
    sum_up({s, H, chunk, q, dN, swapped, plan.dZ.in(workspace), adjoints, global});
    const scan_call<T> scan{s, H, chunk, states, {end_of<Norm>(in.initial_forward), end_of<Norm>(in.initial_backward)}, {}, global};
    launch_scan<D>(launch, plan.scan_states, scan, plan.scan_tasks, plan.rows.longest);
    // The adjoint of the backward state runs forward: it starts at the first token, with the gradient of the final backward
    // state.
    const scan_call<T> adjoint_scan{s,
                                    H,
                                    chunk,
                                    adjoints,
                                    {end_of<Norm>(dy.final_backward), end_of<Norm>(dy.final_forward)},
                                    {end_of<Norm>(to.initial_backward), end_of<Norm>(to.initial_forward)},
                                    global};
    launch_scan<D>(launch, plan.scan_states, adjoint_scan, plan.scan_tasks, plan.rows.longest);
  }

  /// Computes dq, dk and dv.
  template <int D>
  void products() const {
    const float* const dZ = plan.dZ.in(workspace);
    const bool biased = Norm::uses_row_sum;
    const row_output<T> to_q{to.q, has_fast_rows(to.q), plan.heads_in(workspace, plan.heads_q, to.q)},
        to_k{to.k, has_fast_rows(to.k), plan.heads_in(workspace, plan.heads_k, to.k)},
        to_v{to.v, has_fast_rows(to.v), plan.heads_in(workspace, plan.heads_v, to.v)};
    if (to.q.data != nullptr || plan.of_gaps) {
      const backward_terms<T> terms{biased, dZ, nullptr, q, plan.dots_q.in(workspace), plan.entries};
      compute<D>(product_of(dN, v, k, false), epilogue::store<T>{terms, to_q}, plan.output, false, true);
      complete(to_q);
    }
    const backward_terms<T> terms{biased, nullptr, dZ, k, plan.dots_k.in(workspace), plan.entries};
    if constexpr (computes_dual<T, D, Tiles>) {
      if (to.k.data == nullptr && to.v.data == nullptr && !plan.of_gaps) return;
      compute<D>(product_of(v, dN, q, true), epilogue::dual<T>{terms, to_k, to_v}, plan.dual_output, true, true);
      complete(to_k);
      complete(to_v);
    } else {
      if (to.k.data != nullptr || plan.of_gaps) {
        compute<D>(product_of(v, dN, q, true), epilogue::store<T>{terms, to_k}, plan.output, true, true);
        complete(to_k);
      }
      if (to.v.data != nullptr) {
        compute<D>(product_of(k, q, dN, true), epilogue::store<T>{{false, nullptr, nullptr, {}, nullptr, plan.entries}, to_v},
                   plan.output, true, false);
        complete(to_v);
      }
    }
  }

  /// swap: the rows are the forward pass's keys, so each gap is crossed in the opposite direction.
  product_call<T> product_of(const operand<T>& rows, const operand<T>& keys, const operand<T>& values, bool swap) const {
    return {s,
            H,
            plan.chosen.chunk,
            -1,
            rows,
            keys,
            values,
            swap ? swapped : gaps,
            swap ? backward : forward,
            swap ? forward : backward,
            static_cast<float>(in.diagonal)};
  }

  template <int D, class Epilogue>
  void compute(const product_call<T>& call, const Epilogue& ending, const grid& size, bool swap, bool transposed) const {
    const state_table<T>& entering = swap ? adjoints : states;
    if (plan.chosen.algorithm == algorithm::global_state)
      return launch_global_state<D, Tiles>(launch, size, {call, entering, s, plan.chosen.chunk, transposed}, ending);
    if (plan.chosen.algorithm == algorithm::full) return launch_full_attention<D, Tiles>(launch, size, call, ending);
    std::byte *const right = plan.right_states.in(workspace), *const left = plan.left_states.in(workspace);
    std::byte* const adjoint_right = plan.of_gaps ? plan.adjoint_right_states.in(workspace) : right;
    const bool wants_dots = ending.terms.dots != nullptr;
    launch_chunk_output<D, Tiles>(launch, size,
                                  {{call, entering, transposed, swap ? adjoint_right : right},
                                   wants_dots && !swap ? left : nullptr,
                                   right,
                                   left,
                                   wants_dots && swap ? plan.cross_tile_terms.in(workspace) : nullptr},
                                  ending);
  }

  /// Adds up the heads of y that share a head of an input, and clears padding.
  void complete(const row_output<T>& x) const {
    const grid size = grid_of_tasks(numbers_of(x.out));
    if (x.scratch.data != nullptr)
      launch("add_heads", add_heads<T>, size, s, tensor_view<const float>(x.scratch), x.out, !in.lengths.empty());
    else if (x.out.data != nullptr && !in.lengths.empty())
      launch("clear_padding", clear_padding<T>, size, s, x.out);
  }

  /// Multiplies an initial state's gradient by the decay of the gap that the state crosses.
  void through_border(const state<float>& x, const tensor_view<const float>& log_decay) const {
    const tensor_view<float> both[] = {x.S, Norm::uses_row_sum ? x.z : tensor_view<float>{}};
    for (const tensor_view<float>& part : both)
      if (part.data != nullptr && log_decay.data != nullptr)
        launch("decay_state", decay_state<>, grid_of_tasks(numbers_of(part)), s, part, log_decay);
  }

  /// Computes the gradients of gaps from the rows' dot products, and the gradients of the mask's parameters from those of gaps.
  void gates() const {
    const gap_gradients at_gaps = plan.gap_gradients_in(workspace);
    const cross_tile_terms<exponent<T>> cross{plan.cross_tile_terms.in(workspace), plan.parts_per_tile, gaps, swapped};
    launch("gate_gradient_scan", gate_gradient_scan<exponent<T>>, plan.gate_gradient_scan, s, H, plan.stored.kv_tile,
           row_dots{plan.dots_q.in(workspace), plan.dots_k.in(workspace), plan.stored.value_tiles, plan.entries}, cross, forward,
           backward, at_gaps, plan.tiles);
    const tensor_view<float> at_ends[] = {to.initial_forward.log_decay, to.initial_backward.log_decay};
    for (const tensor_view<float>& x : at_ends)  // zero for states that are not given, and for empty sequences
      if (x.data != nullptr) launch("clear_view", clear_view<float>, grid_of_tasks(x.batches() * x.heads()), x);
    launch("write_gap_gradients", write_gap_gradients<Mask>, grid_of_tasks(plan.entries), s, H, mask, at_gaps, borders_of(in),
           to.log_forward, to.log_backward, to.log_decay, at_border(in.initial_forward, to.initial_forward),
           at_border(in.initial_backward, to.initial_backward), plan.entries);
    if constexpr (pulls_back_heads<Mask>)
      if (to.log_decay.data != nullptr) {
        double* const sums = plan.gap_sums.in(workspace);
        launch("sum_gap_gradients", sum_gap_gradients<Mask>, plan.sum_gap_gradients, s, H, mask, at_gaps, sums,
               plan.sum_gap_gradients.blocks);
        launch("write_head_gradients", write_head_gradients<Mask>, grid{H, 256}, s, H, mask, static_cast<const double*>(sums),
               to.log_decay);
      }
    if (in.lengths.empty()) return;
    const tensor_view<float> per_token[] = {to.log_forward, to.log_backward,
                                            pulls_back_tokens<Mask> ? to.log_decay : tensor_view<float>{}};
    for (const tensor_view<float>& x : per_token)
      if (x.data != nullptr) launch("clear_padding", clear_padding<float>, grid_of_tasks(plan.size.B * H * plan.size.L), s, x);
  }

  static tensor_view<float> at_border(const state<const float>& enters, const state<float>& x) {
    const end_state<const float> read = end_of<Norm>(enters);
    return read.S.data != nullptr || read.z.data != nullptr ? x.log_decay : tensor_view<float>{};
  }
};

template <class Tiles, class Form, class Mask, class Norm, class T>
void launch_gradient(launcher& launch, const gradient_plan<T>& plan, std::byte* workspace, const Form&, const Mask& mask,
                     const Norm& norm, const inputs<T>& in, const saved<T>& kept, const output_gradients<T>& dy,
                     const gradients<T>& to) {
  gradient_run<Tiles, Mask, Norm, T>{launch, plan, workspace, mask, norm, in, kept, dy, to}();
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail

}  // namespace v0_1
}  // namespace bila
