// SPDX-License-Identifier: Apache-2.0
// What the units of this program offer: two that nvcc compiled, for the GPU, and two of host code, for the CPU.
#pragma once

#include <vector>

/// One head of L tokens and D features, selective decay, row sums.
struct head {
  std::vector<float> q, k, v, log_decay;
  int L, D;
};

std::vector<float> attend_in_first_cu(const head& x);
std::vector<float> attend_in_second_cu(const head& x);
std::vector<float> attend_in_first_cpp(const head& x);
std::vector<float> attend_in_second_cpp(const head& x);
