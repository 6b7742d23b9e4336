// SPDX-License-Identifier: Apache-2.0
// What bila_compare prints: a row for each form and length as soon as it is timed, then who won where, then what the columns mean.
#pragma once

#include "counters.hpp"

#include <bila/bila.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace bench {

// One form at one length.
struct measurement {
  std::string form, picked;  // picked: the form that runs; it differs from `form` for automatic only
  index_t L = 0;
  work counts;
  double floor = 0;           // seconds
  std::size_t workspace = 0;  // bytes
  double difference = 0;      // from the definition, the largest, relative to the largest entry of the definition's y
  bool agrees = true;         // rounding explains every difference
  std::function<void()> call;
  double seconds = 0;  // median; 0: not timed
};

inline std::string in_units(double x, const char* unit) {
  static constexpr const char* prefixes[] = {"n", "u", "m", "", "k", "M", "G", "T"};
  int p = 0;
  x *= 1e9;
  for (; x >= 999.5 && p < 7; ++p) x /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s%s", x < 9.995 ? 2 : x < 99.95 ? 1 : 0, x, prefixes[p], unit);
  return text;
}

// Keeps the median of each benchmark's repetitions in its measurement and prints its row.
class table : public benchmark::BenchmarkReporter {
 public:
  table(std::map<std::string, measurement*> rows, bool wall_clock) : rows_(std::move(rows)), wall_clock_(wall_clock) {}

  bool ReportContext(const Context&) override {
    std::printf("\n%7s  %-21s %9s %13s %10s %9s %9s %7s %10s %10s\n", "L", "form", "time", "tokens/s", "FLOP", "GFLOP/s", "floor",
                "x floor", "workspace", "difference");
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<double> seconds;
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      seconds.push_back((wall_clock_ ? run.GetAdjustedRealTime() : run.GetAdjustedCPUTime()) /
                        benchmark::GetTimeUnitMultiplier(run.time_unit));
    }
    if (seconds.empty()) return;
    std::sort(seconds.begin(), seconds.end());
    measurement& m = *rows_.at(runs.front().run_name.function_name);
    m.seconds = (seconds[(seconds.size() - 1) / 2] + seconds[seconds.size() / 2]) / 2;
    if (m.L != last_ && last_ != 0) std::printf("\n");
    last_ = m.L;
    print_row(m);
  }

 private:
  static void print_row(const measurement& m) {
    const std::string form = m.form == m.picked ? m.form : m.form + " = " + m.picked;
    std::printf("%7lld  %-21s %9s %13s %10s %9.1f %9s %7.2f %10s %10.1e%s\n", static_cast<long long>(m.L), form.c_str(),
                in_units(m.seconds, "s").c_str(), in_units(m.counts.tokens / m.seconds, "").c_str(),
                in_units(m.counts.flop, "").c_str(), m.counts.flop / m.seconds / 1e9, in_units(m.floor, "s").c_str(),
                m.seconds / m.floor, in_units(static_cast<double>(m.workspace), "B").c_str(), m.difference,
                m.agrees ? "" : "  DISAGREES");
    std::fflush(stdout);
  }

  std::map<std::string, measurement*> rows_;
  bool wall_clock_;
  index_t last_ = 0;
};

// The fastest form at each length, what automatic took, and the first length at which full is beaten.
template <class Measurements>
void print_verdict(const Measurements& measurements) {
  std::map<index_t, std::map<std::string, const measurement*>> timed;
  for (const measurement& m : measurements) {
    if (m.seconds > 0) timed[m.L][m.form] = &m;
  }
  const measurement* first_beaten = nullptr;  // full, where a linear form is faster
  index_t shortest = 0;                       // at which full was timed
  std::string winner;
  std::printf("\n%7s  %-11s %-17s %s\n", "L", "fastest", "automatic picked", "time of automatic / time of the fastest");
  for (const auto& [L, forms] : timed) {
    const measurement* fastest = nullptr;
    for (const auto& [name, m] : forms) {
      if (name != "automatic" && (fastest == nullptr || m->seconds < fastest->seconds)) fastest = m;
    }
    if (fastest == nullptr) continue;
    if (const auto full = forms.find("full"); full != forms.end()) {
      if (shortest == 0) shortest = L;
      if (first_beaten == nullptr && fastest != full->second) {
        first_beaten = full->second;
        winner = fastest->form;
      }
    }
    const auto automatic = forms.find("automatic");
    if (automatic == forms.end()) continue;
    const double ratio = automatic->second->seconds / fastest->seconds;
    std::printf("%7lld  %-11s %-17s %.2f%s\n", static_cast<long long>(L), fastest->form.c_str(), automatic->second->picked.c_str(),
                ratio, ratio <= 1.05 ? "" : "  more than 5 % slower than the best choice");
  }
  if (first_beaten != nullptr)
    std::printf("\nCrossover: L = %lld is the first of these lengths at which a linear form (%s) beats full%s.\n",
                static_cast<long long>(first_beaten->L), winner.c_str(),
                first_beaten->L == shortest ? "; it is the shortest of them, so the crossover may lie below" : "");
  else if (shortest != 0)
    std::printf("\nCrossover: full is the fastest form at all of these lengths.\n");
}

inline void print_legend(bool without_decay, bool row_sum, double flop_per_second) {
  std::printf(
      "\nFLOP        per head, a multiply-add is two; C = %lld%s\n"
      "            full 2 L^2 (Dk + Dv) + 3 L^2   %s\n"
      "floor       max(FLOP / %s, compulsory bytes / bandwidth of a triad over as many bytes), limits measured in this process\n"
      "            compulsory bytes: q, k, v and gates per token read once, y written once\n"
      "difference  largest |y - definition| / largest |definition|; all queries up to L = 256, 64 spread over the sequence "
      "beyond\n",
      static_cast<long long>(bila::form::chunkwise{}.tokens()), row_sum ? "; Dv counts the column of ones of the row sum" : "",
      without_decay ? "recurrent, chunkwise 4 L Dk Dv (no decay: one state)"
                    : "recurrent 10 L Dk Dv   chunkwise 2 (Dk + Dv) (sum of squared chunk lengths) + 8 L Dk Dv",
      in_units(flop_per_second, "FLOP/s").c_str());
}

}  // namespace bench
