// SPDX-License-Identifier: Apache-2.0
// How what crosses a chunk's gaps is added up, against sums over pairs and gaps.
#include "support/catch.hpp"
#include "support/random.hpp"

#include <bila/form/head_gradient.hpp>
#include <bila/kernel/packets.hpp>
#include <bila/kernel/reference.hpp>

#include <algorithm>
#include <vector>

namespace {

using bila::direction;
using bila::index_t;

template <class Kernel, class T>
struct on {
  using kernel = Kernel;
  using stored = T;
};

/// A slope that says what it was made of.
template <bool Uses>
struct noting_norm {
  static constexpr bool uses_row_sum = Uses;
  template <class Real>
  bila::quotient<Real> operator()(Real Z, Real scale) const {
    return {scale, Z};
  }
  template <class Real>
  bila::slope<Real> slope(Real Z, Real scale, Real dy_y) const {
    return {Z + 5, 2 * dy_y, scale * dy_y};
  }
};

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
    bila::form::gate_gradient_scan(direction::forward, pass, rows.data(), columns.data(), n, found.data());
    for (index_t t = 0; t < n; ++t) {
      expected[static_cast<std::size_t>(t)] += pass;
      for (index_t i = 0; i < n; ++i)
        expected[static_cast<std::size_t>(t)] += (i >= t ? at(rows, i) : 0) + (i < t ? at(columns, i) : 0);
    }
    check_near(found, expected);
    // Backward, a token i reads across gaps i + 1..n, a token j is read across gaps 1..j.
    found = expected = start;
    bila::form::gate_gradient_scan(direction::backward, pass, rows.data(), columns.data(), n, found.data());
    for (index_t t = 1; t <= n; ++t) {
      expected[static_cast<std::size_t>(t)] += pass;
      for (index_t i = 0; i < n; ++i)
        expected[static_cast<std::size_t>(t)] += (i < t ? at(rows, i) : 0) + (i >= t ? at(columns, i) : 0);
    }
    check_near(found, expected);
  }
}

TEMPLATE_TEST_CASE("a pair inside a chunk is counted at each gap between its tokens and at no other", "", bila::kernel::reference,
                   bila::kernel::eigen) {
  test::random_source random(4302);
  for (const index_t n : {1, 2, 7}) {
    constexpr index_t stride = 16;
    std::vector<double> E(static_cast<std::size_t>(n * stride)), running(stride);
    for (index_t j = 0; j < n; ++j)
      for (index_t i = 0; i < n; ++i) E[static_cast<std::size_t>(j * stride + i)] = random.uniform(-1, 1);
    const auto start = uniform(random, n + 1);
    auto forward = start, backward = start, expected_forward = start, expected_backward = start;
    TestType::crossings(forward.data(), backward.data(), bila::kernel::tile<double>{E.data(), n, n, stride}, running.data());
    for (index_t i = 0; i < n; ++i)
      for (index_t j = 0; j < n; ++j) {
        const double e = at(E, j * stride + i);
        for (index_t t = j + 1; t <= i; ++t) expected_forward[static_cast<std::size_t>(t)] += e;
        for (index_t t = i + 1; t <= j; ++t) expected_backward[static_cast<std::size_t>(t)] += e;
      }
    check_near(forward, expected_forward);
    check_near(backward, expected_backward);
  }
}

TEMPLATE_TEST_CASE("a diagonal's weight is applied after its gradient is noted", "", float, double) {
  constexpr index_t n = 3, stride = 16;
  bila::form::head<TestType> x{};
  x.diagonal = 0.5;
  bila::form::head_gradient<TestType> g{};
  g.diagonal = 100;
  std::vector<TestType> A(n * stride), G(n * stride), E(n * stride);
  for (std::size_t m = 0; m < A.size(); ++m) {
    A[m] = static_cast<TestType>(m + 1);
    G[m] = static_cast<TestType>(2 * m + 1);
    E[m] = static_cast<TestType>(3 * m + 1);
  }
  const auto A_before = A, G_before = G, E_before = E;
  const auto whole = [](std::vector<TestType>& m) { return bila::kernel::tile<TestType>{m.data(), n, n, stride}; };
  bila::form::weigh_diagonal(x, g, whole(A), whole(G), whole(E));
  CHECK(g.diagonal == 100 + (1 + (3 * 17 + 1) + (3 * 34 + 1)));
  CHECK(E == E_before);
  for (std::size_t m = 0; m < A.size(); ++m) {
    const TestType times = m % (stride + 1) == 0 && m / stride < n ? TestType(0.5) : TestType(1);
    CHECK((A[m] == times * A_before[m] && G[m] == times * G_before[m]));
  }
}

TEMPLATE_TEST_CASE("passes and heads add to one gradient in order: the first starts it, the last rounds it", "",
                   (on<bila::kernel::reference, float>), (on<bila::kernel::eigen, float>), (on<bila::kernel::eigen, double>),
                   (on<bila::kernel::reference, bila::bf16>), (on<bila::kernel::eigen, bila::bf16>)) {
  using Kernel = typename TestType::kernel;
  using T = typename TestType::stored;
  using Real = bila::real_of<T>;
  constexpr index_t L = 5, first = 1, n = 3, room_stride = 48;
  for (const index_t D : {16, 32, 17})
    for (const index_t apart : {1, 2})
      for (int passes = 1; passes <= 4; ++passes) {
        INFO("D=" << D << " apart=" << apart << " passes=" << passes);
        const index_t stride = apart * D + 3;
        std::vector<T> out(static_cast<std::size_t>(L * stride), T(7));
        std::vector<Real> sum(out.size(), Real(9)), memory(n * room_stride);
        bila::form::gradient_rows<T> to{{out.data(), L, D, stride, apart}, {sum.data(), L, D, stride, apart}};
        if constexpr (!bila::form::is_narrow<T>) to.sum = to.out;
        const bila::kernel::tile<Real> X{memory.data(), n, D, room_stride};
        const auto part = [](int pass, index_t i, index_t d) {
          return Real(1 + pass) + static_cast<Real>(i * 64 + d) * Real(0x1p-12f);
        };
        for (int pass = 0; pass < passes; ++pass) {  // two heads of two passes, or less
          to.first = pass < 2;
          to.last = pass / 2 == (passes - 1) / 2;
          for (index_t i = 0; i < n; ++i)
            for (index_t d = 0; d < D; ++d) X.row(i)[d] = part(pass, i, d);
          bila::form::accumulate_or_store<Kernel>(to, first, X, pass % 2 == 0, pass % 2 == 1 || pass == passes - 1);
          if (bila::form::is_narrow<T> && pass + 1 < passes) CHECK(static_cast<Real>(to.out(first, 0)) == Real(7));
        }
        bool right = true, beside = true;
        for (index_t i = 0; i < L; ++i)
          for (index_t d = 0; d < D; ++d) {
            const bool mine = i >= first && i < first + n;
            Real total = 0;
            for (int pass = 0; pass < passes; ++pass) total += part(pass, i - first, d);
            if (mine)
              right = right && static_cast<Real>(to.out(i, d)) == static_cast<Real>(static_cast<T>(total));
            else
              beside = beside && static_cast<Real>(to.out(i, d)) == Real(7);
          }
        CHECK(right);
        CHECK(beside);
        for (index_t i = 0; i < L; ++i) {  // what lies between the rows
          CHECK(static_cast<Real>(out[static_cast<std::size_t>(i * stride + apart * D)]) == Real(7));
          CHECK(sum[static_cast<std::size_t>(i * stride + apart * D)] == Real(9));
        }
      }
  bila::form::accumulate_or_store<Kernel>(bila::form::gradient_rows<T>{}, 0, bila::kernel::tile<Real>{}, true, true);  // not wanted
}

TEMPLATE_TEST_CASE("through the norm: the slopes of each row, and this call's part in the scale", "",
                   (on<bila::kernel::reference, float>), (on<bila::kernel::eigen, float>), (on<bila::kernel::eigen, double>),
                   (on<bila::kernel::reference, bila::bf16>), (on<bila::kernel::eigen, bila::bf16>)) {
  using Kernel = typename TestType::kernel;
  using T = typename TestType::stored;
  using Real = bila::real_of<T>;
  test::random_source random(4303);
  constexpr index_t L = 40, first = 2, n = 35;
  for (const index_t D : {16, 5}) {
    std::vector<T> y(L * 16), dy(L * 16);
    std::vector<Real> Z(L), room_y(L * 16), room_dy(L * 16), a(L + 1, 99), b(L + 1, 99);
    std::vector<double> dots(L);
    for (T& value : y) value = static_cast<T>(static_cast<float>(random.below(64) - 32));
    for (T& value : dy) value = static_cast<T>(static_cast<float>(random.below(64) - 32));
    for (Real& value : Z) value = static_cast<Real>(1 + random.below(4));
    bila::form::head<T> x{};
    x.scale = 3;
    bila::form::head_gradient<T> g{};
    g.y = {y.data(), L, D, 16, 1};
    g.dy = {dy.data(), L, D, 16, 1};
    g.row_sum = {Z.data(), L, 1, 1, 1};
    const auto call = [&](const auto& norm) {
      return bila::form::through_norm<Kernel>(x, g, first, n, a.data(), b.data(), dots.data(), {room_dy.data(), L, D, 16},
                                              bila::kernel::tile<Real>{room_y.data(), L, D, 16},
                                              bila::form::view_with_slopes<Real>(norm));
    };
    for (const bool uses_row_sum : {true, false}) {
      if (!uses_row_sum) g.row_sum = {};  // must not be read
      std::fill(a.begin(), a.end(), Real(99));
      std::fill(b.begin(), b.end(), Real(99));
      const double scale = uses_row_sum ? call(noting_norm<true>{}) : call(noting_norm<false>{});
      double expected = 0;
      for (index_t i = 0; i < n; ++i) {
        double dy_y = 0;  // whole numbers: exact in every order
        for (index_t d = 0; d < D; ++d)
          dy_y += static_cast<double>(static_cast<Real>(g.dy(first + i, d)) * static_cast<Real>(g.y(first + i, d)));
        const double row_sum = uses_row_sum ? static_cast<double>(Z[static_cast<std::size_t>(first + i)]) : 0;
        CHECK(static_cast<double>(a[static_cast<std::size_t>(i)]) == row_sum + 5);
        CHECK(static_cast<double>(b[static_cast<std::size_t>(i)]) == 2 * dy_y);
        expected += 3 * dy_y;
      }
      CHECK((a[n] == 99 && b[n] == 99));
      CHECK(scale == expected);
    }
  }
}

TEMPLATE_TEST_CASE("a state is taken transposed, or zero, padding included", "", (on<bila::kernel::reference, float>),
                   (on<bila::kernel::eigen, float>), (on<bila::kernel::eigen, double>)) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::stored;
  constexpr index_t Dk = 3, Dv = 5, stride = 16;
  std::vector<Real> given(Dk * 20), sums(Dk);
  for (std::size_t m = 0; m < given.size(); ++m) given[m] = static_cast<Real>(m + 1);
  for (std::size_t m = 0; m < sums.size(); ++m) sums[m] = -static_cast<Real>(m + 1);
  for (int present = 0; present < 3; ++present) {
    bila::form::head_state<const Real> from;
    if (present > 0) from.S = {given.data(), Dk, Dv, 20, 3};
    if (present > 1) from.z = {sums.data(), Dk, 1, 1, 1};
    std::vector<Real> memory((Dv + 1) * stride, 99), s(stride, 99);
    const bila::kernel::tile<Real> St{memory.data(), Dv, Dk, stride};
    bila::form::load_initial_state_transposed<Kernel>(St, s.data(), from);
    for (index_t d = 0; d < Dv; ++d)
      for (index_t c = 0; c < stride; ++c) CHECK(St.row(d)[c] == (present > 0 && c < Dk ? from.S(c, d) : Real(0)));
    for (index_t c = 0; c < stride; ++c) {
      const bool written = c < bila::kernel::round_up(Dk, Kernel::template lanes<Real>);
      CHECK(s[static_cast<std::size_t>(c)] == (!written ? Real(99) : present > 1 && c < Dk ? from.z(c, 0) : Real(0)));
    }
    CHECK(memory[Dv * stride] == 99);
  }
}
