// SPDX-License-Identifier: Apache-2.0
// What a refused call says.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace test {

/// The sentence with which f() is refused; empty when it is not.
template <class Function>
std::string refusal(const Function& f) {
  try {
    f();
  } catch (const std::invalid_argument& wrong) {
    return wrong.what();
  }
  return {};
}

inline bool has_all(const std::string& text, std::initializer_list<std::string_view> fragments) {
  for (const std::string_view fragment : fragments)
    if (text.find(fragment) == std::string::npos) return false;
  return true;
}

}  // namespace test
