// SPDX-License-Identifier: Apache-2.0
// What bila_compare reports: a row for each form and length as soon as it is timed, then who won where, then what the columns mean;
// and the same as Google Benchmark's JSON. No line of a table is longer than 80 columns.
#pragma once

#include "counters.hpp"
#include "progress.hpp"

#include <bila/bila.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <sstream>
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

using measurement_list = std::list<measurement>;  // their addresses stay: registered benchmarks hold them

inline std::string in_units(double x, const char* unit) {
  static constexpr const char* prefixes[] = {"n", "u", "m", "", "k", "M", "G", "T"};
  int p = 0;
  x *= 1e9;
  for (; x >= 999.5 && p < 7; ++p) x /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s%s", x < 9.995 ? 2 : x < 99.95 ? 1 : 0, x, prefixes[p], unit);
  return text;
}

using by_form = std::map<std::string, const measurement*>;

inline std::map<index_t, by_form> by_length(const measurement_list& measurements) {
  std::map<index_t, by_form> timed;
  for (const measurement& m : measurements) {
    if (m.seconds > 0) timed[m.L][m.form] = &m;
  }
  return timed;
}

// The fastest of the forms that a caller can name; null if none was timed. `automatic` is not one of them: it is one of these.
inline const measurement* fastest_of(const by_form& forms) {
  const measurement* fastest = nullptr;
  for (const auto& [name, m] : forms) {
    if (name != "automatic" && (fastest == nullptr || m->seconds < fastest->seconds)) fastest = m;
  }
  return fastest;
}

// Whether automatic should have picked another form. Where it picked the fastest, identical work was timed twice: noise.
inline bool behind(const measurement& automatic, const measurement& fastest) {
  return automatic.picked != fastest.form && automatic.seconds > 1.05 * fastest.seconds;
}

// Where full stops being the fastest form for good. The terminal, the JSON and the chart all take it from here.
struct crossover {
  // The last length at which full is the fastest, and the next, at which a linear form is; null: there is none.
  const measurement *full = nullptr, *linear = nullptr;
  double length = 0;  // where both take the same time, if each is there: by powers of L between the two

  std::string in_words() const {
    if (full == nullptr && linear == nullptr) return "";
    if (full == nullptr) return "below " + std::to_string(linear->L);
    if (linear == nullptr) return "above " + std::to_string(full->L);
    return std::to_string(std::llround(length));
  }
};

inline crossover crossover_of(const measurement_list& measurements) {
  crossover found;
  double before = 0, after = 0;  // log of the time of full over that of the best linear form
  for (const auto& [L, forms] : by_length(measurements)) {
    const auto full = forms.find("full");
    by_form others = forms;
    others.erase("full");
    const measurement* const linear = fastest_of(others);
    if (full == forms.end() || linear == nullptr) continue;
    const double lead = std::log(full->second->seconds / linear->seconds);
    if (lead <= 0) {
      found.full = full->second;
      found.linear = nullptr;
      before = lead;
    } else if (found.linear == nullptr) {
      found.linear = linear;
      after = lead;
    }
  }
  if (found.full != nullptr && found.linear != nullptr) {
    const double from = static_cast<double>(found.full->L), to = static_cast<double>(found.linear->L);
    found.length = from * std::pow(to / from, before / (before - after));
  }
  return found;
}

// Keeps the median of each benchmark's repetitions in its measurement, prints its row, and at the end has the JSON of it all.
class table : public benchmark::BenchmarkReporter {
 public:
  table(measurement_list& measurements, std::map<std::string, measurement*> rows, bool wall_clock, progress& working)
      : measurements_(measurements), rows_(std::move(rows)), wall_clock_(wall_clock), working_(working) {}

  bool ReportContext(const Context& context) override {
    context_.emplace(context);
    working_.clear();
    std::printf("\n%6s  %-9s%9s%9s%9s%9s%8s%10s%9s\n", "L", "form", "time", "tokens/s", "GFLOP/s", "floor", "x floor", "workspace",
                "error");
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    all_.push_back(runs);
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
    working_.clear();
    if (m.L != last_ && last_ != 0) std::printf("\n");
    last_ = m.L;
    print_row(m);
  }

  void Finalize() override {
    working_.clear();
    if (!context_) return;
    benchmark::AddCustomContext("crossover", crossover_of(measurements_).in_words());
    std::ostringstream text;
    benchmark::JSONReporter json;
    json.SetOutputStream(&text);
    json.SetErrorStream(&text);
    json.ReportContext(*context_);
    for (const auto& runs : all_) json.ReportRuns(runs);
    json.Finalize();
    json_ = text.str();
  }

  // Empty if nothing was timed.
  const std::string& json() const { return json_; }

 private:
  static void print_row(const measurement& m) {
    std::printf("%6lld  %-9s%9s%9s%9.1f%9s%8.2f%10s%9.1e%s\n", static_cast<long long>(m.L), m.form.c_str(),
                in_units(m.seconds, "s").c_str(), in_units(m.counts.tokens / m.seconds, "").c_str(),
                m.counts.flop / m.seconds / 1e9, in_units(m.floor, "s").c_str(), m.seconds / m.floor,
                in_units(static_cast<double>(m.workspace), "B").c_str(), m.difference, m.agrees ? "" : "!");
    std::fflush(stdout);
  }

  measurement_list& measurements_;
  std::map<std::string, measurement*> rows_;
  bool wall_clock_;
  progress& working_;
  index_t last_ = 0;
  std::optional<Context> context_;
  std::vector<std::vector<Run>> all_;
  std::string json_;
};

// The fastest form at each length, what automatic took, and the crossover.
inline void print_verdict(const measurement_list& measurements) {
  std::printf("\n%6s  %-10s %-17s %s\n", "L", "fastest", "automatic picked", "time of automatic / of the fastest");
  for (const auto& [L, forms] : by_length(measurements)) {
    const measurement* const fastest = fastest_of(forms);
    const auto automatic = forms.find("automatic");
    if (fastest == nullptr || automatic == forms.end()) continue;
    std::printf("%6lld  %-10s %-17s %.2f%s\n", static_cast<long long>(L), fastest->form.c_str(), automatic->second->picked.c_str(),
                automatic->second->seconds / fastest->seconds,
                behind(*automatic->second, *fastest) ? "  more than 5 % slower" : "");
  }
  const crossover meet = crossover_of(measurements);
  if (meet.full != nullptr && meet.linear != nullptr)
    std::printf("\nCrossover: L = %s, interpolated between L = %lld, where full is the fastest,\nand L = %lld, where %s is.\n",
                meet.in_words().c_str(), static_cast<long long>(meet.full->L), static_cast<long long>(meet.linear->L),
                meet.linear->form.c_str());
  else if (meet.linear != nullptr)
    std::printf("\nCrossover: %s, a linear form (%s) is the fastest at all lengths.\n", meet.in_words().c_str(),
                meet.linear->form.c_str());
  else if (meet.full != nullptr)
    std::printf("\nCrossover: %s, full is the fastest form up to there.\n", meet.in_words().c_str());
}

inline void print_legend(bool without_decay, bool row_sum, double flop_per_second) {
  std::printf(
      "\nFLOP       per head, a multiply-add is two; C = %lld\n"
      "           full       2 L^2 (Dk + Dv) + 3 L^2\n",
      static_cast<long long>(bila::form::chunkwise{}.tokens()));
  if (without_decay)
    std::printf("           the others 4 L Dk Dv (no decay: one state)\n");
  else
    std::printf(
        "           recurrent  10 L Dk Dv\n"
        "           chunkwise  2 (Dk + Dv) (sum of squared chunk lengths) + 8 L Dk Dv\n");
  if (row_sum) std::printf("           Dv counts the column of ones of the row sum\n");
  std::printf(
      "floor      max(FLOP / %s,\n"
      "           compulsory bytes / bandwidth of a triad over as many bytes);\n"
      "           compulsory bytes: q, k, v and gates per token read once, y written\n"
      "           once; limits measured in this process\n"
      "workspace  what the call needs beside its tensors\n"
      "error      largest |y - definition| / largest |definition|: all queries up to\n"
      "           L = 256, beyond that 64 spread over the sequence\n",
      in_units(flop_per_second, "FLOP/s").c_str());
}

}  // namespace bench
