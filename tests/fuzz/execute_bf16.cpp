// SPDX-License-Identifier: Apache-2.0
// Calls on tensors stored as bf16.
#include "execute.hpp"

namespace fuzz {

template <>
outcome execute_as_kind<number::bf16>(call& c, stage at) {
  return execute_as<bila::bf16>(c, at);
}

}  // namespace fuzz
