// SPDX-License-Identifier: Apache-2.0
// A training step by its closed forms (MATH.md 4.2), pair by pair in double, and beside every number the sum of the absolute
// values of all that it is a sum of. The CPU's gradient is held against it in oracle.test.cpp; the device's everywhere else.
#pragma once

#include "support/gradient.hpp"

#include <cmath>
#include <vector>

namespace test {

/// Numbers in logical order. spread: changing every factor of every term by a relative u changes a number by at most a few u times
/// it.
///
/// A gap's gradient is a sum over all pairs that cross it, but is computed as a difference of sums over rows and over columns,
/// whose roundings are independent: its spread is the sum over the pairs and the root of the squares of those rows and columns.
struct slope {
  std::vector<double> value, spread;
};

struct state_slopes {
  slope S, z, log_decay;
};

/// The layout of each is that of the same member of learned.
struct step_answer {
  slope y, row_sum;
  state_slopes final_forward, final_backward;  // without log_decay
  slope q, k, v, log_decay, log_forward, log_backward, scale, diagonal;
  state_slopes initial_forward, initial_backward;
};

step_answer step_by_definition(const lesson<double>& x);

template <class T>
step_answer step_by_definition(const lesson<T>& x) {
  return step_by_definition(stored_as<double>(x));
}

/// max_one has a kink where |scale Z| is 1. Rows that are so near it that a relative error of u in Z could lead to the other side
/// get a loss that does not depend on them.
template <class T>
void leave_rows_at_kinks(lesson<T>& x, double u) {
  if (!std::holds_alternative<bila::norm::max_one>(x.x.norm)) return;
  const slope Z = step_by_definition(x).row_sum;
  x.dy.for_each([&](T& dy, index_t b, index_t h, index_t l, index_t) {
    const auto at = static_cast<std::size_t>((b * x.x.size.H + h) * x.x.size.L + l);
    const double s = std::fabs(x.x.scale);
    if (std::fabs(s * std::fabs(Z.value[at]) - 1) <= 16 * u * s * Z.spread[at] + 1e-6) dy = T(0);
  });
}

}  // namespace test
