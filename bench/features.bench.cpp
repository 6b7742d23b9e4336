// SPDX-License-Identifier: Apache-2.0
// Would a feature map be cheaper inside the form's loads? `identity` is what writing phi(q) and reading it back costs, which fusing
// would save; the rest of a map's time is arithmetic, which fusing would spend once for each time that a form reads q or k: twice
// forwards, four times in a gradient. Fusing pays only for a map whose arithmetic is cheaper than identity.
#include "cases.hpp"

#include <string>

namespace {

using bench::index_t;

template <class Map>
void add(const std::string& name, const Map& map, index_t L, index_t D) {
  const auto on = std::make_shared<bench::setting<float>>(4, L, D);
  const std::string title = "features/" + name + "/float/L:" + std::to_string(L) + "/D:" + std::to_string(D);
  benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State& state) {
    std::vector<float> phi(static_cast<std::size_t>(4 * L * map.width(D)));
    for (auto _ : state) bila::features(bila::cpu{}, map, on->p.q.prefix(L), bila::bhld(phi.data(), 1, 4, L, map.width(D)));
    state.counters["tokens/s"] = {static_cast<double>(L), benchmark::Counter::kIsIterationInvariantRate};
  })->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  constexpr index_t L = 1024, D = 64;
  add("identity", bila::feature::identity{}, L, D);
  add("relu", bila::feature::relu{}, L, D);
  add("elu_plus_one", bila::feature::elu_plus_one{}, L, D);
  add("silu_norm", bila::feature::silu_norm{}, L, D);
  add("l2_norm", bila::feature::l2_norm{}, L, D);
  add("softmax", bila::feature::softmax{}, L, D);
  add("hedgehog", bila::feature::hedgehog{}, L, D);
  add("taylor", bila::feature::taylor{}, L, 16);
  add("taylor_packed", bila::feature::taylor_packed{}, L, 16);
  const auto on = std::make_shared<bench::setting<float>>(4, L, D);
  bench::add(on, "chunkwise", bila::form::chunkwise{}, on->selective_decay());
  return bench::run_benchmarks(argc, argv);
}
