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

/// A number for either way that a gap is crossed.
template <class Exponent>
struct alignas(2 * sizeof(Exponent)) both_ways {
  Exponent forward, backward;
};

/// For token i of a block with tokens s..e-1, the gates' products up to the block's ends (math: alpha, omega, beta, psi):
struct alignas(16) token_weights {
  float read_forward;    // last token of the block before -> i
  float write_forward;   // i -> last token of the block
  float read_backward;   // first token of the block after -> i
  float write_backward;  // i -> first token of the block
};

/// The gates of a call; entries and blocks are numbered as in `sequences`. Null: a mask without gaps.
template <class Exponent>
struct gap_table {
  token_weights* weights;           // of each token
  both_ways<Exponent>* sums;        // of the gaps from the block's first token on, per token
  both_ways<Exponent>* block_sums;  // over a block and the gap before it, or after it
};

/// Log decays of the gaps at a sequence's ends, through which initial states enter, [n, H, 1, 1]; null: none.
struct border_gaps {
  tensor_view<const float> before, after;

  bool given() const { return before.data != nullptr || after.data != nullptr; }

  static __device__ double at(const tensor_view<const float>& x, index_t n, index_t h) {
    return x.data == nullptr ? 0.0 : static_cast<double>(x(n, h, 0, 0));
  }
};

/// Log decay of gap t of a sequence, crossed one way; 0 where there is no gap. A NaN stays one.
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

/// Half a warp weighs a block, a lane a token. `swapped`: a gap's two ways change places, as the gradient needs it.
template <class Exponent, class Mask>
BILA_KERNEL void weigh_gaps(const sequences s, const index_t H, const index_t blocks, const Mask mask, const border_gaps borders,
                            const bool swapped, const gap_table<Exponent> to) {
  constexpr Exponent cut = std::is_same_v<Exponent, double> ? -800 : -110;
  const int lane = static_cast<int>(threadIdx.x) % block;
  const index_t per_grid = static_cast<index_t>(gridDim.x) * blockDim.x / block;
  const index_t first = (static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x) / block;
  for (index_t number = first; number - first % 2 < blocks; number += per_grid) {  // both halves of a warp go round together
    const place at = s.find(number < blocks ? number : blocks - 1, H, block);
    const index_t t = at.unit * block + lane, count = s.tokens(at.n);
    const auto forward_gap = [&](index_t u) {
      return static_cast<Exponent>(u == 0 ? border_gaps::at(borders.before, at.n, at.h) : gap_of(s, mask, !swapped, at.n, at.h, u));
    };
    const auto backward_gap = [&](index_t u) {
      return static_cast<Exponent>(u == count ? border_gaps::at(borders.after, at.n, at.h)
                                              : gap_of(s, mask, swapped, at.n, at.h, u));
    };
    // The gap before the token forwards, and the one behind it backwards.
    const Exponent f = forward_gap(t), b = backward_gap(t + 1), b_before = lane == 0 ? Exponent(0) : backward_gap(t);
    const Exponent f_inside = lane == 0 ? Exponent(0) : f;
    const Exponent read_forward = sum_up_to(f, lane), from_here = sum_from(f_inside, lane);
    const Exponent write_forward = __shfl_down_sync(0xffffffffu, from_here, 1, block);
    const Exponent read_backward = sum_from(b, lane), write_backward = sum_up_to(b_before, lane);
    const both_ways<Exponent> sums{sum_up_to(f_inside < cut ? cut : f_inside, lane),
                                   sum_up_to(b_before < cut ? cut : b_before, lane)};
    const Exponent whole_forward = __shfl_sync(0xffffffffu, read_forward, block - 1, block);
    const Exponent whole_backward = __shfl_sync(0xffffffffu, read_backward, 0, block);
    if (number >= blocks || at.unit * block >= count) continue;
    const auto weight = [](Exponent log) { return static_cast<float>(exp(log)); };
    to.weights[number * block + lane] = {weight(read_forward), lane == block - 1 ? 1.0f : weight(write_forward),
                                         weight(read_backward), weight(write_backward)};
    to.sums[number * block + lane] = sums;
    if (lane == 0) to.block_sums[number] = {whole_forward, whole_backward};
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
