// SPDX-License-Identifier: Apache-2.0
// Which form is fastest at which length, on the same mask and inputs. The plain loops of kernel::reference are the baseline.
#include "cases.hpp"

#include <bila/kernel/reference.hpp>

int main(int argc, char** argv) {
  for (const bench::index_t L : {64, 128, 197, 256, 512, 1024, 2048, 4096}) {
    const auto on = std::make_shared<bench::setting<float>>(4, L, 64);
    const auto mask = on->selective_decay();
    bench::add(on, "full", bila::form::full{}, mask);
    bench::add(on, "recurrent", bila::form::recurrent{}, mask);
    bench::add(on, "chunkwise", bila::form::chunkwise{}, mask);
    bench::add(on, "automatic", bila::form::automatic{}, mask);
    if (L > 1024) continue;
    bench::add<bila::kernel::reference>(on, "baseline_full", bila::form::full{}, mask);
    bench::add<bila::kernel::reference>(on, "baseline_recurrent", bila::form::recurrent{}, mask);
    bench::add<bila::kernel::reference>(on, "baseline_chunkwise", bila::form::chunkwise{}, mask);
  }
  return bench::run_benchmarks(argc, argv);
}
