// SPDX-License-Identifier: Apache-2.0
// How a call is laid out: which kernels, in which workspace. The same code counts the bytes and hands out the memory.
#pragma once

#include <bila/backend/cuda/padding.hpp>
#include <bila/backend/cuda/product.hpp>
#include <bila/backend/cuda/recurrent.hpp>
#include <bila/backend/cuda/single_state.hpp>
#include <bila/backend/cuda/walk.hpp>
#include <bila/call/inputs.hpp>

#include <type_traits>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// Hands out aligned device memory, or, without any, only counts.
class workspace {
 public:
  explicit workspace(std::byte* memory = nullptr) : memory_(memory) {
    if (memory != nullptr) used_ = (alignment - reinterpret_cast<std::uintptr_t>(memory) % alignment) % alignment;
  }

  template <class X>
  X* take(index_t n) {
    X* const result = memory_ == nullptr ? nullptr : reinterpret_cast<X*>(memory_ + used_);
    used_ += (static_cast<std::size_t>(n) * sizeof(X) + alignment - 1) / alignment * alignment;
    return result;
  }

  /// Bytes that a caller must bring, wherever they start; none is none.
  std::size_t bytes() const { return used_ == 0 ? 0 : used_ + alignment; }

 private:
  static constexpr std::size_t alignment = 256;
  std::byte* memory_;
  std::size_t used_ = 0;
};

enum class way_of_working { full, recurrent, chunks, one_state };

struct working {
  way_of_working way;
  index_t chunk;  // tokens; 0 where there are none
};

/// Chunks are whole panels of every tile, and no longer than what a float sum holds to 1e-5 where equal terms round the same way: a
/// state is carried through one in float.
inline index_t chunk_of(index_t size) { return ((std::clamp)(size, index_t{1}, index_t{2048}) + 127) / 128 * 128; }

/// Tokens of a chunk where all have one state; what is no longer is summed up where it is read.
inline constexpr index_t one_state_chunk = 512;

/// The head size that a kernel is compiled for.
template <class Tiles>
constexpr index_t padded_width(index_t width) {
  index_t D = Tiles::narrowest;
  while (D < width) D *= 2;
  return D;
}

/// Calls f with the padded head size as a constant.
template <class Tiles, int D = Tiles::narrowest, class F>
void with_width(index_t width, const F& f) {
  if constexpr (D < Tiles::widest)
    if (width > D) return with_width<Tiles, 2 * D>(width, f);
  f(std::integral_constant<int, D>{});
}

/// Sequences as the device sees them; the table, if lengths differ, takes memory.
template <class T>
sequence_plan plan_sequences(const inputs<T>& in, const geometry& size, workspace& memory) {
  const segments pieces = segments_of(in, size);
  const index_t count = in.offsets.empty() ? size.B : pieces.count();
  sequence_plan plan{{nullptr, count, size.L, !in.offsets.empty()}, !in.offsets.empty() || !in.lengths.empty(), nullptr, 0};
  if (!plan.ragged) return plan;
  for (index_t n = 0; n < count; ++n) plan.blocks += ((in.offsets.empty() ? pieces(n, 0) : pieces(0, n)).count + block - 1) / block;
  plan.on_device.table = plan.table = memory.template take<index_t>(3 * (count + 1));
  return plan;
}

template <class T>
gap_table<exponent<T>> plan_gaps(const sequence_plan& s, index_t H, workspace& memory) {
  const index_t entries = s.entries(H);
  return {memory.take<float>(weight_kinds * entries), entries, memory.take<both_ways<exponent<T>>>(entries),
          memory.take<both_ways<exponent<T>>>(entries / block)};
}

template <class T>
state_table<T> plan_states(index_t chunks, index_t D, workspace& memory) {
  return {memory.take<T>(2 * chunks * D * D), memory.take<float>(2 * chunks * D), memory.take<float>(2 * chunks),
          memory.take<float>(2 * chunks), memory.take<float2>(2 * chunks)};
}

/// How the walk stores states: of which panels, in how many slices, in how many bytes each.
struct stored_plan {
  index_t panel, slices, bytes;
};
template <class Tiles, class T, class Finish>
stored_plan plan_stored(index_t width) {
  stored_plan result{};
  with_width<Tiles>(width, [&](auto D) {
    using memory = walk_memory<T, D.value, Tiles, Finish>;
    result = {memory::Tile.panel, memory::slices, static_cast<index_t>(sizeof(typename memory::state))};
  });
  return result;
}

template <class T>
operand<T> operand_of(const tensor_view<const T>& x, index_t H) {
  return {x, x.heads() == 0 ? 1 : H / x.heads(), has_fast_rows(x)};
}

template <class Exponent, class Mask>
void launch_gaps(launcher& launch, const sequence_plan& s, index_t H, const Mask& mask, const border_gaps& borders,
                 const gap_table<Exponent>& to, const gap_table<Exponent>& swapped) {
  const index_t blocks = s.units(block) * H;
  launch("weigh_gaps", weigh_gaps<Exponent, Mask>, (blocks + 15) / 16, 256, 0, s.on_device, H, blocks, mask, borders, to, swapped);
}

template <int D, class Tiles, class T>
void launch_summary(launcher& launch, const sequence_plan& s, const summary_call<T>& call) {
  using memory = summary_memory<T, D, Tiles>;
  const index_t tasks = s.units(call.chunk) * call.H * memory::slices;
  launch("sum_chunks", sum_chunks<T, D, Tiles>, tasks, memory::threads, sizeof(memory), call, tasks);
}

/// longest: the tokens of the longest sequence.
template <int D, class T>
void launch_scan(launcher& launch, const scan_call<T>& call, index_t longest) {
  const index_t tasks = call.s.count * call.H * (call.one_state ? 1 : 2) * (D * D / 8 + D / 8);
  launch("scan_chunks", longest > call.chunk * chunks_at_once<T> ? scan_chunks<T, D, true> : scan_chunks<T, D, false>,
         (tasks + 127) / 128, 128, 0, call, tasks);
}

template <int D, class Tiles, class Finish, class T>
void launch_product(launcher& launch, const sequence_plan& s, const product_call<T>& call, const Finish& finish) {
  using memory = product_memory<T, D, Tiles, Finish>;
  const index_t tasks = s.units(memory::rows) * call.H;
  launch("multiply", multiply<T, D, Tiles, Finish>, tasks, memory::threads, sizeof(memory), call, finish, tasks);
}

template <int D, class Tiles, class Finish, class T>
void launch_walk(launcher& launch, const sequence_plan& s, const walk_call<T>& call, const Finish& finish) {
  using memory = walk_memory<T, D, Tiles, Finish>;
  const index_t tasks = s.units(call.product.chunk) * call.product.H * memory::slices;
  launch("walk", walk<T, D, Tiles, Finish>, tasks, memory::threads, sizeof(memory), call, finish, tasks);
}

/// Whether a product and its mirror are had at once: where a row is whole, and registers are left for both.
template <class T, int D, class Tiles>
inline constexpr bool mirrors =
    sizeof(T) == 2 && walk_memory<T, D, Tiles, as_it_is>::slices == 1 && read_memory<T, D, Tiles, as_it_is>::slices == 1;

template <int D, class Tiles, class Finish, class T>
void launch_read(launcher& launch, const sequence_plan& s, const read_call<T>& call, const Finish& finish) {
  using memory = read_memory<T, D, Tiles, Finish>;
  const index_t tasks = s.units(memory::rows_per_task) * call.product.H * memory::slices;
  launch("read_state", read_state<T, D, Tiles, Finish>, tasks, memory::threads, sizeof(memory), call, finish, tasks);
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
