// SPDX-License-Identifier: Apache-2.0
// The recurrent form: one token at a time, with the state in registers, for streaming and for small workspaces. A scan computes one
// direction. Where there are two scans, the first stores its rows. The second adds the first scan's rows to its own and normalises.
#pragma once

#include <bila/backend/cuda/fragment.hpp>
#include <bila/backend/cuda/gaps.hpp>
#include <bila/backend/cuda/scan_states.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct recurrent_scan_call {
  sequences s;
  index_t H;
  operand<T> q, k, v;
  const double* decays;  // per entry: decay of the gap that the state crosses to reach the token
  end_state<const float> initial;
  end_state<float> final;
  float* partial_rows;                 // N and Z of the first scan, [batch row, H, L, Dv + 1]
  bool forward, has_partial, is_last;  // is_last: the scan adds the diagonal and normalises
  float diagonal, scale;
  tensor_view<T> y;
  tensor_view<float> row_sum;
};

/// Writes, in double, the decay of the gap that the state crosses to reach each token.
template <class Mask>
BILA_KERNEL void write_decays(const sequences s, const index_t H, const __grid_constant__ Mask mask, const border_gaps borders,
                              const bool forward, double* const to, const index_t entries) {
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < entries;
       i += static_cast<index_t>(gridDim.x) * blockDim.x) {
    const place at = s.find(i / mma_rows, H, mma_rows);
    const index_t t = at.unit * mma_rows + i % mma_rows, gap = forward ? t : t + 1, count = s.tokens(at.n);
    if (t >= count) continue;
    const bool border = forward ? gap == 0 : gap == count;
    to[i] = exp(border ? border_gaps::at(forward ? borders.before : borders.after, at.n, at.h)
                       : gap_of(s, mask, forward, at.n, head_of_mask(mask, at.h, H), gap));
  }
}

/// A block of threads holds recurrent_columns columns of S, and z as one more column. recurrent_lanes threads share a column.
inline constexpr int recurrent_columns = 32, recurrent_lanes = 8;
inline constexpr int recurrent_threads = ((recurrent_columns + 1) * recurrent_lanes + 31) / 32 * 32;

inline index_t recurrent_value_tiles(index_t Dv) { return (Dv + recurrent_columns - 1) / recurrent_columns; }

template <int D>
struct recurrent_scan_memory {
  static constexpr int columns = recurrent_columns, per_lane = D / recurrent_lanes;
  static_assert(per_lane % 4 == 0);
  alignas(16) float q[mma_rows][D], k[mma_rows][D];
  float v[mma_rows][columns + 1], N[mma_rows][columns + 1], own[mma_rows];  // own: diagonal q_i . k_i
  double decay[mma_rows];
};

/// The scan of one direction of one sequence and head.
///
/// A float state that is multiplied by 1 - 2^-24 at every token drifts. So decays are multiplied into pending_decay_, a double, and
/// the state is pending_decay_ times the numbers in registers. When pending_decay_ falls below one half, it is multiplied into the
/// registers. A float sum of a million equal terms drifts too. So four blocks of tokens are summed separately, in `fresh_`. The
/// rounding error of adding `fresh_` to the state becomes the start of the next sum.
template <class T, int D, class Norm>
class recurrent_pass {
  using memory = recurrent_scan_memory<D>;
  static constexpr int columns = recurrent_columns, parts = recurrent_lanes, threads = recurrent_threads;
  static constexpr int per_lane = memory::per_lane;

 public:
  __device__ __forceinline__ recurrent_pass(const recurrent_scan_call<T>& call, const Norm& norm, memory& shared, index_t n,
                                            index_t h, int first_column)
      : c_(call),
        norm_(norm),
        shared_(shared),
        n_(n),
        h_(h),
        first_column_(first_column),
        row_(call.s.row(n)),
        token_(call.s.first(n)),
        count_(call.s.tokens(n)),
        Dk_(call.q.x.features()),
        Dv_(call.v.x.features()),
        column_(static_cast<int>(threadIdx.x) / parts),
        part_(static_cast<int>(threadIdx.x) % parts) {}

  __device__ __forceinline__ void run() {
    load_initial_state();
    const index_t blocks = (count_ + mma_rows - 1) / mma_rows;
    for (index_t step = 0; step < blocks; ++step) {
      const index_t first = (c_.forward ? step : blocks - 1 - step) * mma_rows;
      const int tokens = static_cast<int>(count_ - first < mma_rows ? count_ - first : mma_rows);
      __syncthreads();
      load_tokens(first, tokens);
      __syncthreads();
      if (c_.is_last) multiply_own(tokens);
      if (works()) {
#pragma unroll 1
        for (int i = 0; i < tokens; ++i) add_token(c_.forward ? i : tokens - 1 - i, step == 0 && i == 0);
        if (step % 4 == 3) add_fresh();
      }
      __syncthreads();
      add_partial_rows(first, tokens);
      if (c_.is_last) {
        __syncthreads();
        normalise_rows(first, tokens);
      }
    }
    store_final_state();
  }

 private:
  __device__ __forceinline__ bool works() const { return column_ <= columns; }
  __device__ __forceinline__ bool is_sum() const { return column_ == columns; }
  __device__ __forceinline__ bool is_mine() const { return is_sum() || first_column_ + column_ < Dv_; }
  /// The j-th feature of this lane. Four neighbouring features belong to the same lane.
  __device__ __forceinline__ int feature(int j) const { return j / 4 * 4 * parts + part_ * 4 + j % 4; }
  __device__ __forceinline__ float& partial(index_t t, int at) const {
    return c_
        .partial_rows[(((row_ * c_.H + h_) * c_.y.length()) + token_ + t) * (Dv_ + 1) + (at == columns ? Dv_ : first_column_ + at)];
  }

  __device__ __forceinline__ void load_initial_state() {
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const int d = feature(i);
      S_[i] = 0;
      if (works() && d < Dk_ && is_mine()) {
        if (is_sum() && c_.initial.z.data != nullptr) S_[i] = c_.initial.z(n_, h_, d, 0);
        if (!is_sum() && c_.initial.S.data != nullptr) S_[i] = c_.initial.S(n_, h_, d, first_column_ + column_);
      }
    }
  }

  __device__ __forceinline__ void load_tokens(index_t first, int tokens) const {
    const rows<const T> qs = c_.q.tokens(row_, h_, token_ + first, tokens), ks = c_.k.tokens(row_, h_, token_ + first, tokens),
                        vs = c_.v.tokens(row_, h_, token_ + first, tokens);
    for (int i = static_cast<int>(threadIdx.x); i < tokens * D; i += threads) {
      const int r = i / D, d = i % D;
      shared_.q[r][d] = d < Dk_ ? wide(qs(r, d)) : 0;
      shared_.k[r][d] = d < Dk_ ? wide(ks(r, d)) : 0;
    }
    for (int i = static_cast<int>(threadIdx.x); i < tokens * columns; i += threads) {
      const int r = i / columns, d = i % columns;
      shared_.v[r][d] = first_column_ + d < Dv_ ? wide(vs(r, first_column_ + d)) : 0;
    }
    if (threadIdx.x < tokens) {
      shared_.v[threadIdx.x][columns] = 1;
      shared_.decay[threadIdx.x] = c_.decays == nullptr ? 1 : c_.decays[c_.s.first_entry(n_, h_, c_.H) + first + threadIdx.x];
    }
  }

  /// Computes the scores on the diagonal, which all columns share.
  __device__ __forceinline__ void multiply_own(int tokens) const {
    for (int r = static_cast<int>(threadIdx.x) / 32; r < tokens; r += threads / 32) {
      float sum = 0;
      for (int d = static_cast<int>(threadIdx.x) % 32; d < D; d += 32) sum += shared_.q[r][d] * shared_.k[r][d];
#pragma unroll
      for (int reach = 16; reach > 0; reach /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, reach);
      if (threadIdx.x % 32 == 0) shared_.own[r] = c_.diagonal * sum;
    }
  }

  /// Row r reads the state, then token r is added to it. settle: the pending decay is applied at once. This is done at the
  /// first token, so that an initial state of zeros gives the same bits as no initial state.
  __device__ __forceinline__ void add_token(int r, bool settle) {
    pending_decay_ *= shared_.decay[r];
    if (!(pending_decay_ >= 0.5) || settle) apply_pending_decay();
    const float now = static_cast<float>(pending_decay_), in = __fdividef(shared_.v[r][column_], now);
    float out = 0;
#pragma unroll
    for (int j = 0; j < per_lane; j += 4) {
      const float4 x = *reinterpret_cast<const float4*>(&shared_.q[r][feature(j)]),
                   y = *reinterpret_cast<const float4*>(&shared_.k[r][feature(j)]);
      const float of_q[] = {x.x, x.y, x.z, x.w}, of_k[] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        out += of_q[e] * (S_[j + e] + fresh_[j + e]);
        fresh_[j + e] += of_k[e] * in;
      }
    }
    out *= now;
    const unsigned lanes = 0xffu << (threadIdx.x % 32 / parts * parts);  // of this column: the last warp has one column only
#pragma unroll
    for (int reach = parts / 2; reach > 0; reach /= 2) out += __shfl_xor_sync(lanes, out, reach, parts);
    if (part_ == 0) shared_.N[r][column_] = out;
  }

  __device__ __forceinline__ void apply_pending_decay() {
    if (pending_decay_ == 0) {  // zero even where the state is infinite or NaN
#pragma unroll
      for (int j = 0; j < per_lane; ++j) S_[j] = fresh_[j] = 0;
    } else {
      const float by = static_cast<float>(pending_decay_);
#pragma unroll
      for (int j = 0; j < per_lane; ++j) S_[j] *= by, fresh_[j] *= by;
    }
    pending_decay_ = 1;
  }

  /// S += fresh. The rounding error of this addition becomes the new `fresh`.
  __device__ __forceinline__ void add_fresh() {
#pragma unroll
    for (int j = 0; j < per_lane; ++j) {
      const float sum = S_[j] + fresh_[j], added = sum - S_[j];
      fresh_[j] = (S_[j] - (sum - added)) + (fresh_[j] - added);
      S_[j] = sum;
    }
  }

  __device__ __forceinline__ void add_partial_rows(index_t first, int tokens) const {
    for (int i = static_cast<int>(threadIdx.x); i < tokens * (columns + 1); i += threads) {
      const int r = i / (columns + 1), at = i % (columns + 1);
      if (at < columns && first_column_ + at >= Dv_) continue;
      if (c_.is_last) shared_.N[r][at] += shared_.own[r] * shared_.v[r][at];
      if (c_.has_partial) shared_.N[r][at] += partial(first + r, at);
      if (!c_.is_last && (at < columns || first_column_ == 0)) partial(first + r, at) = shared_.N[r][at];
    }
  }

  __device__ __forceinline__ void normalise_rows(index_t first, int tokens) const {
    for (int i = static_cast<int>(threadIdx.x); i < tokens * columns; i += threads) {
      const int r = i / columns, at = i % columns;
      if (first_column_ + at >= Dv_) continue;
      const float Z = shared_.N[r][columns];
      const auto result = norm_(Z, c_.scale);
      const float y = result.divisor == 0 ? 0 : result.factor * shared_.N[r][at] / result.divisor;
      c_.y(row_, h_, token_ + first + r, first_column_ + at) = narrow<T>(y);
      if (at == 0 && first_column_ == 0 && c_.row_sum.data != nullptr) c_.row_sum(row_, h_, token_ + first + r, 0) = Z;
    }
  }

  __device__ __forceinline__ void store_final_state() const {
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const int d = feature(i);
      if (!works() || !is_mine() || d >= Dk_) continue;
      const float x = (S_[i] + fresh_[i]) * static_cast<float>(pending_decay_);
      if (is_sum()) {
        if (first_column_ == 0 && c_.final.z.data != nullptr) c_.final.z(n_, h_, d, 0) = x;
      } else if (c_.final.S.data != nullptr) {
        c_.final.S(n_, h_, d, first_column_ + column_) = x;
      }
    }
  }

  const recurrent_scan_call<T>& c_;
  const Norm& norm_;
  memory& shared_;
  const index_t n_, h_;
  const int first_column_;
  const index_t row_, token_, count_, Dk_, Dv_;
  const int column_, part_;
  float S_[per_lane], fresh_[per_lane] = {};
  double pending_decay_ = 1;
};

template <class T, int D, class Norm>
BILA_KERNEL void __launch_bounds__(recurrent_threads, D <= 64 ? 4 : 1)
    recurrent_scan(const __grid_constant__ recurrent_scan_call<T> call, const __grid_constant__ Norm norm,
                   const index_t value_tiles, const index_t tasks) {
  __shared__ recurrent_scan_memory<D> shared;
  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int first_column = static_cast<int>(task % value_tiles) * recurrent_columns;
    const index_t h = task / value_tiles % call.H, n = task / value_tiles / call.H;
    recurrent_pass<T, D, Norm>(call, norm, shared, n, h, first_column).run();
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
