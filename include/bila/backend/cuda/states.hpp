// SPDX-License-Identifier: Apache-2.0
// States: every chunk's own sum of keys and values, then a scan that turns them into the states that enter the chunks.
//
//     forward:   H_n+1 = total H_n + sum_j write_j k_j [v_j, c_j],   backward: the same from the other end (MATH.md 2.4)
//
// Both are stored in the tensors' type, divided by a power of two >= the sum of their weights; row sums z stay float. The scan runs
// in float; a few chunks are summed up on their own, and what is lost where they join the rest goes to the next ones.
#pragma once

#include <bila/backend/cuda/carried_state.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct summary_call {
  sequences s;
  index_t H, chunk;
  operand<T> k, v;
  gap_table<exponent<T>> gaps;
  const float* c;  // per entry; null: ones
  state_table<T> to;
  bool one_way;  // forward sums alone are wanted
};

template <class T, int D, class Tiles>
struct summary_memory {
  static constexpr summary_tile Tile = Tiles::summary(static_cast<int>(sizeof(T)), D);
  static constexpr int slice = D < Tile.slice ? D : Tile.slice, slices = D / slice;
  static constexpr int warps = Tile.panel / block, threads = warps * 32;
  alignas(16) key_panel<T, D, slice, Tile.panel> panels[Tile.stages];
  chunk_task<T> task;
};

/// Sums up one chunk, both ways at once. S = sum_j w_j k_j v_j^T, z = sum_j w_j c_j k_j.
template <class T, int D, class Tiles>
BILA_KERNEL void __launch_bounds__(summary_memory<T, D, Tiles>::threads, summary_memory<T, D, Tiles>::Tile.per_sm)
    sum_chunks(const __grid_constant__ summary_call<T> c, const index_t tasks) {
  using memory = summary_memory<T, D, Tiles>;
  constexpr summary_tile Tile = memory::Tile;
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const int warp = warp_number();

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) shared.task.locate(c.s, c.H, c.chunk, c.k, c.v, task, memory::slices, memory::slice);
    __syncthreads();
    const chunk_task<T>& here = shared.task;
    if (here.count == 0) continue;
    const int steps = static_cast<int>((here.count + Tile.panel - 1) / Tile.panel);
    const auto load = [&](int step) {
      if (step < steps) {
        const index_t from = static_cast<index_t>(step) * Tile.panel;
        shared.panels[step % Tile.stages].template load<memory::threads>(
            c.k, here.k + from * c.k.x.strides[2], c.v, here.v + from * c.v.x.strides[2], up_to(here.count - from, Tile.panel),
            c.gaps, here.entry + from, write_forward, write_backward, false, c.c, here.first_column);
      }
      close_copies();
    };
    carried_state<T, D, memory::slice, memory::warps, extra::of_keys, passage::forward> forward(warp);
    carried_state<T, D, memory::slice, memory::warps, extra::of_keys, passage::backward_against> backward(warp);
    forward.clear();
    backward.clear();
    for (int step = 0; step < Tile.stages - 1; ++step) load(step);
    for (int step = 0; step < steps; ++step) {
      if constexpr (Tile.stages == 1) load(step);
      wait_for_copies<(Tile.stages > 1 ? Tile.stages - 2 : 0)>();
      __syncthreads();
      if constexpr (Tile.stages > 1) load(step + Tile.stages - 1);
      const auto& panel = shared.panels[step % Tile.stages];
      if (c.gaps.weights != nullptr)
        forward.template add<true>(panel, c.c != nullptr, forward, backward);
      else if (c.one_way)
        forward.template add<false>(panel, c.c != nullptr, forward);
      else
        forward.template add<false>(panel, c.c != nullptr, forward, backward);
      if constexpr (Tile.stages == 1) __syncthreads();
    }
    forward.write(c.to, 2 * here.number, here.first_column);
    if (!c.one_way) backward.write(c.to, 2 * here.number + 1, here.first_column);
  }
}

/// A state at a sequence's end, [n, H, Dk, Dv] and [n, H, Dk, 1]; without data it is not given.
template <class Real>
struct end_state {
  tensor_view<Real> S, z;
};

template <class T>
struct scan_call {
  sequences s;
  index_t H, chunk;
  state_table<T> states;
  end_state<const float> initial[2];  // forward, backward
  end_state<float> final[2];
  bool one_state;  // without gaps: the sum over all chunks, left in the first one's forward state
};

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

/// Of two decays in two floats each.
__device__ inline float2 product(float2 a, float2 b) {
  const float high = a.x * b.x;
  return {high, fmaf(a.x, b.x, -high) + (a.x * b.y + a.y * b.x)};
}

/// How many chunks the scan has on their way at a time, and sums up before what they lose counts.
template <class T>
inline constexpr index_t chunks_at_once = sizeof(T) == 2 ? 8 : 4;

/// Each thread scans 8 numbers of S or z over the chunks of one head, one way; a chunk's sum gives its place to what enters it.
/// Long: there may be more than chunks_at_once; a sequence with fewer has the same bits either way.
template <class T, int D, bool Long>
BILA_KERNEL void __launch_bounds__(128) scan_chunks(const __grid_constant__ scan_call<T> c, const index_t tasks) {
  constexpr int of_S = D * D / 8, per_way = of_S + D / 8, ahead = chunks_at_once<T>;
  const int ways = c.one_state ? 1 : 2;
  const auto scan = [&](auto* const numbers, const index_t per_state, const index_t n, const index_t h, const int way,
                        const int first, const auto& initial, const auto& final) {
    using P = std::remove_pointer_t<std::remove_const_t<decltype(numbers)>>;
    const bool is_S = per_state == D * D;
    const index_t first_chunk = c.s.number({n, h, 0}, c.H, c.chunk), chunks = divide(c.s.tokens(n) + c.chunk - 1, c.chunk);
    float run[8] = {}, lost[8] = {}, weight = 0;
    if (initial.data != nullptr) {
      weight = 1;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int row = is_S ? (first + e) / D : first + e, column = is_S ? (first + e) % D : 0;
        if (row < initial.extents[2] && column < initial.extents[3]) run[e] = initial(n, h, row, column);
      }
    }
    const auto at = [&](index_t m) { return 2 * (first_chunk + (way == 0 ? m : chunks - 1 - m)) + way; };
    for (index_t m = 0; m < chunks; m += ahead) {
      eight<P> sums[ahead];
      float weights[ahead];
      float2 totals[ahead], decay{1, 0};
      float start[8], fresh[8] = {};
#pragma unroll
      for (int e = 0; e < 8; ++e) start[e] = run[e];
#pragma unroll
      for (int a = 0; a < ahead; ++a)
        if (m + a < chunks) {
          sums[a] = *reinterpret_cast<const eight<P>*>(numbers + at(m + a) * per_state + first);
          weights[a] = c.states.weight[at(m + a)];
          totals[a] = c.states.total[at(m + a)];
        }
#pragma unroll
      for (int a = 0; a < ahead; ++a)
        if (m + a < chunks) {
          const float unit = unit_of<T>(weight), per_unit = inverse_of_power(unit);
          if (!c.one_state) {
            float entering[8];
#pragma unroll
            for (int e = 0; e < 8; ++e) entering[e] = is_S ? run[e] * per_unit : run[e];
            reinterpret_cast<eight<P>*>(numbers + at(m + a) * per_state + first)->write(entering);
            if (is_S && first == 0) c.states.unit[at(m + a)] = unit;
          }
          float x[8];
          sums[a].read(x);
          const float back = is_S ? unit_of<T>(weights[a]) : 1.0f;
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            run[e] = fmaf(totals[a].x, run[e], back * x[e]);
            if constexpr (Long) fresh[e] = fmaf(totals[a].x, fresh[e], back * x[e]);
          }
          if constexpr (Long) decay = product(decay, totals[a]);
          weight = totals[a].x * weight + weights[a];
        }
      if (Long && chunks > ahead)
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const float in = fmaf(decay.x, lost[e], fmaf(decay.y, start[e], fresh[e]));
          run[e] = fmaf(decay.x, start[e], in);
          lost[e] = in - fmaf(-decay.x, start[e], run[e]);
        }
    }
    if (c.one_state && chunks > 0) {
      const float unit = unit_of<T>(weight);
      float whole[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) whole[e] = is_S ? run[e] * inverse_of_power(unit) : run[e];
      reinterpret_cast<eight<P>*>(numbers + at(0) * per_state + first)->write(whole);
      if (is_S && first == 0) c.states.unit[at(0)] = unit;
    }
    if (final.data != nullptr)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int row = is_S ? (first + e) / D : first + e, column = is_S ? (first + e) % D : 0;
        if (row < final.extents[2] && column < final.extents[3]) final(n, h, row, column) = run[e];
      }
  };
  for (index_t task = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; task < tasks;
       task += static_cast<index_t>(gridDim.x) * blockDim.x) {
    const index_t both = divide(task, per_way), head = ways == 1 ? both : both / 2, n = divide(head, c.H), h = head - n * c.H;
    const int item = static_cast<int>(task - both * per_way), way = ways == 1 ? 0 : static_cast<int>(both % 2);
    if (item < of_S)
      scan(c.states.S, index_t{D} * D, n, h, way, item * 8, c.initial[way].S, c.final[way].S);
    else
      scan(c.states.z, index_t{D}, n, h, way, (item - of_S) * 8, c.initial[way].z, c.final[way].z);
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
