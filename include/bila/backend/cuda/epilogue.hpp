// SPDX-License-Identifier: Apache-2.0
// What becomes of rows once their products are summed: y is normalised, a gradient is stored, alone or together with its dual.
#pragma once

#include <bila/backend/cuda/gaps.hpp>
#include <bila/backend/cuda/tokens.hpp>
#include <bila/backend/cuda/tuning.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// A masked product: rows q, keys k, values v. All that forward and gradient have in common.
template <class T>
struct product_call {
  sequences s;
  index_t H, chunk;  // chunk: tokens that a block of threads goes through; not used where all keys are one chunk
  index_t keys;      // of cross attention: how many keys there are; else -1
  operand<T> q, k, v;
  gap_table<exponent<T>> gaps;
  bool left, right;  // whether a row sees the keys on this side
  float diagonal;
};

/// A tensor that rows are written to.
template <class T>
struct row_output {
  tensor_view<T> out;  // without data: not wanted
  bool fast;
  tensor_view<float> scratch;  // with data: written in place of out, for heads that are yet to be added up (gradients only)
};

/// What a product of the gradient needs besides: biases of its scores and, for the gates, dot products of its rows.
template <class T>
struct backward_terms {
  bool biased;                          // r_i c_j is added to a score
  const float *row_bias, *column_bias;  // r and c per entry; null: ones
  operand<T> dot_operand;               // rows to multiply the result's rows with; without data: no gate asks for it
  float* dots;                          // per entry 3 parts of dot_operand_i . out_i, see row_block; null: not wanted
  index_t entries;                      // of the call: how far apart the dots of two value tiles are
};

namespace epilogue {

/// y_i = N_i / n(Z_i)
template <class Norm, class T>
struct normalise {
  using number = T;
  static constexpr bool is_backward = false, is_dual = false, sums_rows = Norm::uses_row_sum;
  Norm norm;
  float scale;
  row_output<T> rows;
  tensor_view<float> row_sum;  // without data: not wanted
};

/// A gradient, as it is.
template <class T>
struct store {
  using number = T;
  static constexpr bool is_backward = true, is_dual = false, sums_rows = false;
  backward_terms<T> terms;
  row_output<T> rows;
};

/// A gradient together with the dual product, of the same keys, values and states: sum_j M_ij (dot_operand_i . v_j) k_j.
template <class T>
struct dual {
  using number = T;
  static constexpr bool is_backward = true, is_dual = true, sums_rows = false;
  backward_terms<T> terms;
  row_output<T> rows, dual_rows;
};

}  // namespace epilogue

/// What the tensors of an epilogue are stored in.
template <class Epilogue>
using number_of = typename Epilogue::number;

template <class Epilogue>
inline constexpr result result_of = Epilogue::is_dual       ? result::two_gradients
                                    : Epilogue::is_backward ? result::gradient
                                                            : result::forward;

/// Whether the gates' dot products are wanted, and where those of a value tile are written.
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

/// The biases of a tile's keys; null: ones, or none.
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
