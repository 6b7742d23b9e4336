// SPDX-License-Identifier: Apache-2.0
// Every row of the README's table "Your model in these words", as calls that compile and run. The house rules hold the names here
// to those of the table.
#include "support/catch.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace {

using bila::index_t;

constexpr index_t L = 21, D = 4;

/// Calls a form with a mask and a norm: y, and the gradient with respect to q.
struct one_call {
  std::vector<float> numbers = std::vector<float>(L * D, 0.5f);

  template <class Form, class Mask, class Norm>
  std::vector<float> operator()(const Form& form, const Mask& mask, const Norm& norm, double diagonal = 1) const {
    const auto x = bila::bhld(numbers.data(), 1, 1, L, D);
    std::vector<float> y(L * D, 77), dq(L * D, 77), sums(L);
    bila::inputs<float> in{x, x, x};
    in.diagonal = diagonal;
    bila::outputs<float> out{bila::bhld(y.data(), 1, 1, L, D)};
    if (Norm::uses_row_sum) out.row_sum = bila::bhl(sums.data(), 1, 1, L);
    bila::attend(form, mask, norm, in, out);
    bila::gradients<float> to;
    to.q = bila::bhld(dq.data(), 1, 1, L, D);
    bila::gradient(form, mask, norm, in, {out.y, out.row_sum}, {x}, to);
    CHECK(std::all_of(dq.begin(), dq.end(), [](float number) { return std::isfinite(number) && number != 77; }));
    return y;
  }
};

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  bool good = true;
  for (std::size_t n = 0; n < a.size(); ++n) good = good && std::fabs(a[n] - b[n]) <= 1e-5f * (1 + std::fabs(b[n]));
  return good;
}

const one_call call{};

/// The forms that a rule has, and with `full` those that a mask has.
template <class Mask, class Norm>
void linear(const std::string& model, const Mask& mask, const Norm& norm, double diagonal = 1) {
  INFO(model);
  const auto y = call(bila::form::chunkwise{}, mask, norm, diagonal);
  CHECK(close(call(bila::form::recurrent{}, mask, norm, diagonal), y));
  CHECK(close(call(bila::form::automatic{}, mask, norm, diagonal), y));
}

template <class Mask, class Norm>
void all(const std::string& model, const Mask& mask, const Norm& norm, double diagonal = 1) {
  linear(model, mask, norm, diagonal);
  CHECK(close(call(bila::form::full{}, mask, norm, diagonal), call(bila::form::chunkwise{}, mask, norm, diagonal)));
}

}  // namespace

TEST_CASE("every model of the README's table is a call, and the forms that the table names agree") {
  const std::vector<float> per_head{-0.1f}, per_token(L, -0.1f), per_channel(L * D, -0.1f), of_bonus(D, 1), of_levels(L * 8, 0.5f);
  const auto tokens = bila::bhl(per_token.data(), 1, 1, L), levels = bila::bhld(of_levels.data(), 1, 1, L, index_t(8));
  const bila::tensor_view<const float> bonus{of_bonus.data(), {1, 1, 1, D}, {0, D, 0, 1}};
  const std::vector<float> of_beta(L, 0.5f);
  const auto beta = bila::bhl(of_beta.data(), 1, 1, L);
  const bila::mask::selective_decay gates{tokens, bila::gate::target};
  const bila::mask::channel_decay channels{bila::bhld(per_channel.data(), 1, 1, L, D), bila::gate::target};
  const bila::norm::none none{};
  const bila::norm::row_sum row_sum{1e-6};
  const bila::norm::max_one max_one{};

  all("linear transformer, LION-LIT", bila::mask::all_ones{}, row_sum);
  const bila::mask::fixed_decay<float> fixed{bila::vec(per_head.data(), index_t(1))};
  all("RetNet, LION-D", fixed, none);
  all("RetNet, LION-D", fixed, max_one);
  all("RetNet, LION-D", fixed, row_sum);
  all("LION-S, Mamba-2 with its step in v", gates, row_sum);
  all("LION-S, Mamba-2 with its step in v", gates, none);
  all("Vim's double scan", gates, none, 2);
  const bila::mask::weighed_keys weighed{gates, tokens};
  all("Mamba-2, GRFA", weighed, none);
  all("mLSTM", weighed, max_one);
  all("GLA, HGRN-2, diagonal state spaces", channels, none);
  all("RWKV-6", bila::mask::exclusive_read{channels, bonus}, none);
  linear("DeltaNet; Gated DeltaNet; KDA", bila::rule::delta{bila::mask::all_ones{}, beta}, none);
  linear("DeltaNet; Gated DeltaNet; KDA", bila::rule::delta{gates, beta}, none);
  linear("DeltaNet; Gated DeltaNet; KDA", bila::rule::delta{channels, beta}, none);
  all("log-linear Mamba-2", bila::mask::log_linear{gates, levels, levels}, none);
  // "Hydra" is examples/09_hydra.cpp and "Based" examples/12_based.cpp, which are tests of their own.
}
