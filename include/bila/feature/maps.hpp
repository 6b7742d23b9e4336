// SPDX-License-Identifier: Apache-2.0
// Feature maps phi and their adjoints, applied to projected queries and keys one row at a time. Any type that satisfies the concept
// `map` below is a feature map.
#pragma once

#include <bila/config.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>

namespace bila {
inline namespace v0_1 {
namespace feature {
inline namespace BILA_UNIT {

/// The members: `width(d)` features from d numbers; `map(x, d, phi)`; `pull_back(x, phi, g, d, dx)` computes dx = (d phi / dx)^T g.
template <class Map>
concept map = requires(const Map& f, const double* in, double* out, index_t d) {
  { f.width(d) } -> std::same_as<index_t>;
  f.map(in, d, out);
  f.pull_back(in, in, in, d, out);
};

namespace detail {

template <class Real>
Real sigmoid(Real x) {
  const Real e = std::exp(-std::abs(x));
  return (x >= 0 ? Real(1) : e) / (1 + e);
}

template <class Real>
Real dot(const Real* a, const Real* b, index_t d) {
  Real sum = 0;
  for (index_t i = 0; i < d; ++i) sum += a[i] * b[i];
  return sum;
}

/// Computes the softmax of n numbers in place.
template <class Real>
void softmax(Real* x, index_t n) {
  const Real top = *std::max_element(x, x + n);
  Real sum = 0;
  for (index_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - top);
  for (index_t i = 0; i < n; ++i) x[i] /= sum;
}

}  // namespace detail

/// phi(x) = x.
struct identity {
  constexpr index_t width(index_t d) const { return d; }

  template <class Real>
  void map(const Real* x, index_t d, Real* phi) const {
    std::copy_n(x, d, phi);
  }

  template <class Real>
  void pull_back(const Real*, const Real*, const Real* g, index_t d, Real* dx) const {
    std::copy_n(g, d, dx);
  }
};

/// phi(x) = max(x, 0); the slope at 0 is 0.
struct relu {
  constexpr index_t width(index_t d) const { return d; }

  template <class Real>
  void map(const Real* x, index_t d, Real* phi) const {
    for (index_t i = 0; i < d; ++i) phi[i] = (std::max)(x[i], Real(0));
  }

  template <class Real>
  void pull_back(const Real* x, const Real*, const Real* g, index_t d, Real* dx) const {
    for (index_t i = 0; i < d; ++i) dx[i] = x[i] > 0 ? g[i] : Real(0);
  }
};

/// phi(x) = x + 1 for x > 0, else e^x: always positive. Source: Katharopoulos et al. (arXiv 2006.16236); LION-LIT's code.
struct elu_plus_one {
  constexpr index_t width(index_t d) const { return d; }

  template <class Real>
  void map(const Real* x, index_t d, Real* phi) const {
    for (index_t i = 0; i < d; ++i) phi[i] = x[i] > 0 ? x[i] + 1 : std::exp(x[i]);
  }

  template <class Real>
  void pull_back(const Real* x, const Real* phi, const Real* g, index_t d, Real* dx) const {
    for (index_t i = 0; i < d; ++i) dx[i] = x[i] > 0 ? g[i] : g[i] * phi[i];
  }
};

/// phi(x) = u / |u|, u = x sigmoid(x) + 1/2: all entries positive, so row sums cannot vanish. Source: LION (arXiv 2502.16249).
struct silu_norm {
  constexpr index_t width(index_t d) const { return d; }

  template <class Real>
  void map(const Real* x, index_t d, Real* phi) const {
    Real square = 0;
    for (index_t i = 0; i < d; ++i) {
      phi[i] = x[i] * detail::sigmoid(x[i]) + Real(0.5);
      square += phi[i] * phi[i];
    }
    const Real length = std::sqrt(square);
    for (index_t i = 0; i < d; ++i) phi[i] /= length;
  }

  template <class Real>
  void pull_back(const Real* x, const Real* phi, const Real* g, index_t d, Real* dx) const {
    const Real along = detail::dot(phi, g, d);
    Real square = 0;
    for (index_t i = 0; i < d; ++i) {
      const Real s = detail::sigmoid(x[i]), u = x[i] * s + Real(0.5);
      square += u * u;
      dx[i] = (g[i] - phi[i] * along) * s * (1 + x[i] * (1 - s));
    }
    const Real length = std::sqrt(square);
    for (index_t i = 0; i < d; ++i) dx[i] /= length;
  }
};

/// phi(x) = x / sqrt(|x|^2 + 1e-6). Source: the delta rule's keys (arXiv 2406.06484).
struct l2_norm {
  constexpr index_t width(index_t d) const { return d; }

  template <class Real>
  void map(const Real* x, index_t d, Real* phi) const {
    const Real length = std::sqrt(detail::dot(x, x, d) + Real(1e-6));
    for (index_t i = 0; i < d; ++i) phi[i] = x[i] / length;
  }

  template <class Real>
  void pull_back(const Real* x, const Real* phi, const Real* g, index_t d, Real* dx) const {
    const Real length = std::sqrt(detail::dot(x, x, d) + Real(1e-6)), along = detail::dot(phi, g, d);
    for (index_t i = 0; i < d; ++i) dx[i] = (g[i] - phi[i] * along) / length;
  }
};

/// phi(x) = [1, x / d^(1/4), vec(x x^T) / sqrt(2 d)]: phi(q) . phi(k) = 1 + q.k / sqrt(d) + (q.k)^2 / (2 d), about exp(q.k /
/// sqrt(d)). Source: Based (arXiv 2402.18668).
struct taylor {
  constexpr index_t width(index_t d) const { return 1 + d + d * d; }

  template <class Real>
  void map(const Real* x, index_t d, Real* phi) const {
    const Real n = static_cast<Real>(d), first = 1 / std::sqrt(std::sqrt(n)), second = 1 / std::sqrt(2 * n);
    *phi++ = 1;
    for (index_t i = 0; i < d; ++i) *phi++ = x[i] * first;
    for (index_t i = 0; i < d; ++i)
      for (index_t j = 0; j < d; ++j) *phi++ = x[i] * x[j] * second;
  }

  template <class Real>
  void pull_back(const Real* x, const Real*, const Real* g, index_t d, Real* dx) const {
    const Real n = static_cast<Real>(d), first = 1 / std::sqrt(std::sqrt(n)), second = 1 / std::sqrt(2 * n);
    const Real* const pairs = g + 1 + d;
    for (index_t i = 0; i < d; ++i) {
      Real sum = 0;
      for (index_t j = 0; j < d; ++j) sum += (pairs[i * d + j] + pairs[j * d + i]) * x[j];
      dx[i] = g[1 + i] * first + sum * second;
    }
  }
};

/// taylor with half the features and the same scores: [1, x / d^(1/4), x_i^2 / sqrt(2 d), x_i x_j / sqrt(d) for i < j].
struct taylor_packed {
  constexpr index_t width(index_t d) const { return 1 + d + d * (d + 1) / 2; }

  template <class Real>
  void map(const Real* x, index_t d, Real* phi) const {
    const Real n = static_cast<Real>(d), first = 1 / std::sqrt(std::sqrt(n)), square = 1 / std::sqrt(2 * n),
               pair = 1 / std::sqrt(n);
    *phi++ = 1;
    for (index_t i = 0; i < d; ++i) *phi++ = x[i] * first;
    for (index_t i = 0; i < d; ++i) *phi++ = x[i] * x[i] * square;
    for (index_t i = 0; i < d; ++i)
      for (index_t j = i + 1; j < d; ++j) *phi++ = x[i] * x[j] * pair;
  }

  template <class Real>
  void pull_back(const Real* x, const Real*, const Real* g, index_t d, Real* dx) const {
    const Real n = static_cast<Real>(d), first = 1 / std::sqrt(std::sqrt(n)), square = 1 / std::sqrt(2 * n),
               pair = 1 / std::sqrt(n);
    for (index_t i = 0; i < d; ++i) dx[i] = g[1 + i] * first + 2 * g[1 + d + i] * x[i] * square;
    const Real* pairs = g + 1 + 2 * d;
    for (index_t i = 0; i < d; ++i)
      for (index_t j = i + 1; j < d; ++j, ++pairs) {
        dx[i] += *pairs * x[j] * pair;
        dx[j] += *pairs * x[i] * pair;
      }
  }
};

/// phi(x) = softmax(x).
struct softmax {
  constexpr index_t width(index_t d) const { return d; }

  template <class Real>
  void map(const Real* x, index_t d, Real* phi) const {
    std::copy_n(x, d, phi);
    detail::softmax(phi, d);
  }

  template <class Real>
  void pull_back(const Real*, const Real* phi, const Real* g, index_t d, Real* dx) const {
    const Real along = detail::dot(phi, g, d);
    for (index_t i = 0; i < d; ++i) dx[i] = phi[i] * (g[i] - along);
  }
};

/// phi(x) = softmax([2 x, -2 x]). The model's own linear layer computes x. Source: Hedgehog (arXiv 2402.04347).
struct hedgehog {
  constexpr index_t width(index_t d) const { return 2 * d; }

  template <class Real>
  void map(const Real* x, index_t d, Real* phi) const {
    for (index_t i = 0; i < d; ++i) phi[i] = 2 * x[i], phi[d + i] = -2 * x[i];
    detail::softmax(phi, 2 * d);
  }

  template <class Real>
  void pull_back(const Real*, const Real* phi, const Real* g, index_t d, Real* dx) const {
    const Real along = detail::dot(phi, g, 2 * d);
    for (index_t i = 0; i < d; ++i) dx[i] = 2 * (phi[i] * (g[i] - along) - phi[d + i] * (g[d + i] - along));
  }
};

}  // namespace BILA_UNIT
}  // namespace feature
}  // namespace v0_1
}  // namespace bila
