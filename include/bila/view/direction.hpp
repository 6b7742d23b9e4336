// SPDX-License-Identifier: Apache-2.0
// Directions along a sequence.
#pragma once

namespace bila {
inline namespace v0_1 {

/// Which tokens a query sees: all, those up to itself, or those from itself on; also, which way a gap is crossed.
enum class direction { both, forward, backward };

}  // namespace v0_1
}  // namespace bila
