// SPDX-License-Identifier: Apache-2.0
// One unit of a program of several: BILA_LINK_UNIT is the name of its function.
#include "attend_all.hpp"
#include "units.hpp"

std::vector<float> BILA_LINK_UNIT(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                  const std::vector<float>& log_decay, int L, int D) {
  return attend_all(q, k, v, log_decay, L, D);
}
