// SPDX-License-Identifier: Apache-2.0
// The weights of one chunk, computed from its gaps: running products in double, which start in the chunk and are rounded once at
// the end. Every factor is at most one, so nothing overflows, an exact zero stays zero, and underflow is the right answer.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/view/number.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace bila {
inline namespace v0_1 {
namespace kernel {
inline namespace BILA_UNIT {

/// The weights at the borders of a chunk of n tokens. lambda_t is the decay of gap t; tokens and gaps count from the chunk's start.
///
///     forward:   read_i = prod lambda_0..i       write_j = prod lambda_j+1..n-1    total = prod lambda_0..n-1
///     backward:  read_i = prod lambda_i+1..n     write_j = prod lambda_1..j        total = prod lambda_1..n
template <class Real>
struct border_weights {
  Real* read = nullptr;   // (n) decay of the incoming state up to token i
  Real* write = nullptr;  // (n) decay of token j up to the outgoing state
  double total = 1;       // decay of the incoming state over the whole chunk
};

// Both products advance in one loop, because each multiplication must wait for the one before it.
template <class Real>
BILA_NOINLINE void scan_forward(border_weights<Real>& w, const double* lambda, index_t n) {
  double product = 1, rest = 1;
  for (index_t i = 0, j = n - 1; i < n; ++i, --j) {
    w.read[i] = static_cast<Real>(product *= lambda[i]);
    w.write[j] = static_cast<Real>(rest);
    rest *= lambda[j];
  }
  w.total = product;
}

template <class Real>
BILA_NOINLINE void scan_backward(border_weights<Real>& w, const double* lambda, index_t n) {
  double product = 1, rest = 1;
  for (index_t i = n - 1, j = 0; j < n; --i, ++j) {
    w.read[i] = static_cast<Real>(product *= lambda[i + 1]);
    w.write[j] = static_cast<Real>(rest);
    rest *= lambda[j + 1];
  }
  w.total = product;
}

/// Rescales the weights for a stored state. The true state is `before` times the stored one when it is read, and `after` times the
/// stored one when it is written.
template <class Real>
BILA_NOINLINE void weigh_borders(const border_weights<Real>& w, double before, double after, index_t n, border_weights<Real>& to) {
  const Real read = static_cast<Real>(before), write = static_cast<Real>(1 / after);
  for (index_t i = 0; i < n; ++i) {
    to.read[i] = w.read[i] * read;
    to.write[i] = w.write[i] * write;
  }
}

/// A decay as the product of a power of two and a factor in [0.5, 1); a decay below 2^-1021 as 0 times 1.
struct split_number {
  double power, factor;
};

/// Splits x >= 0. It reads the bits, without branches: std::frexp and std::ldexp take 4 % of a sweep with decays per channel.
BILA_ALWAYS_INLINE split_number split_decay(double x) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x), exponent = bits & 0x7ff0000000000000u, one = 0x0010000000000000u;
  const bool normal = exponent >= 2 * one;
  const std::uint64_t mantissa = (bits & 0x000fffffffffffffu) | 0x3fe0000000000000u;
  return {std::bit_cast<double>(normal ? exponent + one : 0), normal ? std::bit_cast<double>(mantissa) : 1.0};
}

/// The decay by which a stored state has not been multiplied yet.
///
/// Multiplying a float state by 1 - 2^-24 again and again rounds the same way each time: the state is 1.3e-3 off after 100 000
/// times. So this class collects the decay in double, and the stored state is only multiplied by powers of two, which are exact.
/// The true state is factor() times the stored one; reading multiplies, writing divides by factor(), which is at most 1 and at
/// least decay's `least`.
class pending_decay {
 public:
  explicit pending_decay(double factor = 1) : factor_(factor) {}

  double factor() const { return factor_; }

  /// Decays the state by lambda. Returns the factor for the stored state, which the caller must now multiply: 1 while factor()
  /// stays at or above `least`, else a smaller power of two, or 0.
  double decay(double lambda, double least = 0.5) {
    factor_ *= lambda;
    if (factor_ >= least) return 1;
    int exponent = 0;
    factor_ = std::frexp(factor_, &exponent);
    if (!detail::is_exactly(factor_, 0)) return std::ldexp(1.0, exponent);
    factor_ = 1;
    return 0;
  }

 private:
  double factor_;
};

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila
