// SPDX-License-Identifier: Apache-2.0
// The scan over the chunks of a sequence. From the sum over each chunk's own tokens it computes the state that enters each chunk,
// and the final states (MATH.md 2.4).
//
//     forward:   H_n+1 = total_n H_n + (sum of chunk n)
//     backward:  the same, from the last chunk to the first
//
// The scan runs in float. It sums up a few chunks separately. The rounding error of adding this sum to the state is added to the
// next sum.
#pragma once

#include <bila/backend/cuda/states.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// A state at a sequence's end: S [n, H, Dk, Dv] and z [n, H, Dk, 1]. No data: not given.
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
  bool global_state;  // no gaps: the scan writes the sum over all chunks, as the first chunk's forward state
};

/// The product of two decays. Each decay is the sum of two floats.
__device__ inline float2 multiply_decays(float2 a, float2 b) {
  const float high = a.x * b.x;
  return {high, fmaf(a.x, b.x, -high) + (a.x * b.y + a.y * b.x)};
}

/// Chunks that the scan reads at once and sums up separately.
template <class T>
inline constexpr index_t chunks_at_once = sizeof(T) == 2 ? 8 : 4;

/// The scan of one thread: 8 numbers of S or z, of one head, in one direction. In memory, the state that enters a chunk replaces
/// the sum over the chunk. X: the type of the numbers.
template <class T, int D, bool Long, class X>
class thread_scan {
  static constexpr index_t prefetch = chunks_at_once<T>;

 public:
  __device__ __forceinline__ thread_scan(const scan_call<T>& call, X* numbers, index_t per_state, index_t n, index_t h, int way,
                                         int first)
      : call_(call),
        numbers_(numbers),
        per_state_(per_state),
        n_(n),
        h_(h),
        way_(way),
        first_(first),
        is_S_(per_state == D * D),
        first_chunk_(call.s.number({n, h, 0}, call.H, call.chunk)),
        chunks_(divide(call.s.tokens(n) + call.chunk - 1, call.chunk)) {}

  __device__ __forceinline__ void run(const tensor_view<const float>& initial, const tensor_view<float>& final) {
    load_initial_state(initial);
    for (index_t m = 0; m < chunks_; m += prefetch) scan_some(m);
    if (call_.global_state && chunks_ > 0) {
      const float unit = unit_of<T>(weight_);
      write_state(at(0), unit, inverse_of_power(unit));
    }
    store_final_state(final);
  }

 private:
  /// The index, in the table of states, of the m-th chunk in this direction.
  __device__ __forceinline__ index_t at(index_t m) const { return 2 * (first_chunk_ + (way_ == 0 ? m : chunks_ - 1 - m)) + way_; }

  __device__ __forceinline__ eight<X>* place(index_t number) const {
    return reinterpret_cast<eight<X>*>(numbers_ + number * per_state_ + first_);
  }

  __device__ __forceinline__ void load_initial_state(const tensor_view<const float>& initial) {
    if (initial.data == nullptr) return;
    weight_ = 1;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int row = is_S_ ? (first_ + e) / D : first_ + e, column = is_S_ ? (first_ + e) % D : 0;
      if (row < initial.extents[2] && column < initial.extents[3]) state_[e] = initial(n_, h_, row, column);
    }
  }

  __device__ __forceinline__ void store_final_state(const tensor_view<float>& final) const {
    if (final.data == nullptr) return;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int row = is_S_ ? (first_ + e) / D : first_ + e, column = is_S_ ? (first_ + e) % D : 0;
      if (row < final.extents[2] && column < final.extents[3]) final(n_, h_, row, column) = state_[e];
    }
  }

  __device__ __forceinline__ void write_state(index_t number, float unit, float per_unit) const {
    float x[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = is_S_ ? state_[e] * per_unit : state_[e];
    place(number)->write(x);
    if (is_S_ && first_ == 0) call_.states.unit[number] = unit;
  }

  /// Scans up to `prefetch` chunks, from chunk m on.
  __device__ __forceinline__ void scan_some(index_t m) {
    eight<X> sums[prefetch];
    float weights[prefetch];
    float2 totals[prefetch], decay{1, 0};
    float start[8], fresh[8] = {};  // the state before these chunks, and the sum over them
#pragma unroll
    for (int e = 0; e < 8; ++e) start[e] = state_[e];
#pragma unroll
    for (int a = 0; a < prefetch; ++a)
      if (m + a < chunks_) {
        sums[a] = *place(at(m + a));
        weights[a] = call_.states.weight[at(m + a)];
        totals[a] = call_.states.total[at(m + a)];
      }
#pragma unroll
    for (int a = 0; a < prefetch; ++a)
      if (m + a < chunks_) {
        const float unit = unit_of<T>(weight_), per_unit = inverse_of_power(unit);
        if (!call_.global_state) write_state(at(m + a), unit, per_unit);
        float x[8];
        sums[a].read(x);
        const float back = is_S_ ? unit_of<T>(weights[a]) : 1.0f;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          state_[e] = fmaf(totals[a].x, state_[e], back * x[e]);
          if constexpr (Long) fresh[e] = fmaf(totals[a].x, fresh[e], back * x[e]);
        }
        if constexpr (Long) decay = multiply_decays(decay, totals[a]);
        weight_ = totals[a].x * weight_ + weights[a];
      }
    if (Long && chunks_ > prefetch)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float in = fmaf(decay.x, lost_[e], fmaf(decay.y, start[e], fresh[e]));
        state_[e] = fmaf(decay.x, start[e], in);
        lost_[e] = in - fmaf(-decay.x, start[e], state_[e]);
      }
  }

  const scan_call<T>& call_;
  X* const numbers_;
  const index_t per_state_, n_, h_;
  const int way_, first_;
  const bool is_S_;
  const index_t first_chunk_, chunks_;
  float state_[8] = {}, lost_[8] = {};  // the state; the rounding errors of additions to it
  float weight_ = 0;                    // sum of the state's weights
};

/// Long: a sequence may have more than chunks_at_once chunks. For a shorter sequence both kernels compute the same bits.
template <class T, int D, bool Long>
BILA_KERNEL void __launch_bounds__(128) scan_states(const __grid_constant__ scan_call<T> call, const index_t tasks) {
  constexpr int of_S = D * D / 8, per_way = of_S + D / 8;
  const int ways = call.global_state ? 1 : 2;
  for (index_t task = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; task < tasks;
       task += static_cast<index_t>(gridDim.x) * blockDim.x) {
    const index_t both = divide(task, per_way), head = ways == 1 ? both : both / 2, n = divide(head, call.H), h = head - n * call.H;
    const int item = static_cast<int>(task - both * per_way), way = ways == 1 ? 0 : static_cast<int>(both % 2);
    if (item < of_S)
      thread_scan<T, D, Long, T>(call, call.states.S, index_t{D} * D, n, h, way, item * 8)
          .run(call.initial[way].S, call.final[way].S);
    else
      thread_scan<T, D, Long, float>(call, call.states.z, index_t{D}, n, h, way, (item - of_S) * 8)
          .run(call.initial[way].z, call.final[way].z);
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
