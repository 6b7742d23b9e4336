// SPDX-License-Identifier: Apache-2.0
// From the gaps of one chunk to its weights: running products in double, each restarted in the chunk and rounded once at the end.
// Every factor is at most one, so nothing overflows, an exact zero stays zero, and underflow is the right answer.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace bila::inline v0_1::kernel {

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

/// The decays that a state is multiplied with, one after the other, so that their product does not drift.
///
/// 1 - 1e-7 rounds to 1 - 1.2e-7 in float, and 100 000 such factors are off by 2e-3. The rounding error of each factor is therefore
/// owed to the next: the product of the applied decays stays within one rounding of the exact one, whatever the length.
template <class Real>
class carried_decay {
 public:
  explicit carried_decay(double owed = 1) : owed_(owed) {}

  double owed() const { return owed_; }

  Real operator()(double decay) {
    const double wanted = decay * owed_;
    const Real applied = (std::min)(static_cast<Real>(wanted), Real(1));
    owed_ = applied < (std::numeric_limits<Real>::min)() ? 1 : wanted / static_cast<double>(applied);
    return applied;
  }

 private:
  double owed_;
};

/// The decay that a state has not been multiplied with yet, when tokens come one by one.
///
/// Multiplying a float state by 1 - 2^-24 at every token rounds all of it the same way each time: 1.3e-3 off after 100 000 tokens.
/// So the state stays as it is while the decay collects here, in double: it is read with `held()`, written with 1 / held(), and
/// settled when held() would fall below 2^-16: a factor costs no digit, and tokens between which nothing is settled share a pass.
/// The true state is held() times the stored one.
class held_decay {
 public:
  static constexpr double least = 1. / 65536;

  explicit held_decay(double held = 1) : held_(held) {}

  double held() const { return held_; }

  /// Decays the state; returns what the stored state is to be multiplied with now.
  double decay(double lambda) {
    held_ *= lambda;
    return held_ < least ? std::exchange(held_, 1.0) : 1.0;
  }

 private:
  double held_;
};

}  // namespace bila::inline v0_1::kernel
