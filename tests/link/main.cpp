// SPDX-License-Identifier: Apache-2.0
// Both units give the same numbers, and they are the definition's.
#include "units.hpp"

#include <cmath>
#include <cstdio>

#if !defined(BILA_LINK_NEEDS_AVX2)
#define BILA_LINK_NEEDS_AVX2 0
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
#if BILA_LINK_NEEDS_AVX2
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::puts("nothing checked: this processor has no AVX2");
    return 0;
  }
#endif
  const auto q = wave(L * D, 1.0f, 0.5f), k = wave(L * D, 1.2f, 0.7f), v = wave(L * D, 0.0f, 1.0f),
             log_decay = wave(L, -0.6f, 0.5f);
  const auto first = attend_in_first_unit(q, k, v, log_decay, L, D), second = attend_in_second_unit(q, k, v, log_decay, L, D);
  const auto expected = definition(q, k, v, log_decay);

  double worst = first.size() == 3 * expected.size() && second.size() == first.size() ? 0.0 : INFINITY;
  for (std::size_t n = 0; n < first.size(); ++n)
    for (const float found : {first[n], second[n]}) {
      const double error = std::fabs(static_cast<double>(found) - expected[n % expected.size()]);
      if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
    }
  std::printf("largest error %.1e\n", worst);
  return worst < (D + 2 * L) * 6e-8 ? 0 : 1;  // positive weights, |v| <= 1: one rounding for each term of the longest sum
}
