// SPDX-License-Identifier: Apache-2.0
// A file of results that appears whole or not at all: whatever stops a program, the results of the run before are still there.
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace bench {

class result_file {
 public:
  // No path: nothing will be written. Throws std::runtime_error if the file cannot be written, and leaves what is there alone: made
  // before the first measurement, it spares the user a long run whose results have no place.
  explicit result_file(std::string path) : shown_(std::move(path)) {
    if (shown_.empty()) return;
    std::error_code error;
    const auto there = std::filesystem::status(shown_, error);
    if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
      throw std::runtime_error("--out: " + shown_ + " is not a file that can be replaced");
    path_ = std::filesystem::exists(there) ? std::filesystem::canonical(shown_, error) : std::filesystem::path(shown_);
    partial_ = path_;
    partial_ += ".partial";
    if (!std::ofstream(partial_)) refuse();
    std::filesystem::remove(partial_, error);
  }

  void write(const std::string& text) const {
    if (shown_.empty()) return;
    std::ofstream out(partial_, std::ios::binary);
    out << text;
    out.close();
    std::error_code error;
    if (out) std::filesystem::rename(partial_, path_, error);
    if (out && !error) return;
    std::filesystem::remove(partial_, error);
    refuse();
  }

 private:
  [[noreturn]] void refuse() const { throw std::runtime_error("--out: " + shown_ + " cannot be written"); }

  std::string shown_;
  std::filesystem::path path_, partial_;
};

}  // namespace bench
