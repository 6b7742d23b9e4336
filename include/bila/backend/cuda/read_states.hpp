// SPDX-License-Identifier: Apache-2.0
// Products of rows with states: with the states on the left and right of the rows, or with the global state of all keys.
#pragma once

#include <bila/backend/cuda/carried_state.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// C (16, 16) = A B if `first`, else C += A B.
template <class T>
__device__ __forceinline__ void multiply_two(float (&C)[2][4], const typename fragments<T>::a_type& A,
                                             const typename fragments<T>::b_type (&B)[2], bool first) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (first)
      fragments<T>::multiply_first(C[i], A, B[i]);
    else
      fragments<T>::multiply(C[i], A, B[i]);
}

/// Adds one state's part to columns [16 m, 16 m + 16) of the rows: N_i += read_unit_i got_i + read_bias_i z, with got_i = q_i S in
/// these columns, and the factors of row_block::weigh_states. x: dot_operand_i in these columns.
template <class Epilogue, class Rows, class State>
__device__ __forceinline__ void add_read(const Epilogue& epilogue, Rows& rows, const State& state, int way, int m,
                                         const float (&got)[2][4], const float (&x)[8], const float (&read_unit)[2][2],
                                         const float (&read_bias)[2][2]) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float2 z{};
    if constexpr (Rows::is_backward) z = *reinterpret_cast<const float2*>(state.z[0] + m * 16 + n * 8 + 2 * rows.lane.t);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int half = e / 2;
      float& N = rows.N[2 * m + n][e];
      if constexpr (Rows::is_backward) {
        const float part = fmaf(read_bias[half][way], e % 2 == 0 ? z.x : z.y, read_unit[half][way] * got[n][e]);
        if (wants_dots(epilogue)) rows.dots[half][2 * way] += x[4 * n + e] * part;
        N += part;
      } else {
        N = fmaf(read_unit[half][way], got[n][e], N);
      }
    }
  }
}

/// Z_i += read_i q_i z for both states in one product. B has z of `left` in columns 0 and 1, z of `right` in columns 2 and 3.
template <int Ways, class T, int D, int E, state_sum Kind, class Rows>
__device__ __forceinline__ void read_sums(Rows& rows, const stored_state<T, D, E, Kind>& left,
                                          const stored_state<T, D, E, Kind>& right, const float (&read_unit)[2][2]) {
  using F = fragments<T>;
  const lane_place lane;
  float sums[4] = {};
  const T* const z = (lane.g < 2 ? left : right).z[lane.g % 2];
#pragma unroll
  for (int k = 0; k < D / mma_rows; ++k) {
    typename F::b_type b{};
    if (lane.g < 2 * Ways) b = F::read_b(z + k * mma_rows + 2 * lane.t);
    F::multiply(sums, rows.q(k), b);
  }
  const int quad = static_cast<int>(threadIdx.x) % 32 / 4 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float both = sums[2 * half] + sums[2 * half + 1];
#pragma unroll
    for (int way = 0; way < Ways; ++way) rows.Z[2 * half] += read_unit[half][way] * __shfl_sync(0xffffffffu, both, quad + way);
  }
}

/// Adds what the left and the right state give to the rows: N_i += read_i q_i S. In a gradient also N_i += read_i r_i z, with r_i
/// the bias of row i and z the state's sum of values. In a forward pass whose norm uses the row sum also Z_i += read_i q_i z, with
/// z the sum of keys. Ways is 1 for the global state: only `left` is then read.
template <int Ways, class T, int D, int E, state_sum Kind, class Epilogue, class Rows>
__device__ __forceinline__ void read_states(const Epilogue& epilogue, Rows& rows, const stored_state<T, D, E, Kind>& left,
                                            const stored_state<T, D, E, Kind>& right) {
  using F = fragments<T>;
  float read_unit[2][2], read_bias[2][2];
  bool biased = false;
  if constexpr (Rows::is_backward) biased = epilogue.terms.biased;
  rows.weigh_states(read_unit, read_bias, biased, left.scale(), right.scale());
  const auto state_of = [&](int way) -> const auto& { return way == 0 ? left : right; };
#pragma unroll
  for (int m = 0; m < E / mma_rows; ++m) {
    float got[Ways][2][4];  // (16, 16) = q S per way; the products of two ways are independent
#pragma unroll
    for (int k = 0; k < D / mma_rows; ++k)
#pragma unroll
      for (int way = 0; way < Ways; ++way) {
        typename F::b_type b[2];
        F::load_block(b, state_of(way).S[k][m]);
        multiply_two<T>(got[way], rows.q(k), b, k == 0);
      }
    float x[8];  // dot_operand in the columns of N
    if constexpr (Rows::is_backward)
      if (wants_dots(epilogue)) F::read_a(x, rows.dot_operand(m));
#pragma unroll
    for (int way = 0; way < Ways; ++way) add_read(epilogue, rows, state_of(way), way, m, got[way], x, read_unit, read_bias);
  }
  if constexpr (Rows::sums_rows) read_sums<Ways>(rows, left, right, read_unit);
}

/// Adds read_i dot_operand_i S^T to the dual rows, for the left and the right state.
template <int Ways, class T, int D, int E, state_sum Kind, class Rows>
__device__ __forceinline__ void read_states_transposed(Rows& rows, const stored_state<T, D, E, Kind>& left,
                                                       const stored_state<T, D, E, Kind>& right) {
  using F = fragments<T>;
  float read[2][2], unused[2][2];
  rows.weigh_states(read, unused, false, left.scale(), right.scale());
#pragma unroll
  for (int m = 0; m < D / mma_rows; ++m) {
    float got[Ways][2][4];  // (16, 16) = dot_operand S^T
#pragma unroll
    for (int k = 0; k < E / mma_rows; ++k)
#pragma unroll
      for (int way = 0; way < Ways; ++way) {
        typename F::b_type b[2];
        F::load_block_transposed(b, (way == 0 ? left : right).S[m][k]);
        multiply_two<T>(got[way], rows.dot_operand(k), b, k == 0);
      }
#pragma unroll
    for (int way = 0; way < Ways; ++way)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float& N = rows.dual_rows[2 * m + e / 4][e % 4];
        N = fmaf(read[e / 2 % 2][way], got[way][e / 4][e % 4], N);
      }
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
