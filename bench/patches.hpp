// SPDX-License-Identifier: Apache-2.0
// Turns the patches of a picture into the tensors of one attention layer, without any random number. With x the pixels of a patch,
// centred and scaled to variance one over the head (one colour channel), and c its orthonormal two-dimensional DCT:
//
//     q = phi(c)     k = phi(c / r), r the root mean square of each coefficient over the head     v = x
//     phi(u) = w / |w|,  w_d = u_d sigmoid(u_d) + 1/2                                  LION's silu_norm: every entry positive
//     selective log decay of a token = -softplus(4 contrast - 5), contrast the standard deviation of x within the patch
//     fixed log decay of head h = log(1 - 10^-(1 + h mod 3))
//
// Flat patches remember (decay 0.993), edges forget (below 0.8 for the strongest).
#pragma once

#include "tensors.hpp"

#include <cmath>
#include <numbers>
#include <vector>

namespace bench {

namespace patches_detail {

// (side, side) orthonormal DCT-II: row f holds the cosine of frequency f.
inline std::vector<double> cosines(std::size_t side) {
  std::vector<double> matrix(side * side);
  for (std::size_t f = 0; f < side; ++f) {
    const double scale = std::sqrt((f == 0 ? 1.0 : 2.0) / static_cast<double>(side));
    for (std::size_t x = 0; x < side; ++x) {
      const double angle = std::numbers::pi * (static_cast<double>(x) + 0.5) * static_cast<double>(f) / static_cast<double>(side);
      matrix[f * side + x] = scale * std::cos(angle);
    }
  }
  return matrix;
}

// C x C^T for one patch x.
inline void transform(const std::vector<double>& cosine, std::size_t side, const double* x, double* c) {
  std::vector<double> half(side * side, 0.0);
  for (std::size_t f = 0; f < side; ++f)
    for (std::size_t i = 0; i < side; ++i)
      for (std::size_t j = 0; j < side; ++j) half[f * side + j] += cosine[f * side + i] * x[i * side + j];
  for (std::size_t f = 0; f < side; ++f)
    for (std::size_t g = 0; g < side; ++g) {
      double sum = 0;
      for (std::size_t j = 0; j < side; ++j) sum += half[f * side + j] * cosine[g * side + j];
      c[f * side + g] = sum;
    }
}

template <class T>
void silu_norm(const double* u, std::size_t n, T* out) {
  std::vector<double> w(n);
  double squares = 0;
  for (std::size_t d = 0; d < n; ++d) {
    w[d] = u[d] / (1 + std::exp(-u[d])) + 0.5;
    squares += w[d] * w[d];
  }
  for (std::size_t d = 0; d < n; ++d) out[d] = static_cast<T>(w[d] / std::sqrt(squares));
}

}  // namespace patches_detail

// A uint8 array [head, token, side * side].
template <class T>
problem<T> from_patches(const named_array& picture) {
  const npy_array& file = picture.array;
  if (file.type != npy_type::uint8 || file.shape.size() != 3) picture.fail("is not a uint8 array [head, token, pixel]");
  const index_t H = file.shape[0], L = file.shape[1], D = file.shape[2];
  const auto width = static_cast<std::size_t>(D), tokens = static_cast<std::size_t>(L);
  const auto side = static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(D))));
  if (file.bytes.empty() || side * side != width)
    picture.fail("has shape " + words(file.shape) + ", the last axis must be a square number");

  problem<T> p;
  p.q = tensor<T>({1, H, L, D});
  p.k = tensor<T>({1, H, L, D});
  p.v = tensor<T>({1, H, L, D});
  p.token_log_decay = tensor<T>({1, H, L, 1});
  const std::vector<double> pixels = file.as<double>(), cosine = patches_detail::cosines(side);
  std::vector<double> x(tokens * width), c(tokens * width), scaled(width);

  for (index_t h = 0; h < H; ++h) {
    const double* const head = pixels.data() + static_cast<std::size_t>(h) * x.size();
    const auto count = static_cast<double>(x.size());
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < x.size(); ++i) mean += head[i] / count;
    for (std::size_t i = 0; i < x.size(); ++i) variance += (head[i] - mean) * (head[i] - mean) / count;
    if (variance == 0) picture.fail("head " + std::to_string(h) + " has one colour only");
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = (head[i] - mean) / std::sqrt(variance);

    std::vector<double> energy(width, 0.0);
    for (std::size_t t = 0; t < tokens; ++t) {
      patches_detail::transform(cosine, side, &x[t * width], &c[t * width]);
      for (std::size_t d = 0; d < width; ++d) energy[d] += c[t * width + d] * c[t * width + d] / static_cast<double>(L);
    }
    for (index_t t = 0; t < L; ++t) {
      const double *const x_t = &x[static_cast<std::size_t>(t) * width], *const c_t = &c[static_cast<std::size_t>(t) * width];
      double patch_mean = 0, contrast = 0;
      for (std::size_t d = 0; d < width; ++d) {
        scaled[d] = energy[d] > 0 ? c_t[d] / std::sqrt(energy[d]) : 0.0;
        patch_mean += x_t[d] / static_cast<double>(D);
        p.v.row(0, h, t)[d] = static_cast<T>(x_t[d]);
      }
      for (std::size_t d = 0; d < width; ++d) contrast += (x_t[d] - patch_mean) * (x_t[d] - patch_mean) / static_cast<double>(D);
      patches_detail::silu_norm(c_t, width, p.q.row(0, h, t));
      patches_detail::silu_norm(scaled.data(), width, p.k.row(0, h, t));
      *p.token_log_decay.row(0, h, t) = static_cast<T>(-std::log1p(std::exp(4 * std::sqrt(contrast) - 5)));
    }
    p.head_log_decay.push_back(static_cast<T>(std::log1p(-std::pow(10.0, -1.0 - static_cast<double>(h % 3)))));
  }
  return p;
}

}  // namespace bench
