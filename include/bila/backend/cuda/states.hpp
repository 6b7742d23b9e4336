// SPDX-License-Identifier: Apache-2.0
// The sum over each chunk's own keys and values. From these sums scan_states computes the states that enter chunks.
//
//     S = sum_j write_j k_j v_j^T,   z = sum_j write_j c_j k_j    (MATH.md 2.4)
//
// S is stored in the tensors' type. In f16 it is divided by a power of two >= the sum of its weights. z is float.
#pragma once

#include <bila/backend/cuda/carried_state.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct chunk_states_call {
  sequences s;
  index_t H, chunk;
  operand<T> k, v;
  gap_table<exponent<T>> gaps;
  const float* c;  // c_j per entry; null: ones
  state_table<T> to;
  bool forward_only;  // whether only forward sums are wanted
};

template <class T, int D, class Tiles>
struct chunk_states_memory {
  static constexpr state_tile Tile = Tiles::chunk_states(static_cast<int>(sizeof(T)), D);
  static constexpr int value_tile = D < Tile.value_tile ? D : Tile.value_tile, value_tiles = D / value_tile;
  static constexpr int warps = Tile.kv_tile / mma_rows, threads = warps * 32;
  alignas(16) key_tile<T, D, value_tile, Tile.kv_tile> tiles[Tile.stages];
  chunk_task<T> task;

  /// Starts to copy the tile of a step, if the step exists.
  __device__ __forceinline__ void load(const chunk_states_call<T>& call, int step, int steps) {
    if (step < steps) {
      const index_t from = static_cast<index_t>(step) * Tile.kv_tile;
      tiles[step % Tile.stages].template load<threads>(call.k, task.k + from * call.k.x.strides[2], call.v,
                                                       task.v + from * call.v.x.strides[2], up_to(task.count - from, Tile.kv_tile),
                                                       call.gaps, task.entry + from, write_forward, write_backward, false, call.c,
                                                       task.first_column);
    }
    close_copies();
  }
};

/// A block of threads computes a value tile of one chunk's sums, in both directions at once.
template <class T, int D, class Tiles>
BILA_KERNEL void __launch_bounds__(chunk_states_memory<T, D, Tiles>::threads, chunk_states_memory<T, D, Tiles>::Tile.per_sm)
    chunk_states(const __grid_constant__ chunk_states_call<T> call, const index_t tasks) {
  using memory = chunk_states_memory<T, D, Tiles>;
  constexpr state_tile Tile = memory::Tile;
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const int warp = warp_number();

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0)
      shared.task.locate(call.s, call.H, call.chunk, call.k, call.v, task, memory::value_tiles, memory::value_tile);
    __syncthreads();
    const chunk_task<T>& at = shared.task;
    if (at.count == 0) continue;
    const int steps = static_cast<int>((at.count + Tile.kv_tile - 1) / Tile.kv_tile);
    carried_state<T, D, memory::value_tile, memory::warps, state_sum::of_keys, passage::forward> forward(warp);
    carried_state<T, D, memory::value_tile, memory::warps, state_sum::of_keys, passage::backward_against> backward(warp);
    forward.clear();
    backward.clear();
    for (int step = 0; step < Tile.stages - 1; ++step) shared.load(call, step, steps);
    for (int step = 0; step < steps; ++step) {
      if constexpr (Tile.stages == 1) shared.load(call, step, steps);
      wait_for_copies<(Tile.stages > 1 ? Tile.stages - 2 : 0)>();
      __syncthreads();
      if constexpr (Tile.stages > 1) shared.load(call, step + Tile.stages - 1, steps);
      const auto& tile = shared.tiles[step % Tile.stages];
      if (call.gaps.weights != nullptr)
        forward.template add<true>(tile, call.c != nullptr, forward, backward);
      else if (call.forward_only)
        forward.template add<false>(tile, call.c != nullptr, forward);
      else
        forward.template add<false>(tile, call.c != nullptr, forward, backward);
      if constexpr (Tile.stages == 1) __syncthreads();
    }
    forward.write(call.to, 2 * at.number, at.first_column);
    if (!call.forward_only) backward.write(call.to, 2 * at.number + 1, at.first_column);
  }
}

/// Eight numbers, read and written 16 bytes at a time.
template <class T>
struct eight {
  uint4 x[sizeof(T) / 2];

  __device__ void read(float (&y)[8]) const {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
        for (int e = 0; e < 4; ++e) y[4 * i + e] = __uint_as_float(words[e]);
      }
    } else {
      const std::uint32_t words[4] = {x[0].x, x[0].y, x[0].z, x[0].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 two = unpack<T>(words[e]);
        y[2 * e] = two.x;
        y[2 * e + 1] = two.y;
      }
    }
  }

  __device__ void write(const float (&y)[8]) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        x[i] = {__float_as_uint(y[4 * i]), __float_as_uint(y[4 * i + 1]), __float_as_uint(y[4 * i + 2]),
                __float_as_uint(y[4 * i + 3])};
    } else {
      x[0] = {pack<T>(y[0], y[1]), pack<T>(y[2], y[3]), pack<T>(y[4], y[5]), pack<T>(y[6], y[7])};
    }
  }
};

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
