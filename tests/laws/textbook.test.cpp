// SPDX-License-Identifier: Apache-2.0
// The recurrence as the paper writes it, two inclusive scans minus half of the diagonal in each, gives our numbers.
//
//     S^F_i = e^{f_i} S^F_{i-1} + k_i [v_i, 1],   S^B_i = e^{b_{i+1}} S^B_{i+1} + k_i [v_i, 1]
//     [N_i, Z_i] = s q_i (S^F_i - k_i [v_i, 1] / 2) + s q_i (S^B_i - k_i [v_i, 1] / 2)
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <cmath>
#include <vector>

namespace {

using test::index_t;
using test::wide;

struct sums {
  std::vector<wide> N, Z;  // (L, Dv) (L)
};

/// One head of a problem with B = H = 1.
sums textbook(const test::problem<double>& x) {
  const index_t L = x.size.L, Dk = x.size.Dk, Dv = x.size.Dv;
  const auto gaps = x.gaps();
  sums result{std::vector<wide>(static_cast<std::size_t>(L * Dv)), std::vector<wide>(static_cast<std::size_t>(L))};

  const auto scan = [&](index_t from, index_t to, index_t step) {
    std::vector<wide> S(static_cast<std::size_t>(Dk * (Dv + 1)));
    for (index_t i = from; i != to; i += step) {
      const auto& logs = step > 0 ? gaps.forward : gaps.backward;
      const index_t gap = step > 0 ? i : i + 1;  // crossed on the way from the token before
      const wide decay = i == from || logs.empty() ? wide(1) : std::exp(wide(logs[static_cast<std::size_t>(gap)]));
      for (index_t c = 0; c < Dk; ++c)
        for (index_t d = 0; d <= Dv; ++d) {
          const wide own = wide(x.k(0, 0, i, c)) * (d == Dv ? wide(1) : wide(x.v(0, 0, i, d)));
          wide& state = S[static_cast<std::size_t>(c * (Dv + 1) + d)];
          state = decay * state + own;
          wide& out = d == Dv ? result.Z[static_cast<std::size_t>(i)] : result.N[static_cast<std::size_t>(i * Dv + d)];
          out += wide(x.scale) * wide(x.q(0, 0, i, c)) * (state - own / 2);
        }
    }
  };
  scan(0, L, 1);
  scan(L - 1, -1, -1);
  return result;
}

}  // namespace

TEST_CASE("two scans minus half of the diagonal each") {
  test::random_source random(711);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const index_t L : {1, 2, 7, 65, 150}) {
        auto x = test::random_problem<double>(random, {1, 1, L, 5, 6}, kind, norm);
        x.scale = 0.4;
        auto exact = x.exact();
        const auto [N, Z] = textbook(x);
        for (index_t i = 0; i < L; ++i)
          for (index_t d = 0; d < 6; ++d) {
            const wide n = N[static_cast<std::size_t>(i * 6 + d)], z = Z[static_cast<std::size_t>(i)];
            const auto* const row_sum = std::get_if<bila::norm::row_sum>(&norm);
            exact.y[exact.place(0, 0, i, d)] = row_sum ? n / (z + wide(x.scale) * row_sum->eps)
                                               : std::holds_alternative<bila::norm::max_one>(norm)
                                                   ? n / std::fmax(std::fabs(z), wide(1))
                                                   : n;
          }
        for (const auto& form : test::all_forms) {
          INFO(test::name_of(form) << ": " << x.name());
          CHECK(x.worst_error(test::evaluate(form, x).y, exact) <= 1);
        }
      }
}
