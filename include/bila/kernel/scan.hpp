// SPDX-License-Identifier: Apache-2.0
// From the gaps of one chunk to its weights: running products in double, each restarted in the chunk and rounded once at the end.
// Every factor is at most one, so nothing overflows, an exact zero stays zero, and underflow is the right answer.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/view/number.hpp>

#include <algorithm>
#include <cmath>

namespace bila {
inline namespace v0_1 {
namespace kernel {
inline namespace BILA_UNIT {

/// How a chunk of n tokens weighs what crosses its borders; lambda_t = exp of the log decay of gap t, tokens counted in the chunk.
///
///     forward:   read_i = prod lambda_0..i       write_j = prod lambda_j+1..n-1    total = prod lambda_0..n-1
///     backward:  read_i = prod lambda_i+1..n     write_j = prod lambda_1..j        total = prod lambda_1..n
template <class Real>
struct border_weights {
  Real* read = nullptr;   // (n) the incoming state, as token i sees it
  Real* write = nullptr;  // (n) token j, as the outgoing state keeps it
  double total = 1;       // the incoming state, as the outgoing one keeps it
};

// Two products at a time: each waits for itself.
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

/// The same weights for a stored state that is 1 / `before` times the true one when it is read and 1 / `after` times when it is
/// written.
template <class Real>
BILA_NOINLINE void weigh_borders(const border_weights<Real>& w, double before, double after, index_t n, border_weights<Real>& to) {
  const Real read = static_cast<Real>(before), write = static_cast<Real>(1 / after);
  for (index_t i = 0; i < n; ++i) {
    to.read[i] = w.read[i] * read;
    to.write[i] = w.write[i] * write;
  }
}

/// The decay that a state has not been multiplied with yet.
///
/// Multiplying a float state by 1 - 2^-24 again and again rounds all of it the same way each time: 1.3e-3 off after 100 000 times.
/// So the decay collects here, in double, and the stored state is only ever multiplied with powers of two, which round nothing. It
/// is read with factor() and written with 1 / factor(): the true state is factor() times the stored one, 1/2 <= factor() <= 1.
class pending_decay {
 public:
  explicit pending_decay(double factor = 1) : factor_(factor) {}

  double factor() const { return factor_; }

  /// Decays the state by lambda. Returns the factor by which the stored state must be multiplied now: 1 while factor() stays at or
  /// above `least`, else a smaller power of two, or 0.
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
