// SPDX-License-Identifier: Apache-2.0
// Quick start: every token attends to every other, both ways, with a learned decay between them. Three forms, one answer.
#include <bila/bila.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  constexpr bila::index_t B = 1, H = 2, L = 3000, D = 64;
  std::vector<float> q(B * H * L * D), k(q), v(q), gates(B * H * L);
  for (std::size_t n = 0; n < q.size();
       ++n) {  // stands for a model's activations; q and k are feature-mapped, here to positive numbers
    const float x = static_cast<float>(n % 9973);
    q[n] = 1.1f + std::sin(0.7f * x);
    k[n] = 1.1f + std::cos(1.3f * x);
    v[n] = std::sin(0.011f * x);
  }
  for (std::size_t n = 0; n < gates.size(); ++n) gates[n] = -0.02f * static_cast<float>(n % 7);  // log decays: <= 0

  const auto tensor = [](auto& x) {
    return bila::bhld(x.data(), B, H, L, D);
  };  // the library reads and writes your memory in place
  const bila::inputs<float> in{tensor(q), tensor(k), tensor(v)};
  const bila::mask::selective_decay mask{bila::bhl(gates.data(), B, H, L), bila::gate::source};
  const bila::norm::row_sum norm{1e-6};

  const auto run = [&](const char* name, const auto& form) {
    std::vector<float> y(q.size());
    const auto start = std::chrono::steady_clock::now();
    bila::attend(form, mask, norm, in, tensor(y));
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    std::printf("%-10s y[1500] = %.6f %.6f %.6f ...  %7.1f ms\n", name, y[1500 * D], y[1500 * D + 1], y[1500 * D + 2],
                time.count());
    return y;
  };
  const auto full = run("full", bila::form::full{});                 // the masked matrix product: quadratic in L
  const auto recurrent = run("recurrent", bila::form::recurrent{});  // two sweeps of one state: linear in L, least memory
  const auto chunkwise = run("chunkwise", bila::form::chunkwise{});  // dense blocks, one state between them: linear in L

  float worst = 0;
  for (std::size_t n = 0; n < full.size(); ++n)
    worst = std::fmax(worst, std::fmax(std::fabs(full[n] - recurrent[n]), std::fabs(full[n] - chunkwise[n])));
  std::printf("largest difference between the forms: %.1e\n", worst);
  return worst < 1e-5f ? 0 : 1;
}
