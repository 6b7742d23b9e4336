// SPDX-License-Identifier: Apache-2.0
// A mask and a norm behind pointers answer what they answer themselves, and are asked for nothing else.
#include "support/catch.hpp"

#include <bila/form/views.hpp>
#include <bila/kernel/reference.hpp>
#include <bila/mask/all_ones.hpp>
#include <bila/norm/max_one.hpp>
#include <bila/norm/none.hpp>
#include <bila/norm/row_sum.hpp>

#include <cmath>
#include <set>
#include <vector>

namespace {

using bila::direction;
using bila::index_t;

/// Every argument leaves its own digit, and a note of what was asked for.
struct digits {
  std::set<index_t>* asked = nullptr;
  double digit(index_t b, index_t h, index_t n) const {
    if (asked != nullptr) asked->insert(n);
    return -static_cast<double>(100 * b + 10 * h + n);
  }
};

struct gaps_of_digits : digits {
  static constexpr bila::gap gaps = bila::gap::per_token;
  double log_forward(index_t b, index_t h, index_t t) const { return digit(b, h, t); }
  double log_backward(index_t b, index_t h, index_t t) const { return 1000 * digit(b, h, t); }
};

struct pairs_of_digits : digits {
  double weight(index_t b, index_t h, index_t i, index_t j) const { return digit(b, h, i) - 1000 * static_cast<double>(j); }
};

/// Both gapped and pairwise: the gaps are what counts.
struct either : gaps_of_digits {
  double weight(index_t, index_t, index_t, index_t) const { return 7; }
};

/// A forward call in float has no business with it.
struct slope_in_double {
  static constexpr bool uses_row_sum = false;
  template <class Real>
  bila::quotient<Real> operator()(Real Z, Real scale) const {
    return {scale, Z + 2};
  }
  bila::slope<double> slope(double, double, double) const { return {}; }
};

}  // namespace

TEST_CASE("a mask's view says what kind it is") {
  const auto none = bila::form::view_of_mask<double>(bila::mask::all_ones{});
  CHECK((none.gapped && none.gaps == bila::gap::none));
  const gaps_of_digits mask{};
  const auto gaps = bila::form::view_of_mask<double>(mask);
  CHECK((gaps.mask == &mask && gaps.gapped && gaps.gaps == bila::gap::per_token && gaps.ask_log_decays != nullptr));
  const auto pairs = bila::form::view_of_mask<double>(pairs_of_digits{});
  CHECK((!pairs.gapped && pairs.gaps == bila::gap::none && pairs.ask_log_decays == nullptr && pairs.ask_weights != nullptr));
  CHECK(
      (bila::form::view_of_mask<double>(either{}).gapped && bila::form::view_of_mask<double>(either{}).ask_log_decays != nullptr));
}

TEST_CASE("a head's mask counts from the segment's first token and asks for the gaps named, no other") {
  std::set<index_t> asked;
  const gaps_of_digits mask{{&asked}};
  const bila::form::head_mask<double> head{bila::form::view_of_mask<double>(mask), 3, 2, 4};
  std::vector<double> logs(5, 99);
  head.log_decays(direction::forward, 2, 3, logs.data() + 1);
  CHECK(logs == std::vector<double>{99, -326, -327, -328, 99});
  head.log_decays(direction::backward, 2, 3, logs.data() + 1);
  CHECK(logs == std::vector<double>{99, -326000, -327000, -328000, 99});
  head.log_decays(direction::forward, 0, 0, nullptr);
  CHECK(head.decay(direction::forward, 3) == std::exp(-327.0));
  CHECK(asked == std::set<index_t>{6, 7, 8});
}

TEST_CASE("weights of one key, by as many queries as are named") {
  std::set<index_t> asked;
  const pairs_of_digits mask{{&asked}};
  const bila::form::head_mask<double> head{bila::form::view_of_mask<double>(mask), 3, 2, 4};
  std::vector<double> weights(4, 99);
  head.weights(2, 2, 5, weights.data() + 1);
  CHECK(weights == std::vector<double>{99, -326 - 9000, -327 - 9000, 99});
  CHECK(asked == std::set<index_t>{6, 7});
}

TEMPLATE_TEST_CASE("a norm's view is the norm", "", float, double) {
  using Real = TestType;
  const bila::norm::row_sum norm{0.5};
  const auto sums = bila::form::view_of_norm<Real>(norm);
  CHECK((sums.norm == &norm && sums.uses_row_sum));
  const std::vector<Real> z{1.5, -2.5, -0.5};
  std::vector<Real> out(3);
  CHECK(sums.row_scales(out.data(), z.data(), 2, 3));
  CHECK((out[0] == Real(0.5) && out[1] == Real(-0.5)));
  CHECK_FALSE(sums.row_scales(out.data(), z.data(), 3, 3));  // the last divisor is zero
  CHECK(sums.quotient_of(Real(-0.5), 3).divisor == 0);

  const bila::norm::max_one max{};
  const auto large = bila::form::view_with_slopes<Real>(max);
  const std::vector<Real> memory{4, 99, -8, 99};
  const std::vector<double> dots{2, 3};
  std::vector<Real> a(2), b(2);
  CHECK(large.slopes(a.data(), b.data(), {memory.data(), 2, 1, 2, 1}, dots.data(), 2, 0.5) == 0);
  CHECK((a[0] == Real(0.25) && a[1] == Real(0.125) && b[0] == Real(-0.5) && b[1] == Real(0.375)));

  const bila::norm::none plain{};
  const auto none = bila::form::view_with_slopes<Real>(plain);
  CHECK_FALSE(none.uses_row_sum);
  CHECK(none.slopes(a.data(), b.data(), {}, dots.data(), 2, 0.5) == 2 / 0.5 + 3 / 0.5);  // no row sums are read
  CHECK((a[0] == Real(0.5) && b[0] == 0 && a[1] == Real(0.5) && b[1] == 0));
  CHECK(bila::form::view_of_norm<Real>(plain).ask_slopes == nullptr);
  CHECK(bila::form::view_of_norm<Real>(slope_in_double{}).quotient_of(1, 3).divisor == 3);
}
