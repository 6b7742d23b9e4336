// SPDX-License-Identifier: Apache-2.0
// Plans, worked out on the host: the algorithm of a call, its arrays in the workspace, and the grids of its kernels. A plan is
// data: this file launches no kernel and needs no device.
#pragma once

#include <bila/backend/cuda/chunk_output.hpp>
#include <bila/backend/cuda/full_attention.hpp>
#include <bila/backend/cuda/global_state.hpp>
#include <bila/backend/cuda/recurrent.hpp>
#include <bila/call/inputs.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/full.hpp>
#include <bila/form/recurrent.hpp>
#include <bila/kernel/arena.hpp>

#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// The alignment of arrays in the workspace, in bytes.
inline constexpr std::size_t workspace_alignment = 256;

/// The first aligned byte of a caller's workspace, whose own address may have any alignment.
inline std::byte* aligned(std::byte* memory) {
  return memory + (workspace_alignment - reinterpret_cast<std::uintptr_t>(memory) % workspace_alignment) % workspace_alignment;
}

/// The bytes that a caller must bring: the arrays, and the bytes that `aligned` may skip.
inline std::size_t bytes_for(const kernel::arena& counted) {
  return counted.used() == 0 ? 0 : counted.used() + workspace_alignment;
}

/// An array in the workspace: its offset from the first aligned byte, and its size in bytes.
template <class X>
struct region {
  std::size_t offset = 0, bytes = 0;
  bool used = false;

  X* in(std::byte* workspace) const { return used ? reinterpret_cast<X*>(workspace + offset) : nullptr; }
};

/// Reserves an array of n numbers at the end of the workspace, if the array is wanted.
template <class X>
region<X> reserve(kernel::arena& counted, index_t n, bool wanted = true) {
  if (!wanted) return {};
  const region<X> result{counted.used(), static_cast<std::size_t>(n) * sizeof(X), true};
  counted.take((result.bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment);
  return result;
}

/// The sequences of a call.
struct sequence_plan {
  sequences all;   // its table is null, see in()
  bool ragged;     // whether sequences differ in length, so that the device needs a table
  index_t blocks;  // blocks of 16 tokens in all sequences; 0 if not ragged
  index_t longest;
  region<index_t> table;

  index_t units(index_t size) const {
    if (!ragged) return all.count * ((all.L + size - 1) / size);
    return blocks * mma_rows / size + all.count;
  }
  index_t entries(index_t H) const { return units(mma_rows) * mma_rows * H; }

  sequences in(std::byte* workspace) const { return {table.in(workspace), all.count, all.L, all.packed}; }
};

template <class T>
sequence_plan plan_sequences(const inputs<T>& in, const geometry& size, kernel::arena& counted) {
  const segments pieces = segments_of(in, size);
  const bool packed = !in.offsets.empty(), ragged = packed || !in.lengths.empty();
  const index_t count = packed ? pieces.count() : size.B;
  sequence_plan plan{{nullptr, count, size.L, packed}, ragged, 0, ragged || count == 0 ? 0 : size.L, {}};
  if (!ragged) return plan;
  for (index_t n = 0; n < count; ++n) {
    const index_t tokens = (packed ? pieces(0, n) : pieces(n, 0)).count;
    plan.blocks += (tokens + mma_rows - 1) / mma_rows;
    plan.longest = (std::max)(plan.longest, tokens);
  }
  plan.table = reserve<index_t>(counted, 3 * (count + 1));
  return plan;
}

/// The algorithms that compute a call.
enum class algorithm { full, recurrent, chunkwise, global_state };

struct choice {
  cuda::detail::algorithm algorithm;
  index_t chunk;  // tokens per chunk; 0 for algorithms without chunks
};

/// Properties of a call that the choice of an algorithm depends on, in addition to the form.
struct demand {
  bool use_global_state;  // whether one state can serve all rows: no gaps, both directions, diagonal 1, no initial or final state
  bool has_states;        // whether a state is given or asked for
  index_t longest;        // tokens of the longest sequence, of queries or of keys
};

/// The tokens per chunk: `size`, rounded up to a multiple of 128, so that a chunk consists of whole tiles. A chunk has at most 2048
/// tokens, because a state is summed in float within a chunk: up to 2048 tokens, a sum of equal terms has an error below 1e-5.
inline index_t chunk_of(index_t size) { return ((std::clamp)(size, index_t{1}, index_t{2048}) + 127) / 128 * 128; }

/// Tokens per chunk of the global state. The kernel that reads the state sums up shorter sequences itself.
inline constexpr index_t global_state_chunk = 512;

/// The log decays of the gaps that initial states cross.
template <class T>
border_gaps borders_of(const inputs<T>& in) {
  return {in.initial_forward.log_decay, in.initial_backward.log_decay};
}

/// longest: tokens of the longest sequence of queries. of_gaps: whether gradients of gaps are asked for.
template <class Mask, class T>
demand demand_of(const inputs<T>& in, const geometry& size, index_t longest, bool has_states, bool of_gaps) {
  const bool unmasked = Mask::gaps == gap::none && in.direction == direction::both && in.diagonal == 1;
  return {unmasked && !has_states && !of_gaps, has_states, (std::max)(longest, size.Lk)};
}

template <class Tiles>
choice choose(const form::full&, const demand&) {
  return {algorithm::full, 0};
}
template <class Tiles>
choice choose(const form::recurrent&, const demand& of) {
  if (of.use_global_state) return {algorithm::global_state, global_state_chunk};
  return {algorithm::recurrent, 0};
}
template <class Tiles>
choice choose(const form::chunkwise& form, const demand& of) {
  if (of.use_global_state) return {algorithm::global_state, global_state_chunk};
  return {algorithm::chunkwise, chunk_of(form.size > 0 ? form.size : Tiles::chunk)};
}
template <class Tiles>
choice choose(const form::automatic&, const demand& of) {
  if (!of.has_states && of.longest < (of.use_global_state ? Tiles::shortest_global_state : Tiles::shortest_linear))
    return {algorithm::full, 0};
  return choose<Tiles>(form::chunkwise{Tiles::chunk}, of);
}

/// Whether chunk_states and scan_states run. A single chunk without initial and final states needs neither of them.
inline bool needs_chunk_states(const choice& chosen, const demand& of) {
  if (chosen.algorithm != algorithm::chunkwise && chosen.algorithm != algorithm::global_state) return false;
  return of.has_states || of.longest > chosen.chunk;
}

/// The head size that kernels are compiled for: `width` rounded up to a power of two, at least Tiles::narrowest.
template <class Tiles>
constexpr index_t padded_width(index_t width) {
  index_t D = Tiles::narrowest;
  while (D < width) D *= 2;
  return D;
}

/// Calls f with the padded head size as a compile-time constant.
template <class Tiles, int D = Tiles::narrowest, class F>
void with_width(index_t width, const F& f) {
  if constexpr (D < Tiles::widest)
    if (width > D) return with_width<Tiles, 2 * D>(width, f);
  f(std::integral_constant<int, D>{});
}

template <class T>
struct gap_plan {
  region<float> weights;
  index_t entries = 0;
  region<both_ways<exponent<T>>> sums, block_sums;

  gap_table<exponent<T>> in(std::byte* workspace) const {
    return {weights.in(workspace), entries, sums.in(workspace), block_sums.in(workspace)};
  }
};

template <class T>
gap_plan<T> plan_gaps(index_t entries, kernel::arena& counted, bool wanted) {
  if (!wanted) return {};
  return {reserve<float>(counted, weight_kinds * entries), entries, reserve<both_ways<exponent<T>>>(counted, entries),
          reserve<both_ways<exponent<T>>>(counted, entries / mma_rows)};
}

template <class T>
struct state_plan {
  region<T> S;
  region<float> z, unit, weight;
  region<float2> total;

  state_table<T> in(std::byte* workspace) const {
    return {S.in(workspace), z.in(workspace), unit.in(workspace), weight.in(workspace), total.in(workspace)};
  }
};

template <class T>
state_plan<T> plan_states(index_t chunks, index_t D, kernel::arena& counted, bool wanted) {
  if (!wanted) return {};
  return {reserve<T>(counted, 2 * chunks * D * D), reserve<float>(counted, 2 * chunks * D), reserve<float>(counted, 2 * chunks),
          reserve<float>(counted, 2 * chunks), reserve<float2>(counted, 2 * chunks)};
}

/// The states that chunk_output stores: tokens per tile, value tiles per tile, and bytes per state.
struct stored_plan {
  index_t kv_tile, value_tiles, bytes;
};
template <class Tiles, class T, class Epilogue>
stored_plan plan_stored(index_t width) {
  stored_plan result{};
  with_width<Tiles>(width, [&](auto D) {
    using memory = chunk_output_memory<T, D.value, Tiles, Epilogue>;
    result = {memory::Tile.kv_tile, memory::value_tiles, static_cast<index_t>(sizeof(typename memory::state))};
  });
  return result;
}

/// Whether one kernel computes a product and its dual: a value tile must hold whole rows, and registers must suffice for both.
template <class T, int D, class Tiles>
inline constexpr bool computes_dual = sizeof(T) == 2 && chunk_output_memory<T, D, Tiles, epilogue::store<T>>::value_tiles == 1 &&
                                      global_state_memory<T, D, Tiles, epilogue::store<T>>::value_tiles == 1;

/// The grids of kernels, which depend on the tile sizes that the kernels are compiled for.
inline grid grid_of_gap_weights(const sequence_plan& s, index_t H) { return {(s.units(mma_rows) * H + 15) / 16, 256}; }
template <class T, int D, class Tiles>
grid grid_of_chunk_states(const sequence_plan& s, index_t H, index_t chunk) {
  using memory = chunk_states_memory<T, D, Tiles>;
  return {s.units(chunk) * H * memory::value_tiles, memory::threads, sizeof(memory)};
}
/// The number of threads of a scan.
template <int D>
index_t tasks_of_scan(const sequence_plan& s, index_t H, bool global_state) {
  return s.all.count * H * (global_state ? 1 : 2) * (D * D / 8 + D / 8);
}
inline grid grid_of_scan(index_t tasks) { return {(tasks + 127) / 128, 128}; }
/// The grid of the kernel that writes rows.
template <class T, int D, class Tiles, class Epilogue>
grid grid_of_rows(const sequence_plan& s, index_t H, const choice& chosen) {
  if (chosen.algorithm == algorithm::chunkwise) {
    using memory = chunk_output_memory<T, D, Tiles, Epilogue>;
    return {s.units(chosen.chunk) * H * memory::value_tiles, memory::threads, sizeof(memory)};
  }
  if (chosen.algorithm == algorithm::global_state) {
    using memory = global_state_memory<T, D, Tiles, Epilogue>;
    return {s.units(memory::rows_per_task) * H * memory::value_tiles, memory::threads, sizeof(memory)};
  }
  using memory = full_attention_memory<T, D, Tiles, Epilogue>;
  return {s.units(memory::rows) * H, memory::threads, sizeof(memory)};
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
