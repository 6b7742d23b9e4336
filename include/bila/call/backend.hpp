// SPDX-License-Identifier: Apache-2.0
// The concept of a backend.
#pragma once

#include <bila/config.hpp>

namespace bila {
inline namespace v0_1 {
namespace detail {
inline namespace BILA_UNIT {
inline namespace BILA_DEVICES {

/// The calls of attend.hpp on a `Backend`. accepts() returns false only after a static_assert that says why. A specialisation has
///
///     template <class Form, class Mask, class T> static consteval bool accepts();
///     template <class Tuning, ...> static ... attend, workspace_bytes, gradient, gradient_workspace_bytes
template <class Backend>
struct backend_of;

template <class Backend>
concept backend = requires {
  sizeof(backend_of<Backend>);
};

}  // namespace BILA_DEVICES
}  // namespace BILA_UNIT
}  // namespace detail
}  // namespace v0_1
}  // namespace bila
