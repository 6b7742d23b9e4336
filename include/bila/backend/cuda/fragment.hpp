// SPDX-License-Identifier: Apache-2.0
// Fragments: the part of a 16 x 16 block that one lane of a warp holds, and the matrix instructions on them. The one place that
// knows which element is where. With g = lane / 4 and t = lane % 4, element e of a lane is
//
//     A, 16 x 16 (row, k), 8 elements:   row g + 8 (e / 2 % 2)    k   2 t + e % 2 + 8 (e / 4)
//     B, 16 x 8 (k, column), 4:          k   2 t + e % 2 + 8 (e / 2)   column g
//     C, 16 x 8 (row, column), 4:        row g + 8 (e / 2)        column 2 t + e % 2
//
// so two neighbouring C make one A. 16-bit numbers go through mma.m16n8k16; float through three mma.m16n8k8 of tf32 parts, with k
// permuted so that the map is the same: error 2^-21 of the terms.
#pragma once

#include <bila/backend/cuda/sequences.hpp>
#include <bila/view/storage.hpp>

#include <cstdint>
#include <type_traits>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

struct lane_place {
  int g, t;
  __device__ lane_place() : g(static_cast<int>(threadIdx.x % 32) / 4), t(static_cast<int>(threadIdx.x) % 4) {}
};

__device__ inline std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

__device__ inline float wide(float x) { return x; }
__device__ inline float wide(bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }
__device__ inline float wide(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

/// Rounds to nearest, ties to even.
template <class T>
__device__ T narrow(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    T y;
    if constexpr (std::is_same_v<T, bf16>)
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    else
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
}

/// Two 16-bit numbers in a register.
template <class T>
__device__ std::uint32_t pack(float low, float high) {
  std::uint32_t y;
  if constexpr (std::is_same_v<T, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

template <class T>
__device__ float2 unpack(std::uint32_t x) {
  T low, high;
  low.bits = static_cast<std::uint16_t>(x);
  high.bits = static_cast<std::uint16_t>(x >> 16);
  return {wide(low), wide(high)};
}

/// Two neighbouring numbers, where two fit.
template <class T>
__device__ void store_pair(T* to, float low, float high) {
  if constexpr (sizeof(T) == 2)
    *reinterpret_cast<std::uint32_t*>(to) = pack<T>(low, high);
  else
    *reinterpret_cast<float2*>(to) = {low, high};
}

template <class T>
__device__ float2 load_pair(const T* from) {
  if constexpr (sizeof(T) == 2)
    return unpack<T>(*reinterpret_cast<const std::uint32_t*>(from));
  else
    return *reinterpret_cast<const float2*>(from);
}

/// 8 x 8 numbers of 16 bits each, four times; lane i gives the address of row i % 8 of matrix i / 8.
template <bool Transposed>
__device__ void load_matrices(std::uint32_t (&x)[4], const void* row) {
  if constexpr (Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row)));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row)));
}

/// The operations of one storage type. `from` is shared memory with rows `Stride` numbers apart.
template <class T>
struct fragments {
  struct a_type {
    std::uint32_t x[4];
  };
  struct b_type {
    std::uint32_t x[2];
  };

  /// A(row, k) = from[row][k]
  template <int Stride>
  static __device__ a_type load_a(const T* from) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    a_type a;
    load_matrices<false>(a.x, from + lane % 16 * Stride + lane / 16 * 8);
    return a;
  }

  /// A(row, k) = from[k][row]
  template <int Stride>
  static __device__ a_type load_a_transposed(const T* from) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    a_type a;
    load_matrices<true>(a.x, from + (lane % 8 + lane / 16 * 8) * Stride + lane / 8 % 2 * 8);
    return a;
  }

  /// Two neighbouring B: B(k, column) = from[column][k]
  template <int Stride>
  static __device__ void load_b_transposed(b_type (&b)[2], const T* from) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t x[4];
    load_matrices<false>(x, from + (lane % 8 + lane / 16 * 8) * Stride + lane / 8 % 2 * 8);
    b[0] = {{x[0], x[1]}};
    b[1] = {{x[2], x[3]}};
  }

  /// Two neighbouring B: B(k, column) = from[k][column]
  template <int Stride>
  static __device__ void load_b(b_type (&b)[2], const T* from) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t x[4];
    load_matrices<true>(x, from + lane % 16 * Stride + lane / 16 * 8);
    b[0] = {{x[0], x[1]}};
    b[1] = {{x[2], x[3]}};
  }

  static __device__ a_type make_a(const float (&x)[8]) {
    return {{pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]), pack<T>(x[6], x[7])}};
  }

  static __device__ b_type make_b(const float (&x)[4]) { return {{pack<T>(x[0], x[1]), pack<T>(x[2], x[3])}}; }

  /// The elements of one column of B, of which `from` is k = 2 t.
  static __device__ b_type read_b(const T* from) {
    return {{*reinterpret_cast<const std::uint32_t*>(from), *reinterpret_cast<const std::uint32_t*>(from + 8)}};
  }

  static __device__ void read_a(float (&x)[8], const a_type& a) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack<T>(a.x[i]);
      x[2 * i] = two.x;
      x[2 * i + 1] = two.y;
    }
  }

  /// C += A B
  static __device__ void multiply(float (&c)[4], const a_type& a, const b_type& b) {
    if constexpr (std::is_same_v<T, bf16>)
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
    else
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
  }

  /// The same into a long sum.
  static __device__ void add_product(float (&c)[4], const a_type& a, const b_type& b) { multiply(c, a, b); }
};

template <>
struct fragments<float> {
  struct a_type {
    float x[8];
  };
  struct b_type {
    float x[4];
  };

  template <int Stride>
  static __device__ a_type load_a(const float* from) {
    const lane_place at;
    a_type a;
#pragma unroll
    for (int e = 0; e < 8; ++e) a.x[e] = from[(at.g + e / 2 % 2 * 8) * Stride + 2 * at.t + e % 2 + e / 4 * 8];
    return a;
  }

  template <int Stride>
  static __device__ a_type load_a_transposed(const float* from) {
    const lane_place at;
    a_type a;
#pragma unroll
    for (int e = 0; e < 8; ++e) a.x[e] = from[(2 * at.t + e % 2 + e / 4 * 8) * Stride + at.g + e / 2 % 2 * 8];
    return a;
  }

  template <int Stride>
  static __device__ void load_b_transposed(b_type (&b)[2], const float* from) {
    const lane_place at;
#pragma unroll
    for (int e = 0; e < 8; ++e) b[e / 4].x[e % 4] = from[(at.g + e / 4 * 8) * Stride + 2 * at.t + e % 2 + e / 2 % 2 * 8];
  }

  template <int Stride>
  static __device__ void load_b(b_type (&b)[2], const float* from) {
    const lane_place at;
#pragma unroll
    for (int e = 0; e < 8; ++e) b[e / 4].x[e % 4] = from[(2 * at.t + e % 2 + e / 2 % 2 * 8) * Stride + at.g + e / 4 * 8];
  }

  static __device__ a_type make_a(const float (&x)[8]) { return {{x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]}}; }
  static __device__ b_type make_b(const float (&x)[4]) { return {{x[0], x[1], x[2], x[3]}}; }
  static __device__ b_type read_b(const float* from) { return {{from[0], from[1], from[8], from[9]}}; }
  static __device__ void read_a(float (&x)[8], const a_type& a) {
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = a.x[e];
  }

  static __device__ void multiply(float (&c)[4], const a_type& a, const b_type& b) {
    std::uint32_t a_high[8], a_low[8], b_high[4], b_low[4];
#pragma unroll
    for (int e = 0; e < 8; ++e) split(a.x[e], a_high[e], a_low[e]);
#pragma unroll
    for (int e = 0; e < 4; ++e) split(b.x[e], b_high[e], b_low[e]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // k 2 t and 2 t + 1, then the same plus 8
      multiply_part(c, a_low + 4 * half, b_high + 2 * half);
      multiply_part(c, a_high + 4 * half, b_low + 2 * half);
      multiply_part(c, a_high + 4 * half, b_high + 2 * half);
    }
  }

  /// The same, added to C by itself: how the tensor cores round what they add up is not promised, and a sum may have thousands of
  /// terms.
  static __device__ void add_product(float (&c)[4], const a_type& a, const b_type& b) {
    float product[4] = {};
    multiply(product, a, b);
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] += product[e];
  }

 private:
  static __device__ void split(float x, std::uint32_t& high, std::uint32_t& low) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(low) : "f"(x - __uint_as_float(high)));
  }

  static __device__ void multiply_part(float (&c)[4], const std::uint32_t* a, const std::uint32_t* b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[2]), "r"(a[1]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

/// Copies 16 bytes to shared memory while the warp goes on, or writes zeros; `from` must be some address either way.
__device__ inline void copy_async(void* to, const void* from, bool there = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0));
}
__device__ inline void copy_whole_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;"); }
template <int Open>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Open));
}

/// An input tensor, and how many heads of the output read each of its heads.
template <class T>
struct operand {
  tensor_view<const T> x;
  index_t share;
  bool fast;  // rows that can be copied 16 bytes at once

  __device__ rows<const T> tokens(index_t row, index_t h, index_t first, index_t count) const {
    return head_rows(x, row, share == 1 ? h : divide(h, share), first, count > 0 ? count : 0);
  }
};

/// The part of load_tokens that is seldom needed: a function of its own, so that it takes no registers from those who do not call
/// it.
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

/// Copies tokens to shared memory, Rows of D numbers `Stride` apart; what is not there becomes zero.
template <int Rows, int D, int Stride, int Threads, class T>
__device__ void load_tokens(T* to, const rows<const T>& from, bool fast) {
  constexpr int vector = 16 / static_cast<int>(sizeof(T)), per_row = D / vector, step = Threads / per_row;
  static_assert(Threads % per_row == 0, "a thread keeps its column");
  if (fast && Rows % step == 0 && from.count >= Rows && from.width == D) {
    const int first = static_cast<int>(threadIdx.x) / per_row, d = static_cast<int>(threadIdx.x) % per_row * vector;
    const T* source = from.data + first * from.row_stride + d;
    T* const target = to + first * Stride + d;
#pragma unroll
    for (int r = 0; r < Rows; r += step, source += step * from.row_stride) copy_whole_async(target + r * Stride, source);
  } else if (fast) {
    load_some_tokens<Rows, D, Stride, Threads>(to, from);
  } else {
    load_tokens_one_by_one<Rows, D, Stride, Threads>(to, from);
  }
}

/// Copies n numbers, a multiple of 16 bytes on either side; zeros from `there` on.
template <int Threads, class T>
__device__ void load_numbers(T* to, const T* from, int n, int there) {
  constexpr int vector = 16 / static_cast<int>(sizeof(T));
  for (int i = static_cast<int>(threadIdx.x) * vector; i < n; i += Threads * vector) copy_async(to + i, from + i, i < there);
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
