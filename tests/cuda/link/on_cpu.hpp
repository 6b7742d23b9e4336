// SPDX-License-Identifier: Apache-2.0
// The same call for both .cpp units.
#pragma once

#include "units.hpp"

#include <bila/bila.hpp>

inline std::vector<float> attend_on_cpu(const head& x) {
  std::vector<float> y(x.v.size());
  const auto view = [&](const std::vector<float>& t) { return bila::bhld(t.data(), 1, 1, x.L, x.D); };
  bila::attend(bila::form::chunkwise{}, bila::mask::selective_decay{bila::bhl(x.log_decay.data(), 1, 1, x.L), bila::gate::later},
               bila::norm::row_sum{1e-6}, bila::inputs<float>{view(x.q), view(x.k), view(x.v)},
               bila::bhld(y.data(), 1, 1, x.L, x.D));
  return y;
}
