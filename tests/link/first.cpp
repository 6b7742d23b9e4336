// SPDX-License-Identifier: Apache-2.0
// The first of two units that both instantiate bila.
#include "attend_all.hpp"
#include "units.hpp"

std::vector<float> attend_in_first_unit(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                        const std::vector<float>& log_decay, int L, int D) {
  return attend_all(q, k, v, log_decay, L, D);
}
