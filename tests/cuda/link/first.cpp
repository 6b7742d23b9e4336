// SPDX-License-Identifier: Apache-2.0
// The first of two units of host code, which share views, masks and norms with the .cu units.
#include "on_cpu.hpp"

std::vector<float> attend_in_first_cpp(const head& x) { return attend_on_cpu(x); }
