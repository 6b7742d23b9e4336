// SPDX-License-Identifier: Apache-2.0
// Calls on tensors stored as f16.
#include "execute.hpp"

namespace fuzz {

template <>
outcome execute_as_kind<number::f16>(call& c, stage at) {
  return execute_as<bila::f16>(c, at);
}

}  // namespace fuzz
