// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same with every compiler and standard library. One seed for the whole run: the environment variable
// BILA_TEST_SEED, 1 if it is not set; every test draws from its own stream of it, so tests do not depend on their order.
// With BILA_TEST_SECONDS set, test cases tagged [random] draw calls for that long, not a fixed number of them: a fuzzer.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>

namespace test {

inline std::uint64_t seed() {
  const char* const wanted = std::getenv("BILA_TEST_SEED");
  return wanted == nullptr ? 1 : std::strtoull(wanted, nullptr, 10);
}

/// SplitMix64: the state is a counter, so any two streams start well apart.
class random_source {
 public:
  explicit random_source(std::uint64_t stream) : state_(seed() * 0xd1342543de82ef95u + stream * 0x2545f4914f6cdd1du) {}

  std::uint64_t bits() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  /// Uniform in [low, high).
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53; }

  /// Uniform in {0, ..., n - 1}.
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t state_;
};

/// Counts the random calls of a test case: `usual` of them, or as many as BILA_TEST_SECONDS leave time for.
class rounds {
 public:
  explicit rounds(int usual) : usual_(usual) {}

  bool go_on(int done) const { return seconds_ > 0 ? std::chrono::steady_clock::now() < end_ : done < usual_; }

 private:
  static double seconds() {
    const char* const wanted = std::getenv("BILA_TEST_SECONDS");
    return wanted == nullptr ? 0 : std::strtod(wanted, nullptr);
  }

  int usual_;
  double seconds_ = seconds();
  std::chrono::steady_clock::time_point end_ =
      std::chrono::steady_clock::now() +
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds_));
};

}  // namespace test
