// SPDX-License-Identifier: Apache-2.0
// Norms that a user would write: any function of the row sum Z and the scale s that gives the quotient s N / n(s Z).
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"

#include <bila/bila.hpp>

#include <cmath>
#include <limits>

namespace {

using bila::index_t;
using test::tensor;

constexpr index_t H = 2, L = 90, Dk = 6, Dv = 5;

/// y = N / sqrt(1 + Z^2), Z with the scale: smooth where max_one has a kink.
struct soft_one {
  static constexpr bool uses_row_sum = true;

  template <class Real>
  bila::quotient<Real> operator()(Real Z, Real scale) const {
    return {scale, std::sqrt(1 + scale * Z * scale * Z)};
  }
};

/// y = s N / L: the mean over the tokens, which needs no row sum.
struct mean {
  double tokens;
  static constexpr bool uses_row_sum = false;

  template <class Real>
  bila::quotient<Real> operator()(Real, Real scale) const {
    return {scale, static_cast<Real>(tokens)};
  }
};

/// y = N / Z for rows that gather enough, and no output for the others: a divisor of zero means y = 0.
struct enough_or_nothing {
  double threshold;
  static constexpr bool uses_row_sum = true;

  template <class Real>
  bila::quotient<Real> operator()(Real Z, Real) const {
    return {Real(1), Z < static_cast<Real>(threshold) ? Real(0) : Z};
  }
};

static_assert(bila::normaliser<soft_one> && bila::normaliser<mean> && bila::normaliser<enough_or_nothing>);

/// With mask lambda^|i - j|, in double; `divided(N, Z)` is the user's formula in plain words, N and Z without the scale.
template <class Norm, class Divided>
void check(const Norm& norm, double scale, const Divided& divided) {
  tensor<float> q(1, H, L, Dk), k(1, H, L, Dk), v(1, H, L, Dv);
  tensor<double> log_decay(1, H, 1, 1);
  test::random_source random(3);
  q.fill_uniform(random, 0.1, 1), k.fill_uniform(random, 0.1, 1), v.fill_uniform(random, -1, 1);
  log_decay(0, 0, 0) = -0.1, log_decay(0, 1, 0) = -0.3;
  bila::inputs<float> in{q.view(), k.view(), v.view()};
  in.scale = scale;
  const bila::mask::fixed_decay<double> mask{log_decay.view()};

  const auto run = [&](const auto& form) {
    tensor<float> y(1, H, L, Dv);
    bila::attend(form, mask, norm, in, y.view());
    CHECK(y.intact());
    return y;
  };
  const tensor<float> results[]{run(bila::form::full{}), run(bila::form::recurrent{}), run(bila::form::chunkwise{.size = 32})};

  for (index_t h = 0; h < H; ++h)
    for (index_t i = 0; i < L; ++i)
      for (index_t d = 0; d < Dv; ++d) {
        double N = 0, Z = 0, size = 0;
        for (index_t j = 0; j < L; ++j) {
          double score = 0;
          for (index_t c = 0; c < Dk; ++c) score += double(q(0, h, i, c)) * k(0, h, j, c);
          score *= std::exp(log_decay(0, h, 0) * std::fabs(static_cast<double>(i - j)));
          Z += score, N += score * v(0, h, j, d), size += score * std::fabs(v(0, h, j, d));
        }
        // Every term of Z is positive; of N the sum of absolute values, divided, is what rounding acts on.
        const double y = divided(N, Z), roundings = Dk + 2 * L + 16, unit = std::numeric_limits<float>::epsilon() / 2;
        const double allowed = roundings * unit * (std::fabs(divided(size, Z)) + std::fabs(y));
        for (const tensor<float>& result : results) CHECK(std::fabs(result(0, h, i, d) - y) <= allowed);
      }
}

}  // namespace

TEST_CASE("a user's smooth norm of the scaled row sum", "[foreign]") {
  check(soft_one{}, 0.05, [](double N, double Z) { return 0.05 * N / std::sqrt(1 + 0.0025 * Z * Z); });
}

TEST_CASE("a user's norm without a row sum", "[foreign]") {
  check(mean{double(L)}, 0.5, [](double N, double) { return 0.5 * N / double(L); });
}

TEST_CASE("a user's norm that leaves rows out", "[foreign]") {
  int kept = 0, left_out = 0;  // head 0 gathers about 18 at its ends and 36 in between, head 1 at most about 12
  check(enough_or_nothing{24}, 1, [&](double N, double Z) {
    ++(Z < 24 ? left_out : kept);
    return Z < 24 ? 0 : N / Z;
  });
  CHECK((kept > 0 && left_out > kept));
}
