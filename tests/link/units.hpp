// SPDX-License-Identifier: Apache-2.0
// What the two units of a link test offer: the same attention, each compiled in its own file. No bila here: main.cpp does not see
// it.
#pragma once

#include <vector>

std::vector<float> attend_in_first_unit(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                        const std::vector<float>& log_decay, int L, int D);
std::vector<float> attend_in_second_unit(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                         const std::vector<float>& log_decay, int L, int D);
