// SPDX-License-Identifier: Apache-2.0
// Sums over a long sequence. Added to a float state token by token, 1e6 equal numbers are off by 1 %, because each addition rounds
// the same way. A state therefore gathers tokens by chunks, each summed up on its own, and once the roundings that it still
// remembers could add up, what they take is kept beside it (compensated summation, Kahan 1965).
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/arena.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/kernel/tile.hpp>

#include <algorithm>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// What is missing in a state S and its row sums s: E and e, so that S + E and s + e are the true sums.
template <class Real>
struct compensation {
  template <class Kernel>
  compensation(kernel::arena& memory, index_t rows, index_t columns, index_t sums, std::type_identity<Kernel>)
      : E(memory.padded<Kernel, Real>(rows, columns)),
        e(memory.numbers<Kernel, Real>(sums)),
        roundings(memory.numbers<Kernel, double>(1)),
        sums_(kernel::round_up(sums, Kernel::template lanes<Real>)) {}

  void start() const {
    std::fill_n(e, sums_, Real(0));
    *roundings = 0;
  }

  /// E and e for a state that decays and is then rounded so many times more; without E while it can do without. 128 roundings are
  /// at most 64 units in the last place, 4e-6; to keep E costs about 7 % of a chunk, and decays of e^-0.0005 a token or less never
  /// need it.
  kernel::state<Real> after(double decay, double more) const {
    if (*roundings >= most) return {E, e};
    *roundings = decay * *roundings + more;
    if (*roundings < most) return {{}, e};
    kernel::clear(E);
    return {E, e};
  }

  /// One for the same state, elsewhere.
  compensation at(kernel::tile<Real> E_there, Real* e_there, double* roundings_there) const {
    compensation there = *this;
    there.E = E_there, there.e = e_there, there.roundings = roundings_there;
    return there;
  }

  void copy_to(const compensation& to) const {
    std::copy_n(e, sums_, to.e);
    *to.roundings = *roundings;
    if (*roundings >= most) std::copy_n(E.data, E.rows * E.stride, to.E.data);
  }

  kernel::tile<Real> E;  // (rows, columns)
  Real* e;               // (sums)
  double* roundings;     // of S, those before a decay counted as much as they still weigh

 private:
  static constexpr double most = 128;
  index_t sums_;
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
