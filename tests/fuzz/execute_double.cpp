// SPDX-License-Identifier: Apache-2.0
// Calls on tensors stored as double.
#include "execute.hpp"

namespace fuzz {

template <>
outcome execute_as_kind<number::f64>(call& c, stage at) {
  return execute_as<double>(c, at);
}

}  // namespace fuzz
