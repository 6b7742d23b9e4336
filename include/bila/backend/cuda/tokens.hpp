// SPDX-License-Identifier: Apache-2.0
// Loads of tokens to shared memory and stores of rows from registers: 16 bytes at a time where the layout allows, else single
// numbers.
#pragma once

#include <bila/backend/cuda/fragment.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// Starts to copy 16 bytes to shared memory, or to write 16 zero bytes there. `from` must be a valid address in both cases.
__device__ inline void copy_async(void* to, const void* from, bool there = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0));
}
__device__ inline void copy_whole_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}
/// Starts to copy one element of 8 or 16 bytes, or to write zeros.
template <class X>
__device__ void copy_one_async(X* to, const X* from, bool there) {
  static_assert(sizeof(X) == 8 || sizeof(X) == 16);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(sizeof(X)),
               "r"(there ? static_cast<int>(sizeof(X)) : 0));
}
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;"); }
template <int Open>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Open));
}

/// An input tensor. `share` heads of the output read the same head of the tensor.
template <class T>
struct operand {
  tensor_view<const T> x;
  index_t share;
  bool fast;  // whether rows can be copied 16 bytes at a time

  __device__ rows<const T> tokens(index_t row, index_t h, index_t first, index_t count) const {
    return head_rows(x, row, share == 1 ? h : divide(h, share), first, count > 0 ? count : 0);
  }
};

/// The slow paths of load_tokens. They are not inlined, so they take no registers from the fast path.
template <int Rows, int D, int Stride, int Threads, class T>
__device__ __noinline__ void load_tokens_one_by_one(T* to, const rows<const T> from) {
  for (int i = static_cast<int>(threadIdx.x); i < Rows * D; i += Threads) {
    const int r = i / D, d = i % D;
    to[r * Stride + d] = r < from.count && d < from.width ? from(r, d) : T{};
  }
}
template <int Rows, int D, int Stride, int Threads, class T>
__device__ __noinline__ void load_some_tokens(T* to, const rows<const T> from) {
  constexpr int vector = 16 / static_cast<int>(sizeof(T)), per_row = D / vector;
  for (int i = static_cast<int>(threadIdx.x); i < Rows * per_row; i += Threads) {
    const int r = i / per_row, d = i % per_row * vector;
    const bool there = r < from.count && d < from.width;
    copy_async(to + r * Stride + d, there ? from.data + r * from.row_stride + d : from.data, there);
  }
}

/// Copies tokens to shared memory, or if `fast` starts to copy them: Rows rows of D numbers, `Stride` numbers apart. Numbers
/// outside the tensor become zero.
template <int Rows, int D, int Stride, int Threads, class T>
__device__ void load_tokens(T* to, const rows<const T>& from, bool fast) {
  constexpr int vector = 16 / static_cast<int>(sizeof(T)), per_row = D / vector;
  constexpr int step = Threads % per_row == 0 ? Threads / per_row : 1;  // a thread copies the same columns of every step-th row
  if constexpr (Threads % per_row == 0 && Rows % step == 0)
    if (fast && from.count >= Rows && from.width == D) {
      const int first = static_cast<int>(threadIdx.x) / per_row, d = static_cast<int>(threadIdx.x) % per_row * vector;
      const T* source = from.data + first * from.row_stride + d;
      T* const target = to + first * Stride + d;
#pragma unroll
      for (int r = 0; r < Rows; r += step, source += step * from.row_stride) copy_whole_async(target + r * Stride, source);
      return;
    }
  if (fast)
    load_some_tokens<Rows, D, Stride, Threads>(to, from);
  else
    load_tokens_one_by_one<Rows, D, Stride, Threads>(to, from);
}

/// Writes up to sixteen rows of a warp from C fragments.
template <int E, class T>
__device__ __forceinline__ void store_rows(const rows<T>& to, const float (&N)[E / 8][4], bool fast) {
  const lane_place at;
  if constexpr (sizeof(T) == 2 && E % 32 == 0)
    if (fast) {  // four lanes exchange numbers, so each lane writes eight neighbouring numbers
#pragma unroll
      for (int first = 0; first < E; first += 32)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          std::uint32_t x[4];
#pragma unroll
          for (int n = 0; n < 4; ++n) x[n] = pack<T>(N[first / 8 + n][2 * half], N[first / 8 + n][2 * half + 1]);
#pragma unroll
          for (int reach = 1; reach < 4; reach *= 2) {
            const bool upper = (at.t & reach) != 0;
#pragma unroll
            for (int n = 0; n < 4; ++n) {
              if ((n & reach) != 0) continue;
              const std::uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? x[n] : x[n + reach], reach);
              (upper ? x[n] : x[n + reach]) = got;
            }
          }
          const int row = at.g + half * 8, d = first + at.t * 8;
          if (row < to.count && d < to.width)
            *reinterpret_cast<uint4*>(to.data + row * to.row_stride + d) = uint4{x[0], x[1], x[2], x[3]};
        }
      return;
    }
#pragma unroll
  for (int n = 0; n < E / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = at.g + e / 2 * 8, d = n * 8 + 2 * at.t + e % 2;
      if (row < to.count && d < to.width) to(row, d) = narrow<T>(N[n][e]);
    }
}

/// Starts to copy n numbers, a multiple of 16 bytes. Numbers from index `there` on become zero.
template <int Threads, class T>
__device__ void load_numbers(T* to, const T* from, int n, int there) {
  constexpr int vector = 16 / static_cast<int>(sizeof(T));
  for (int i = static_cast<int>(threadIdx.x) * vector; i < n; i += Threads * vector) copy_async(to + i, from + i, i < there);
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
