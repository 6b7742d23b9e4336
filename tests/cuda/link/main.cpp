// SPDX-License-Identifier: Apache-2.0
// All four units in one program: each of a kind gives the same bits, and the GPU the CPU's numbers. Without a device the first call
// is an exception with CUDA's words; the program itself starts and its host code runs.
#include "units.hpp"

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>

int main() {
  head x{{}, {}, {}, {}, 150, 32};
  for (int n = 0; n < x.L * x.D; ++n) {
    const float t = static_cast<float>(n % 1009);
    x.q.push_back(1 + 0.5f * std::sin(0.37f * t));
    x.k.push_back(1 + 0.5f * std::cos(0.23f * t));
    x.v.push_back(std::sin(0.71f * t));
  }
  for (int t = 0; t < x.L; ++t) x.log_decay.push_back(-0.5f - 0.5f * std::sin(0.3f * static_cast<float>(t)));

  const std::vector<float> first = attend_in_first_cpp(x);
  if (first != attend_in_second_cpp(x)) {
    std::puts("the two .cpp units differ");
    return 1;
  }
  try {
    const std::vector<float> a = attend_in_first_cu(x), b = attend_in_second_cu(x);
    float worst = a == b ? 0 : INFINITY;
    for (std::size_t n = 0; n < a.size(); ++n)
      if (!(std::fabs(a[n] - first[n]) <= worst)) worst = std::isnan(a[n]) ? INFINITY : std::fabs(a[n] - first[n]);
    std::printf("largest difference between GPU and CPU %.1e\n", static_cast<double>(worst));
    return worst <= 2e-5f ? 0 : 1;
  } catch (const std::invalid_argument& wrong) {
    std::printf("an invalid argument, which it is not: %s\n", wrong.what());
    return 1;
  } catch (const std::runtime_error& failure) {
    std::printf("skipped: no CUDA device: %s\n", failure.what());
    return std::string(failure.what()).rfind("bila: cuda: ", 0) == 0 ? 77 : 1;
  }
}
