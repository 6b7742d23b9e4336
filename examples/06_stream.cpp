// SPDX-License-Identifier: Apache-2.0
// Streaming: tokens arrive one at a time, and all that is kept between them is a state of Dk x Dv numbers per head.
#include <bila/bila.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  constexpr bila::index_t L = 500, Dk = 16, Dv = 8;
  std::vector<float> q(L * Dk), k(L * Dk), v(L * Dv), whole(L * Dv), streamed(L * Dv), log_decay{-0.05f};
  for (std::size_t n = 0; n < q.size(); ++n) {
    q[n] = 1.1f + std::sin(0.7f * static_cast<float>(n));
    k[n] = 1.1f + std::cos(1.3f * static_cast<float>(n));
  }
  for (std::size_t n = 0; n < v.size(); ++n) v[n] = std::sin(0.011f * static_cast<float>(n));

  const bila::mask::fixed_decay mask{bila::vec(log_decay.data(), 1)};
  const bila::norm::row_sum norm{1e-6};
  const auto tokens = [&](bila::index_t first, bila::index_t count) {
    bila::inputs<float> in{bila::bhld(q.data() + first * Dk, 1, 1, count, Dk), bila::bhld(k.data() + first * Dk, 1, 1, count, Dk),
                           bila::bhld(v.data() + first * Dv, 1, 1, count, Dv)};
    in.direction = bila::direction::forward;  // what has not come yet cannot be seen
    return in;
  };
  bila::attend(bila::form::full{}, mask, norm, tokens(0, L), bila::bhld(whole.data(), 1, 1, L, Dv));

  std::vector<float> S(Dk * Dv), z(Dk);  // zero: nothing has been seen
  const bila::state<float> seen{bila::bhld(S.data(), 1, 1, Dk, Dv), bila::bhl(z.data(), 1, 1, Dk), bila::bhl(log_decay.data(), 1, 1, 1)};
  for (bila::index_t t = 0; t < L; ++t) {
    bila::inputs<float> token = tokens(t, 1);
    token.initial_forward = seen;  // enters by the gap before this token, and decays there
    bila::outputs<float> out{bila::bhld(streamed.data() + t * Dv, 1, 1, 1, Dv)};
    out.final_forward = seen;  // the same memory: updated in place
    bila::attend(bila::form::recurrent{}, mask, norm, token, out);
  }

  float worst = 0;
  for (std::size_t n = 0; n < whole.size(); ++n) worst = std::fmax(worst, std::fabs(whole[n] - streamed[n]));
  std::printf("%d tokens through a state of %zu bytes; largest difference to one call over all of them: %.1e\n", static_cast<int>(L),
              (S.size() + z.size()) * sizeof(float), static_cast<double>(worst));
  return worst < 1e-5f ? 0 : 1;
}
