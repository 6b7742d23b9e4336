// SPDX-License-Identifier: Apache-2.0
// The bits do not depend on how many threads there are, whether heads or shares of one head are spread over them.
#include "support/catch.hpp"
#include "support/gradient.hpp"
#include "support/problem.hpp"

#include <cmath>

namespace {

using test::index_t;

template <class T>
void check(const test::problem<T>& x) {
  for (const auto& form : test::all_forms) {
    const auto alone = test::evaluate(form, x);
    for (const int threads : {1, 2, 3, 5, 8, 0}) {
      INFO(test::name_of(form) << ", " << threads << " threads: " << x.name());
      const auto y = test::evaluate(form, x, {.threads = threads});
      CHECK(y.intact);
      CHECK(same_bits(y.y, alone.y));
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("every mask, norm and direction, one long head", "", float, double) {
  test::random_source random(761);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto direction : test::all_directions) {
        auto x = test::random_problem<TestType>(random, {1, 1, 400, 4, 53}, kind, norm);
        x.direction = direction;
        x.diagonal = 0.5;
        check(x);
      }
}

TEMPLATE_TEST_CASE("heads that divide evenly over the threads and heads that do not", "", float, double) {
  test::random_source random(762);
  for (const auto kind : {test::mask_kind::all_ones, test::mask_kind::source})
    for (const test::index_t heads : {1, 2, 3, 5, 7, 16}) {
      check(test::random_problem<TestType>(random, {1, heads, 300, 8, 40}, kind, bila::norm::row_sum{1e-6}));
      check(test::random_problem<TestType>(random, {heads, 1, 140, 7, 3}, kind, bila::norm::max_one{}));
    }
}

TEMPLATE_TEST_CASE("packed segments and lengths", "", float, double) {
  test::random_source random(763);
  auto packed = test::random_problem<TestType>(random, {1, 2, 600, 8, 40}, test::mask_kind::source, bila::norm::row_sum{1e-6});
  packed.offsets = {0, 0, 1, 200, 201, 590, 600};
  check(packed);
  auto padded = test::random_problem<TestType>(random, {3, 1, 260, 8, 40}, test::mask_kind::source, bila::norm::row_sum{1e-6});
  padded.lengths = {260, 0, 131};
  check(padded);
}

TEMPLATE_TEST_CASE("one head much longer than all that is shared of it", "", float, double) {
  test::random_source random(764);
  check(test::random_problem<TestType>(random, {1, 1, 3000, 16, 64}, test::mask_kind::later, bila::norm::row_sum{1e-6}));
}

// `automatic` once took as many shares as `full` has blocks of rows where a head has fewer blocks of columns, and nobody was left
// to write the row sums.
TEST_CASE("row sums and states are written whatever the number of threads, with the same bits") {
  test::random_source random(765);
  for (const test::sizes& size : {test::sizes{.H = 3, .L = 1024, .Dk = 16, .Dv = 20}, test::sizes{.L = 2000, .Dk = 32, .Dv = 16},
                                  test::sizes{.H = 2, .L = 300, .Dk = 8, .Dv = 0}})
    for (const auto direction : test::all_directions)
      for (const auto& form : test::all_forms) {
        auto x = test::random_problem<float>(random, size, test::mask_kind::source, bila::norm::row_sum{1e-6});
        x.direction = direction;
        const auto run = [&](int threads, const bila::outputs<float>& out) {
          test::forward_pass<float>(test::layer::eigen, {.threads = threads}, form, x.mask(), x.norm, x.inputs(), out);
        };
        const auto sums = [&](int threads) {
          test::tensor<float> row_sum(1, size.H, size.L, 1), y = x.output();
          run(threads, {y.view(), row_sum.view()});
          return row_sum;
        };
        const auto alone = sums(1);
        INFO(test::name_of(form) << ", " << x.name());
        bool written = true;
        alone.for_each([&](float z, index_t, index_t, index_t, index_t) { written = written && std::isfinite(z); });
        CHECK(written);
        for (const int threads : {2, 3, 16}) CHECK(same_bits(sums(threads), alone));
        if (std::holds_alternative<bila::form::full>(form) || direction == bila::direction::backward) continue;
        const auto states = [&](int threads) {
          test::carried<float> end{
              test::tensor<float>(1, size.H, size.Dk, size.Dv), test::tensor<float>(1, size.H, size.Dk, 1), {}};
          test::tensor<float> y = x.output();
          run(threads, {y.view(), {}, end.view(), {}});
          return end;
        };
        const auto end = states(1);
        written = true;
        end.z.for_each([&](float z, index_t, index_t, index_t, index_t) { written = written && std::isfinite(z); });
        CHECK(written);
        for (const int threads : {2, 16}) {
          const auto other = states(threads);
          CHECK((same_bits(other.z, end.z) && same_bits(other.S, end.S)));
        }
      }
}
