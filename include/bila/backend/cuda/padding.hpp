// SPDX-License-Identifier: Apache-2.0
// Small kernels: zeros at padding, copies of views.
#pragma once

#include <bila/backend/cuda/fragment.hpp>
#include <bila/backend/cuda/sequences.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// The number of elements of a view.
template <class T>
index_t numbers_of(const tensor_view<T>& x) {
  return x.batches() * x.heads() * x.length() * x.features();
}

/// The index of this thread in its grid, and the number of threads in the grid.
__device__ inline index_t thread_number() { return static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline index_t threads_in_grid() { return static_cast<index_t>(gridDim.x) * blockDim.x; }

/// Writes zeros at the padding of each batch row. x may have fewer heads than y.
template <class T>
BILA_KERNEL void clear_padding(const sequences s, const tensor_view<T> x) {
  const index_t per_row = x.heads() * x.length() * x.features(), tasks = per_row * x.batches();
  for (index_t i = thread_number(); i < tasks; i += threads_in_grid()) {
    const index_t b = i / per_row, h = i / (x.length() * x.features()) % x.heads(), l = i / x.features() % x.length();
    if (l >= s.tokens(b)) x(b, h, l, i % x.features()) = T{};
  }
}

/// y += x, except at the padding of each batch row.
template <class T>
BILA_KERNEL void add_result(const sequences s, const tensor_view<const T> x, const tensor_view<T> y) {
  const index_t per_row = y.heads() * y.length() * y.features(), tasks = per_row * y.batches();
  for (index_t i = thread_number(); i < tasks; i += threads_in_grid()) {
    const index_t b = i / per_row, h = i / (y.length() * y.features()) % y.heads(), l = i / y.features() % y.length(),
                  d = i % y.features();
    if (s.packed || l < s.tokens(b)) y(b, h, l, d) = narrow<T>(wide(y(b, h, l, d)) + wide(x(b, h, l, d)));
  }
}

/// Writes zeros to all elements of a view.
template <class T>
BILA_KERNEL void clear_view(const tensor_view<T> x) {
  const index_t tasks = x.batches() * x.heads() * x.length() * x.features();
  for (index_t i = thread_number(); i < tasks; i += threads_in_grid())
    x(i / (x.heads() * x.length() * x.features()), i / (x.length() * x.features()) % x.heads(), i / x.features() % x.length(),
      i % x.features()) = T{};
}

/// Copies a view to contiguous memory.
template <int = 0>  // a template, so that several .cu files may define it
BILA_KERNEL void gather_view(const tensor_view<const float> x, float* const to) {
  const index_t tasks = x.batches() * x.heads() * x.length() * x.features();
  for (index_t i = thread_number(); i < tasks; i += threads_in_grid())
    to[i] = x(i / (x.heads() * x.length() * x.features()), i / (x.length() * x.features()) % x.heads(),
              i / x.features() % x.length(), i % x.features());
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
