// SPDX-License-Identifier: Apache-2.0
// What a user brings: masks and tile choices of his own, gates in float. nvcc compiles it in foreign.cu and tiles.cu.
#pragma once

#include "cuda/support/door.hpp"

namespace test::device {

/// The gaps of the mask in foreign.cu, worked out where they are needed.
BILA_HD constexpr double formula_forward(bila::index_t b, bila::index_t h, bila::index_t t) {
  return -0.03125 * static_cast<double>((7 * t + 3 * h + b) % 13);
}
BILA_HD constexpr double formula_backward(bila::index_t b, bila::index_t h, bila::index_t t) {
  return -0.0625 * static_cast<double>((5 * t + h + 2 * b) % 11);
}
/// The same for one number per head.
BILA_HD constexpr double formula_of_head(bila::index_t h) { return -0.125 * static_cast<double>(h + 1); }

/// Calls with a mask of foreign.cu; heads up to 64 wide, float, norm row_sum{1e-6}.
enum class foreign_mask { per_token, per_head };
void attend(const on& at, foreign_mask mask, const any_form& form, const bila::inputs<float>& in, const bila::outputs<float>& out);
std::size_t workspace_bytes(foreign_mask mask, const any_form& form, const bila::inputs<float>& in,
                            const bila::outputs<float>& out);
void gradient(const on& at, foreign_mask mask, const any_form& form, const bila::inputs<float>& in, const bila::saved<float>& kept,
              const bila::output_gradients<float>& dy, const bila::gradients<float>& to);
std::size_t gradient_workspace_bytes(foreign_mask mask, const any_form& form, const bila::inputs<float>& in,
                                     const bila::saved<float>& kept, const bila::output_gradients<float>& dy,
                                     const bila::gradients<float>& to);

/// bila::attend with gates in float; form chunkwise, mask `later` or fixed by the shape of the gates, no norm.
void attend_with_float_gates(const on& at, const bila::tensor_view<const float>& gates, const bila::inputs<float>& in,
                             const bila::outputs<float>& out);
std::size_t workspace_bytes_with_float_gates(const bila::tensor_view<const float>& gates, const bila::inputs<float>& in,
                                             const bila::outputs<float>& out);

/// Calls with tiles of tiles.cu, the smallest for heads up to 128 wide; T is float or bila::bf16, norm row_sum{1e-6}.
enum class tile_choice { smallest, large };
using gap_mask = bila::mask::two_sided<double>;

template <class T>
void attend(const on& at, tile_choice tiles, const any_form& form, const gap_mask& mask, const bila::inputs<T>& in,
            const bila::outputs<T>& out);
template <class T>
std::size_t workspace_bytes(tile_choice tiles, const any_form& form, const gap_mask& mask, const bila::inputs<T>& in,
                            const bila::outputs<T>& out);
template <class T>
void gradient(const on& at, tile_choice tiles, const any_form& form, const gap_mask& mask, const bila::inputs<T>& in,
              const bila::saved<T>& kept, const bila::output_gradients<T>& dy, const bila::gradients<T>& to);
template <class T>
std::size_t gradient_workspace_bytes(tile_choice tiles, const any_form& form, const gap_mask& mask, const bila::inputs<T>& in,
                                     const bila::saved<T>& kept, const bila::output_gradients<T>& dy, const bila::gradients<T>& to);

/// A call whose tiles ask for more shared memory than any GPU has; form full, mask of ones, no norm.
void attend_with_impossible_tiles(const bila::inputs<float>& in, const bila::outputs<float>& out);

}  // namespace test::device
