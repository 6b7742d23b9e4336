// SPDX-License-Identifier: Apache-2.0
// How what crosses a chunk's gaps is added up, against sums over pairs and gaps.
#include "support/catch.hpp"
#include "support/random.hpp"

#include <bila/form/head_gradient.hpp>

#include <vector>

namespace {

using bila::direction;
using bila::index_t;

std::vector<double> uniform(test::random_source& random, index_t n) {
  std::vector<double> x(static_cast<std::size_t>(n));
  for (double& value : x) value = random.uniform(-1, 1);
  return x;
}

double at(const std::vector<double>& x, index_t n) { return x[static_cast<std::size_t>(n)]; }

void check_near(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t n = 0; n < found.size(); ++n) CHECK(found[n] == Approx(expected[n]).epsilon(1e-13).margin(1e-13));
}

}  // namespace

TEST_CASE("pairs that leave or enter a chunk are counted at every gap they cross inside it, and added to what is there") {
  test::random_source random(4301);
  for (const index_t n : {1, 2, 9}) {
    const auto rows = uniform(random, n), columns = uniform(random, n), start = uniform(random, n + 1);
    const double pass = random.uniform(-1, 1);
    // Forward, gap t lies before token t. A token i reads across gaps 0..i, a token j is read across gaps j + 1..n - 1.
    auto found = start, expected = start;
    bila::form::spread<direction::forward>(pass, rows.data(), columns.data(), n, found.data());
    for (index_t t = 0; t < n; ++t) {
      expected[static_cast<std::size_t>(t)] += pass;
      for (index_t i = 0; i < n; ++i)
        expected[static_cast<std::size_t>(t)] += (i >= t ? at(rows, i) : 0) + (i < t ? at(columns, i) : 0);
    }
    check_near(found, expected);
    // Backward, a token i reads across gaps i + 1..n, a token j is read across gaps 1..j.
    found = expected = start;
    bila::form::spread<direction::backward>(pass, rows.data(), columns.data(), n, found.data());
    for (index_t t = 1; t <= n; ++t) {
      expected[static_cast<std::size_t>(t)] += pass;
      for (index_t i = 0; i < n; ++i)
        expected[static_cast<std::size_t>(t)] += (i < t ? at(rows, i) : 0) + (i >= t ? at(columns, i) : 0);
    }
    check_near(found, expected);
  }
}

TEST_CASE("a pair inside a chunk is counted at each gap between its tokens and at no other") {
  test::random_source random(4302);
  for (const index_t n : {1, 2, 7}) {
    constexpr index_t stride = 9;
    auto P = uniform(random, n * stride), G = uniform(random, n * stride);
    std::vector<double> rows(static_cast<std::size_t>(n), 5), columns(rows);
    const auto start = uniform(random, n + 1);
    auto forward = start, backward = start, expected_forward = start, expected_backward = start;
    const bila::kernel::tile<double> p{P.data(), n, n, stride}, g{G.data(), n, n, stride};
    bila::form::block_gaps<direction::forward>(p, g, rows.data(), columns.data(), forward.data());
    bila::form::block_gaps<direction::backward>(p, g, rows.data(), columns.data(), backward.data());
    for (index_t i = 0; i < n; ++i)
      for (index_t j = 0; j < n; ++j) {
        const double e = at(P, i * stride + j) * at(G, i * stride + j);
        for (index_t t = j + 1; t <= i; ++t) expected_forward[static_cast<std::size_t>(t)] += e;
        for (index_t t = i + 1; t <= j; ++t) expected_backward[static_cast<std::size_t>(t)] += e;
      }
    check_near(forward, expected_forward);
    check_near(backward, expected_backward);
  }
}
