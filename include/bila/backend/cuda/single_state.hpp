// SPDX-License-Identifier: Apache-2.0
// All ones: every row reads the one state that all keys are in.
//
//     N_i = q_i S + r_i z,   Z_i = q_i z
#pragma once

#include <bila/backend/cuda/states.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct read_call {
  product_call<T> product;
  state_table<T> states;  // where the scan left it: in the first chunk's place
  sequences of_states;    // the keys'
  index_t states_chunk;
  bool transposed;  // its rows are features of what is read
};

template <class T>
struct read_task {
  index_t row, h, token, entry, count, state;
  int first_column;

  __device__ void locate(const read_call<T>& c, index_t task, int slices, int slice, index_t size) {
    const index_t number = slices == 1 ? task : divide(task, slices);
    first_column = static_cast<int>(task - number * slices) * slice;
    const sequences& s = c.product.s;
    const place at = s.find(number, c.product.H, size);
    const index_t first = at.unit * size, left = s.tokens(at.n) - first;
    count = left <= 0 ? 0 : left < size ? left : size;
    if (count == 0) return;
    row = s.row(at.n);
    h = at.h;
    token = s.first(at.n) + first;
    entry = s.first_entry(at.n, at.h, c.product.H) + first;
    state = 2 * c.of_states.number({at.n, at.h, 0}, c.product.H, c.states_chunk);
  }
};

template <class T, int D>
struct read_memory {
  static constexpr int slice = D < 64 ? D : 64, slices = D / slice;
  static constexpr int warps = D * sizeof(T) > 512 ? 2 : 4, rows = warps * block, threads = warps * 32;
  static constexpr int pad = 16 / static_cast<int>(sizeof(T)), stride = D + pad, slice_stride = slice + pad;
  static constexpr int per_sm = D <= 64 && sizeof(T) == 2 ? 5 : 1;  // 4 and 6 are slower
  static constexpr index_t rows_per_task = 512;                     // so that reading the state is little beside them
  alignas(16) T S[D * slice_stride > slice* stride ? D* slice_stride : slice* stride];
  alignas(16) T q[2][rows * stride];
  alignas(16) float z[D];
  read_task<T> task;
};

template <class T, int D, class Finish>
BILA_KERNEL void __launch_bounds__(read_memory<T, D>::threads, read_memory<T, D>::per_sm)
    read_state(const __grid_constant__ read_call<T> r, const __grid_constant__ Finish finish, const index_t tasks) {
  using memory = read_memory<T, D>;
  using F = fragments<T>;
  constexpr int stride = memory::stride, slice = memory::slice, slice_stride = memory::slice_stride, threads = memory::threads;
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const product_call<T>& c = r.product;
  const int warp = warp_number(), mine = warp * block;
  const lane_place lane;

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) shared.task.locate(r, task, memory::slices, slice, memory::rows_per_task);
    __syncthreads();
    const read_task<T>& at = shared.task;
    if (at.count == 0) continue;
    const auto load = [&](int step) {
      const index_t from = static_cast<index_t>(step) * memory::rows, left = at.count - from;
      if (left > 0)
        load_tokens<memory::rows, D, stride, threads>(shared.q[step % 2], c.q.tokens(at.row, at.h, at.token + from, left),
                                                      c.q.fast);
      close_copies();
    };
    const T* const S = r.states.S + at.state * D * D;
    if (r.transposed)
      load_tokens<slice, D, stride, threads>(shared.S, rows<const T>{S + at.first_column * D, slice, D, D, 1}, true);
    else
      load_tokens<D, slice, slice_stride, threads>(shared.S, rows<const T>{S + at.first_column, D, slice, D, 1}, true);
    load_numbers<threads>(shared.z, r.states.z + at.state * D, D, D);
    load(0);
    const float unit = r.states.unit[at.state];
    const int steps = static_cast<int>((at.count + memory::rows - 1) / memory::rows);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      load(step + 1);
      wait_for_copies<1>();
      __syncthreads();
      const index_t from = static_cast<index_t>(step) * memory::rows + mine;
      const int there = up_to(at.count - from, block);
      if (there > 0) {
        const T* const here = shared.q[step % 2] + mine * stride;
        row_block<T, D, slice, Finish, (D <= 64 && sizeof(T) == 2), true, 1> rows;
        rows.q.take(here);
#pragma unroll
        for (int n = 0; n < slice / 16; ++n)
#pragma unroll
          for (int k = 0; k < D / block; ++k) {
            typename F::b_type b[2];
            if (r.transposed)
              F::template load_b_transposed<stride>(b, shared.S + n * 16 * stride + k * block);
            else
              F::template load_b<slice_stride>(b, shared.S + k * block * slice_stride + n * 16);
            const typename F::a_type a = rows.q(k);
            F::multiply(rows.N[2 * n], a, b[0]);
            F::multiply(rows.N[2 * n + 1], a, b[1]);
          }
        float row_bias[2] = {0, 0};
        if (Finish::learns && c.biased)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            row_bias[half] = c.row_bias == nullptr ? 1 : c.row_bias[at.entry + from + lane.g + 8 * half];
#pragma unroll
        for (int n = 0; n < slice / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            rows.N[n][e] = unit * rows.N[n][e] +
                           (Finish::learns ? row_bias[e / 2] * shared.z[at.first_column + n * 8 + 2 * lane.t + e % 2] : 0.0f);
        if constexpr (Finish::sums_rows) {
#pragma unroll
          for (int k = 0; k < D / block; ++k) {  // z in two halves, columns 0 and 1
            float b[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const float x = lane.g > 1 ? 0 : shared.z[k * block + 2 * lane.t + e % 2 + e / 2 * 8] * inverse_of_power(unit);
              const float high = high_part<T>(x);
              b[e] = lane.g % 2 == 0 ? high : x - high;
            }
            F::multiply(rows.Z, rows.q(k), F::make_b(b));
          }
          const int quad = static_cast<int>(threadIdx.x) % 32 / 4 * 4;
#pragma unroll
          for (int half = 0; half < 2; ++half)
            rows.Z[2 * half] = unit * __shfl_sync(0xffffffffu, rows.Z[2 * half] + rows.Z[2 * half + 1], quad);
        }
        rows.leave(c, finish, at.row, at.h, at.token + from, at.entry + from, there, at.first_column, nullptr);
      }
      __syncthreads();
    }
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
