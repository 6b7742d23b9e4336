// SPDX-License-Identifier: Apache-2.0
// Launches that attend and gradient share.
#pragma once

#include <bila/backend/cuda/padding.hpp>
#include <bila/backend/cuda/plan.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
operand<T> operand_of(const tensor_view<const T>& x, index_t H) {
  return {x, x.heads() == 0 ? 1 : H / x.heads(), has_fast_rows(x)};
}

/// A state at a sequence's end. If the norm uses no row sum, kernels neither read nor write z.
template <class Norm, class Real>
end_state<Real> end_of(const state<Real>& x) {
  return {x.S, Norm::uses_row_sum ? x.z : tensor_view<Real>{}};
}

template <class Exponent, class Mask>
void launch_gap_weights(launcher& launch, const grid& size, const sequences& s, index_t H, const sequence_plan& plan,
                        const Mask& mask, const border_gaps& borders, const gap_table<Exponent>& to,
                        const gap_table<Exponent>& swapped) {
  launch("weigh_gaps", weigh_gaps<Exponent, Mask>, size, s, H, plan.units(mma_rows) * H, mask, borders, to, swapped);
}

/// longest: number of tokens of the longest sequence.
template <int D, class T>
void launch_scan(launcher& launch, const grid& size, const scan_call<T>& call, index_t tasks, index_t longest) {
  if (longest > call.chunk * chunks_at_once<T>)
    launch("scan_states", scan_states<T, D, true>, size, call, tasks);
  else
    launch("scan_states", scan_states<T, D, false>, size, call, tasks);
}

template <int D, class Tiles, class Epilogue, class T>
void launch_full_attention(launcher& launch, const grid& size, const product_call<T>& call, const Epilogue& epilogue) {
  launch("full_attention", full_attention<T, D, Tiles, Epilogue>, size, call, epilogue, size.blocks);
}

template <int D, class Tiles, class Epilogue>
void launch_chunk_output(launcher& launch, const grid& size, const chunk_call_of<number_of<Epilogue>, Epilogue>& call,
                         const Epilogue& epilogue) {
  launch("chunk_output", chunk_output<number_of<Epilogue>, D, Tiles, Epilogue>, size, call, epilogue, size.blocks);
}

template <int D, class Tiles, class Epilogue>
void launch_global_state(launcher& launch, const grid& size, const global_state_call<number_of<Epilogue>>& call,
                         const Epilogue& epilogue) {
  launch("read_global_state", read_global_state<number_of<Epilogue>, D, Tiles, Epilogue>, size, call, epilogue, size.blocks);
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
