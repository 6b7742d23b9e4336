// SPDX-License-Identifier: Apache-2.0
// Views of Eigen objects: a matrix, Map, Ref or Block of either storage order becomes one head of one sequence.
#pragma once

#if defined(__CUDACC__)
#error \
    "bila: nvcc must not compile Eigen (it would change the host's own products at link time); use the raw views of bila/view/tensor_view.hpp"
#endif

#include <bila/view/tensor_view.hpp>

#include <Eigen/Core>

#include <type_traits>

namespace bila {
inline namespace v0_1 {

namespace detail {
inline namespace BILA_UNIT {

template <class Expression>
inline constexpr bool has_memory = (Eigen::internal::traits<Expression>::Flags & Eigen::DirectAccessBit) == Eigen::DirectAccessBit;

template <class Expression>
inline constexpr bool owns_memory = std::is_base_of_v<Eigen::PlainObjectBase<Expression>, Expression>;

}  // namespace BILA_UNIT
}  // namespace detail

inline namespace BILA_UNIT {

/// A view of an Eigen matrix or Map as one head of one sequence.
///
/// Shapes: (rows, columns) -> [1, 1, rows, columns]; a column vector of L gates -> [1, 1, L, 1].
/// The view is writable if the argument is. The caller keeps the memory: a temporary that owns its memory is refused.
template <class Matrix>
requires std::is_base_of_v<Eigen::DenseBase<std::remove_cvref_t<Matrix>>, std::remove_cvref_t<Matrix>>
constexpr auto matrix(Matrix&& x) {
  using expression = std::remove_cvref_t<Matrix>;
  static_assert(detail::has_memory<expression>,
                "bila::matrix needs an expression with memory of its own: evaluate it into a matrix first");
  static_assert(std::is_lvalue_reference_v<Matrix> || !detail::owns_memory<expression>,
                "bila::matrix does not own memory: a temporary matrix would dangle, give it a name first");
  using scalar = std::remove_pointer_t<decltype(x.data())>;
  return tensor_view<scalar>{x.data(), {1, 1, x.rows(), x.cols()}, {0, 0, x.rowStride(), x.colStride()}};
}

}  // namespace BILA_UNIT

}  // namespace v0_1
}  // namespace bila
