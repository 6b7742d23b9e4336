// SPDX-License-Identifier: Apache-2.0
// What the members of the wider family cost, as ratios to the chunkwise form with selective decay in the same run: float, one head
// of 64 features, 4096 tokens, one thread. The calls take turns, and each time is the median of its rounds.
//
//     bila_bench_family [rounds]      31 rounds if not given
#include "machine.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using bila::index_t;

constexpr index_t L = 4096, D = 64, levels = 13;

std::vector<float> random_numbers(index_t n, float low, float high) {
  static std::mt19937 source(1);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& number : x) number = uniform(source);
  return x;
}

/// A member's forward pass and gradient, and the base that it is compared with.
struct member {
  std::string name;
  std::size_t base;
  std::function<void()> forward, gradient;
};

double seconds(const std::function<void()>& work) {
  const double start = bench::thread_seconds();
  work();
  return bench::thread_seconds() - start;
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

std::vector<float> keys_of_unit_length() {
  std::vector<float> k = random_numbers(L * D, -1, 1);
  for (index_t l = 0; l < L; ++l) {
    float sum = 0;
    for (index_t d = 0; d < D; ++d) sum += k[static_cast<std::size_t>(l * D + d)] * k[static_cast<std::size_t>(l * D + d)];
    for (index_t d = 0; d < D; ++d) k[static_cast<std::size_t>(l * D + d)] /= std::sqrt(sum);
  }
  return k;
}

struct tensors {
  std::vector<float> q = random_numbers(L * D, 0.1f, 1), k = random_numbers(L * D, 0.1f, 1), v = random_numbers(L * D, -1, 1),
                     dy = random_numbers(L * D, -1, 1), gates = random_numbers(L, -0.2f, 0), weights = random_numbers(L, -2, 2),
                     of_levels[2] = {random_numbers(L * levels, 0, 1), random_numbers(L*levels, 0, 1)},
                     channels = random_numbers(L * D, -0.2f, 0), bonus = random_numbers(D, 0, 1), beta = random_numbers(L, 0, 1),
                     unit_k = keys_of_unit_length();

  bila::tensor_view<const float> view(const std::vector<float>& x) const { return bila::bhld(x.data(), 1, 1, L, D); }
  bila::inputs<float> in(bool unit) const { return {view(q), view(unit ? unit_k : k), view(v)}; }
};

/// What the calls of one member write.
struct results {
  std::vector<float> y = std::vector<float>(L * D), row_sum = std::vector<float>(L), dq = y, dk = y, dv = y, da = row_sum,
                     dw = row_sum, dc = y, du = std::vector<float>(D),
                     of_levels[2] = {std::vector<float>(L * levels), std::vector<float>(L*levels)};
};

template <class Mask, class Norm>
member measured(const std::string& name, std::size_t base, const tensors& x, results& to, const Mask& mask, const Norm& norm) {
  const auto view = [](std::vector<float>& data, index_t width) { return bila::bhld(data.data(), 1, 1, L, width); };
  bila::gradients<float> wanted;
  wanted.q = view(to.dq, D), wanted.k = view(to.dk, D), wanted.v = view(to.dv, D);
  constexpr bool per_channel = bila::channelled<std::remove_cvref_t<decltype(bila::detail::gaps_of(mask))>>;
  wanted.log_decay = per_channel ? view(to.dc, D) : view(to.da, 1);
  if constexpr (bila::reads_exclusively<Mask>) wanted.bonus = {to.du.data(), {1, 1, 1, D}, {0, D, 0, 1}};
  if constexpr (bila::ruled<Mask>) wanted.beta = view(to.dw, 1);
  if constexpr (bila::weighs_keys<Mask>) wanted.log_weight = view(to.dw, 1);
  if constexpr (bila::leveled<Mask>) {
    wanted.levels_forward = view(to.of_levels[0], levels);
    wanted.levels_backward = view(to.of_levels[1], levels);
  }
  const bila::outputs<float> out{view(to.y, D), view(to.row_sum, 1)};
  const bila::inputs<float> in = x.in(bila::ruled<Mask>);
  return {name, base, [=] { bila::attend(bila::form::chunkwise{}, mask, norm, in, out); },
          [=, &x] {
            bila::gradient(bila::form::chunkwise{}, mask, norm, in, {out.y, out.row_sum}, {x.view(x.dy)}, wanted);
          }};
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 31;
  const tensors x;
  const bila::mask::selective_decay gates{bila::bhl(x.gates.data(), 1, 1, L), bila::gate::target};
  const bila::mask::weighed_keys weighed{gates, bila::bhl(x.weights.data(), 1, 1, L)};
  const bila::mask::log_linear log_linear{gates, bila::bhld(x.of_levels[0].data(), 1, 1, L, levels),
                                          bila::bhld(x.of_levels[1].data(), 1, 1, L, levels)};
  const bila::mask::channel_decay channels{x.view(x.channels), bila::gate::target};
  const bila::mask::exclusive_read exclusive{channels, bila::tensor_view<const float>{x.bonus.data(), {1, 1, 1, D}, {0, D, 0, 1}}};
  const bila::rule::delta delta{gates, bila::bhl(x.beta.data(), 1, 1, L)};
  const bila::rule::delta channel_delta{channels, bila::bhl(x.beta.data(), 1, 1, L)};
  std::vector<results> to(9);
  const std::vector<member> members{
      measured("selective, none", 0, x, to[0], gates, bila::norm::none{}),
      measured("selective, max_one", 1, x, to[1], gates, bila::norm::max_one{}),
      measured("weighed_keys, none", 0, x, to[2], weighed, bila::norm::none{}),
      measured("weighed_keys, max_one", 1, x, to[3], weighed, bila::norm::max_one{}),
      measured("log_linear, none", 0, x, to[4], log_linear, bila::norm::none{}),
      measured("channel_decay, none", 0, x, to[5], channels, bila::norm::none{}),
      measured("exclusive_read, none", 0, x, to[6], exclusive, bila::norm::none{}),
      measured("delta, none", 0, x, to[7], delta, bila::norm::none{}),
      measured("delta of channels, none", 0, x, to[8], channel_delta, bila::norm::none{}),
  };
  std::vector<std::vector<double>> forward(members.size()), gradient(members.size());
  for (int round = -2; round < rounds; ++round)
    for (std::size_t n = 0; n < members.size(); ++n) {
      const double ahead = seconds(members[n].forward), back = seconds(members[n].gradient);
      if (round < 0) continue;  // the workspace grows, and the processor wakes up
      forward[n].push_back(ahead);
      gradient[n].push_back(back);
    }
  std::printf("%-24s %12s %7s %12s %7s\n", "", "forward, ms", "ratio", "gradient, ms", "ratio");
  for (std::size_t n = 0; n < members.size(); ++n) {
    const double ahead = median(forward[n]), back = median(gradient[n]);
    std::printf("%-24s %12.3f %7.3f %12.3f %7.3f\n", members[n].name.c_str(), 1e3 * ahead, ahead / median(forward[members[n].base]),
                1e3 * back, back / median(gradient[members[n].base]));
  }
}
