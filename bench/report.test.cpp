// SPDX-License-Identifier: Apache-2.0
// The crossover and the verdict on times that are known: there is one crossover, and automatic is blamed only where another form
// was faster.
#include "report.hpp"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <utility>

namespace {

int failures = 0;

void expect_equal(const std::string& is, const std::string& should, const std::string& what) {
  if (is == should) return;
  std::fprintf(stderr, "FAILED: %s: '%s' instead of '%s'\n", what.c_str(), is.c_str(), should.c_str());
  ++failures;
}

struct times {
  bench::index_t L;
  double full, chunkwise;
};

std::string crossover(std::initializer_list<times> all) {
  bench::measurement_list measurements;
  for (const times& t : all) {
    for (const auto& [form, seconds] : {std::pair("full", t.full), std::pair("chunkwise", t.chunkwise)}) {
      bench::measurement& m = measurements.emplace_back();
      m.form = m.picked = form;
      m.L = t.L;
      m.seconds = seconds;
    }
    // Automatic is one of the two again, and noise may make it the faster: it is no form of its own.
    bench::measurement& m = measurements.emplace_back();
    m.form = "automatic";
    m.picked = t.full <= t.chunkwise ? "full" : "chunkwise";
    m.L = t.L;
    m.seconds = 0.9 * std::min(t.full, t.chunkwise);
  }
  return bench::crossover_of(measurements).in_words();
}

}  // namespace

int main() {
  // full is L^2, chunkwise 148 L: straight lines on logarithmic axes, which meet at 148.
  const auto lines = [](double L) { return times{static_cast<bench::index_t>(L), L * L, 148 * L}; };
  expect_equal(crossover({lines(64), lines(128), lines(197), lines(256)}), "148", "between 128 and 197");
  expect_equal(crossover({lines(128), lines(4096)}), "148", "far apart");
  expect_equal(crossover({lines(148), lines(256)}), "148", "at a measured length");
  expect_equal(crossover({lines(197), lines(256)}), "below 197", "below all of them");
  expect_equal(crossover({lines(64), lines(128)}), "above 128", "above all of them");
  expect_equal(crossover({{32, 2, 1}, lines(64), lines(128), lines(197)}), "148", "noise at a shorter length");
  expect_equal(crossover({{64, 1, 0}}), "", "full alone");
  expect_equal(crossover({{64, 0, 1}}), "", "a linear form alone");
  expect_equal(crossover({{64, 1, 2}, {128, 4, 3}, {256, 0, 6}}), "104", "full left out where it takes too long");

  const auto judged = [](const char* picked, double seconds) {
    bench::measurement automatic, fastest;
    automatic.form = "automatic";
    automatic.picked = picked;
    automatic.seconds = seconds;
    fastest.form = fastest.picked = "full";
    fastest.seconds = 1;
    return bench::behind(automatic, fastest) ? "behind" : "not behind";
  };
  expect_equal(judged("full", 1.3), "not behind", "the fastest form was picked, noise made it slow");
  expect_equal(judged("chunkwise", 1.04), "not behind", "another form, hardly slower");
  expect_equal(judged("chunkwise", 1.06), "behind", "another form, slower");
  return failures == 0 ? 0 : 1;
}
