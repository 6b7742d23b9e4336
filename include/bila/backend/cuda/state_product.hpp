// SPDX-License-Identifier: Apache-2.0
// Copies of whole states between shared and device memory, and inner products of two states.
#pragma once

#include <bila/backend/cuda/states.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// <S, S'> + <z, z'> of a state in device memory and a state in shared memory. `start` copies the first state to scratch memory,
/// and `end` multiplies. Each warp copies and reads its own part only, so warps need no barrier. A warp's part is what
/// it writes in carried_state::store, so memory to which a carried state will be stored may serve as scratch memory.
template <int Warps, class T, int D, int E>
class state_product {
  using state = stored_state<T, D, E, state_sum::of_values>;
  static constexpr int column_blocks = E / mma_rows, ranges = Warps / column_blocks, blocks = D / mma_rows / ranges;
  static_assert(E <= Warps * 32);

 public:
  __device__ explicit state_product(int warp) : column_(warp % column_blocks), first_(warp / column_blocks * blocks) {}

  __device__ __forceinline__ void start(state& scratch, const state& from) {
    constexpr int vector = 16 / static_cast<int>(sizeof(T));
#pragma unroll
    for (int n = 0; n < blocks; ++n)
#pragma unroll
      for (int e = 0; e < 8; e += vector) copy_whole_async(numbers(scratch, n) + e, numbers(from, n) + e);
    close_copies();
    scale_ = from.scale();
    if (threadIdx.x < E) z_ = from.z[0][threadIdx.x];
  }

  /// This warp's part of the inner product, in all lanes. biased: z is included.
  __device__ __forceinline__ float end(const state& scratch, const state& with, bool biased) const {
    wait_for_copies<0>();
    float sum = 0;
#pragma unroll
    for (int n = 0; n < blocks; ++n) {
      float a[8], b[8];
      reinterpret_cast<const eight<T>*>(numbers(scratch, n))->read(a);
      reinterpret_cast<const eight<T>*>(numbers(with, n))->read(b);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += a[e] * b[e];
    }
    sum *= scale_ * with.scale();
    if (biased && threadIdx.x < E) sum += z_ * with.z[0][threadIdx.x];
#pragma unroll
    for (int reach = 16; reach > 0; reach /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, reach);
    __syncwarp();
    return sum;
  }

 private:
  template <class State>
  __device__ auto* numbers(State& x, int n) const {
    return x.S[first_ + n][column_] + threadIdx.x % 32 * 8;
  }

  int column_, first_;  // indices of this warp's block of 16 columns, of its first block of 16 features
  float scale_, z_;
};

/// Starts to copy a struct to shared memory.
template <int Threads, class X>
__device__ void copy_struct(X& to, const X& from) {
  static_assert(sizeof(X) % 16 == 0);
  for (int i = static_cast<int>(threadIdx.x) * 16; i < static_cast<int>(sizeof(X)); i += Threads * 16)
    copy_whole_async(reinterpret_cast<std::byte*>(&to) + i, reinterpret_cast<const std::byte*>(&from) + i);
}

/// Copies a struct from shared memory to device memory.
template <int Threads, class X>
__device__ void write_struct(X& to, const X& from) {
  for (int i = static_cast<int>(threadIdx.x) * 16; i < static_cast<int>(sizeof(X)); i += Threads * 16)
    *reinterpret_cast<uint4*>(reinterpret_cast<std::byte*>(&to) + i) =
        *reinterpret_cast<const uint4*>(reinterpret_cast<const std::byte*>(&from) + i);
}

template <int Threads, class X>
__device__ void clear_struct(X& to) {
  for (int i = static_cast<int>(threadIdx.x) * 16; i < static_cast<int>(sizeof(X)); i += Threads * 16)
    *reinterpret_cast<uint4*>(reinterpret_cast<std::byte*>(&to) + i) = uint4{};
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
