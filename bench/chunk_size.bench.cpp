// SPDX-License-Identifier: Apache-2.0
// How long a chunk should be, by head size and type. The recurrent form, a chunk of one so to say, stands beside it, and the plain
// loops of kernel::reference are the baseline.
#include "cases.hpp"

#include <bila/kernel/reference.hpp>

namespace {

template <class T>
void add_sizes(bench::index_t D) {
  const auto on = std::make_shared<bench::setting<T>>(4, 1024, D);
  const auto mask = on->selective_decay();
  for (const bench::index_t C : {8, 16, 32, 64, 128, 256})
    bench::add(on, "chunkwise", bila::form::chunkwise{.size = C}, mask, "/C:" + std::to_string(C));
  bench::add(on, "recurrent", bila::form::recurrent{}, mask);
  bench::add<bila::kernel::reference>(on, "baseline_chunkwise", bila::form::chunkwise{}, mask);
}

}  // namespace

int main(int argc, char** argv) {
  for (const bench::index_t D : {32, 64, 128}) {
    add_sizes<float>(D);
    add_sizes<double>(D);
  }
  return bench::run_benchmarks(argc, argv);
}
