// SPDX-License-Identifier: Apache-2.0
// What rows read of states: of the two on their sides, or of the one that all keys are in.
#pragma once

#include <bila/backend/cuda/carried_state.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// C (16, 16) = A B, or C += A B where it is not the first.
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

/// What is read of the states on the two sides: N_i += read_i (q_i S + r_i z) and, where rows are summed, Z_i += read_i q_i z.
/// Ways: 1 if there is one state only, and no mask.
template <int Ways, class T, int D, int E, extra Extra, class Rows>
__device__ __forceinline__ void read_states(const product_call<T>& c, Rows& rows, const stored_state<T, D, E, Extra>& before,
                                            const stored_state<T, D, E, Extra>& behind) {
  using F = fragments<T>;
  constexpr bool learns = Rows::learns;
  const lane_place lane;
  float read_unit[2][2], read_bias[2][2];
  rows.weigh_states(read_unit, read_bias, c.biased, before.scale(), behind.scale());
  const auto state_of = [&](int way) -> const auto& { return way == 0 ? before : behind; };
#pragma unroll
  for (int m = 0; m < E / block; ++m) {
    float got[Ways][2][4];  // (16, 16) = q S, ways that do not wait for each other
#pragma unroll
    for (int k = 0; k < D / block; ++k)
#pragma unroll
      for (int way = 0; way < Ways; ++way) {
        typename F::b_type b[2];
        F::load_block(b, state_of(way).S[k][m]);
        multiply_two<T>(got[way], rows.q(k), b, k == 0);
      }
    float x[8];  // of the partner, columns as those of N
    if constexpr (learns)
      if (c.dots != nullptr) F::read_a(x, rows.partner(m));
#pragma unroll
    for (int way = 0; way < Ways; ++way)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float2 z{};
        if constexpr (learns) z = *reinterpret_cast<const float2*>(state_of(way).z[0] + m * 16 + n * 8 + 2 * lane.t);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int half = e / 2;
          float& N = rows.N[2 * m + n][e];
          if constexpr (learns) {
            const float part = fmaf(read_bias[half][way], e % 2 == 0 ? z.x : z.y, read_unit[half][way] * got[way][n][e]);
            if (c.dots != nullptr) rows.dots[half][2 * way] += x[4 * n + e] * part;
            N += part;
          } else {
            N = fmaf(read_unit[half][way], got[way][n][e], N);
          }
        }
      }
  }
  if constexpr (Rows::sums_rows) {  // all ways in one product: columns 0 and 1 forward, 2 and 3 backward
    float sums[4] = {};
    const T* const z = (lane.g < 2 ? before : behind).z[lane.g % 2];
#pragma unroll
    for (int k = 0; k < D / block; ++k) {
      typename F::b_type b{};
      if (lane.g < 2 * Ways) b = F::read_b(z + k * block + 2 * lane.t);
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
}

/// And of the mirrored product, read_i partner_i S^T.
template <int Ways, class T, int D, int E, extra Extra, class Rows>
__device__ __forceinline__ void read_mirrored_states(Rows& rows, const stored_state<T, D, E, Extra>& before,
                                                     const stored_state<T, D, E, Extra>& behind) {
  using F = fragments<T>;
  float read[2][2], unused[2][2];
  rows.weigh_states(read, unused, false, before.scale(), behind.scale());
#pragma unroll
  for (int m = 0; m < D / block; ++m) {
    float got[Ways][2][4];  // (16, 16) = partner S^T
#pragma unroll
    for (int k = 0; k < E / block; ++k)
#pragma unroll
      for (int way = 0; way < Ways; ++way) {
        typename F::b_type b[2];
        F::load_block_transposed(b, (way == 0 ? before : behind).S[m][k]);
        multiply_two<T>(got[way], rows.partner(k), b, k == 0);
      }
#pragma unroll
    for (int way = 0; way < Ways; ++way)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float& N = rows.mirror[2 * m + e / 4][e % 4];
        N = fmaf(read[e / 2 % 2][way], got[way][e / 4][e % 4], N);
      }
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
