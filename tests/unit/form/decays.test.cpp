// SPDX-License-Identifier: Apache-2.0
// Which gaps a chunk reads, and the block of weights inside it.
#include "support/catch.hpp"
#include "support/oracle.hpp"

#include <bila/form/decays.hpp>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace {

using bila::direction;
using bila::index_t;

/// Notes what it is asked. Forward decays are 2^-t, backward ones 3^-t.
struct noting_mask {
  static constexpr bila::gap gaps = bila::gap::per_token;
  std::set<index_t>* asked;

  double log_forward(index_t b, index_t h, index_t t) const {
    CHECK((b == 4 && h == 5));
    asked->insert(t);
    return -static_cast<double>(t) * std::log(2.0);
  }
  double log_backward(index_t, index_t, index_t t) const {
    asked->insert(t);
    return -static_cast<double>(t) * std::log(3.0);
  }
};

struct barely_positive {
  double log_forward(index_t, index_t, index_t) const { return 9e-7; }
  double log_backward(index_t, index_t, index_t) const { return -std::numeric_limits<double>::infinity(); }
};

struct one_decay {
  static constexpr bila::gap gaps = bila::gap::per_head;
  double log_forward(index_t, index_t, index_t) const { return std::log(0.5); }
  double log_backward(index_t, index_t, index_t) const { return std::log(0.25); }
};

template <class Mask>
bila::form::head<double, Mask> head_of(const Mask& mask, index_t L, index_t first = 0) {
  bila::form::head<double, Mask> x{};
  x.q.count = x.k.count = x.v.count = x.y.count = L;
  x.mask = {&mask, 4, 5, first};
  x.diagonal = 7;
  x.direction = direction::both;
  return x;
}

bool near(double x, double exact) { return std::fabs(x - exact) <= 16 * std::numeric_limits<double>::epsilon() * std::fabs(exact); }

}  // namespace

TEST_CASE("gaps 0 and L of a segment are never asked for, all between are") {
  std::set<index_t> asked;
  const noting_mask mask{&asked};
  for (const index_t first : {0, 10}) {  // where the segment begins
    const auto x = head_of(mask, 6, first);
    std::vector<double> lambda(7, std::numeric_limits<double>::quiet_NaN());
    asked.clear();
    bila::form::fill_decays<direction::forward>(x, 0, 6, lambda.data());
    bila::form::fill_decays<direction::backward>(x, 0, 6, lambda.data());
    CHECK(asked == std::set<index_t>{first + 1, first + 2, first + 3, first + 4, first + 5});
    CHECK((lambda[0] == 1 && lambda[6] == 1));
    for (index_t t = 1; t < 6; ++t)
      CHECK(near(lambda[static_cast<std::size_t>(t)], std::pow(3.0, -static_cast<double>(first + t))));
  }
}

TEST_CASE("a chunk in the middle reads the gaps at both of its borders") {
  std::set<index_t> asked;
  const noting_mask mask{&asked};
  const auto x = head_of(mask, 9);
  std::vector<double> lambda(4, std::numeric_limits<double>::quiet_NaN());
  bila::form::fill_decays<direction::forward>(x, 3, 3, lambda.data());
  CHECK(asked == std::set<index_t>{3, 4, 5, 6});
  for (std::size_t m = 0; m < 4; ++m) CHECK(near(lambda[m], std::pow(2.0, -static_cast<double>(3 + m))));
}

TEST_CASE("a log decay just above zero counts as zero") {
  const barely_positive mask;
  const auto x = head_of(mask, 5);
  CHECK(x.mask.decay<direction::forward>(2) == 1);
  CHECK(x.mask.decay<direction::backward>(2) == 0);
}

TEST_CASE("the block of a chunk: below, on and above the diagonal, zero where the direction does not look") {
  const one_decay mask;
  auto x = head_of(mask, 20);
  for (const direction way : {direction::both, direction::forward, direction::backward}) {
    x.direction = way;
    std::vector<double> memory(4 * 8, std::numeric_limits<double>::quiet_NaN()), lambda(5), row(4);
    const bila::kernel::tile<double> M{memory.data(), 4, 4, 8};
    bila::form::scan_block(x, 8, M, lambda.data(), row.data(), true);
    for (const bool again : {false, true}) {
      if (again) bila::form::scan_block(x, 12, M, lambda.data(), row.data(), false);
      for (index_t i = 0; i < 4; ++i)
        for (index_t j = 0; j < 8; ++j) {
          const auto apart = static_cast<double>(std::abs(i - j));
          const double expected = j >= 4                                ? 0
                                  : i == j                              ? 7
                                  : i > j && way != direction::backward ? std::pow(0.5, apart)
                                  : i < j && way != direction::forward  ? std::pow(0.25, apart)
                                                                        : 0;
          CHECK(near(M.row(i)[j], expected));
        }
    }
  }
}
