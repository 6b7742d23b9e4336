// SPDX-License-Identifier: Apache-2.0
// Small kernels around the big ones: zeros at padding, copies of views.
#pragma once

#include <bila/backend/cuda/fragment.hpp>
#include <bila/backend/cuda/sequences.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

inline constexpr int threads_of_small = 256;
inline index_t blocks_for(index_t tasks) { return (tasks + threads_of_small - 1) / threads_of_small; }

/// The number of a thread in its grid, and how many there are.
__device__ inline index_t thread_number() { return static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline index_t threads_in_grid() { return static_cast<index_t>(gridDim.x) * blockDim.x; }

/// Zeros at the tokens that a batch row does not have; its heads may be fewer than the output's.
template <class T>
BILA_KERNEL void clear_padding(const sequences s, const tensor_view<T> x) {
  const index_t per_row = x.heads() * x.length() * x.features(), tasks = per_row * x.batches();
  for (index_t i = thread_number(); i < tasks; i += threads_in_grid()) {
    const index_t b = i / per_row, h = i / (x.length() * x.features()) % x.heads(), l = i / x.features() % x.length();
    if (l >= s.tokens(b)) x(b, h, l, i % x.features()) = T{};
  }
}

/// Zeros everywhere.
template <class T>
BILA_KERNEL void clear_view(const tensor_view<T> x) {
  const index_t tasks = x.batches() * x.heads() * x.length() * x.features();
  for (index_t i = thread_number(); i < tasks; i += threads_in_grid())
    x(i / (x.heads() * x.length() * x.features()), i / (x.length() * x.features()) % x.heads(), i / x.features() % x.length(),
      i % x.features()) = T{};
}

/// Copies x to contiguous memory.
template <int = 0>  // a template, so that every unit may have it
BILA_KERNEL void gather_view(const tensor_view<const float> x, float* const to) {
  const index_t tasks = x.batches() * x.heads() * x.length() * x.features();
  for (index_t i = thread_number(); i < tasks; i += threads_in_grid())
    to[i] = x(i / (x.heads() * x.length() * x.features()), i / (x.length() * x.features()) % x.heads(),
              i / x.features() % x.length(), i % x.features());
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
