// SPDX-License-Identifier: Apache-2.0
// The recurrent form: token by token, the state in registers; for streaming, and where memory is short. One sweep per direction,
// the second adds to the first and normalises.
#pragma once

#include <bila/backend/cuda/fragment.hpp>
#include <bila/backend/cuda/gaps.hpp>
#include <bila/backend/cuda/states.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct sweep_call {
  sequences s;
  index_t H;
  operand<T> q, k, v;
  const double* decays;  // per entry: of the gap by which the state comes to the token
  end_state<const float> initial;
  end_state<float> final;
  float* partial;  // (tokens, Dv + 1) of each row and head, [row, H, L]: what the other sweep found
  bool forward, adds, finishes;
  float diagonal, scale;
  tensor_view<T> y;
  tensor_view<float> row_sum;
};

/// The decays of a call's gaps, in double: crossed on the way to each token.
template <class Mask>
BILA_KERNEL void write_decays(const sequences s, const index_t H, const __grid_constant__ Mask mask, const border_gaps borders,
                              const bool forward, double* const to, const index_t entries) {
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < entries;
       i += static_cast<index_t>(gridDim.x) * blockDim.x) {
    const place at = s.find(i / block, H, block);
    const index_t t = at.unit * block + i % block, gap = forward ? t : t + 1, count = s.tokens(at.n);
    if (t >= count) continue;
    const bool border = forward ? gap == 0 : gap == count;
    to[i] = exp(border ? border_gaps::at(forward ? borders.before : borders.after, at.n, at.h)
                       : gap_of(s, mask, forward, at.n, head_of_mask(mask, at.h, H), gap));
  }
}

/// A block of threads has 32 columns of a state and its row sums, 8 lanes a column.
///
/// A float state multiplied by 1 - 2^-24 at every token drifts, so the decay is held back in double and the state settled when it
/// falls below one half: the state is held times what the registers have. A float sum of a million equal terms drifts too, so what
/// a few blocks of tokens add is summed up on its own, and what is lost where it joins the state goes to what the next ones add.
template <class T, int D, class Norm>
BILA_KERNEL void __launch_bounds__(288, D <= 64 ? 4 : 1)
    sweep(const __grid_constant__ sweep_call<T> c, const __grid_constant__ Norm norm, const index_t slices, const index_t tasks) {
  constexpr int columns = 32, parts = 8, per_lane = D / parts;
  static_assert(per_lane % 4 == 0);
  __shared__ __align__(16) float q[block][D], k[block][D];
  __shared__ float v[block][columns + 1], N[block][columns + 1], own[block];
  __shared__ double decay[block];
  const int column = static_cast<int>(threadIdx.x) / parts, part = static_cast<int>(threadIdx.x) % parts;  // column 32: row sums
  const bool works = column <= columns;
  const auto feature = [&](int j) { return j / 4 * 4 * parts + part * 4 + j % 4; };  // a lane has four neighbours at a time
  const unsigned lanes = 0xffu << (threadIdx.x % 32 / parts * parts);  // those of this column: the last warp has but one

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int first_column = static_cast<int>(task % slices) * columns;
    const index_t h = task / slices % c.H, n = task / slices / c.H;
    const index_t row = c.s.row(n), token = c.s.first(n), count = c.s.tokens(n);
    const index_t Dk = c.q.x.features(), Dv = c.v.x.features();
    const int d_v = first_column + column;
    const bool is_sum = column == columns, is_mine = is_sum || d_v < Dv;
    const auto partial = [&](index_t t, int at) -> float& {
      return c.partial[(((row * c.H + h) * c.y.length()) + token + t) * (Dv + 1) + (at == columns ? Dv : first_column + at)];
    };

    float S[per_lane], fresh[per_lane] = {};
    double held = 1;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const int d = feature(i);
      S[i] = 0;
      if (works && d < Dk && is_mine) {
        if (is_sum && c.initial.z.data != nullptr) S[i] = c.initial.z(n, h, d, 0);
        if (!is_sum && c.initial.S.data != nullptr) S[i] = c.initial.S(n, h, d, d_v);
      }
    }

    const index_t blocks = (count + block - 1) / block;
    for (index_t step = 0; step < blocks; ++step) {
      const index_t first = (c.forward ? step : blocks - 1 - step) * block;
      const int there = static_cast<int>(count - first < block ? count - first : block);
      __syncthreads();
      const rows<const T> qs = c.q.tokens(row, h, token + first, there), ks = c.k.tokens(row, h, token + first, there),
                          vs = c.v.tokens(row, h, token + first, there);
      for (int i = static_cast<int>(threadIdx.x); i < there * D; i += 288) {
        const int r = i / D, d = i % D;
        q[r][d] = d < Dk ? wide(qs(r, d)) : 0;
        k[r][d] = d < Dk ? wide(ks(r, d)) : 0;
      }
      for (int i = static_cast<int>(threadIdx.x); i < there * columns; i += 288) {
        const int r = i / columns, d = i % columns;
        v[r][d] = first_column + d < Dv ? wide(vs(r, first_column + d)) : 0;
      }
      if (threadIdx.x < there) {
        v[threadIdx.x][columns] = 1;
        decay[threadIdx.x] = c.decays == nullptr ? 1 : c.decays[c.s.first_entry(n, h, c.H) + first + threadIdx.x];
      }
      __syncthreads();
      if (c.finishes)  // the diagonal, which all columns share
        for (int r = static_cast<int>(threadIdx.x) / 32; r < there; r += 9) {
          float sum = 0;
          for (int d = static_cast<int>(threadIdx.x) % 32; d < D; d += 32) sum += q[r][d] * k[r][d];
#pragma unroll
          for (int reach = 16; reach > 0; reach /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, reach);
          if (threadIdx.x % 32 == 0) own[r] = c.diagonal * sum;
        }
      if (works) {
#pragma unroll 1
        for (int i = 0; i < there; ++i) {
          const int r = c.forward ? i : there - 1 - i;
          held *= decay[r];
          if (!(held >= 0.5) || (step == 0 && i == 0)) {  // at once where a state enters, so that one of zeros changes no bit
            if (held == 0) {                              // whatever the state is
#pragma unroll
              for (int j = 0; j < per_lane; ++j) S[j] = fresh[j] = 0;
            } else {
              const float by = static_cast<float>(held);
#pragma unroll
              for (int j = 0; j < per_lane; ++j) S[j] *= by, fresh[j] *= by;
            }
            held = 1;
          }
          const float now = static_cast<float>(held), in = __fdividef(v[r][column], now);
          float out = 0;
#pragma unroll
          for (int j = 0; j < per_lane; j += 4) {
            const float4 x = *reinterpret_cast<const float4*>(&q[r][feature(j)]),
                         y = *reinterpret_cast<const float4*>(&k[r][feature(j)]);
            const float of_q[] = {x.x, x.y, x.z, x.w}, of_k[] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              out += of_q[e] * (S[j + e] + fresh[j + e]);
              fresh[j + e] += of_k[e] * in;
            }
          }
          out *= now;
#pragma unroll
          for (int reach = parts / 2; reach > 0; reach /= 2) out += __shfl_xor_sync(lanes, out, reach, parts);
          if (part == 0) N[r][column] = out;
        }
        if (step % 4 == 3)
#pragma unroll
          for (int j = 0; j < per_lane; ++j) {
            const float sum = S[j] + fresh[j], added = sum - S[j];
            fresh[j] = (S[j] - (sum - added)) + (fresh[j] - added);
            S[j] = sum;
          }
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < there * (columns + 1); i += 288) {
        const int r = i / (columns + 1), at = i % (columns + 1);
        if (at < columns && first_column + at >= Dv) continue;
        if (c.finishes) N[r][at] += own[r] * v[r][at];
        if (c.adds) N[r][at] += partial(first + r, at);
        if (!c.finishes && (at < columns || first_column == 0)) partial(first + r, at) = N[r][at];
      }
      if (c.finishes) {
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < there * columns; i += 288) {
          const int r = i / columns, at = i % columns;
          if (first_column + at >= Dv) continue;
          const float Z = N[r][columns];
          const auto result = norm(Z, c.scale);
          const float y = result.divisor == 0 ? 0 : result.factor * N[r][at] / result.divisor;
          c.y(row, h, token + first + r, first_column + at) = narrow<T>(y);
          if (at == 0 && first_column == 0 && c.row_sum.data != nullptr) c.row_sum(row, h, token + first + r, 0) = Z;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const int d = feature(i);
      if (!works || !is_mine || d >= Dk) continue;
      const float x = (S[i] + fresh[i]) * static_cast<float>(held);
      if (is_sum) {
        if (first_column == 0 && c.final.z.data != nullptr) c.final.z(n, h, d, 0) = x;
      } else if (c.final.S.data != nullptr) {
        c.final.S(n, h, d, d_v) = x;
      }
    }
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
