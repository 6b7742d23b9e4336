// SPDX-License-Identifier: Apache-2.0
// The functions by which models turn a raw number per token into a log decay, and their gradients. 1 - sigmoid(x) is never
// computed: in float it is 0 from x = 17 on, and its log -inf.
#pragma once

#include <bila/config.hpp>
#include <bila/view/number.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>

namespace bila {
inline namespace v0_1 {
namespace gates {
inline namespace BILA_UNIT {

/// log(1 + e^x), accurate for every x.
inline double softplus(double x) { return (std::max)(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

inline double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x >= 0 ? 1 : e) / (1 + e);
}

/// 1 - e^a, accurate for small a: the key that goes with a decay in HGRN-2 (k = 1 - alpha) and GRFA. Its slope is -e^a.
inline double one_minus_decay(double a) { return -std::expm1(a); }

/// A parameterisation: the log decay a(x) of head h, and da/dx.
template <class Gate>
concept parameterisation = requires(const Gate& gate, double x, index_t h) {
  { gate.log_decay(x, h) } -> std::convertible_to<double>;
  { gate.slope(x, h) } -> std::convertible_to<double>;
};

/// lambda = sigmoid(x)^(1/temperature):  a = -softplus(-x) / temperature.
/// Source: LION (arXiv 2502.16249) with temperature 1, GLA (arXiv 2312.06635) with 16.
struct log_sigmoid {
  double temperature = 1;

  double log_decay(double x, index_t) const { return -softplus(-x) / temperature; }
  double slope(double x, index_t) const { return sigmoid(-x) / temperature; }
};

/// lambda = 1 - sigmoid(x):  a = -softplus(x). LION's code computes this where the paper has sigmoid(x): the two differ in the sign
/// of x.
struct log_one_minus_sigmoid {
  double log_decay(double x, index_t) const { return -softplus(x); }
  double slope(double x, index_t) const { return -sigmoid(x); }
};

/// lambda = exp(-softplus(x) e^{A_h}):  a = -softplus(x) e^{A_h}; A: [H]. da/dA_h = a, see pull_back_rate.
/// Source: Mamba-2 (arXiv 2405.21060).
template <class T>
struct mamba {
  tensor_view<const T> A;  // [1, H, 1, 1]

  double rate(index_t h) const { return std::exp(static_cast<double>(A(0, h, 0, 0))); }
  double log_decay(double x, index_t h) const { return -softplus(x) * rate(h); }
  double slope(double x, index_t h) const { return -sigmoid(x) * rate(h); }
};

template <class T>
mamba(tensor_view<T>) -> mamba<std::remove_const_t<T>>;

/// lambda = exp(-e^x):  a = -e^x, da/dx = a. Source: RWKV-6 (arXiv 2404.05892).
struct double_exponential {
  double log_decay(double x, index_t) const { return -std::exp(x); }
  double slope(double x, index_t) const { return -std::exp(x); }
};

namespace detail {

template <class T, class Function>
void for_each_token(const tensor_view<T>& like, const Function& f) {
  for (index_t b = 0; b < like.batches(); ++b)
    for (index_t h = 0; h < like.heads(); ++h)
      for (index_t l = 0; l < like.length(); ++l) f(b, h, l);
}

}  // namespace detail

/// Computes log_decay = a(x), token by token. Shapes: x and log_decay [B, H, L, 1].
template <parameterisation Gate, class T, class U>
void log_decays(const Gate& gate, const tensor_view<T>& x, const tensor_view<U>& log_decay) {
  detail::for_each_token(log_decay, [&](index_t b, index_t h, index_t l) {
    log_decay(b, h, l, 0) = static_cast<U>(gate.log_decay(static_cast<double>(x(b, h, l, 0)), h));
  });
}

/// Computes dx = a'(x) d log_decay, token by token. dx may be the memory of d log_decay. Where d log_decay is zero, as at a decay
/// of zero, dx is zero, even if a'(x) is infinite.
template <parameterisation Gate, class T, class U, class V>
void pull_back(const Gate& gate, const tensor_view<T>& x, const tensor_view<U>& d_log_decay, const tensor_view<V>& dx) {
  detail::for_each_token(dx, [&](index_t b, index_t h, index_t l) {
    const auto d = static_cast<double>(d_log_decay(b, h, l, 0));
    dx(b, h, l, 0) = static_cast<V>(bila::detail::is_exactly(d, 0) ? 0.0 : gate.slope(static_cast<double>(x(b, h, l, 0)), h) * d);
  });
}

/// Computes dA_h, the sum over batch and tokens of a(x) d log_decay. Shape: dA [1, H, 1, 1].
template <class A, class T, class U, class V>
void pull_back_rate(const mamba<A>& gate, const tensor_view<T>& x, const tensor_view<U>& d_log_decay, const tensor_view<V>& dA) {
  for (index_t h = 0; h < dA.heads(); ++h) {
    double sum = 0;
    for (index_t b = 0; b < x.batches(); ++b)
      for (index_t l = 0; l < x.length(); ++l)
        if (const auto d = static_cast<double>(d_log_decay(b, h, l, 0)); !bila::detail::is_exactly(d, 0))
          sum += gate.log_decay(static_cast<double>(x(b, h, l, 0)), h) * d;
    dA(0, h, 0, 0) = static_cast<V>(sum);
  }
}

}  // namespace BILA_UNIT
}  // namespace gates
}  // namespace v0_1
}  // namespace bila
