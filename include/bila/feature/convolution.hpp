// SPDX-License-Identifier: Apache-2.0
// The depthwise convolution over tokens that many models put before q, k and v, and its arithmetic on a block of tokens.
#pragma once

#include <bila/config.hpp>
#include <bila/view/direction.hpp>
#include <bila/view/index_list.hpp>
#include <bila/view/storage.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace feature {
inline namespace BILA_UNIT {

/// A depthwise convolution over the tokens of each segment; tokens outside the segment count as zero.
///
///     y_i = bias + sum_{m=0}^{width-1} weights_m x_{i+m-before}      for each head and feature
///     before = width - 1 (direction::forward),  0 (backward),  (width - 1) / 2 (both)
///
/// So `forward` is causal, and `both` is centred and requires an odd width. The taps have the order of a cross-correlation, as in
/// PyTorch: the last tap of a causal convolution belongs to the token itself.
///
/// Shapes: weights [1, Hw, width, D] with 1 <= width <= 64, or [1, Hw, width, 1] for one kernel that all features share. Hw divides
/// the heads of x, and contiguous groups of heads share a kernel. bias [1, Hw, 1, D] or [1, Hw, 1, 1], as the weights; absent: 0.
/// offsets and lengths are those of `inputs`: packed segments, or the valid tokens of each batch row.
/// Source: Mamba-2 (arXiv 2405.21060) and Hydra (arXiv 2407.09941), which convolve before the state space model; FLASH (arXiv
/// 2202.10447) and linearized language models (arXiv 2406.07368), which convolve beside attention.
template <class T>
struct convolution {
  tensor_view<const T> weights;
  bila::direction direction;
  tensor_view<const T> bias = {};
  index_list offsets = {};
  index_list lengths = {};

  index_t width() const { return weights.length(); }

  /// The number of tokens before token i that y_i reads.
  index_t before() const {
    if (direction == bila::direction::both) return (width() - 1) / 2;
    return direction == bila::direction::forward ? width() - 1 : 0;
  }
};

template <class T>
convolution(tensor_view<T>, direction) -> convolution<std::remove_const_t<T>>;

template <class T, class U>
convolution(tensor_view<T>, direction, tensor_view<U>) -> convolution<std::remove_const_t<T>>;

/// Where the gradients of a convolution are written; what is left empty is not computed. Shapes: those of x, weights and bias.
template <class T>
struct convolution_gradients {
  tensor_view<T> x = {};
  tensor_view<real_of<T>> weights = {};
  tensor_view<real_of<T>> bias = {};
};

namespace detail {

inline constexpr index_t widest_convolution = 64;     // taps
inline constexpr index_t convolution_tokens = 16;     // tokens of a block
inline constexpr index_t convolution_features = 128;  // features of a block: 512 bytes per row in float
inline constexpr index_t convolution_lanes = 64;      // features of an inner loop: enough sums to hide the latency of a product

/// Computes to_c += sum_{m < n} w_mc x_mc for convolution_lanes features c, in the order of m. Four rows at a time, so that a sum
/// is loaded and stored once for four products. Rows of w and x are convolution_features apart.
template <class Real>
void add_products(const Real* w, const Real* x, index_t n, Real* to) {
  constexpr index_t row = convolution_features;
  Real sum[convolution_lanes];
  std::copy_n(to, convolution_lanes, sum);
  for (; n >= 4; n -= 4, w += 4 * row, x += 4 * row)
    for (index_t c = 0; c < convolution_lanes; ++c)
      sum[c] = sum[c] + w[c] * x[c] + w[row + c] * x[row + c] + w[2 * row + c] * x[2 * row + c] + w[3 * row + c] * x[3 * row + c];
  for (; n > 0; --n, w += row, x += row)
    for (index_t c = 0; c < convolution_lanes; ++c) sum[c] += w[c] * x[c];
  std::copy_n(sum, convolution_lanes, to);
}

/// Adds n rows of g to total. The rows are summed in Real first, and this sum is added in double, so that long sums do not drift.
template <class Real>
void add_rows(const Real* g, index_t n, double* total) {
  for (index_t c = 0; c < convolution_features; ++c) {
    Real sum = 0;
    for (index_t i = 0; i < n; ++i) sum += g[i * convolution_features + c];
    total[c] += static_cast<double>(sum);
  }
}

/// Converts rows of at most convolution_features numbers to Real, and fills them up with zeros.
template <class Real, class T>
void load_rows(const rows<T>& x, Real* to) {
  for (index_t i = 0; i < x.count; ++i) {
    Real* const row = to + i * convolution_features;
    if (x.column_stride == 1)
      for (index_t c = 0; c < x.width; ++c) row[c] = static_cast<Real>((&x(i, 0))[c]);
    else
      for (index_t c = 0; c < x.width; ++c) row[c] = static_cast<Real>(x(i, c));
    std::fill(row + x.width, row + convolution_features, Real(0));
  }
}

/// Rounds a row of Real into token i of x.
template <class Real, class T>
void store_row(const Real* from, const rows<T>& x, index_t i) {
  if (x.column_stride == 1)
    for (index_t c = 0; c < x.width; ++c) (&x(i, 0))[c] = static_cast<T>(from[c]);
  else
    for (index_t c = 0; c < x.width; ++c) x(i, c) = static_cast<T>(from[c]);
}

/// Calls use(first, n) for each block of n tokens of a segment. Row r of `window` then holds token first - before + r, for the
/// tokens [first - before, first + n + after) that the segment has. Each token is read before a result can overwrite it, so y may
/// be x.
template <class Real, class T, class Use>
void for_each_window(const rows<T>& x, index_t before, index_t after, Real* window, const Use& use) {
  const auto at = [window](index_t row) { return window + row * convolution_features; };
  index_t loaded = 0;
  for (index_t first = 0; first < x.count; first += convolution_tokens) {
    const index_t n = (std::min)(convolution_tokens, x.count - first), end = (std::min)(x.count, first + n + after);
    if (first > 0) std::copy(at(convolution_tokens), at(convolution_tokens + before + after), window);
    load_rows(x.slice(loaded, end - loaded), at(loaded - first + before));
    loaded = end;
    use(first, n);
  }
}

/// Computes y_i = start + sum_m w_m x_{i+m-before} over a segment. y may be x. Shapes: x, y (count, at most convolution_features).
template <class Real, class T>
void convolve_segment(const rows<const T>& x, const Real* start, const Real* w, index_t width, index_t before, Real* window,
                      Real* sums, const rows<T>& y) {
  for_each_window(x, before, width - 1 - before, window, [&](index_t first, index_t n) {
    for (index_t i = 0; i < n; ++i) {
      const index_t t = first + i;
      const index_t from = (std::max<index_t>)(0, before - t), to = (std::min)(width, x.count - t + before);
      std::copy_n(start, convolution_features, sums);
      for (index_t c = 0; c < x.width; c += convolution_lanes)
        add_products(w + from * convolution_features + c, window + (i + from) * convolution_features + c, to - from, sums + c);
      store_row(sums, y, t);
    }
  });
}

/// Adds sum_i g_i x_{i+m-before} over a segment to by_weights_m, and sum_i g_i to by_bias. `block` is scratch for g.
/// Shapes: x, g (count, at most convolution_features), by_weights (width, convolution_features), by_bias (convolution_features).
template <class Real, class T>
void convolve_segment_gradient(const rows<const T>& x, const rows<const T>& g, index_t width, index_t before, Real* window,
                               Real* block, double* by_weights, double* by_bias) {
  for_each_window(x, before, width - 1 - before, window, [&](index_t first, index_t n) {
    load_rows(g.slice(first, n), block);
    for (index_t m = 0; m < width; ++m) {
      const index_t from = std::clamp<index_t>(before - m - first, 0, n),
                    to = std::clamp<index_t>(x.count - first + before - m, 0, n);
      for (index_t c = 0; c < x.width; c += convolution_lanes) {
        Real sum[convolution_lanes] = {};
        add_products(block + from * convolution_features + c, window + (from + m) * convolution_features + c, to - from, sum);
        for (index_t lane = 0; lane < convolution_lanes; ++lane)
          by_weights[m * convolution_features + c + lane] += static_cast<double>(sum[lane]);
      }
    }
    add_rows(block, n, by_bias);
  });
}

}  // namespace detail

}  // namespace BILA_UNIT
}  // namespace feature
}  // namespace v0_1
}  // namespace bila
