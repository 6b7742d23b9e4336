// SPDX-License-Identifier: Apache-2.0
// Tiles of tokens in shared memory, and 16 rows of a warp as the left operand of products.
#pragma once

#include <bila/backend/cuda/gaps.hpp>
#include <bila/backend/cuda/tokens.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// A tile of `Tokens` tokens: keys of D features, values of E features, biases.
template <class T, int D, int E, int Tokens>
struct token_tile {
  static constexpr int keys = Tokens, blocks = Tokens / mma_rows;
  static constexpr int pad = 16 / static_cast<int>(sizeof(T));  // numbers after each row, so that 8 rows lie in different banks
  static constexpr int k_stride = D + pad, v_stride = E + pad;
  alignas(16) T k[Tokens * k_stride];
  alignas(16) T v[Tokens * v_stride];
  alignas(16) float bias[Tokens];

  template <int Threads>
  __device__ void load_k(const operand<T>& of, const rows<const T>& from) {
    load_tokens<Tokens, D, k_stride, Threads>(k, from, of.fast);
  }
  template <int Threads>
  __device__ void load_v(const operand<T>& of, const rows<const T>& from) {
    load_tokens<Tokens, E, v_stride, Threads>(v, from, of.fast);
  }

  /// Starts to copy `count` tokens from first_k and first_v on, and zeros to the rest of the tile. numbers: biases per entry, or
  /// null.
  template <int Threads>
  __device__ void load(const operand<T>& of_k, const T* first_k, const operand<T>& of_v, const T* first_v, int count,
                       const float* numbers, index_t entry, int first_v_feature = 0) {
    const auto rows_of = [&](const operand<T>& x, const T* data, int first) {
      return rows<const T>{data, count, x.x.features() - first, x.x.strides[2], x.x.strides[3]};
    };
    load_k<Threads>(of_k, rows_of(of_k, first_k, 0));
    load_v<Threads>(of_v, rows_of(of_v, first_v, first_v_feature));
    if (numbers != nullptr) load_numbers<Threads>(bias, numbers + entry, Tokens, (count + mma_rows - 1) / mma_rows * mma_rows);
  }
};

/// A tile of tokens with their gap weights.
template <class T, int D, int E, int Tokens>
struct key_tile : token_tile<T, D, E, Tokens> {
  using token_tile<T, D, E, Tokens>::blocks;
  alignas(16) float weights[weight_kinds][Tokens];
  alignas(16) both_ways<exponent<T>> sums[Tokens];
  both_ways<exponent<T>> block_sums[blocks];

  /// Starts to copy the tokens and their weights of the kinds from first_kind to last_kind.
  template <int Threads>
  __device__ void load(const operand<T>& of_k, const T* first_k, const operand<T>& of_v, const T* first_v, int count,
                       const gap_table<exponent<T>>& gaps, index_t entry, weight_kind first_kind, weight_kind last_kind,
                       bool with_sums, const float* numbers, int first_v_feature = 0) {
    token_tile<T, D, E, Tokens>::template load<Threads>(of_k, first_k, of_v, first_v, count, numbers, entry, first_v_feature);
    if (gaps.weights == nullptr) return;
    const int entries = (count + mma_rows - 1) / mma_rows * mma_rows;
    constexpr int vectors = Tokens / 4;
    for (int i = first_kind * vectors + static_cast<int>(threadIdx.x); i < (last_kind + 1) * vectors; i += Threads) {
      const int kind = i / vectors, n = i % vectors * 4;
      copy_async(&weights[kind][n], gaps.weight(static_cast<weight_kind>(kind), entry + n), n < entries);
    }
    if (with_sums) load_numbers<Threads>(sums, gaps.sums + entry, Tokens, entries);
    if (const int i = static_cast<int>(threadIdx.x); i < blocks)  // one by one: elements of 8 bytes may not be 16-byte aligned
      copy_one_async(block_sums + i, gaps.block_sums + entry / mma_rows + i, i < entries / mma_rows);
  }
};

/// Sixteen rows of a warp as the left operand of products. Fragments stay in registers, or are read from shared memory.
template <class T, int D, bool InRegisters>
class row_operand {
  using F = fragments<T>;
  static constexpr int stride = D + 16 / static_cast<int>(sizeof(T));

 public:
  /// Loads the rows from shared memory.
  __device__ __forceinline__ void load(const T* from) {
    from_ = from;
    if constexpr (InRegisters)
#pragma unroll
      for (int k = 0; k < D / mma_rows; ++k) fragments_[k] = F::template load_a<stride>(from + k * mma_rows);
  }

  /// Loads the rows from device memory. At a sequence's end there are fewer than sixteen.
  __device__ __forceinline__ void load(const rows<const T>& from, bool fast) {
    static_assert(InRegisters);
#pragma unroll
    for (int k = 0; k < D / mma_rows; ++k) fragments_[k] = F::load_a(from, k * mma_rows, fast);
  }

  __device__ __forceinline__ typename F::a_type operator()(int k) const {
    if constexpr (InRegisters)
      return fragments_[k];
    else
      return F::template load_a<stride>(from_ + k * mma_rows);
  }

 private:
  const T* from_ = nullptr;
  typename F::a_type fragments_[InRegisters ? D / mma_rows : 1];
};

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
