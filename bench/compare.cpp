// SPDX-License-Identifier: Apache-2.0
// bila_compare: the three forms and automatic on the same tensors and the same mask, over growing prefixes of the sequence.
// Google Benchmark times; this file prepares the calls, checks each against the definition, and tells which form won where.
#include "counters.hpp"
#include "definition.hpp"
#include "machine.hpp"
#include "options.hpp"
#include "patches.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "result_file.hpp"
#include "tensors.hpp"

#include <bila/bila.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace bench {
namespace {

struct limits {
  double flop_per_second = 0, bytes_per_second = 0;
};

// What was asked for and the files it names, read before anything else happens.
struct request {
  options o;
  std::optional<named_array> q, k, v, log_decay, patches;

  explicit request(const options& asked) : o(asked) {
    for (const auto& [path, array] : {std::pair(&o.q, &q), std::pair(&o.k, &k), std::pair(&o.v, &v),
                                      std::pair(&o.log_decay, &log_decay), std::pair(&o.patches, &patches)})
      if (!path->empty()) array->emplace(*path);
  }

  const named_array& first() const { return patches ? *patches : *q; }

  // The q, k or v that holds float64; null if none does.
  const named_array* wide() const {
    for (const auto* file : {&q, &k, &v})
      if (*file && (*file)->array.type == npy_type::float64) return &**file;
    return nullptr;
  }
};

struct comparison {
  const request& asked;
  std::vector<index_t> lengths;
  limits machine;
  measurement_list measurements;
  std::vector<std::string> left_out;
  progress working;
};

std::vector<index_t> lengths_of(const request& asked, index_t whole) {
  if (!asked.o.lengths.empty()) {
    if (asked.o.lengths.back() > whole) {
      throw std::runtime_error("--lengths: " + std::to_string(asked.o.lengths.back()) + " is longer than the sequence in " +
                               asked.first().path + ", " + std::to_string(whole));
    }
    return asked.o.lengths;
  }
  std::vector<index_t> all{64, 128, 197};
  for (index_t L = 256; L < whole; L *= 2) all.push_back(L);
  std::erase_if(all, [whole](index_t L) { return L >= whole; });
  all.push_back(whole);
  return all;
}

template <class T>
problem<T> problem_of(const request& asked) {
  if (asked.patches) return from_patches<T>(*asked.patches);
  problem<T> p = as_problem<T>(*asked.q, *asked.k, *asked.v);
  if (asked.log_decay) add_log_decay(p, *asked.log_decay);
  return p;
}

template <class T>
std::string mask_of(const request& asked, const problem<T>& p) {
  const bool per_token = !p.token_log_decay.empty(), per_head = !p.head_log_decay.empty();
  const std::string& mask = asked.o.mask;
  if (mask.empty()) return per_token ? "selective_decay" : per_head ? "fixed_decay" : "all_ones";
  const auto lacks = [&](const std::string& what) {
    throw std::runtime_error("--mask " + mask + " needs --log-decay " + what +
                             (asked.log_decay ? ", which " + asked.log_decay->path + " does not hold" : ""));
  };
  if (mask == "selective_decay" && !per_token) lacks("per token");
  if (mask == "fixed_decay" && !per_head) lacks("per head");
  return mask;
}

// The largest difference of y from the definition, and whether rounding can explain every one.
template <class T>
void compare_with(const std::vector<defined_row>& rows, const std::vector<index_t>& indices, const bila::tensor_view<T>& y,
                  index_t Dk, measurement& m) {
  // Each product of the sums passes through about Dk + 4 L roundings: a dot product, a running product of decays, two sums.
  // Rounding errors of either sign add up to the square root of their number; eight of those is out of reach of chance.
  const double allowed = 8 * std::sqrt(static_cast<double>(Dk + 4 * m.L + 16)) * std::numeric_limits<T>::epsilon() / 2;
  double largest = 0, difference = 0;
  auto row = rows.begin();
  for (index_t b = 0; b < y.batches(); ++b)
    for (index_t h = 0; h < y.heads(); ++h)
      for (const index_t i : indices) {
        for (index_t d = 0; d < y.features(); ++d) {
          const double wanted = row->y[static_cast<std::size_t>(d)], off = std::abs(static_cast<double>(y(b, h, i, d)) - wanted);
          largest = std::max(largest, std::abs(wanted));
          difference = std::max(difference, off);
          if (!(off <= allowed * row->sensitivity[static_cast<std::size_t>(d)] + std::numeric_limits<T>::min())) m.agrees = false;
        }
        ++row;
      }
  m.difference = largest > 0 ? difference / largest : difference;
}

// The decays of one head's gaps; a token's gate belongs to the token that is left, as in bila::gate::source.
template <class T>
gap_decays decays_of(const problem<T>& p, const std::string& mask, index_t b, index_t h) {
  const auto L = static_cast<std::size_t>(p.length());
  gap_decays g{std::vector<double>(L, 1.0), std::vector<double>(L, 1.0)};
  for (std::size_t t = 1; t < L; ++t) {
    if (mask == "fixed_decay") {
      g.forward[t] = g.backward[t] = std::exp(static_cast<double>(p.head_log_decay[static_cast<std::size_t>(h)]));
    } else if (mask == "selective_decay") {
      const auto gates = p.token_log_decay.prefix(p.length());
      g.forward[t] = std::exp(static_cast<double>(gates(b, h, static_cast<index_t>(t) - 1, 0)));
      g.backward[t] = std::exp(static_cast<double>(gates(b, h, static_cast<index_t>(t), 0)));
    }
  }
  return g;
}

// Adds the four forms at length L; make_mask(L) is the mask of a prefix.
template <class T, class MakeMask, class Norm>
void add_length(comparison& run, const problem<T>& p, const std::string& mask_name, const MakeMask& make_mask, const Norm& norm,
                aligned_vector<T>& output, index_t L) {
  using Mask = decltype(make_mask(L));
  const index_t B = p.batches(), H = p.heads();
  const bila::inputs<T> in{p.q.prefix(L), p.k.prefix(L), p.v.prefix(L)};
  const bila::tensor_view<T> y = bila::bhld(output.data(), B, H, L, p.v.extents[3]);
  const Mask mask = make_mask(L);
  const bila::cpu backend{.threads = run.asked.o.threads};

  const std::string step = "checking L = " + std::to_string(L) + " against the definition";
  const auto indices = compared_rows(L);
  std::vector<defined_row> rows;
  for (index_t b = 0; b < B; ++b)
    for (index_t h = 0; h < H; ++h) {
      run.working.show(step, ": head " + std::to_string(b * H + h + 1) + " of " + std::to_string(B * H));
      const gap_decays decays = decays_of(p, mask_name, b, h);
      for (const index_t i : indices) rows.push_back(define_row(in.q, in.k, in.v, decays, run.asked.o.norm, H, b, h, i));
    }

  const double bandwidth = triad_bandwidth(backend.threads, compulsory_bytes<Mask>(p, L));
  const auto add = [&](const char* name, const std::string& picked, const auto& form) {
    const work counts = work_of<Mask>(form, p, L, Norm::uses_row_sum);
    const double floor = counts.floor(run.machine.flop_per_second, bandwidth);
    constexpr double patience = 5;
    if (floor > patience) {
      run.left_out.push_back(std::string(name) + " at L = " + std::to_string(L) + " left out: its floor alone is " +
                             in_units(floor, "s"));
      return;
    }
    run.working.show(step, std::string(": ") + name);
    measurement& m = run.measurements.emplace_back();
    m.form = name;
    m.picked = picked;
    m.L = L;
    m.counts = counts;
    m.floor = floor;
    m.workspace = bila::workspace_bytes(backend, form, mask, norm, in, y);
    m.call = [=] { bila::attend(backend, form, mask, norm, in, y); };
    std::fill(output.begin(), output.end(), std::numeric_limits<T>::quiet_NaN());
    m.call();
    compare_with(rows, indices, y, p.q.extents[3], m);
  };
  add("full", "full", bila::form::full{});
  add("recurrent", "recurrent", bila::form::recurrent{});
  add("chunkwise", "chunkwise", bila::form::chunkwise{});
  const bila::form::choice taken = picked<Mask>(shape_of(p, L, Norm::uses_row_sum));
  add("automatic", taken == bila::form::choice::full ? "full" : "chunkwise", bila::form::automatic{});
}

template <class T, class MakeMask>
void add_lengths(comparison& run, const problem<T>& p, const std::string& mask_name, const MakeMask& make_mask,
                 aligned_vector<T>& output) {
  for (const index_t L : run.lengths) {
    if (run.asked.o.norm == "row_sum")
      add_length(run, p, mask_name, make_mask, bila::norm::row_sum{}, output, L);
    else if (run.asked.o.norm == "max_one")
      add_length(run, p, mask_name, make_mask, bila::norm::max_one{}, output, L);
    else
      add_length(run, p, mask_name, make_mask, bila::norm::none{}, output, L);
  }
}

template <class T>
int compare(const request& asked) {
  const options& o = asked.o;
  const problem<T> p = problem_of<T>(asked);
  const std::string mask = mask_of(asked, p);
  const std::vector<index_t> lengths = lengths_of(asked, p.length());
  const result_file results(o.out);

  comparison run{asked, lengths, {}, {}, {}, {}};
  run.working.show("measuring what this machine can do");
  run.machine = {fma_peak<T>(o.threads), triad_bandwidth(o.threads, 256e6, 0.05)};
  run.working.clear();
  // One thread is timed by its own processor time, which a busy neighbour does not lengthen; several need the wall clock.
  const bool wall_clock = o.threads > 1;
  const std::string type = std::is_same_v<T, float> ? "float" : "double";
  const auto dotted = [](int major_number, int minor_number, int patch_number) {
    return std::to_string(major_number) + "." + std::to_string(minor_number) + "." + std::to_string(patch_number);
  };
  const std::string source = std::filesystem::path(asked.first().path).filename().string() + (asked.patches ? "" : ", ...");
  const bool narrowed = std::is_same_v<T, float> && asked.wide() != nullptr;
  const std::string eigen = dotted(EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION);
  const std::vector<std::pair<std::string, std::string>> facts{
      {"tensors", source + ": B = " + std::to_string(p.batches()) + ", H = " + std::to_string(p.heads()) +
                      ", L = " + std::to_string(p.length()) + ", Dk = " + std::to_string(p.q.extents[3]) +
                      ", Dv = " + std::to_string(p.v.extents[3])},
      {"type", type + (narrowed ? ", rounded from the float64 of " + asked.wide()->path : "")},
      {"operator", "mask " + mask + (mask == "selective_decay" ? " (gate::source)" : "") + ", norm " + o.norm},
      {"processor", cpu_model()},
      {"instructions", Eigen::SimdInstructionSetsInUse()},
      {"compiler", compiler()},
      {"flags", flags()},
      {"libraries", "bila " + dotted(BILA_VERSION_MAJOR, BILA_VERSION_MINOR, BILA_VERSION_PATCH) + ", Eigen " + eigen},
      {"threads", std::to_string(o.threads)},
      {"timing", "median of " + std::to_string(o.repetitions) + (wall_clock ? ", wall clock" : ", processor time of the thread")},
      {"limits", in_units(run.machine.flop_per_second, "FLOP/s") + " multiply-add, " +
                     in_units(run.machine.bytes_per_second, "B/s") + " memory"},
  };
  for (const auto& [name, fact] : facts) {
    std::printf("%-13s%s\n", name.c_str(), fact.c_str());
    benchmark::AddCustomContext(name, fact);
  }

  aligned_vector<T> output(static_cast<std::size_t>(p.batches() * p.heads() * p.length() * p.v.extents[3]));
  if (mask == "all_ones") {
    add_lengths(
        run, p, mask, [](index_t) { return bila::mask::all_ones{}; }, output);
  } else if (mask == "fixed_decay") {
    const auto decay = bila::vec(p.head_log_decay.data(), p.heads());
    add_lengths(
        run, p, mask, [&](index_t) { return bila::mask::fixed_decay{decay}; }, output);
  } else {
    const auto& gates = p.token_log_decay;
    add_lengths(
        run, p, mask,
        [&](index_t L) {
          return bila::mask::selective_decay{gates.prefix(L), bila::gate::source};
        },
        output);
  }

  std::map<std::string, measurement*> rows;
  for (measurement& m : run.measurements) {
    const std::string name =
        m.form + "/" + mask + "/" + type + "/L:" + std::to_string(m.L) + "/D:" + std::to_string(p.q.extents[3]);
    rows[name] = &m;
    const std::string form = ": " + m.form + ", " + std::to_string(rows.size()) + " of " + std::to_string(run.measurements.size());
    const auto time = [&m, &working = run.working, form](benchmark::State& state) {
      working.show("timing L = " + std::to_string(m.L), form);
      for (auto _ : state) m.call();
      m.counts.report(state);
      state.counters["floor_seconds"] = m.floor;
      state.counters["workspace_bytes"] = static_cast<double>(m.workspace);
      state.counters["difference"] = m.difference;
      state.SetLabel(m.picked);
    };
    auto* const registered = benchmark::RegisterBenchmark(name.c_str(), time);
    registered->Unit(benchmark::kMicrosecond)->MinTime(o.seconds)->Repetitions(o.repetitions);
    if (wall_clock) registered->UseRealTime();
  }
  table reporter(run.measurements, rows, wall_clock, run.working);
  benchmark::RunSpecifiedBenchmarks(&reporter);
  if (reporter.json().empty()) throw std::runtime_error("nothing was timed");
  results.write(reporter.json());

  for (const std::string& sentence : run.left_out) std::printf("%s\n", sentence.c_str());
  print_verdict(run.measurements);
  print_legend(mask == "all_ones", o.norm != "none", run.machine.flop_per_second);
  if (const double after = fma_peak<T>(o.threads); std::abs(after / run.machine.flop_per_second - 1) > 0.08) {
    std::printf("\nThe machine was not quiet: its multiply-add limit was %s before\nand %s after the run.\n",
                in_units(run.machine.flop_per_second, "FLOP/s").c_str(), in_units(after, "FLOP/s").c_str());
  }
  bool agree = true;
  for (const measurement& m : run.measurements) {
    if (m.agrees) continue;
    agree = false;
    std::fprintf(stderr, "bila_compare: %s at L = %lld differs from the definition by more than rounding can explain\n",
                 m.form.c_str(), static_cast<long long>(m.L));
  }
  return agree ? 0 : 1;
}

int run_with(const std::vector<std::string>& arguments) {
  const options o = parse(arguments);
  if (o.help) {
    std::printf("%s", usage);
    return 0;
  }
  std::vector<std::string> words{"bila_compare"};
  words.insert(words.end(), o.for_google_benchmark.begin(), o.for_google_benchmark.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  if (count > 1) throw std::runtime_error("Google Benchmark does not know " + std::string(pointers[1]));
  const request asked(o);
  const bool in_double = o.type == "double" || (o.type.empty() && asked.wide() != nullptr);
  return in_double ? compare<double>(asked) : compare<float>(asked);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  try {
    return bench::run_with({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "bila_compare: %s\n", error.what());
    return 2;
  }
}
