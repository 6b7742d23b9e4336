// SPDX-License-Identifier: Apache-2.0
// Fragments: the elements of a 16 x 16 block that one lane of a warp holds, and the matrix instructions on fragments. Only this
// file knows which lane holds which element. With g = lane / 4 and t = lane % 4, element e of a lane is
//
//     A, 16 x 16 (row, k), 8 elements:   row g + 8 (e / 2 % 2)    k   2 t + e % 2 + 8 (e / 4)
//     B, 16 x 8 (k, column), 4:          k   2 t + e % 2 + 8 (e / 2)   column g
//     C, 16 x 8 (row, column), 4:        row g + 8 (e / 2)        column 2 t + e % 2
//
// so two neighbouring C fragments form one A fragment. A product of 16-bit numbers is one mma.m16n8k16. A product in float is
// six mma.m16n8k8: for each half of k, three products of the operands' tf32 parts (low x high, high x low, high x high). The
// instructions get k in another order, so that a lane holds the elements listed above. The terms of a product in float have a
// relative error of 2^-21.
#pragma once

#include <bila/backend/cuda/sequences.hpp>
#include <bila/view/storage.hpp>

#include <cstdint>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

struct lane_place {
  int g, t;
  __device__ lane_place() : g(static_cast<int>(threadIdx.x % 32) / 4), t(static_cast<int>(threadIdx.x) % 4) {}
};

/// The number of this warp in its block of threads. The shuffle tells the compiler that all lanes have the same number.
__device__ inline int warp_number() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0); }

__device__ inline std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

__device__ inline float wide(float x) { return x; }
__device__ inline float wide(bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }
__device__ inline float wide(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

/// Converts a float to T, rounding to nearest, ties to even.
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

/// Packs two numbers of 16 bits into a register.
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

/// Loads four matrices of 8 x 8 numbers of 16 bits. Lane i gives the address of row i % 8 of matrix i / 8.
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

/// The fragments of numbers of type T, and the operations on them. `from` is shared memory whose rows are `Stride` numbers apart.
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

  /// A(row, k) = from(row, first + k) in device memory, and zero outside the tensor
  static __device__ a_type load_a(const rows<const T>& from, int first, bool fast) {
    const lane_place at;
    a_type a;
    if (fast && from.count >= mma_rows && first + mma_rows <= from.width) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a.x[i] = *reinterpret_cast<const std::uint32_t*>(from.data + (at.g + i % 2 * 8) * from.row_stride + 2 * at.t + first +
                                                         i / 2 * 8);
      return a;
    }
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const int row = at.g + e / 2 % 2 * 8, k = first + 2 * at.t + e / 4 * 8;
      const T* const x = from.data + row * from.row_stride + k * from.column_stride;
      a.x[e / 2] = 0;
      if (row < from.count && k < from.width)
        a.x[e / 2] = fast ? *reinterpret_cast<const std::uint32_t*>(x)
                          : x->bits | static_cast<std::uint32_t>(k + 1 < from.width ? x[from.column_stride].bits : 0) << 16;
    }
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

  /// Two neighbouring B fragments: B(k, column) = from[column][k]
  template <int Stride>
  static __device__ void load_b_transposed(b_type (&b)[2], const T* from) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t x[4];
    load_matrices<false>(x, from + (lane % 8 + lane / 16 * 8) * Stride + lane / 8 % 2 * 8);
    b[0] = {{x[0], x[1]}};
    b[1] = {{x[2], x[3]}};
  }

  /// Two neighbouring B fragments: B(k, column) = from[k][column]
  template <int Stride>
  static __device__ void load_b(b_type (&b)[2], const T* from) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t x[4];
    load_matrices<true>(x, from + lane % 16 * Stride + lane / 16 * 8);
    b[0] = {{x[0], x[1]}};
    b[1] = {{x[2], x[3]}};
  }

  /// Two neighbouring B fragments from the four blocks of 8 x 8 that store_block wrote:
  /// B(k, column) = from[column / 8][k / 8][column % 8][k % 8]
  static __device__ void load_block(b_type (&b)[2], const T* from) {
    std::uint32_t x[4];
    load_matrices<false>(x, from + static_cast<int>(threadIdx.x) % 32 * 8);
    b[0] = {{x[0], x[1]}};
    b[1] = {{x[2], x[3]}};
  }

  /// Two neighbouring B fragments of the transposed block.
  static __device__ void load_block_transposed(b_type (&b)[2], const T* from) {
    std::uint32_t x[4];
    load_matrices<true>(x, from + static_cast<int>(threadIdx.x) % 32 * 8);
    b[0] = {{x[0], x[2]}};
    b[1] = {{x[1], x[3]}};
  }

  static __device__ void store_block(T* to, const b_type (&b)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<std::uint32_t*>(to + i * 64 + static_cast<int>(threadIdx.x) % 32 * 2) = b[i / 2].x[i % 2];
  }

  static __device__ a_type make_a(const float (&x)[8]) {
    return {{pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]), pack<T>(x[6], x[7])}};
  }

  static __device__ b_type make_b(const float (&x)[4]) { return {{pack<T>(x[0], x[1]), pack<T>(x[2], x[3])}}; }

  /// The elements of one column of B that a lane holds. `from` points at the element k = 2 t.
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

  /// Splits each of four floats into a high and a low part of type T. The high parts become row 0 of A, or column 0 of B, the low
  /// parts row 1 or column 1.
  static __device__ a_type two_rows(const float (&x)[4]) {
    std::uint32_t halves[2];
    split(x, halves);
    return {{halves[0], 0, halves[1], 0}};
  }
  static __device__ b_type two_columns(const float (&x)[4]) {
    b_type b;
    split(x, b.x);
    return b;
  }

  /// C = A B
  static __device__ void multiply_first(float (&c)[4], const a_type& a, const b_type& b) {
    if constexpr (std::is_same_v<T, bf16>)
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
          : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
          : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]), "f"(0.0f), "f"(0.0f), "f"(0.0f),
            "f"(0.0f));
    else
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
          : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
          : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]), "f"(0.0f), "f"(0.0f), "f"(0.0f),
            "f"(0.0f));
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

  /// C += A B, where C is a sum of many products.
  static __device__ void add_product(float (&c)[4], const a_type& a, const b_type& b) { multiply(c, a, b); }

 private:
  static __device__ void split(const float (&x)[4], std::uint32_t (&halves)[2]) {
    const int g = lane_place().g;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t high = pack<T>(x[2 * i], x[2 * i + 1]);
      const float2 kept = unpack<T>(high);
      const std::uint32_t low = pack<T>(x[2 * i] - kept.x, x[2 * i + 1] - kept.y);
      halves[i] = g == 0 ? high : g == 1 ? low : 0;
    }
  }
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

  static __device__ a_type load_a(const rows<const float>& from, int first, bool) {
    const lane_place at;
    a_type a;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int row = at.g + e / 2 % 2 * 8, k = first + 2 * at.t + e % 2 + e / 4 * 8;
      a.x[e] = row < from.count && k < from.width ? from(row, k) : 0.0f;
    }
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

  static __device__ void load_block(b_type (&b)[2], const float* from) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = *reinterpret_cast<const float2*>(from + i * 64 + static_cast<int>(threadIdx.x) % 32 * 2);
      b[i / 2].x[i % 2 * 2] = two.x;
      b[i / 2].x[i % 2 * 2 + 1] = two.y;
    }
  }

  static __device__ void store_block(float* to, const b_type (&b)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<float2*>(to + i * 64 + static_cast<int>(threadIdx.x) % 32 * 2) = {b[i / 2].x[i % 2 * 2],
                                                                                          b[i / 2].x[i % 2 * 2 + 1]};
  }

  static __device__ a_type make_a(const float (&x)[8]) { return {{x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]}}; }
  static __device__ b_type make_b(const float (&x)[4]) { return {{x[0], x[1], x[2], x[3]}}; }
  static __device__ b_type read_b(const float* from) { return {{from[0], from[1], from[8], from[9]}}; }
  static __device__ void read_a(float (&x)[8], const a_type& a) {
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = a.x[e];
  }

  static __device__ a_type two_rows(const float (&x)[4]) {
    const bool first = lane_place().g == 0;
    return {{first ? x[0] : 0, first ? x[1] : 0, 0, 0, first ? x[2] : 0, first ? x[3] : 0, 0, 0}};
  }
  static __device__ b_type two_columns(const float (&x)[4]) {
    const bool first = lane_place().g == 0;
    return {{first ? x[0] : 0, first ? x[1] : 0, first ? x[2] : 0, first ? x[3] : 0}};
  }

  static __device__ void multiply_first(float (&c)[4], const a_type& a, const b_type& b) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] = 0;
    multiply(c, a, b);
  }

  static __device__ void multiply(float (&c)[4], const a_type& a, const b_type& b) {
    std::uint32_t a_high[8], a_low[8], b_high[4], b_low[4];
#pragma unroll
    for (int e = 0; e < 8; ++e) split(a.x[e], a_high[e], a_low[e]);
#pragma unroll
    for (int e = 0; e < 4; ++e) split(b.x[e], b_high[e], b_low[e]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // half 0: k = 2 t and 2 t + 1 of a lane's elements; half 1: those k plus 8
      multiply_part(c, a_low + 4 * half, b_high + 2 * half);
      multiply_part(c, a_high + 4 * half, b_low + 2 * half);
      multiply_part(c, a_high + 4 * half, b_high + 2 * half);
    }
  }

  /// C += A B, added by float instructions: tensor cores round in an unspecified way, and C may have thousands of terms.
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

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
