// SPDX-License-Identifier: Apache-2.0
// Directions along a sequence.
#pragma once

namespace bila {
inline namespace v0_1 {

/// The keys that a query sees: all, those up to its own token, or those from its own token on. Also: how a gap is crossed.
enum class direction { both, forward, backward };

}  // namespace v0_1
}  // namespace bila
