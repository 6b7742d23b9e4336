// SPDX-License-Identifier: Apache-2.0
// The command line of bila_compare.
#pragma once

#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace bench {

inline constexpr const char* usage =
    R"(Compares the three forms of bidirectional linear attention on the same
tensors, over growing prefixes of the sequence.

  bila_compare --q Q.npy --k K.npy --v V.npy [--log-decay A.npy] [options]
  bila_compare --patches PATCHES.npy [options]

  --q, --k, --v FILE  .npy arrays [L, D], [H, L, D] or [B, H, L, D] of
                      floating-point numbers or integers; q and k already
                      feature-mapped
  --log-decay FILE    log decays <= 0: [H] for the fixed mask; [L], [H, L] or
                      [B, H, L] for the selective one
  --patches FILE      uint8 array [H, L, pixels]; q, k, v and both kinds of
                      decay are made of it (bench/patches.hpp)
  --mask NAME         all_ones, fixed_decay or selective_decay; default: what
                      the log decays are made for, all_ones without any
  --norm NAME         row_sum (default), max_one or none; choose none when
                      entries of q and k have both signs
  --lengths N,N,...   prefixes to compare; default: 64,128,197,256, then
                      doubling, and the whole sequence
  --threads N         threads of every call; default 1
  --type NAME         float or double, to compute in; default: double if q, k or
                      v holds float64, else float
  --repetitions N     timings of which the median counts; default 7
  --seconds S         least duration of one timing; default 0.05
  --out FILE          Google Benchmark's JSON, written when all is done
  --benchmark_...     options of Google Benchmark

A value may also follow an equals sign: --q=Q.npy.
)";

struct options {
  std::string q, k, v, log_decay, patches, mask, norm = "row_sum", type, out;
  std::vector<bila::index_t> lengths;
  int threads = 1, repetitions = 7;
  double seconds = 0.05;
  bool help = false;
  std::vector<std::string> for_google_benchmark;
};

namespace options_detail {

template <class Number>
Number number(std::string_view flag, std::string_view text, Number least, Number most = std::numeric_limits<Number>::max()) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= least && value <= most)) {
    throw std::runtime_error(std::string(flag) + ": '" + std::string(text) + "' is not a number, or out of range");
  }
  return value;
}

inline std::string one_of(std::string_view flag, std::string_view text, std::initializer_list<std::string_view> names) {
  if (std::find(names.begin(), names.end(), text) != names.end()) return std::string(text);
  std::string known;
  for (const std::string_view name : names) known += (known.empty() ? "" : ", ") + std::string(name);
  throw std::runtime_error(std::string(flag) + ": '" + std::string(text) + "' is not one of " + known);
}

inline std::vector<bila::index_t> numbers(std::string_view flag, std::string_view list) {
  std::vector<bila::index_t> all;
  for (std::size_t comma = 0; comma != list.npos;) {
    comma = list.find(',');
    all.push_back(number<bila::index_t>(flag, list.substr(0, comma), 1));
    if (comma != list.npos) list.remove_prefix(comma + 1);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace options_detail

// Arguments without the program's name. Throws std::runtime_error with one sentence.
inline options parse(const std::vector<std::string>& arguments) {
  using namespace options_detail;
  options o;
  const std::map<std::string_view, std::string*> files{
      {"--q", &o.q}, {"--k", &o.k}, {"--v", &o.v}, {"--log-decay", &o.log_decay}, {"--patches", &o.patches}, {"--out", &o.out}};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with("--benchmark_")) {
      if (arguments[i].starts_with("--benchmark_out")) throw std::runtime_error(arguments[i] + ": --out says where the JSON goes");
      o.for_google_benchmark.push_back(arguments[i]);
      continue;
    }
    const std::size_t equals = arguments[i].find('=');
    const std::string flag = arguments[i].substr(0, equals);
    const auto value = [&] {
      if (equals == std::string::npos && i + 1 == arguments.size()) throw std::runtime_error(flag + " needs a value");
      std::string text = equals == std::string::npos ? arguments[++i] : arguments[i].substr(equals + 1);
      if (text.empty()) throw std::runtime_error(flag + " needs a value");
      return text;
    };
    if (const auto file = files.find(flag); file != files.end())
      *file->second = value();
    else if (flag == "--mask")
      o.mask = one_of(flag, value(), {"all_ones", "fixed_decay", "selective_decay"});
    else if (flag == "--norm")
      o.norm = one_of(flag, value(), {"row_sum", "max_one", "none"});
    else if (flag == "--lengths")
      o.lengths = numbers(flag, value());
    else if (flag == "--threads")
      o.threads = number(flag, value(), 1, 1024);
    else if (flag == "--repetitions")
      o.repetitions = number(flag, value(), 1, 1000000);
    else if (flag == "--seconds")
      o.seconds = number(flag, value(), 1e-9, 3600.0);
    else if (flag == "--type")
      o.type = one_of(flag, value(), {"float", "double"});
    else if (arguments[i] == "--help" || arguments[i] == "-h")
      o.help = true;
    else
      throw std::runtime_error("unknown argument '" + arguments[i] + "', --help lists the known ones");
  }
  if (o.help) return o;
  const bool some = !o.q.empty() || !o.k.empty() || !o.v.empty(), all = !o.q.empty() && !o.k.empty() && !o.v.empty();
  if (o.patches.empty() && !all) throw std::runtime_error("give --q, --k and --v, or --patches");
  if (!o.patches.empty() && (some || !o.log_decay.empty()))
    throw std::runtime_error("--patches replaces --q, --k, --v and --log-decay");
  return o;
}

}  // namespace bench
