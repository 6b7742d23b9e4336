// SPDX-License-Identifier: Apache-2.0
// What a mask costs in each form: same inputs, same length, all masks. The plain loops of kernel::reference are the baseline.
#include "cases.hpp"

#include <bila/kernel/reference.hpp>

namespace {

template <class Form>
void add_masks(const std::shared_ptr<bench::setting<float>>& on, const std::string& name, const Form& form) {
  bench::add(on, name, form, on->all_ones());
  bench::add(on, name, form, on->fixed_decay());
  bench::add(on, name, form, on->selective_decay());
  bench::add(on, name, form, on->two_sided());
  bench::add<bila::kernel::reference>(on, "baseline_" + name, form, on->selective_decay());
}

}  // namespace

int main(int argc, char** argv) {
  const auto on = std::make_shared<bench::setting<float>>(4, 1024, 64);
  add_masks(on, "full", bila::form::full{});
  add_masks(on, "recurrent", bila::form::recurrent{});
  add_masks(on, "chunkwise", bila::form::chunkwise{});
  return bench::run_benchmarks(argc, argv);
}
