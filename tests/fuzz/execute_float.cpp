// SPDX-License-Identifier: Apache-2.0
// Calls on tensors stored as float.
#include "execute.hpp"

namespace fuzz {

template <>
outcome execute_as_kind<number::f32>(call& c, stage at) {
  return execute_as<float>(c, at);
}

}  // namespace fuzz
