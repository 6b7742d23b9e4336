// SPDX-License-Identifier: Apache-2.0
// Feature maps: values at known points, what each promises, and adjoints against differences.
#include "support/catch.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

#include <bila/backend/cpu/features.hpp>

#include <array>
#include <cmath>
#include <vector>

namespace {

namespace feature = bila::feature;
using test::index_t;

template <class Map>
std::vector<double> phi(const Map& map, const std::vector<double>& x) {
  const auto d = static_cast<index_t>(x.size());
  std::vector<double> result(static_cast<std::size_t>(map.width(d)), test::not_a_number<double>);
  map.map(x.data(), d, result.data());
  return result;
}

template <class Map>
std::vector<double> pull_back(const Map& map, const std::vector<double>& x, const std::vector<double>& g) {
  std::vector<double> dx(x.size(), test::not_a_number<double>);
  map.pull_back(x.data(), phi(map, x).data(), g.data(), static_cast<index_t>(x.size()), dx.data());
  return dx;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> uniform(test::random_source& random, index_t n, double low, double high) {
  std::vector<double> x(static_cast<std::size_t>(n));
  for (double& value : x) value = random.uniform(low, high);
  return x;
}

void check_near(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-14).margin(1e-300));
}

}  // namespace

TEST_CASE("identity, relu and elu + 1 at known points") {
  check_near(phi(feature::identity{}, {-2, 0, 3}), {-2, 0, 3});
  check_near(phi(feature::relu{}, {-2, 0, 3}), {0, 0, 3});
  check_near(phi(feature::elu_plus_one{}, {-2, 0, 3, -30}), {std::exp(-2.0), 1, 4, std::exp(-30.0)});
  check_near(pull_back(feature::relu{}, {-2, 0, 3}, {5, 6, 7}), {0, 0, 7});
  check_near(pull_back(feature::elu_plus_one{}, {-2, 0, 3}, {5, 6, 7}), {5 * std::exp(-2.0), 6, 7});
}

TEST_CASE("silu_norm: of length one, every entry positive") {
  const double u = 1 / (1 + std::exp(-1.0)) + 0.5;
  const double length = std::sqrt(u * u + 0.25);
  check_near(phi(feature::silu_norm{}, {1, 0}), {u / length, 0.5 / length});
  test::random_source random(4201);
  for (const double reach : {1.0, 10.0, 800.0}) {
    const auto x = phi(feature::silu_norm{}, uniform(random, 64, -reach, reach));
    for (const double value : x) CHECK(value > 0);
    CHECK(dot(x, x) == Approx(1).epsilon(1e-14));
  }
  // silu + 1/2 is smallest, 0.22154, at x = -1.27846
  const auto low = phi(feature::silu_norm{}, {-1.278464542761074, 800});
  CHECK(low[0] * 800.5 / low[1] == Approx(0.22153546).epsilon(1e-6));
}

TEST_CASE("l2_norm has length |x| / sqrt(|x|^2 + 1e-6), and no pole") {
  check_near(phi(feature::l2_norm{}, {3, 4}), {3 / std::sqrt(25 + 1e-6), 4 / std::sqrt(25 + 1e-6)});
  check_near(phi(feature::l2_norm{}, {0, 0}), {0, 0});
  check_near(pull_back(feature::l2_norm{}, {0, 0}, {1, 2}), {1e3, 2e3});
}

TEST_CASE("both Taylor maps: 1 + q.k / sqrt(d) + (q.k)^2 / (2 d), never below one half") {
  test::random_source random(4202);
  for (const index_t d : {1, 2, 5, 16})
    for (int n = 0; n < 20; ++n) {
      const auto q = uniform(random, d, -2, 2), k = uniform(random, d, -2, 2);
      const double score = dot(q, k), root = std::sqrt(static_cast<double>(d));
      const double expected = 1 + score / root + score * score / (2 * static_cast<double>(d));
      const double whole = dot(phi(feature::taylor{}, q), phi(feature::taylor{}, k));
      const double packed = dot(phi(feature::taylor_packed{}, q), phi(feature::taylor_packed{}, k));
      CHECK(whole == Approx(expected).epsilon(1e-13).margin(1e-12));
      CHECK(packed == Approx(expected).epsilon(1e-13).margin(1e-12));
      CHECK(whole >= 0.5 - 1e-12);
    }
  CHECK(feature::taylor{}.width(16) == 273);
  CHECK(feature::taylor_packed{}.width(16) == 153);
  CHECK(dot(phi(feature::taylor{}, {1}), phi(feature::taylor{}, {-1})) == Approx(0.5).epsilon(1e-15));
  const double r = std::pow(2.0, -0.25);
  check_near(phi(feature::taylor{}, {3, 5}), {1, 3 * r, 5 * r, 4.5, 7.5, 7.5, 12.5});
  check_near(phi(feature::taylor_packed{}, {3, 5}), {1, 3 * r, 5 * r, 4.5, 12.5, 15 / std::sqrt(2.0)});
}

TEST_CASE("softmax and hedgehog sum to one, for any size of x") {
  check_near(phi(feature::softmax{}, {0, std::log(3.0)}), {0.25, 0.75});
  check_near(phi(feature::hedgehog{}, {1}), {1 / (1 + std::exp(-4.0)), 1 / (1 + std::exp(4.0))});
  test::random_source random(4203);
  for (const double reach : {1.0, 800.0}) {
    const auto x = uniform(random, 20, -reach, reach);
    for (const auto& p : {phi(feature::softmax{}, x), phi(feature::hedgehog{}, x)}) {
      double sum = 0;
      for (const double value : p) sum += value;
      CHECK(sum == Approx(1).epsilon(1e-14));
    }
  }
  const auto signs = phi(feature::hedgehog{}, {0.3, -0.7}), mirrored = phi(feature::hedgehog{}, {-0.3, 0.7});
  CHECK(signs.size() == 4);
  check_near({signs[2], signs[3], signs[0], signs[1]}, mirrored);
}

TEMPLATE_TEST_CASE("adjoints are the derivatives", "", feature::identity, feature::relu, feature::elu_plus_one, feature::silu_norm,
                   feature::l2_norm, feature::taylor, feature::taylor_packed, feature::softmax, feature::hedgehog) {
  STATIC_REQUIRE(feature::map<TestType>);
  test::random_source random(4204);
  const TestType map;
  for (const index_t d : {1, 2, 7}) {
    auto x = uniform(random, d, -2, 2);
    const auto g = uniform(random, map.width(d), -1, 1);
    const auto dx = pull_back(map, x, g);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double at = x[i], h = 1e-4;
      const auto loss = [&](double t) {
        x[i] = at + t;
        const double value = dot(phi(map, x), g);
        x[i] = at;
        return value;
      };
      const double slope = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h);
      INFO("d = " << d << ", x = " << at);
      CHECK(dx[i] == Approx(slope).epsilon(1e-9).margin(1e-10));
    }
  }
}

TEMPLATE_TEST_CASE("whole tensors: each row is the map's, in any layout, type and number of threads", "", float, double, bila::bf16,
                   bila::f16) {
  using Real = bila::real_of<TestType>;
  test::random_source random(4205);
  const feature::silu_norm map;
  test::tensor<double> numbers(2, 3, 5, 4);
  numbers.fill_uniform(random, -2, 2);
  const auto x = test::converted<TestType>(numbers);
  test::tensor<TestType> expected(2, 3, 5, 4);
  std::array<Real, 4> row{}, out{};
  for (index_t b = 0; b < 2; ++b)
    for (index_t h = 0; h < 3; ++h)
      for (index_t l = 0; l < 5; ++l) {
        for (index_t d = 0; d < 4; ++d) row[static_cast<std::size_t>(d)] = static_cast<Real>(x(b, h, l, d));
        map.map(row.data(), 4, out.data());
        for (index_t d = 0; d < 4; ++d) expected(b, h, l, d) = static_cast<TestType>(out[static_cast<std::size_t>(d)]);
      }
  for (const auto where : test::all_layouts)
    for (const int threads : {1, 3}) {
      const auto from = x.laid_out(where);
      test::tensor<TestType> to(2, 3, 5, 4, where);
      bila::features(bila::cpu{.threads = threads}, map, from.view(), to.view());
      CHECK(same_bits(to, expected));
      CHECK(to.intact());
    }
}

TEST_CASE("the gradient over whole tensors is the adjoint, row by row, and overwrites") {
  test::random_source random(4206);
  const feature::taylor_packed map;
  test::tensor<double> x(2, 2, 5, 3, test::layout::strided), g(2, 2, 5, map.width(3), test::layout::transposed);
  x.fill_uniform(random, -2, 2);
  g.fill_uniform(random, -1, 1);
  for (const double junk : {0.0, test::not_a_number<double>}) {
    test::tensor<double> dx(2, 2, 5, 3, test::layout::reversed);
    dx.fill(junk);
    bila::features_gradient(bila::cpu{.threads = 2}, map, std::as_const(x).view(), std::as_const(g).view(), dx.view());
    for (index_t b = 0; b < 2; ++b)
      for (index_t h = 0; h < 2; ++h)
        for (index_t l = 0; l < 5; ++l) {
          std::vector<double> row, by;
          for (index_t d = 0; d < 3; ++d) row.push_back(x(b, h, l, d));
          for (index_t d = 0; d < map.width(3); ++d) by.push_back(g(b, h, l, d));
          const auto expected = pull_back(map, row, by);
          for (index_t d = 0; d < 3; ++d) CHECK(dx(b, h, l, d) == expected[static_cast<std::size_t>(d)]);
        }
    CHECK(dx.intact());
  }
}

TEMPLATE_TEST_CASE("in place the numbers are the same", "", float, double, bila::bf16, bila::f16) {
  test::random_source random(4207);
  const feature::silu_norm map;
  test::tensor<double> numbers(2, 3, 5, 4), slopes(2, 3, 5, 4);
  numbers.fill_uniform(random, -2, 2), slopes.fill_uniform(random, -1, 1);
  for (const auto where : test::all_layouts) {
    const auto x = test::converted<TestType>(numbers).laid_out(where), g = test::converted<TestType>(slopes).laid_out(where);
    test::tensor<TestType> phi(2, 3, 5, 4), dx(2, 3, 5, 4);
    bila::features(bila::cpu{}, map, x.view(), phi.view());
    bila::features_gradient(bila::cpu{}, map, x.view(), g.view(), dx.view());
    for (const int threads : {1, 3}) {
      auto to = x, over_x = x, over_g = g;
      bila::features(bila::cpu{.threads = threads}, map, to.view(), to.view());
      CHECK((same_bits(to, phi) && to.intact()));
      bila::features_gradient(bila::cpu{.threads = threads}, map, over_x.view(), g.view(), over_x.view());
      CHECK((same_bits(over_x, dx) && over_x.intact()));
      bila::features_gradient(bila::cpu{.threads = threads}, map, x.view(), over_g.view(), over_g.view());
      CHECK((same_bits(over_g, dx) && over_g.intact()));
    }
  }
}

TEST_CASE("features refuse shapes that disagree, null data and overlap in part") {
  std::vector<double> x(1000), y(1000);
  const bila::cpu backend;
  const auto call = [&](const bila::tensor_view<const double>& from, const bila::tensor_view<double>& to) {
    return test::refusal([&] { bila::features(backend, feature::taylor{}, from, to); });
  };
  CHECK(call(bila::bhld(x.data(), 1, 2, 3, 4), bila::bhld(y.data(), 1, 2, 3, 21)).empty());
  CHECK(test::has_all(call(bila::bhld(x.data(), 1, 2, 3, 4), bila::bhld(y.data(), 1, 2, 3, 20)),
                      {"phi", "[1, 2, 3, 20]", "[1, 2, 3, 21]"}));
  CHECK(test::has_all(call({nullptr, {1, 2, 3, 4}, {24, 12, 4, 1}}, bila::bhld(y.data(), 1, 2, 3, 21)), {"x", "null"}));
  CHECK(test::has_all(call(bila::bhld(x.data(), 1, 2, 3, 4), bila::bhld(x.data(), 1, 2, 3, 21)), {"phi", "x", "overlap"}));
  CHECK(test::has_all(call(bila::bhld(x.data(), 1, 1, 1, index_t{1} << 40), bila::bhld(y.data(), 1, 1, 1, 1)),
                      {"x has width", "2^30"}));
  CHECK(test::has_all(call(bila::bhld(x.data(), 1, index_t{1} << 62, 1, 1), bila::bhld(y.data(), 1, 1, 1, 1)),
                      {"x has shape", "2^48"}));
  CHECK(test::has_all(test::refusal([&] {
                        bila::features_gradient(backend, feature::taylor{}, bila::bhld(x.data(), 1, 2, 3, 4),
                                                bila::bhld(y.data(), 1, 2, 3, 21), bila::bhld(y.data(), 1, 2, 3, 4));
                      }),
                      {"dx", "dphi", "overlap"}));
  const auto same_width = [&](index_t at, bila::per_axis strides) {
    const bila::tensor_view<double> to{x.data() + at, {1, 2, 3, 4}, strides};
    return test::refusal([&] { bila::features(backend, feature::identity{}, bila::bhld(x.data(), 1, 2, 3, 4), to); });
  };
  CHECK(same_width(0, {24, 12, 4, 1}).empty());
  CHECK(test::has_all(same_width(1, {24, 12, 4, 1}), {"phi overlaps x"}));
  CHECK(test::has_all(same_width(0, {24, 4, 8, 1}), {"phi overlaps x"}));
  CHECK(test::has_all(test::refusal([&] {
                        std::vector<double> dx(24);
                        bila::features_gradient(backend, feature::taylor{}, bila::bhld(x.data(), 1, 2, 3, 4),
                                                bila::bhld(y.data(), 1, 2, 3, 21), bila::bhld(dx.data(), 1, 2, 4, 3));
                      }),
                      {"dx", "[1, 2, 4, 3]"}));
}
