// SPDX-License-Identifier: Apache-2.0
// The plan of a gradient: its algorithm, its arrays in the workspace and the grids of its kernels.
#pragma once

#include <bila/backend/cuda/gradient_parts.hpp>
#include <bila/backend/cuda/plan.hpp>
#include <bila/call/gradients.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct gradient_plan {
  geometry size;
  bool nothing = false;  // whether y has no batch rows or no heads
  choice chosen{};
  sequence_plan rows;
  index_t entries = 0, width = 0;  // entries of an array per token, with padding; head size that kernels are compiled for
  bool weighted = false, has_chunk_states = false;
  bool of_gaps = false;                   // whether gradients of gaps are asked for
  stored_plan stored{};                   // states that chunk_output stores; its kv_tile is also the tile of gate_gradient_scan
  index_t tiles = 0, parts_per_tile = 0;  // tiles of all heads; cross-tile terms per tile and direction

  // Arrays in the workspace. Adjoints are states of q, dN and dZ in place of k, v and ones.
  region<T> dN;
  region<float> dZ, parts, numerators;  // per entry, see norm_call
  gap_plan<T> gaps, swapped;
  state_plan<T> states, adjoints;
  region<std::byte> right_states, left_states, adjoint_right_states;
  region<float> dots_q, dots_k, cross_tile_terms;
  region<float> gaps_forward, gaps_backward, gaps_borders;
  region<double> gap_sums;
  region<float> heads_q, heads_k, heads_v;  // gradients per head of y, until add_heads adds up the heads
  std::size_t bytes = 0;                    // size of the workspace that the caller must bring

  // Grids of the kernels. output: for one product. dual_output: for a product and its dual.
  grid pass_norm, gap_weights, chunk_states, scan_states, output, dual_output, gate_gradient_scan, sum_gap_gradients;
  index_t scan_tasks = 0;

  index_t dN_stride() const { return (size.Dv + 7) / 8 * 8; }

  tensor_view<T> dN_in(std::byte* workspace) const {
    const index_t W = dN_stride();
    return {dN.in(workspace), {size.B, size.H, size.L, size.Dv}, {size.H * size.L * W, size.L * W, W, 1}};
  }

  tensor_view<float> heads_in(std::byte* workspace, const region<float>& heads, const tensor_view<T>& like) const {
    if (!heads.used) return {};
    return bhld(heads.in(workspace), size.B, size.H, size.L, like.features());
  }

  gap_gradients gap_gradients_in(std::byte* workspace) const {
    return {gaps_forward.in(workspace), gaps_backward.in(workspace), gaps_borders.in(workspace)};
  }
};

template <class T>
bool has_states(const inputs<T>& in, const output_gradients<T>& dy, const gradients<T>& to) {
  return in.initial_forward.given() || in.initial_backward.given() || dy.final_forward.given() || dy.final_backward.given() ||
         to.initial_forward.given() || to.initial_backward.given();
}

/// Reserves the gradient's arrays in the workspace.
template <class Tiles, class Mask, class T>
void plan_gradient_arrays(gradient_plan<T>& plan, const gradients<T>& to, kernel::arena& counted) {
  const auto& [B, H, L, Lk, Dk, Dv] = plan.size;
  const index_t entries = plan.entries;
  plan.dN = reserve<T>(counted, B * H * L * plan.dN_stride());
  plan.dZ = reserve<float>(counted, entries);
  plan.parts = reserve<float>(counted, entries, to.scale != nullptr || to.diagonal != nullptr);
  plan.numerators = reserve<float>(counted, entries, to.diagonal != nullptr);
  plan.gaps = plan_gaps<T>(entries, counted, plan.weighted);
  plan.swapped = plan_gaps<T>(entries, counted, plan.weighted);
  const index_t chunks = plan.has_chunk_states ? plan.rows.units(plan.chosen.chunk) * H : 0;
  plan.states = plan_states<T>(chunks, plan.width, counted, plan.has_chunk_states);
  plan.adjoints = plan_states<T>(chunks, plan.width, counted, plan.has_chunk_states);
  const bool chunkwise = plan.chosen.algorithm == algorithm::chunkwise, crosses = chunkwise && plan.of_gaps;
  const index_t stored_bytes = plan.tiles * plan.stored.value_tiles * plan.stored.bytes;
  plan.right_states = reserve<std::byte>(counted, stored_bytes, chunkwise);
  plan.left_states = reserve<std::byte>(counted, stored_bytes, crosses);
  plan.adjoint_right_states = reserve<std::byte>(counted, stored_bytes, crosses);
  plan.dots_q = reserve<float>(counted, 3 * entries * plan.stored.value_tiles, plan.of_gaps);
  plan.dots_k = reserve<float>(counted, 3 * entries * plan.stored.value_tiles, plan.of_gaps);
  plan.cross_tile_terms = reserve<float>(counted, 2 * plan.tiles * plan.parts_per_tile, crosses);
  plan.gaps_forward = reserve<float>(counted, entries, plan.of_gaps);
  plan.gaps_backward = reserve<float>(counted, entries, plan.of_gaps);
  plan.gaps_borders = reserve<float>(counted, 2 * plan.rows.all.count * H, plan.of_gaps);
  plan.gap_sums =
      reserve<double>(counted, 2 * plan.sum_gap_gradients.blocks, pulls_back_heads<Mask> && to.log_decay.data != nullptr);
  const auto reserve_heads = [&](const tensor_view<T>& x) {
    return reserve<float>(counted, plan.size.B * plan.size.H * plan.size.L * x.features(),
                          x.data != nullptr && x.heads() != plan.size.H);
  };
  plan.heads_q = reserve_heads(to.q);
  plan.heads_k = reserve_heads(to.k);
  plan.heads_v = reserve_heads(to.v);
}

template <class Tiles, class T>
void plan_gradient_grids(gradient_plan<T>& plan) {
  const index_t H = plan.size.H;
  plan.pass_norm = grid_of_tasks(plan.entries / tokens_per_group * lanes_per_token);
  if (plan.weighted) plan.gap_weights = grid_of_gap_weights(plan.rows, H);
  with_width<Tiles>(plan.width, [&](auto width) {
    constexpr int D = width.value;
    plan.output = grid_of_rows<T, D, Tiles, epilogue::store<T>>(plan.rows, H, plan.chosen);
    if constexpr (computes_dual<T, D, Tiles>)
      plan.dual_output = grid_of_rows<T, D, Tiles, epilogue::dual<T>>(plan.rows, H, plan.chosen);
    if (!plan.has_chunk_states) return;
    plan.chunk_states = grid_of_chunk_states<T, D, Tiles>(plan.rows, H, plan.chosen.chunk);
    plan.scan_tasks = tasks_of_scan<D>(plan.rows, H, plan.chosen.algorithm == algorithm::global_state);
    plan.scan_states = grid_of_scan(plan.scan_tasks);
  });
  if (!plan.of_gaps) return;
  plan.gate_gradient_scan = grid_of_tasks(plan.tiles * 32);
  plan.sum_gap_gradients = {plan.rows.units(gaps_per_part) * H, 256};
}

template <class Tiles, class Form, class Mask, class Norm, class T>
gradient_plan<T> plan_gradient(const Form& form, const Mask&, const Norm&, const inputs<T>& in, const saved<T>& kept,
                               const output_gradients<T>& dy, const gradients<T>& to) {
  gradient_plan<T> plan;
  plan.size = geometry_of(in, kept.y);
  plan.nothing = plan.size.B == 0 || plan.size.H == 0;
  if (plan.nothing) return plan;
  kernel::arena counted;
  plan.rows = plan_sequences(in, plan.size, counted);
  plan.of_gaps = to.log_decay.data != nullptr || bila::detail::wants_gaps(to);
  const demand of = demand_of<Mask>(in, plan.size, plan.rows.longest, has_states(in, dy, to), plan.of_gaps);
  plan.chosen = choose<Tiles>(form, of);
  if (plan.chosen.algorithm == algorithm::recurrent) plan.chosen = {algorithm::chunkwise, chunk_of(Tiles::chunk)};
  const bool chunkwise = plan.chosen.algorithm == algorithm::chunkwise;
  plan.weighted = Mask::gaps != gap::none || borders_of(in).given() || chunkwise;
  plan.has_chunk_states = needs_chunk_states(plan.chosen, of);
  plan.entries = plan.rows.entries(plan.size.H);
  plan.width = padded_width<Tiles>((std::max)(plan.size.Dk, plan.size.Dv));
  plan.stored = chunkwise ? plan_stored<Tiles, T, epilogue::store<T>>(plan.width)
                          : stored_plan{(std::max)(plan.rows.longest, index_t{1}), 1, 0};
  plan.tiles = plan.rows.units(plan.stored.kv_tile) * plan.size.H;
  plan.parts_per_tile = plan.stored.value_tiles * plan.stored.kv_tile / mma_rows;
  plan_gradient_grids<Tiles>(plan);
  plan_gradient_arrays<Tiles, Mask>(plan, to, counted);
  plan.bytes = bytes_for(counted);
  return plan;
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
