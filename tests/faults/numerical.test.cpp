// SPDX-License-Identifier: Apache-2.0
// Faults that users of linear attention have met elsewhere, kept out by a test each: numbers that overflow, cancel or drift.
#include "faults/faults.hpp"

#include <bila/mask/gates.hpp>

#include <cmath>
#include <limits>
#include <utility>

using namespace faults;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("N5: decays within rounding of one do not drift over 100000 tokens", "[numerical]") {
  const index_t L = 100000;
  test::random_source random(5);
  auto sums = row_sums(mask_kind::fixed, L), features = sample({.L = L, .Dk = 4, .Dv = 4}, mask_kind::fixed, bila::norm::none{});
  for (auto* input : {&features.q, &features.k, &features.v}) input->fill_uniform(random, 0.1, 1);

  for (const double below_one : {1e-7, 6e-8}) {  // float has no number between 1 - 6e-8 and 1
    for (auto* x : {&sums, &features}) x->gates.fill(std::log1p(-below_one));
    const test::answer exact = test::long_definition(features.inputs(), features.gaps(), features.rule());
    const test::answer exact_sums = test::long_definition(sums.inputs(), sums.gaps(), sums.rule());
    for (const test::any_form& form : linear_forms) {
      check_against_definition(form, features, exact);
      run(form, sums).for_each([&](float y, index_t b, index_t h, index_t l, index_t d) {
        const std::size_t at = exact_sums.place(b, h, l, d);
        if (!(y > 0 && y <= L && std::fabs(y - exact_sums.y[at]) <= 1e-5L * exact_sums.y[at]))
          FAIL_CHECK("row " << l << " sums to " << y);
      });
    }
  }

  sums.gates.fill(1e-7);  // one, to the precision in which such gates come: every sum is an integer, and exact
  for (const test::any_form& form : linear_forms) check_all(run(form, sums), [](float y) { return y == 100000; });
}

TEST_CASE("N5: no weight exceeds one", "[numerical]") {
  for (const mask_kind kind : {mask_kind::fixed, mask_kind::source, mask_kind::two_sided}) {
    auto x = whole_mask(kind, 300);
    test::random_source random(5);
    for (auto* gates : {&x.gates, &x.other_gates}) gates->fill_uniform(random, -2e-7, 0);
    for (const test::any_form& form : test::all_forms) check_all(run(form, x), [](float M) { return M > 0 && M <= 1; });
  }
}

TEST_CASE("N6: a gate of 1e-30 at the border of a block neither explodes nor leaks", "[numerical]") {
  for (const mask_kind kind : {mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::earlier})
    for (const index_t tiny : {0, 15, 16, 63}) {
      auto sums = row_sums(kind, 64);
      auto features = sample({.L = 64, .Dk = 8, .Dv = 8}, kind);
      for (auto* x : {&sums, &features}) {
        x->gates.fill(std::log(.99));
        x->gates(0, 0, tiny) = std::log(1e-30);
        for (const test::any_form& form : three_forms(16)) check_against_definition(form, *x, x->exact());
      }
    }
}

TEST_CASE("N8: a row sum of zero gives zero in every form, a negative one divides", "[numerical]") {
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::fixed, mask_kind::later})
    for (const test::any_form& form : test::all_forms) {
      auto x = row_sums(kind, 2);
      x.gates.fill(0);
      x.v(0, 0, 1) = 2;

      x.norm = bila::norm::row_sum{};
      x.k(0, 0, 1) = -1;
      check_all(run(form, x), [](float y) { return y == 0; });  // -1 / 0
      x.k(0, 0, 1) = -3;
      check_all(run(form, x), [](float y) { return y == 2.5f; });  // -5 / -2
      x.norm = bila::norm::max_one{};
      check_all(run(form, x), [](float y) { return y == -2.5f; });  // -5 / |-2|

      x.q(0, 0, 0) = 0;  // what elu + 1 leaves of a very negative feature
      for (const test::any_norm& norm : {test::any_norm(bila::norm::row_sum{}), test::any_norm(bila::norm::row_sum{1e-6}),
                                         test::any_norm(bila::norm::max_one{})}) {
        x.norm = norm;
        CHECK(run(form, x)(0, 0, 0) == 0);
      }
    }
}

TEST_CASE("N9: the scale cancels from the row sum, and eps means the same in every form", "[numerical]") {
  const index_t L = 3, Dk = 4;
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::fixed})
    for (const test::any_form& form : test::all_forms) {
      auto x = sample({.L = L, .Dk = Dk}, kind);
      x.gates.fill(0), x.v.fill(1), x.k.fill(1);
      x.q.for_each([](float& q, index_t, index_t, index_t, index_t d) { q = d == 0 ? 1e-8f : 0; });
      for (const auto& [eps, expected] :
           {std::pair(0.0, 1.0), std::pair(1e-6, 3e-8 / (3e-8 + 1e-6)), std::pair(1e-10, 3e-8 / (3e-8 + 1e-10))}) {
        x.norm = bila::norm::row_sum{eps};
        x.scale = 1;
        const auto unscaled = run(form, x);
        check_all(unscaled, [wanted = expected](float y) {
          return std::fabs(y / wanted - 1) <= 8 * double(std::numeric_limits<float>::epsilon());
        });
        for (const double scale : {1 / std::sqrt(double(Dk)), 1 / double(L)}) {
          x.scale = scale;
          CHECK(same_bits(run(form, x), unscaled));
        }
      }
    }
}

TEST_CASE("N10: the row sum runs over the tokens and across chunks", "[numerical]") {
  auto x = sample({.B = 2, .H = 4, .L = 256, .Dk = 60, .Dv = 60}, mask_kind::all_ones);
  for (const bila::direction way : test::all_directions) {
    x.direction = way;
    const tensor<float> full = run(bila::form::full{}, x);
    for (const test::any_form& form : three_forms(64)) CHECK(largest_difference(run(form, x), full) < 1e-5f);
  }
}

TEST_CASE("N11: the chunk size does not change the result", "[numerical]") {
  for (const test::any_norm& norm : test::all_norms) {
    auto x = sample({.L = 12, .Dk = 4, .Dv = 4}, mask_kind::fixed, norm);
    x.gates.fill(std::log(.9));
    const test::answer exact = x.exact();
    const tensor<float> one_chunk = run(bila::form::chunkwise{.size = 12}, x);
    for (const index_t size : {1, 3, 5, 12}) {
      check_against_definition(bila::form::chunkwise{.size = size}, x, exact);
      CHECK(largest_difference(run(bila::form::chunkwise{.size = size}, x), one_chunk) <= 1e-6f);
    }
  }
}

TEST_CASE("N13: the diagonal counts once, or as often as asked", "[numerical]") {
  for (const mask_kind kind : {mask_kind::fixed, mask_kind::source})
    for (const index_t L : {1, 5, 130}) {
      auto x = row_sums(kind, L);
      x.gates.fill(-infinity);
      for (const double diagonal : {1.0, 2.0, 0.0, 0.5}) {
        x.diagonal = diagonal;
        for (const test::any_form& form : test::all_forms)
          check_all(run(form, x), [diagonal](float y) { return y == static_cast<float>(diagonal); });
      }
    }
}

TEST_CASE("N14: doubly exponential decays keep their value at both ends (float and double; half comes with its type)",
          "[numerical]") {
  const auto check = [](auto x) {
    x.gates.for_each(
        [](double& gate, index_t, index_t, index_t l, index_t) { gate = -std::exp(20.0 * static_cast<double>(l % 3 - 1)); });
    for (const test::any_form& form : test::all_forms) check_against_definition(form, x, x.exact());
    x.gates.fill(-std::exp(-20.0));  // 1 - 2e-9, which is one in float but not after a thousand tokens
    for (const test::any_form& form : test::all_forms) check_against_definition(form, x, x.exact());
  };
  for (const mask_kind kind : {mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::earlier}) {
    check(row_sums<float>(kind, 200));
    check(row_sums<double>(kind, 200));
  }
}

TEST_CASE("N15: 43884 tokens of random gates stay finite and equal the recurrence to the end", "[numerical]") {
  const index_t L = 43884, D = 64, near = 600, last = 100;
  test::random_source random(15);
  auto x = sample({.L = L, .Dk = D, .Dv = D}, mask_kind::later);
  x.gates.fill_uniform(random, -2, 0);
  const tensor<float> chunkwise = run(bila::form::chunkwise{.size = 64}, x), recurrent = run(bila::form::recurrent{}, x);
  check_all(chunkwise, [](float y) { return std::isfinite(y); });
  check_all(recurrent, [](float y) { return std::isfinite(y); });

  // What is 500 tokens away weighs about exp(-500): the last rows follow from the last tokens alone.
  const test::answer exact = cut(x, {.l = L - near, .L = near}).exact();
  float apart = 0;
  test::wide worst = 0;
  for (index_t i = near - last; i < near; ++i)
    for (index_t d = 0; d < D; ++d) {
      const std::size_t at = exact.place(0, 0, i, d);
      for (const auto* y : {&chunkwise, &recurrent})
        worst = std::fmax(worst, std::fabs((*y)(0, 0, L - near + i, d) - exact.y[at]) / test::bound<float>(exact, at, near, D));
      apart = std::fmax(apart, std::fabs(chunkwise(0, 0, L - near + i, d) - recurrent(0, 0, L - near + i, d)));
    }
  CHECK(worst <= 1);
  CHECK(apart <= 1e-4f);
}

// A state that is kept 65536 times too large leaves float where the true one does not.
TEST_CASE("U10: keys of e^60 to e^80 beside decays", "[numerical]") {
  test::random_source random(10);
  auto x = sample({.L = 200, .Dk = 8, .Dv = 8}, mask_kind::fixed, bila::norm::row_sum{});
  x.gates.fill(-0.15);
  x.k.for_each([&](float& k, index_t, index_t, index_t, index_t) { k = static_cast<float>(std::exp(random.uniform(60, 80))); });
  const test::answer exact = x.exact();
  for (const test::any_form& form : test::all_forms) check_against_definition(form, x, exact);
}

TEST_CASE("U12: the slope of e^x at which the decay is zero", "[numerical]") {
  double raw[] = {-1, 3, 709, 710, 1e6, 1}, slope[] = {1, 1, 0, 0, 0, 0}, to[6];
  bila::gates::pull_back(bila::gates::double_exponential{}, bila::bhl(raw, 1, 1, 6), bila::bhl(slope, 1, 1, 6),
                         bila::bhl(to, 1, 1, 6));
  for (const double x : to) CHECK(std::isfinite(x));
  CHECK((to[0] == -std::exp(-1.0) && to[3] == 0 && to[4] == 0));
}
