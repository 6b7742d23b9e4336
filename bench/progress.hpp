// SPDX-License-Identifier: Apache-2.0
// What a long run is doing, on stderr: on a terminal one line that is written over, elsewhere a line for each length.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace bench {

class progress {
 public:
  // `step` is a line of its own where there is no terminal; `detail` is for terminals only.
  void show(const std::string& step, const std::string& detail = "") {
    if (terminal_) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start_).count();
      std::fprintf(stderr, "\r\033[K%s%s (%lld s)", step.c_str(), detail.c_str(), static_cast<long long>(seconds));
    } else if (step != last_) {
      std::fprintf(stderr, "%s\n", step.c_str());
    }
    last_ = step;
  }

  // Before anything else is printed.
  void clear() const {
    if (terminal_) std::fprintf(stderr, "\r\033[K");
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string last_;
};

}  // namespace bench
