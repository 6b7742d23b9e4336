// SPDX-License-Identifier: Apache-2.0
// The numbers of a call by its definition, and how far from them rounding can lead.
#pragma once

#include "call.hpp"

namespace fuzz {

/// In the logical order of an output; an infinite error says that nothing is known but that it is a number.
struct expectation {
  const view* where;
  std::vector<double> value, error;
};

struct scalar_expectations {
  double scale = 0, scale_error = 0, diagonal = 0, diagonal_error = 0;
};

/// Of all that this stage of a legal call writes.
std::vector<expectation> define(const call& c, stage at, scalar_expectations& scalars);

}  // namespace fuzz
