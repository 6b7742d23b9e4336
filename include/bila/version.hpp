// SPDX-License-Identifier: Apache-2.0
// The version, stated once: CMake reads these lines, and the inline namespace of every header carries major and minor.
#pragma once

#define BILA_VERSION_MAJOR 0
#define BILA_VERSION_MINOR 1
#define BILA_VERSION_PATCH 0
#define BILA_VERSION (BILA_VERSION_MAJOR * 10000 + BILA_VERSION_MINOR * 100 + BILA_VERSION_PATCH)

namespace bila {
inline namespace v0_1 {

struct version_number {
  int major_number, minor_number, patch_number;  // glibc defines macros called major and minor
};

inline constexpr version_number version{BILA_VERSION_MAJOR, BILA_VERSION_MINOR, BILA_VERSION_PATCH};

}  // namespace v0_1
}  // namespace bila
