// SPDX-License-Identifier: Apache-2.0
// What the blocks of include/bila/README.md and README.md have before them (snippets.py): the names in the table at the top of the
// former, each a small tensor that every block finds as the block before it left it.
#include <bila/bila.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <stdexcept>
#include <vector>

namespace {

using bila::index_t;

constexpr index_t B = 2, H = 4, L = 96, D = 16;

/// Memory that lasts as long as the program.
float* numbers(index_t count, float first, float step) {
  static std::deque<std::vector<float>> all;
  all.emplace_back(static_cast<std::size_t>(count));
  for (index_t n = 0; n < count; ++n) all.back()[static_cast<std::size_t>(n)] = first + step * static_cast<float>(n % 31);
  return all.back().data();
}

bila::tensor_view<float> tensor(float first, float step) { return bila::bhld(numbers(B * H * L * D, first, step), B, H, L, D); }
bila::tensor_view<float> tokens(float first, float step) { return bila::bhl(numbers(B * H * L, first, step), B, H, L); }

const auto q = tensor(0.1f, 0.01f), k = tensor(0.2f, 0.02f), v = tensor(-0.5f, 0.03f), dy = tensor(0.3f, -0.01f);
const auto y = tensor(0, 0), dq = tensor(0, 0), dk = tensor(0, 0), dv = tensor(0, 0);
const auto log_gates = tokens(-0.4f, 0.01f), raw_gates = tokens(-2, 0.1f), row_sum = tokens(0, 0), da = tokens(0, 0);
const auto log_decay = bila::vec(numbers(H, -0.4f, 0.1f), H);

const bila::inputs<float> in{q, k, v};
const bila::mask::selective_decay mask{log_gates, bila::gate::source};
const bila::norm::row_sum norm{1e-6};
const bila::form::automatic form{};

/// For a block that says what it computes.
void check(bool as_said) {
  if (as_said) return;
  std::fputs("a block computes something else than it says\n", stderr);
  std::exit(1);
}

}  // namespace
