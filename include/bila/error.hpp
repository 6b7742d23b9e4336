// SPDX-License-Identifier: Apache-2.0
// How a check speaks. A check returns its complaint as a sentence (empty when all is well); only the door, attend.hpp, raises it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>

namespace bila::inline v0_1 {

/// A sentence naming the argument, the place and the value that is wrong; empty when nothing is.
using complaint = std::string;

namespace detail {

template <class Part>
std::string in_words(const Part& part) {
  if constexpr (std::is_floating_point_v<Part>) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%g", static_cast<double>(part));
    return digits;
  } else if constexpr (std::is_integral_v<Part>) {
    return std::to_string(part);
  } else {
    return std::string(part);
  }
}

}  // namespace detail

/// Joins words and numbers into one sentence.
template <class... Parts>
complaint sentence(const Parts&... parts) {
  return (std::string() + ... + detail::in_words(parts));
}

}  // namespace bila::inline v0_1
