// SPDX-License-Identifier: Apache-2.0
// The gradient of log-linear attention in chunks.
#pragma once

#include <bila/form/level_weights.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

struct levels_gradient {
  index_t size;  // tokens per chunk
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
