// SPDX-License-Identifier: Apache-2.0
// The gates, weighed once per call: the only kernel that knows a mask. What the other kernels read is the same for every mask.
#pragma once

#include <bila/backend/cuda/sequences.hpp>
#include <bila/view/storage.hpp>

#include <type_traits>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// What sums of log decays are kept in. Inside a block a weight is exp of a difference of two of them; a cut counts as -110 (-800)
/// there, so the exponent is off by 2e-4 in float at worst, next to a cut: below the rounding of 16-bit tensors, not of float ones.
template <class T>
using exponent = std::conditional_t<std::is_same_v<T, float>, double, float>;

/// e^x for x <= 0, to 2^-22 + |x| 2^-24 of it; what would be no normal number is 0.
template <class Exponent>
__device__ float fast_exp(Exponent x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(static_cast<float>(x) * 1.4426950408889634f));
  return y;
}

/// A number for either way that a gap is crossed.
template <class Exponent>
struct alignas(2 * sizeof(Exponent)) both_ways {
  Exponent forward, backward;
};

/// For token i of a block, the gates' products up to the block's ends (omega, psi, alpha, beta of MATH.md 2.3).
enum weight_kind : int {
  write_forward,   // i -> last token of the block
  write_backward,  // i -> first token of the block
  read_forward,    // last token of the block before -> i
  read_backward,   // first token of the block after -> i
  weight_kinds
};

/// The gates of a call; entries and blocks are numbered as in `sequences`. Null: a mask without gaps.
template <class Exponent>
struct gap_table {
  float* weights;                   // of each token, kind by kind
  index_t entries;                  // of one kind
  both_ways<Exponent>* sums;        // of the gaps from the block's first token on, per token
  both_ways<Exponent>* block_sums;  // over a block and the gap before it, or after it

  __device__ float* weight(weight_kind kind, index_t entry) const { return weights + kind * entries + entry; }
};

/// Log decays of the gaps at a sequence's ends, through which initial states enter, [n, H, 1, 1]; null: none.
struct border_gaps {
  tensor_view<const float> before, after;

  bool given() const { return before.data != nullptr || after.data != nullptr; }

  static __device__ double at(const tensor_view<const float>& x, index_t n, index_t h) {
    return x.data == nullptr ? 0.0 : static_cast<double>(x(n, h, 0, 0));
  }
};

/// How many of H heads share one of the mask's.
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

/// Log decay of gap t of a sequence, crossed one way; 0 where there is no gap; h counts the mask's heads. A NaN stays one.
template <class Mask>
__device__ double gap_of(const sequences& s, const Mask& mask, bool forward, index_t n, index_t h, index_t t) {
  if (t <= 0 || t >= s.tokens(n)) return 0;
  const index_t token = s.first(n) + t;
  const double log = forward ? mask.log_forward(s.row(n), h, token) : mask.log_backward(s.row(n), h, token);
  return log > 0 ? 0 : log;
}

/// Sum over the lanes of a half warp up to this one, in order.
template <class Exponent>
__device__ Exponent sum_up_to(Exponent x, int lane) {
#pragma unroll
  for (int step = 1; step < block; step *= 2) {
    const Exponent before = __shfl_up_sync(0xffffffffu, x, step, block);
    if (lane >= step) x += before;
  }
  return x;
}

/// Sum from this lane to the half warp's end.
template <class Exponent>
__device__ Exponent sum_from(Exponent x, int lane) {
#pragma unroll
  for (int step = 1; step < block; step *= 2) {
    const Exponent after = __shfl_down_sync(0xffffffffu, x, step, block);
    if (lane + step < block) x += after;
  }
  return x;
}

/// Half a warp weighs a block, a lane a token: forward is the log decay of the gap before it, backward of the one behind it.
template <class Exponent>
__device__ void weigh_block(const gap_table<Exponent>& to, index_t number, bool there, Exponent forward, Exponent backward) {
  constexpr Exponent cut = std::is_same_v<Exponent, double> ? -800 : -110;
  const int lane = static_cast<int>(threadIdx.x) % block;
  const Exponent backward_before = __shfl_up_sync(0xffffffffu, backward, 1, block);
  const Exponent f = lane == 0 ? Exponent(0) : forward, b = lane == 0 ? Exponent(0) : backward_before;  // inside the block
  const Exponent from_before = sum_up_to(forward, lane), from_here = sum_from(f, lane);
  const Exponent to_the_end = __shfl_down_sync(0xffffffffu, from_here, 1, block);
  const Exponent from_behind = sum_from(backward, lane), to_the_start = sum_up_to(b, lane);
  const both_ways<Exponent> sums{sum_up_to(f < cut ? cut : f, lane), sum_up_to(b < cut ? cut : b, lane)};
  const Exponent whole_forward = __shfl_sync(0xffffffffu, from_before, block - 1, block);
  const Exponent whole_backward = __shfl_sync(0xffffffffu, from_behind, 0, block);
  if (!there) return;
  const auto weight = [](Exponent log) {
    if constexpr (std::is_same_v<Exponent, float>)
      return fast_exp(log);
    else
      return static_cast<float>(exp(log));
  };
  const index_t entry = number * block + lane;
  *to.weight(write_forward, entry) = lane == block - 1 ? 1.0f : weight(to_the_end);
  *to.weight(write_backward, entry) = weight(to_the_start);
  *to.weight(read_forward, entry) = weight(from_before);
  *to.weight(read_backward, entry) = weight(from_behind);
  to.sums[entry] = sums;
  if (lane == 0) to.block_sums[number] = {whole_forward, whole_backward};
}

/// The gates of all blocks. swapped: the same without borders, and a gap's two ways in each other's place, as the gradient needs
/// it; null: not wanted.
template <class Exponent, class Mask>
BILA_KERNEL void weigh_gaps(const sequences s, const index_t H, const index_t blocks, const Mask mask, const border_gaps borders,
                            const gap_table<Exponent> to, const gap_table<Exponent> swapped) {
  const int lane = static_cast<int>(threadIdx.x) % block;
  const index_t per_grid = static_cast<index_t>(gridDim.x) * blockDim.x / block;
  const index_t first = (static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x) / block;
  for (index_t number = first; number - first % 2 < blocks; number += per_grid) {  // both halves of a warp go round together
    const place at = s.find(number < blocks ? number : blocks - 1, H, block);
    const index_t t = at.unit * block + lane, count = s.tokens(at.n);
    const bool there = number < blocks && at.unit * block < count;
    const index_t own = head_of_mask(mask, at.h, H);
    const auto gap = [&](bool forward, index_t u) { return static_cast<Exponent>(gap_of(s, mask, forward, at.n, own, u)); };
    const Exponent before = t == 0 ? static_cast<Exponent>(border_gaps::at(borders.before, at.n, at.h)) : gap(true, t);
    const Exponent after = t + 1 == count ? static_cast<Exponent>(border_gaps::at(borders.after, at.n, at.h)) : gap(false, t + 1);
    weigh_block(to, number, there, before, after);
    if (swapped.weights != nullptr) weigh_block(swapped, number, there, gap(false, t), gap(true, t + 1));
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
