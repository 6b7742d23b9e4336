// SPDX-License-Identifier: Apache-2.0
// Inputs and registration for the *.bench.cpp programs: numbers of a fixed seed, one head size, one thread, names and counters
// alike.
#pragma once

#include "counters.hpp"
#include "tensors.hpp"

#include <bila/bila.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace bench {

// q and k in (0, 1), as a positive feature map gives them; v in (-1, 1); decays between 0.9 and 1.
template <class T>
problem<T> random_problem(index_t H, index_t L, index_t D) {
  std::mt19937 bits(1);
  const auto fill = [&bits](auto& x, double low, double high) {
    for (T& value : x) value = static_cast<T>(low + (high - low) * static_cast<double>(bits()) / 4294967296.0);
  };
  problem<T> p;
  p.q = p.k = p.v = tensor<T>({1, H, L, D});
  p.token_log_decay = tensor<T>({1, H, L, 1});
  p.head_log_decay.resize(static_cast<std::size_t>(H));
  fill(p.q.values, 0, 1);
  fill(p.k.values, 0, 1);
  fill(p.v.values, -1, 1);
  fill(p.token_log_decay.values, -0.1, 0);
  fill(p.head_log_decay, -0.1, 0);
  return p;
}

// A problem and the output that goes with it; the registered benchmarks share it.
template <class T>
struct setting {
  problem<T> p;
  aligned_vector<T> y;

  setting(index_t H, index_t L, index_t D) : p(random_problem<T>(H, L, D)), y(p.v.values.size()) {}

  auto all_ones() const { return std::pair("all_ones", bila::mask::all_ones{}); }
  auto fixed_decay() const {
    return std::pair("fixed_decay", bila::mask::fixed_decay{bila::vec(p.head_log_decay.data(), p.heads())});
  }
  auto selective_decay() const {
    return std::pair("selective_decay", bila::mask::selective_decay{p.token_log_decay.prefix(p.length()), bila::gate::source});
  }
  auto two_sided() const {
    const auto gates = p.token_log_decay.prefix(p.length());
    return std::pair("two_sided", bila::mask::two_sided{gates, gates});
  }
};

// Registers form_name/mask/type/L:/D: followed by `suffix`.
template <class Kernel = bila::kernel::eigen, class T, class Form, class Mask>
void add(const std::shared_ptr<setting<T>>& on, const std::string& form_name, const Form& form,
         const std::pair<const char*, Mask>& mask, const std::string& suffix = "") {
  const index_t L = on->p.length(), D = on->p.v.extents[3];
  const std::string name = form_name + "/" + mask.first + "/" + (std::is_same_v<T, float> ? "float" : "double") +
                           "/L:" + std::to_string(L) + "/D:" + std::to_string(D) + suffix;
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    const bila::inputs<T> in{on->p.q.prefix(L), on->p.k.prefix(L), on->p.v.prefix(L)};
    const bila::tensor_view<T> y = bila::bhld(on->y.data(), on->p.batches(), on->p.heads(), L, D);
    for (auto _ : state) bila::attend<Kernel>(form, mask.second, bila::norm::row_sum{}, in, y);
    work_of<Mask>(form, on->p, L, true).report(state);
  })->Unit(benchmark::kMicrosecond);
}

inline int run_benchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace bench
