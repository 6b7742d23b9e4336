// SPDX-License-Identifier: Apache-2.0
// What a backend is.
#pragma once

#include <bila/config.hpp>

namespace bila::inline v0_1::detail::inline BILA_UNIT::inline BILA_DEVICES {

/// How `Backend` runs the calls of attend.hpp. A specialisation has
///
///     template <class Form, class Mask, class T> static consteval bool accepts();   // or a static_assert with what it does not
///     template <class Tuning, ...> static ... attend, workspace_bytes, gradient, gradient_workspace_bytes
template <class Backend>
struct backend_of;

template <class Backend>
concept backend = requires {
  sizeof(backend_of<Backend>);
};

}  // namespace bila::inline v0_1::detail::inline BILA_UNIT::inline BILA_DEVICES
