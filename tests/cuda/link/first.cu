// SPDX-License-Identifier: Apache-2.0
// The first of two units that nvcc compiles, with the same kernels in both.
#include "on_gpu.hpp"

std::vector<float> attend_in_first_cu(const head& x) { return attend_on_gpu(x); }
