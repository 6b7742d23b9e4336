// SPDX-License-Identifier: Apache-2.0
// The same calls in both units: every form, so that the units share as many inline functions as possible.
#pragma once

#include <bila/bila.hpp>

#include <vector>

namespace {

std::vector<float> attend_all(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                              const std::vector<float>& log_decay, int L, int D) {
  const bila::inputs<float> in{bila::bhld(q.data(), 1, 1, L, D), bila::bhld(k.data(), 1, 1, L, D),
                               bila::bhld(v.data(), 1, 1, L, D)};
  const bila::mask::selective_decay mask{bila::bhl(log_decay.data(), 1, 1, L), bila::gate::later};
  const bila::norm::row_sum norm{1e-6};
  const auto size = static_cast<std::size_t>(L) * static_cast<std::size_t>(D);

  std::vector<float> y(3 * size);
  bila::attend(bila::form::full{}, mask, norm, in, bila::bhld(y.data(), 1, 1, L, D));
  bila::attend(bila::form::recurrent{}, mask, norm, in, bila::bhld(y.data() + size, 1, 1, L, D));
  bila::attend(bila::form::chunkwise{.size = 32}, mask, norm, in, bila::bhld(y.data() + 2 * size, 1, 1, L, D));
  return y;
}

}  // namespace
