// SPDX-License-Identifier: Apache-2.0
// Error messages, and how they reach the caller. A check returns a message, empty if nothing is wrong. Only an entry point throws
// it, or passes it to the error handler in a build without exceptions.
#pragma once

#include <bila/config.hpp>

#include <atomic>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace bila {
inline namespace v0_1 {

/// An error message that names the argument, the place and the value that is wrong; empty if nothing is wrong.
using error_message = std::string;

/// Receives the message in a program built without exceptions. It should not return.
using error_handler = void (*)(const char* message);

namespace detail {

inline constinit std::atomic<error_handler> current_error_handler{nullptr};  // one for all translation units; null: stderr

}  // namespace detail

namespace detail {
inline namespace BILA_UNIT {

/// A piece of a message: text or a number.
class part {
 public:
  explicit part(std::string_view words) : words_(words) {}
  template <std::floating_point Number>
  explicit part(Number x) : kind_(kind::real), real_(static_cast<double>(x)) {}
  template <std::integral Number>
  explicit part(Number x) : kind_(kind::integer), integer_(static_cast<long long>(x)) {}

  void append_to(std::string& text) const {
    char digits[32] = "";
    if (kind_ == kind::real) std::snprintf(digits, sizeof digits, "%g", real_);
    if (kind_ == kind::integer) std::snprintf(digits, sizeof digits, "%lld", integer_);
    text.append(words_).append(digits);
  }

 private:
  enum class kind { words, real, integer } kind_ = kind::words;
  std::string_view words_;
  double real_ = 0;
  long long integer_ = 0;
};

// Not inlined: messages are built at a hundred places and almost never needed.
BILA_NOINLINE inline error_message join(std::initializer_list<part> parts) {
  error_message whole;
  for (const part& one : parts) one.append_to(whole);
  return whole;
}

}  // namespace BILA_UNIT
}  // namespace detail

inline namespace BILA_UNIT {

/// Joins words and numbers into one message. Cold: the branches that call it are rarely taken and are compiled for size.
template <class... Parts>
[[gnu::cold]] error_message message(const Parts&... parts) {
  return detail::join({detail::part(parts)...});
}

/// Sets the error handler of a program built with -fno-exceptions; the default prints to stderr. The program aborts if a handler
/// returns.
inline void set_error_handler(error_handler handler) { detail::current_error_handler = handler; }

/// Throws Error with the message, or without exceptions passes the message to the error handler.
template <class Error = std::invalid_argument>
[[noreturn]] void raise(const error_message& words) {
#if BILA_EXCEPTIONS
  throw Error("bila: " + words);
#else
  if (const error_handler handler = detail::current_error_handler; handler != nullptr)
    handler(words.c_str());
  else
    std::fprintf(stderr, "bila: %s\n", words.c_str());
  std::abort();
#endif
}

}  // namespace BILA_UNIT

}  // namespace v0_1
}  // namespace bila
