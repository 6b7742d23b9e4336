// SPDX-License-Identifier: Apache-2.0
// Epilogues: what a kernel does with finished rows. It normalises and stores y, or it stores one gradient or two.
#pragma once

#include <bila/backend/cuda/gaps.hpp>
#include <bila/backend/cuda/tokens.hpp>
#include <bila/backend/cuda/tuning.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// A masked product of rows q, keys k and values v: the arguments that the forward pass and the gradient share.
template <class T>
struct product_call {
  sequences s;
  index_t H, chunk;  // chunk: tokens per block of threads of chunk_output; other kernels ignore it
  index_t keys;      // number of keys in cross attention, else -1
  operand<T> q, k, v;
  gap_table<exponent<T>> gaps;
  bool left, right;  // whether a row sees keys before it; whether it sees keys after it
  float diagonal;
};

/// The output tensor of a kernel's rows.
template <class T>
struct row_output {
  tensor_view<T> out;  // no data: not wanted
  bool fast;
  tensor_view<float> scratch;  // with data: rows go here, not to `out`, and add_heads sums the heads later (gradients only)
};

/// More arguments of a product of the gradient: biases of the scores and, for the gates, dot products of rows.
template <class T>
struct backward_terms {
  bool biased;                          // whether r_i c_j is added to a score
  const float *row_bias, *column_bias;  // r and c, per entry; null: ones
  operand<T> dot_operand;               // for `dots`: multiplied by rows of the result; for epilogue::dual: by values
  float* dots;                          // per entry: 3 parts of dot_operand_i . out_i, see row_block; null: not wanted
  index_t entries;                      // entries of the call; `dots` has 3 * entries numbers per value tile
};

namespace epilogue {

/// Writes y_i = s N_i / n(s Z_i) (MATH.md 1.1) and, where wanted, the row sum Z_i.
template <class Norm, class T>
struct normalise {
  using number = T;
  static constexpr bool is_backward = false, is_dual = false, sums_rows = Norm::uses_row_sum;
  Norm norm;
  float scale;
  row_output<T> rows;
  tensor_view<float> row_sum;  // no data: not wanted
};

/// Writes rows of a gradient unchanged.
template <class T>
struct store {
  using number = T;
  static constexpr bool is_backward = true, is_dual = false, sums_rows = false;
  backward_terms<T> terms;
  row_output<T> rows;
};

/// Writes a gradient and the dual product, sum_j M_ij (dot_operand_i . v_j) k_j, which has the same keys, values and states.
template <class T>
struct dual {
  using number = T;
  static constexpr bool is_backward = true, is_dual = true, sums_rows = false;
  backward_terms<T> terms;
  row_output<T> rows, dual_rows;
};

}  // namespace epilogue

/// The number type of an epilogue's tensors.
template <class Epilogue>
using number_of = typename Epilogue::number;

template <class Epilogue>
inline constexpr result result_of = Epilogue::is_dual       ? result::two_gradients
                                    : Epilogue::is_backward ? result::gradient
                                                            : result::forward;

/// Whether the gates' dot products are wanted, and where the dot products of a value tile are written.
template <class Epilogue>
__device__ __forceinline__ bool wants_dots(const Epilogue& epilogue) {
  if constexpr (Epilogue::is_backward)
    return epilogue.terms.dots != nullptr;
  else
    return false;
}
template <class Epilogue>
__device__ __forceinline__ float* dots_of(const Epilogue& epilogue, int value_tile) {
  if constexpr (Epilogue::is_backward)
    return epilogue.terms.dots == nullptr ? nullptr : epilogue.terms.dots + 3 * value_tile * epilogue.terms.entries;
  else
    return nullptr;
}

/// The biases c of the keys, per entry. Null: ones, or no biases.
template <class Epilogue>
__device__ __forceinline__ const float* column_bias_of(const Epilogue& epilogue) {
  if constexpr (Epilogue::is_backward)
    return epilogue.terms.column_bias;
  else
    return nullptr;
}

/// Whether the epilogue needs the rows of dot_operand.
template <class Epilogue>
__device__ __forceinline__ bool needs_dot_operand(const Epilogue& epilogue) {
  return Epilogue::is_dual || wants_dots(epilogue);
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
