// SPDX-License-Identifier: Apache-2.0
// attend on a GPU: the checks of a call, its plan, and the launches of its kernels.
#pragma once

#include <bila/backend/cuda/launch_kernels.hpp>
#include <bila/call/checks.hpp>
#include <bila/form/engine.hpp>

namespace bila {
inline namespace v0_1 {

namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
bool has_states(const inputs<T>& in, const outputs<T>& out) {
  return in.initial_forward.given() || in.initial_backward.given() || out.final_forward.given() || out.final_backward.given();
}

/// Checks that kernels exist for the head sizes, and that the number of tokens overflows no byte count or position.
template <class Tiles, class Form>
error_message check_sizes(const geometry& size) {
  const index_t L = (std::max)({size.L, size.Lk, index_t{1}});
  if (static_cast<double>(size.B) * static_cast<double>(size.H) * static_cast<double>(L) > 0x1p40)
    return message("y has ", size.B, " x ", size.H, " heads of up to ", L, " tokens, a GPU takes up to 2^40 tokens in all");
  if (std::is_same_v<Form, form::full> && L >= index_t{1} << 30)
    return message("form::full is given ", L, " tokens, on a GPU it takes fewer than 2^30");
  const auto check_width = [](const char* name, index_t width) {
    return width >= 1 && width <= Tiles::widest
               ? error_message()
               : message(name, " has width ", width, ", it must be in 1..", Tiles::widest, " on a GPU");
  };
  error_message wrong = check_width("q", size.Dk);
  return wrong.empty() ? check_width("v", size.Dv) : wrong;
}

inline error_message check_workspace(const on& backend, std::size_t needed) {
  if (needed == 0 || (backend.workspace.data() != nullptr && backend.workspace.size() >= needed)) return {};
  return message("cuda::on.workspace has ", backend.workspace.data() == nullptr ? 0 : backend.workspace.size(),
                 " bytes, this call needs ", needed);
}

/// Checks everything about a call except the numbers in its tensors, which only the device can read.
template <class Tiles, class Form, class Mask, class Norm, class T>
error_message check_call(const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const outputs<T>& out) {
  const bila::detail::state_rules rules{form::engine_of<Form, form::memory_of<Mask>>::carries_states, gapped<Mask>,
                                        Norm::uses_row_sum, in.direction};
  error_message wrong = bila::detail::check_itself(form);
  if (wrong.empty()) wrong = bila::detail::check_itself(norm);
  if (only_states(out)) return "y is missing: on a GPU there is no call for states alone";
  if (wrong.empty()) wrong = validate(in, out);
  if (wrong.empty()) wrong = bila::detail::check_states(in, out, rules);
  if (wrong.empty() && out.add && Norm::uses_row_sum) return "outputs.add is set, but the norm divides each row by its own sum";
  if (wrong.empty()) wrong = bila::detail::check_state_storage("initial_forward", in.initial_forward);
  if (wrong.empty()) wrong = bila::detail::check_state_storage("initial_backward", in.initial_backward);
  if (wrong.empty()) wrong = bila::detail::check_state_storage("final_forward", out.final_forward);
  if (wrong.empty()) wrong = bila::detail::check_state_storage("final_backward", out.final_backward);
  const geometry size = geometry_of(in, out.y);
  if (wrong.empty()) wrong = bila::detail::check_mask_shape(mask, in, size);
  if (wrong.empty()) wrong = bila::detail::check_gates_apart(bila::detail::written_to(out), mask);
  if (wrong.empty() && !in.key_lengths.empty()) return "key_lengths is given, but a GPU's cross attention sees every key";
  if (wrong.empty() && size.Lk != size.L && has_states(in, out))
    return message("k has length ", size.Lk, " but q has ", size.L, ": on a GPU states need them equal");
  return wrong.empty() ? check_sizes<Tiles, Form>(size) : wrong;
}

/// What attend will do, worked out on the host.
template <class T>
struct attend_plan {
  geometry size;
  bool nothing = false;  // whether there is nothing to compute
  choice chosen{};
  sequence_plan rows, keys;       // sequences of the queries, of the keys; they differ in cross attention only
  bool weighted = false;          // whether gap weights are computed
  bool has_chunk_states = false;  // whether chunk_states and scan_states run before the rows are written

  // Arrays in the workspace.
  region<float> partial_rows;  // rows of the first recurrent scan
  region<float> initial_z[2];  // copies of the initial z, which a final z may overwrite
  region<double> decays;
  gap_plan<T> gaps;
  state_plan<T> states;
  region<std::byte> right_states;
  region<T> result;       // (B, H, L, Dv), the result before add_result adds it to y
  std::size_t bytes = 0;  // size of the workspace that the caller must bring

  // Grids of the kernels. output: that of the kernel that writes rows (recurrent_scan, chunk_output, read_global_state or
  // full_attention).
  grid gap_weights, chunk_states, scan_states, output;
  index_t scan_tasks = 0;
};

template <class T>
void plan_recurrent(attend_plan<T>& plan, const inputs<T>& in, bool sums_rows, kernel::arena& counted) {
  const auto& [B, H, L, Lk, Dk, Dv] = plan.size;
  const index_t sequences = plan.rows.all.count;
  plan.partial_rows = reserve<float>(counted, B * H * L * (Dv + 1), in.direction == direction::both);
  plan.initial_z[0] = reserve<float>(counted, sequences * H * Dk, sums_rows && in.initial_forward.z.data != nullptr);
  plan.initial_z[1] = reserve<float>(counted, sequences * H * Dk, sums_rows && in.initial_backward.z.data != nullptr);
  plan.decays = reserve<double>(counted, plan.rows.entries(H), plan.weighted);
  plan.output = {sequences * H * recurrent_value_tiles(Dv), recurrent_threads};
}

template <class Tiles, class Epilogue, class T>
void plan_products(attend_plan<T>& plan, kernel::arena& counted) {
  const index_t H = plan.size.H, width = (std::max)(plan.size.Dk, plan.size.Dv), chunk = plan.chosen.chunk;
  plan.gaps = plan_gaps<T>(plan.rows.entries(H), counted, plan.weighted);
  if (plan.weighted) plan.gap_weights = grid_of_gap_weights(plan.rows, H);
  if (plan.has_chunk_states) plan.states = plan_states<T>(plan.keys.units(chunk) * H, padded_width<Tiles>(width), counted, true);
  if (plan.chosen.algorithm == algorithm::chunkwise) {
    const stored_plan stored = plan_stored<Tiles, T, Epilogue>(width);
    plan.right_states = reserve<std::byte>(counted, plan.rows.units(stored.kv_tile) * H * stored.value_tiles * stored.bytes);
  }
  with_width<Tiles>(width, [&](auto D) {
    plan.output = grid_of_rows<T, D.value, Tiles, Epilogue>(plan.rows, H, plan.chosen);
    if (!plan.has_chunk_states) return;
    plan.chunk_states = grid_of_chunk_states<T, D.value, Tiles>(plan.keys, H, chunk);
    plan.scan_tasks = tasks_of_scan<D.value>(plan.keys, H, plan.chosen.algorithm == algorithm::global_state);
    plan.scan_states = grid_of_scan(plan.scan_tasks);
  });
}

template <class Tiles, class Form, class Mask, class Norm, class T>
attend_plan<T> plan_attend(const Form& form, const Mask&, const Norm&, const inputs<T>& in, const outputs<T>& out) {
  attend_plan<T> plan;
  const geometry size = plan.size = geometry_of(in, out.y);
  const bool final = out.final_forward.given() || out.final_backward.given();
  plan.nothing = size.B == 0 || size.H == 0 || (size.L == 0 && !final);
  if (plan.nothing) return plan;
  kernel::arena counted;
  plan.rows = plan.keys = plan_sequences(in, size, counted);
  if (size.Lk != size.L) plan.keys.all.L = plan.keys.longest = size.Lk;
  const demand of = demand_of<Mask>(in, size, plan.rows.longest, has_states(in, out), false);
  plan.chosen = choose<Tiles>(form, of);
  if (size.Lk != size.L && size.Lk == 0) plan.chosen = {algorithm::full, 0};  // no keys, so no state
  plan.weighted = Mask::gaps != gap::none || borders_of(in).given() || plan.chosen.algorithm == algorithm::chunkwise;
  plan.has_chunk_states = needs_chunk_states(plan.chosen, of);
  if (plan.chosen.algorithm == algorithm::recurrent)
    plan_recurrent(plan, in, Norm::uses_row_sum, counted);
  else
    plan_products<Tiles, epilogue::normalise<Norm, T>>(plan, counted);
  plan.result = reserve<T>(counted, numbers_of(out.y), out.add);
  plan.bytes = bytes_for(counted);
  return plan;
}

/// Launches the scan of one direction of the recurrent form.
template <int D, class Mask, class Norm, class T>
void launch_recurrent_scan(launcher& launch, const attend_plan<T>& plan, std::byte* workspace, const Mask& mask, const Norm& norm,
                           const inputs<T>& in, const outputs<T>& out, bool forward) {
  const index_t H = plan.size.H;
  const sequences s = plan.rows.in(workspace);
  const bool both = in.direction == direction::both;
  double* const decays = plan.decays.in(workspace);
  recurrent_scan_call<T> call{s,
                              H,
                              operand_of(in.q, H),
                              operand_of(in.k, H),
                              operand_of(in.v, H),
                              decays,
                              end_of<Norm>(forward ? in.initial_forward : in.initial_backward),
                              end_of<Norm>(forward ? out.final_forward : out.final_backward),
                              plan.partial_rows.in(workspace),
                              forward,
                              both && forward,
                              !both || forward,
                              static_cast<float>(in.diagonal),
                              static_cast<float>(in.scale),
                              out.y,
                              Norm::uses_row_sum ? out.row_sum : tensor_view<float>{}};
  if (float* const copy = plan.initial_z[forward ? 0 : 1].in(workspace); copy != nullptr) {
    launch("gather_view", gather_view<>, grid_of_tasks(s.count * H * plan.size.Dk), call.initial.z, copy);
    call.initial.z = bhld<const float>(copy, s.count, H, plan.size.Dk, 1);
  }
  if (decays != nullptr) {
    const index_t entries = plan.rows.entries(H);
    launch("write_decays", write_decays<Mask>, grid_of_tasks(entries), s, H, mask, borders_of(in), forward, decays, entries);
  }
  launch("recurrent_scan", recurrent_scan<T, D, Norm>, plan.output, call, norm, recurrent_value_tiles(plan.size.Dv),
         plan.output.blocks);
}

/// Launches the sums of chunks and the scan over them.
template <class Tiles, int D, class Norm, class T>
void launch_states(launcher& launch, const attend_plan<T>& plan, std::byte* workspace, const inputs<T>& in, const outputs<T>& out) {
  const index_t H = plan.size.H, chunk = plan.chosen.chunk;
  const bool global = plan.chosen.algorithm == algorithm::global_state;
  const sequences keys = plan.keys.in(workspace);
  const state_table<T> states = plan.states.in(workspace);
  const chunk_states_call<T> call{keys,    H,      chunk, operand_of(in.k, H), operand_of(in.v, H), plan.gaps.in(workspace),
                                  nullptr, states, global};
  launch("chunk_states", chunk_states<T, D, Tiles>, plan.chunk_states, call, plan.chunk_states.blocks);
  const scan_call<T> scan{keys,
                          H,
                          chunk,
                          states,
                          {end_of<Norm>(in.initial_forward), end_of<Norm>(in.initial_backward)},
                          {end_of<Norm>(out.final_forward), end_of<Norm>(out.final_backward)},
                          global};
  launch_scan<D>(launch, plan.scan_states, scan, plan.scan_tasks, plan.keys.longest);
}

/// Launches the kernels of the states, if there are any, then the kernel that writes the rows.
template <class Tiles, int D, class Norm, class T>
void launch_products(launcher& launch, const attend_plan<T>& plan, std::byte* workspace, const Norm& norm, const inputs<T>& in,
                     const outputs<T>& out) {
  const index_t H = plan.size.H, chunk = plan.chosen.chunk;
  if (plan.has_chunk_states) launch_states<Tiles, D, Norm>(launch, plan, workspace, in, out);
  const product_call<T> call{plan.rows.in(workspace),
                             H,
                             chunk,
                             plan.size.Lk == plan.size.L ? -1 : plan.size.Lk,
                             operand_of(in.q, H),
                             operand_of(in.k, H),
                             operand_of(in.v, H),
                             plan.gaps.in(workspace),
                             in.direction != direction::backward,
                             in.direction != direction::forward,
                             static_cast<float>(in.diagonal)};
  const epilogue::normalise<Norm, T> ending{norm,
                                            static_cast<float>(in.scale),
                                            {out.y, has_fast_rows(out.y), {}},
                                            Norm::uses_row_sum ? out.row_sum : tensor_view<float>{}};
  const state_table<T> states = plan.states.in(workspace);
  if (plan.chosen.algorithm == algorithm::chunkwise)
    launch_chunk_output<D, Tiles>(launch, plan.output, {call, states, false, plan.right_states.in(workspace)}, ending);
  else if (plan.chosen.algorithm == algorithm::global_state)
    launch_global_state<D, Tiles>(launch, plan.output, {call, states, plan.keys.in(workspace), chunk, false}, ending);
  else
    launch_full_attention<D, Tiles>(launch, plan.output, call, ending);
}

/// Launches the kernels of a plan; y is overwritten.
template <class Tiles, class Mask, class Norm, class T>
void launch_overwriting(launcher& launch, const attend_plan<T>& plan, std::byte* workspace, const Mask& mask, const Norm& norm,
                        const inputs<T>& in, const outputs<T>& out) {
  const sequences s = plan.rows.in(workspace);
  if (plan.rows.ragged) send_table(launch, s, plan.rows.table.in(workspace), segments_of(in, plan.size));
  if (plan.gap_weights.blocks > 0)
    launch_gap_weights(launch, plan.gap_weights, s, plan.size.H, plan.rows, mask, borders_of(in), plan.gaps.in(workspace), {});
  with_width<Tiles>((std::max)(plan.size.Dk, plan.size.Dv), [&](auto D) {
    if (plan.chosen.algorithm != algorithm::recurrent) {
      launch_products<Tiles, D.value>(launch, plan, workspace, norm, in, out);
    } else {
      for (const bool forward : {false, true})
        if (in.direction == direction::both || forward == (in.direction == direction::forward))
          launch_recurrent_scan<D.value>(launch, plan, workspace, mask, norm, in, out, forward);
    }
  });
  if (in.lengths.empty()) return;
  launch("clear_padding", clear_padding<T>, grid_of_tasks(numbers_of(out.y)), s, out.y);
  if (Norm::uses_row_sum && out.row_sum.data != nullptr)
    launch("clear_padding", clear_padding<float>, grid_of_tasks(numbers_of(out.row_sum)), s, out.row_sum);
}

/// Launches the kernels of a plan.
template <class Tiles, class Form, class Mask, class Norm, class T>
void launch_attend(launcher& launch, const attend_plan<T>& plan, std::byte* workspace, const Form&, const Mask& mask,
                   const Norm& norm, const inputs<T>& in, const outputs<T>& out) {
  if (plan.nothing) return;
  if (!out.add) return launch_overwriting<Tiles>(launch, plan, workspace, mask, norm, in, out);
  outputs<T> apart = out;  // y keeps its values until add_result runs
  apart.y = bhld(plan.result.in(workspace), out.y.batches(), out.y.heads(), out.y.length(), out.y.features());
  launch_overwriting<Tiles>(launch, plan, workspace, mask, norm, in, apart);
  launch("add_result", add_result<T>, grid_of_tasks(numbers_of(out.y)), plan.rows.in(workspace), tensor_view<const T>(apart.y),
         out.y);
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail

}  // namespace v0_1
}  // namespace bila
