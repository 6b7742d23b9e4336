// SPDX-License-Identifier: Apache-2.0
// What the units of a link test offer: the same attention, each compiled for a processor of its own. No bila here: main.cpp does
// not see it.
#pragma once

#include <vector>

using attention = std::vector<float>(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                     const std::vector<float>& log_decay, int L, int D);

attention attend_first, attend_second;                           // alike
attention attend_plain, attend_avx, attend_avx2, attend_avx512;  // from one source
