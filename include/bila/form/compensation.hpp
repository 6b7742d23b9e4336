// SPDX-License-Identifier: Apache-2.0
// Sums over a long sequence. If a float state adds 1e6 equal numbers token by token, the sum is off by 1 %, because each addition
// rounds the same way. A state therefore adds the sum of a whole chunk at once. Once the rounding errors in a state could matter,
// they are kept in a second state (compensated summation, Kahan 1965).
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

/// The rounding errors E of a state S and e of its column for row sums s: the true sums are S + E and s + e.
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

  /// Returns E and e for a state that decays by `decay` and is then rounded `more` times. E is null while fewer than 128 roundings
  /// count: their errors are at most 64 units in the last place together, 4e-6. Keeping E costs about 7 % of a chunk. A state that
  /// decays by e^-0.0005 a token, or faster, never needs E.
  kernel::state<Real> after(double decay, double more) const {
    if (*roundings >= most) return {E, e};
    *roundings = decay * *roundings + more;
    if (*roundings < most) return {{}, e};
    kernel::clear(E);
    return {E, e};
  }

  /// A compensation of the same state whose numbers lie at the given addresses.
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
  double* roundings;     // (1) count of the roundings of S; a decay of S multiplies the count

 private:
  static constexpr double most = 128;
  index_t sums_;
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
