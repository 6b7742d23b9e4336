// SPDX-License-Identifier: Apache-2.0
// How the work of one head is shared, and how a row leaves.
#include "support/catch.hpp"

#include <bila/form/head.hpp>
#include <bila/kernel/reference.hpp>
#include <bila/norm/max_one.hpp>
#include <bila/norm/row_sum.hpp>

#include <cmath>
#include <vector>

namespace {

using bila::index_t;

struct no_mask {};

struct fixed_quotient {
  static constexpr bool uses_row_sum = true;
  template <class Real>
  bila::quotient<Real> operator()(Real Z, Real scale) const {
    return {scale, Z};
  }
};

struct ignores_row_sum {
  static constexpr bool uses_row_sum = false;
  template <class Real>
  bila::quotient<Real> operator()(Real Z, Real) const {
    return {Real(1), Z + 2};
  }
};

}  // namespace

TEST_CASE("shares of columns cover every value feature once, in order") {
  for (const index_t Dv : {0, 1, 15, 16, 17, 31, 32, 33, 64, 100, 257})
    for (const index_t wanted : {1, 2, 3, 4, 7, 100}) {
      INFO("Dv = " << Dv << ", wanted " << wanted);
      const index_t count = bila::form::shares_by_column(Dv, wanted);
      CHECK(count >= 1);
      CHECK(count <= wanted);
      std::vector<float> v(static_cast<std::size_t>(2 * Dv)), y(v);
      index_t next = 0;
      for (index_t n = 0; n < count; ++n) {
        bila::form::head<float, no_mask> head{};
        head.v = {v.data(), 2, Dv, Dv, 1};
        head.y = {y.data(), 2, Dv, Dv, 1};
        const auto part = bila::form::columns_of(head, {n, count});
        CHECK(part.v.data == v.data() + next);
        CHECK(part.y.data == y.data() + next);
        CHECK((part.v.width == part.y.width && part.v.width >= 0 && part.v.count == 2));
        next += part.v.width;
        if (n + 1 < count) CHECK(next % bila::form::share_columns == 0);
      }
      CHECK(next == Dv);
    }
}

TEST_CASE("a finished row is factor N / divisor, and zero where the divisor is zero") {
  std::vector<double> N{2, 4, 6, 8, std::nan(""), 1}, y(8, 99), row_sum(4, 99);
  const std::vector<double> z{2, 0.5, 0};
  bila::form::head<double, no_mask> head{};
  head.y = {y.data(), 4, 2, 2, 1};
  head.row_sum = {row_sum.data(), 4, 1, 1, 1};
  head.scale = 3;
  const bila::kernel::tile<double> rows{N.data(), 3, 2, 2};
  bila::form::finish<bila::kernel::reference>(head, 1, rows, z.data(), fixed_quotient{});
  CHECK(y == std::vector<double>{99, 99, 3, 6, 36, 48, 0, 0});
  CHECK(row_sum == std::vector<double>{99, 2, 0.5, 0});  // without the scale

  N = {2, 4, 6, 8, 10, 12};
  bila::form::finish<bila::kernel::reference>(head, 0, rows, static_cast<const double*>(nullptr), ignores_row_sum{});
  CHECK(y == std::vector<double>{1, 2, 3, 4, 5, 6, 0, 0});
  CHECK(row_sum == std::vector<double>{99, 2, 0.5, 0});
}
