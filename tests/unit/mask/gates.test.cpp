// SPDX-License-Identifier: Apache-2.0
// Gate parameterisations: values and slopes where the naive formula loses everything.
#include "support/catch.hpp"
#include "support/gradient.hpp"

#include <bila/mask/gates.hpp>

#include <array>
#include <cmath>
#include <vector>

namespace {

namespace gates = bila::gates;
using test::index_t;
using test::wide;

constexpr std::array points{-800.0, -30.0, -1.0, 0.0, 1.0, 17.0, 30.0, 800.0};

/// Naive in long double where that is exact, by its limits elsewhere.
wide softplus(wide x) { return x > 100 ? x + std::exp(-x) : x < -100 ? std::exp(x) : std::log1p(std::exp(x)); }
wide sigmoid(wide x) { return 1 / (1 + std::exp(-x)); }

bool close(double found, wide exact) { return std::fabs(found - exact) <= 4e-16L * std::fabs(exact) + 5e-324L; }

template <class Gate, class Value, class Slope>
void check(const Gate& gate, index_t h, const Value& value, const Slope& slope) {
  for (const double x : points) {
    INFO("x = " << x << ": " << gate.log_decay(x, h) << ", slope " << gate.slope(x, h));
    CHECK(close(gate.log_decay(x, h), value(wide(x))));
    CHECK(close(gate.slope(x, h), slope(wide(x))));
    CHECK_FALSE(gate.log_decay(x, h) > 0);
  }
  for (const double x : {-7.0, -1.0, -0.1, 0.0, 0.3, 2.0, 6.5}) {
    const wide step = 0x1p-20L, difference = (value(x + step) - value(x - step)) / (2 * step);
    INFO("x = " << x);
    CHECK(gate.slope(x, h) == Approx(static_cast<double>(difference)).epsilon(1e-9));
  }
}

}  // namespace

TEST_CASE("log_sigmoid is -softplus(-x), at any temperature") {
  for (const double temperature : {1.0, 16.0})
    check(
        gates::log_sigmoid{temperature}, 0, [=](wide x) { return -softplus(-x) / temperature; },
        [=](wide x) { return sigmoid(-x) / temperature; });
}

TEST_CASE("log_one_minus_sigmoid is -softplus(x), long after 1 - sigmoid has become zero") {
  const gates::log_one_minus_sigmoid gate;
  check(
      gate, 0, [](wide x) { return -softplus(x); }, [](wide x) { return -sigmoid(x); });
  CHECK(gate.log_decay(17, 0) == Approx(-17.0000000413994));
  CHECK(gate.log_decay(800, 0) == -800);
}

TEST_CASE("mamba is -softplus(x) e^A, each head with its own A") {
  const std::vector<float> A{-1.5f, 0.0f, 2.0f};
  const gates::mamba gate{bila::vec(A.data(), 3)};
  for (index_t h = 0; h < 3; ++h) {
    const wide rate = std::exp(wide(A[static_cast<std::size_t>(h)]));
    check(
        gate, h, [=](wide x) { return -softplus(x) * rate; }, [=](wide x) { return -sigmoid(x) * rate; });
  }
}

TEST_CASE("double_exponential is -e^x and its own slope; beyond double it cuts") {
  const gates::double_exponential gate;
  for (const double x : {-30.0, -20.0, -1.0, 0.0, 1.0, 17.0, 20.0, 30.0}) {
    CHECK(close(gate.log_decay(x, 0), -std::exp(wide(x))));
    CHECK(gate.slope(x, 0) == gate.log_decay(x, 0));
  }
  CHECK(gate.log_decay(-800, 0) == 0);
  CHECK(std::isinf(gate.log_decay(800, 0)));
}

TEST_CASE("gates over tensors: values, gradients in place, float and double mixed") {
  test::random_source random(4101);
  test::tensor<float> x(2, 3, 5, 1);
  x.fill_uniform(random, -4, 4);
  test::tensor<double> a(2, 3, 5, 1, test::layout::reversed), slope(2, 3, 5, 1);
  slope.fill_uniform(random, -1, 1);
  const test::tensor<double> given = slope;
  const std::vector<double> A{-0.5, 0.25, 1};
  const gates::mamba gate{bila::vec(A.data(), 3)};
  gates::log_decays(gate, x.view(), a.view());
  gates::pull_back(gate, x.view(), given.view(), slope.view());
  std::vector<double> rate(3, 1e9);
  gates::pull_back_rate(gate, x.view(), given.view(), bila::vec(rate.data(), 3));
  std::vector<double> expected(3);
  a.for_each([&](const double& value, index_t b, index_t h, index_t l, index_t) {
    CHECK(value == gate.log_decay(static_cast<double>(x(b, h, l)), h));
    CHECK(slope(b, h, l) == gate.slope(static_cast<double>(x(b, h, l)), h) * given(b, h, l));
    expected[static_cast<std::size_t>(h)] += value * given(b, h, l);
  });
  for (std::size_t h = 0; h < 3; ++h) CHECK(rate[h] == Approx(expected[h]).epsilon(1e-14));

  test::tensor<double> in_place = given;
  gates::pull_back(gate, x.view(), std::as_const(in_place).view(), in_place.view());
  CHECK(same_bits(in_place, slope));
  CHECK(a.intact());
}

TEST_CASE("the gradient of mamba's x and rate, through attention, is the derivative") {
  test::random_source random(4102);
  auto step =
      test::random_lesson(random, {.B = 2, .H = 3, .L = 7, .Dk = 2, .Dv = 3}, test::mask_kind::target, bila::norm::row_sum{1e-6});
  test::tensor<double> x(2, 3, 7, 1), A(1, 3, 1, 1), dx(2, 3, 7, 1), dA(1, 3, 1, 1);
  x.fill_uniform(random, -2, 2);
  A.fill_uniform(random, -1, 1);
  const auto loss = [&] {
    gates::log_decays(gates::mamba{A.view()}, x.view(), step.x.gates.view());
    return by_definition(step).loss;
  };
  loss();
  const auto found = learn(bila::form::chunkwise{.size = 3}, step);
  gates::pull_back(gates::mamba{A.view()}, x.view(), found.log_decay.view(), dx.view());
  gates::pull_back_rate(gates::mamba{A.view()}, x.view(), found.log_decay.view(), dA.view());
  const auto check = [&](test::tensor<double>& value, const test::tensor<double>& slope) {
    slope.for_each([&](const double& g, index_t b, index_t h, index_t l, index_t) {
      const double at = value(b, h, l);
      value(b, h, l) = at + 0x1p-18;
      const wide up = loss();
      value(b, h, l) = at - 0x1p-18;
      const wide down = loss();
      value(b, h, l) = at;
      CHECK(g == Approx(static_cast<double>((up - down) * 0x1p17L)).epsilon(1e-8).margin(1e-9));
    });
  };
  check(x, dx);
  check(A, dA);
}
