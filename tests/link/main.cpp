// SPDX-License-Identifier: Apache-2.0
// Every unit that this processor can run gives the definition's numbers.
#include "units.hpp"

#include <cmath>
#include <cstdio>

#if !defined(BILA_LINK_PROCESSORS)
#define BILA_LINK_PROCESSORS 0
#endif

namespace {

constexpr int L = 150, D = 24;

std::vector<float> wave(int n, float a, float b) {
  std::vector<float> x;
  for (int i = 0; i < n; ++i) x.push_back(a + b * std::sin(0.37f * static_cast<float>(i % 1009)));
  return x;
}

std::vector<double> definition(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                               const std::vector<float>& log_decay) {
  const auto at = [](const std::vector<float>& x, int i, int d) {
    return static_cast<double>(x[static_cast<std::size_t>(i * D + d)]);
  };
  std::vector<double> y;
  for (int i = 0; i < L; ++i) {
    std::vector<double> row(D);
    double sum = 1e-6;
    for (int j = 0; j < L; ++j) {
      double log_weight = 0, score = 0;
      for (int t = (i < j ? i : j) + 1; t <= (i < j ? j : i); ++t)
        log_weight += static_cast<double>(log_decay[static_cast<std::size_t>(t)]);
      for (int d = 0; d < D; ++d) score += at(q, i, d) * at(k, j, d);
      score *= std::exp(log_weight);
      for (int d = 0; d < D; ++d) row[static_cast<std::size_t>(d)] += score * at(v, j, d);
      sum += score;
    }
    for (const double x : row) y.push_back(x / sum);
  }
  return y;
}

}  // namespace

int main() {
  const auto q = wave(L * D, 1.0f, 0.5f), k = wave(L * D, 1.2f, 0.7f), v = wave(L * D, 0.0f, 1.0f),
             log_decay = wave(L, -0.6f, 0.5f);
  const auto expected = definition(q, k, v, log_decay);
  bool right = true;
  const auto check = [&](const char* name, attention* attend, bool can_run) {
    if (!can_run) return;
    const auto found = attend(q, k, v, log_decay, L, D);
    double worst = found.size() == 3 * expected.size() ? 0.0 : INFINITY;
    for (std::size_t n = 0; n < found.size(); ++n) {
      const double error = std::fabs(static_cast<double>(found[n]) - expected[n % expected.size()]);
      if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
    }
    std::printf("%s: largest error %.1e\n", name, worst);
    right = right && worst < (D + 2 * L) * 6e-8;  // positive weights, |v| <= 1: one rounding for each term of the longest sum
  };
#if BILA_LINK_PROCESSORS
  __builtin_cpu_init();
  check("plain", attend_plain, true);
  check("avx", attend_avx, __builtin_cpu_supports("avx"));
  check("avx2", attend_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  check("avx512", attend_avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"));
#else
  check("first", attend_first, true);
  check("second", attend_second, true);
#endif
  return right ? 0 : 1;
}
