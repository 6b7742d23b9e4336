// SPDX-License-Identifier: Apache-2.0
// Weights from gaps, computed once per call. Only weigh_gaps and write_decays read a mask in the forward pass. All other kernels
// read the weights, which have the same layout for every mask.
#pragma once

#include <bila/backend/cuda/sequences.hpp>
#include <bila/view/storage.hpp>

#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// The type of sums of log decays. Inside a block of 16 tokens a weight is exp of the difference of two sums, in which a cut (-inf)
/// counts as -110 (-800 in double). Near a cut the difference of two floats is off by up to 2e-4. This error is less than the
/// rounding of 16-bit tensors but more than that of float tensors, so float tensors use double.
template <class T>
using exponent = std::conditional_t<std::is_same_v<T, float>, double, float>;

/// e^x for x <= 0, with a relative error of 2^-22 + |x| 2^-24. Results below the smallest normal float become 0.
template <class Exponent>
__device__ float fast_exp(Exponent x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(static_cast<float>(x) * 1.4426950408889634f));
  return y;
}

/// Two log decays, or two sums of log decays: one of each direction.
template <class Exponent>
struct alignas(2 * sizeof(Exponent)) both_ways {
  Exponent forward, backward;
};

/// The decays between token i and the ends of its block of 16: omega, psi, alpha and beta of MATH.md 2.3, in this order.
enum weight_kind : int {
  write_forward,   // from i to the block's last token
  write_backward,  // from i to the block's first token
  read_forward,    // from the last token of the previous block to i
  read_backward,   // from the first token of the next block to i
  weight_kinds
};

/// The gap weights of a call: for each kind of weight one entry per token of every head, and each head is padded to whole blocks.
/// Entries and blocks are numbered as in `sequences`. Null pointers: all weights are 1.
template <class Exponent>
struct gap_table {
  float* weights;                   // (weight_kinds, entries)
  index_t entries;                  // of one kind of weight, padding included
  both_ways<Exponent>* sums;        // per entry: sum of the log decays of gaps from the block's first token to this token
  both_ways<Exponent>* block_sums;  // per block: sum over its gaps and the gap before it (forward) or after it (backward)

  __device__ float* weight(weight_kind kind, index_t entry) const { return weights + kind * entries + entry; }
};

/// Log decays of the gaps at a sequence's ends, which initial states cross, [n, H, 1, 1]. No data: 0.
struct border_gaps {
  tensor_view<const float> before, after;

  bool given() const { return before.data != nullptr || after.data != nullptr; }

  static __device__ double at(const tensor_view<const float>& x, index_t n, index_t h) {
    return x.data == nullptr ? 0.0 : static_cast<double>(x(n, h, 0, 0));
  }
};

/// How many of H heads share one head of the mask.
template <class Mask>
__device__ index_t sharing_of(const Mask& mask, index_t H) {
  if constexpr (requires { mask.heads(); })
    if (mask.heads() != H) return divide(H, mask.heads());
  return 1;
}

template <class Mask>
__device__ index_t head_of_mask(const Mask& mask, index_t h, index_t H) {
  const index_t sharing = sharing_of(mask, H);
  return sharing == 1 ? h : divide(h, sharing);
}

/// Log decay of gap t of a sequence in one direction, 0 for gaps that do not lie between two of its tokens. `h` is a head of the
/// mask. NaN stays NaN.
template <class Mask>
__device__ double gap_of(const sequences& s, const Mask& mask, bool forward, index_t n, index_t h, index_t t) {
  if (t <= 0 || t >= s.tokens(n)) return 0;
  const index_t token = s.first(n) + t;
  const double log = forward ? mask.log_forward(s.row(n), h, token) : mask.log_backward(s.row(n), h, token);
  return log > 0 ? 0 : log;
}

/// The sum of x over the lanes of a half warp, from lane 0 to `lane`.
template <class Exponent>
__device__ Exponent sum_up_to(Exponent x, int lane) {
#pragma unroll
  for (int step = 1; step < mma_rows; step *= 2) {
    const Exponent before = __shfl_up_sync(0xffffffffu, x, step, mma_rows);
    if (lane >= step) x += before;
  }
  return x;
}

/// The sum of x over the lanes of a half warp, from `lane` to the last one.
template <class Exponent>
__device__ Exponent sum_from(Exponent x, int lane) {
#pragma unroll
  for (int step = 1; step < mma_rows; step *= 2) {
    const Exponent after = __shfl_down_sync(0xffffffffu, x, step, mma_rows);
    if (lane + step < mma_rows) x += after;
  }
  return x;
}

/// Half a warp computes the weights of a block, one token per lane. there: whether the block has tokens; else nothing is written.
/// forward: log decay of the gap before the token. backward: log decay of the gap after the token.
template <class Exponent>
__device__ void weigh_block(const gap_table<Exponent>& to, index_t number, bool there, Exponent forward, Exponent backward) {
  constexpr Exponent cut = std::is_same_v<Exponent, double> ? -800 : -110;
  const int lane = static_cast<int>(threadIdx.x) % mma_rows;
  const Exponent backward_here = __shfl_up_sync(0xffffffffu, backward, 1, mma_rows);
  const Exponent f = lane == 0 ? Exponent(0) : forward, b = lane == 0 ? Exponent(0) : backward_here;  // gaps in the block
  const Exponent from_before = sum_up_to(forward, lane), from_here = sum_from(f, lane);
  const Exponent to_the_end = __shfl_down_sync(0xffffffffu, from_here, 1, mma_rows);
  const Exponent from_after = sum_from(backward, lane), to_the_start = sum_up_to(b, lane);
  const both_ways<Exponent> sums{sum_up_to(f < cut ? cut : f, lane), sum_up_to(b < cut ? cut : b, lane)};
  const Exponent whole_forward = __shfl_sync(0xffffffffu, from_before, mma_rows - 1, mma_rows);
  const Exponent whole_backward = __shfl_sync(0xffffffffu, from_after, 0, mma_rows);
  if (!there) return;
  const auto weight = [](Exponent log) {
    if constexpr (std::is_same_v<Exponent, float>)
      return fast_exp(log);
    else
      return static_cast<float>(exp(log));
  };
  const index_t entry = number * mma_rows + lane;
  *to.weight(write_forward, entry) = lane == mma_rows - 1 ? 1.0f : weight(to_the_end);
  *to.weight(write_backward, entry) = weight(to_the_start);
  *to.weight(read_forward, entry) = weight(from_before);
  *to.weight(read_backward, entry) = weight(from_after);
  to.sums[entry] = sums;
  if (lane == 0) to.block_sums[number] = {whole_forward, whole_backward};
}

/// Computes the weights of all blocks. `swapped` receives the weights of the transposed mask, which the gradient also needs: the
/// two directions of each gap are exchanged, and `borders` are left out. Null: not wanted.
template <class Exponent, class Mask>
BILA_KERNEL void weigh_gaps(const sequences s, const index_t H, const index_t blocks, const Mask mask, const border_gaps borders,
                            const gap_table<Exponent> to, const gap_table<Exponent> swapped) {
  const int lane = static_cast<int>(threadIdx.x) % mma_rows;
  const index_t per_grid = static_cast<index_t>(gridDim.x) * blockDim.x / mma_rows;
  const index_t first = (static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x) / mma_rows;
  for (index_t number = first; number - first % 2 < blocks; number += per_grid) {  // equally many rounds for both halves of a warp
    const place at = s.find(number < blocks ? number : blocks - 1, H, mma_rows);
    const index_t t = at.unit * mma_rows + lane, count = s.tokens(at.n);
    const bool there = number < blocks && at.unit * mma_rows < count;
    const index_t own = head_of_mask(mask, at.h, H);
    const auto gap = [&](bool forward, index_t u) { return static_cast<Exponent>(gap_of(s, mask, forward, at.n, own, u)); };
    const Exponent before = t == 0 ? static_cast<Exponent>(border_gaps::at(borders.before, at.n, at.h)) : gap(true, t);
    const Exponent after = t + 1 == count ? static_cast<Exponent>(border_gaps::at(borders.after, at.n, at.h)) : gap(false, t + 1);
    weigh_block(to, number, there, before, after);
    if (swapped.weights != nullptr) weigh_block(swapped, number, there, gap(false, t), gap(true, t + 1));
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
