// SPDX-License-Identifier: Apache-2.0
// How the work of one head is split, and how a row is finished.
#include "support/catch.hpp"

#include <bila/backend/cpu/denormals.hpp>
#include <bila/form/head.hpp>
#include <bila/kernel/packets.hpp>
#include <bila/kernel/reference.hpp>
#include <bila/norm/max_one.hpp>
#include <bila/norm/row_sum.hpp>

#include <cmath>
#include <limits>
#include <vector>

namespace {

using bila::index_t;
using bila::kernel::tile;

constexpr index_t stride = 16;  // numbers: every packet

/// Rows of a padded tile.
template <class Real>
std::vector<Real> padded(const std::vector<std::vector<Real>>& rows) {
  std::vector<Real> result(rows.size() * stride);
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::copy(rows[i].begin(), rows[i].end(), result.begin() + static_cast<index_t>(i) * stride);
  return result;
}

template <class Kernel, class Real>
struct on {
  using kernel = Kernel;
  using real = Real;
};

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

template <class Kernel, class Real, class Norm>
void finish(const bila::form::head<Real>& head, index_t first, tile<Real> N, const Real* z, Real* out, const Norm& norm) {
  bila::form::finish<Kernel>(head, first, N, z, out, bila::form::view_of_norm<Real>(norm), [&] { Kernel::scale(N, out, N); });
}

}  // namespace

TEST_CASE("splits of columns cover every value feature once, in order") {
  for (const index_t Dv : {0, 1, 15, 16, 17, 31, 32, 33, 64, 100, 257})
    for (const index_t wanted : {1, 2, 3, 4, 7, 100}) {
      INFO("Dv = " << Dv << ", wanted " << wanted);
      const index_t count = bila::form::splits_by_column(Dv, wanted);
      CHECK(count >= 1);
      CHECK(count <= wanted);
      std::vector<float> v(static_cast<std::size_t>(2 * Dv)), y(v);
      index_t next = 0;
      for (index_t n = 0; n < count; ++n) {
        bila::form::head<float> head{};
        head.v = {v.data(), 2, Dv, Dv, 1};
        head.y = {y.data(), 2, Dv, Dv, 1};
        const auto part = bila::form::columns_of(head, {n, count});
        CHECK(part.v.data == v.data() + next);
        CHECK(part.y.data == y.data() + next);
        CHECK((part.v.width == part.y.width && part.v.width >= 0 && part.v.count == 2));
        next += part.v.width;
        if (n + 1 < count) CHECK(next % bila::form::split_columns == 0);
      }
      CHECK(next == Dv);
    }
}

TEMPLATE_TEST_CASE("a finished row is factor N / divisor, and zero where the divisor is zero", "", bila::kernel::reference,
                   bila::kernel::eigen) {
  std::vector<double> N = padded<double>({{2, 4}, {6, 8}, {std::nan(""), 1}}), y(8, 99), row_sum(4, 99);
  std::vector<double> z(stride), out(stride, std::nan(""));
  std::copy_n(std::vector<double>{2, 0.5, 0}.begin(), 3, z.begin());
  bila::form::head<double> head{};
  head.y = {y.data(), 4, 2, 2, 1};
  head.row_sum = {row_sum.data(), 4, 1, 1, 1};
  head.scale = 3;
  finish<TestType>(head, 1, tile<double>{N.data(), 3, 2, stride}, z.data(), out.data(), fixed_quotient{});
  CHECK(y == std::vector<double>{99, 99, 3, 6, 36, 48, 0, 0});
  CHECK(row_sum == std::vector<double>{99, 2, 0.5, 0});  // without the scale

  N = padded<double>({{2, 4}, {6, 8}, {10, 12}});
  finish<TestType>(head, 0, tile<double>{N.data(), 3, 2, stride}, static_cast<const double*>(nullptr), out.data(),
                   ignores_row_sum{});
  CHECK(y == std::vector<double>{1, 2, 3, 4, 5, 6, 0, 0});
  CHECK(row_sum == std::vector<double>{99, 2, 0.5, 0});
}

TEMPLATE_TEST_CASE("a row is factor N / divisor to three roundings, however large or small its divisor", "",
                   (on<bila::kernel::reference, float>), (on<bila::kernel::reference, double>), (on<bila::kernel::eigen, float>),
                   (on<bila::kernel::eigen, double>)) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  using limits = std::numeric_limits<Real>;
  const long double u = limits::epsilon() / 2;
  for (int power = limits::min_exponent - limits::digits; power < limits::max_exponent; ++power) {
    const Real divisor = std::ldexp(Real(1.37L), power), numerator = std::ldexp(Real(1.81L), (power + 1) / 2);
    std::vector<Real> N = padded<Real>({{numerator, -numerator}, {numerator, 1}}), y(4), z(stride), out(stride);
    z[0] = divisor;
    z[1] = 2;
    bila::form::head<Real> head{};
    head.y = {y.data(), 2, 2, 2, 1};
    head.scale = 0.7;
    finish<Kernel>(head, 0, tile<Real>{N.data(), 2, 2, stride}, z.data(), out.data(), fixed_quotient{});
    const long double exact = static_cast<long double>(Real(0.7)) * numerator / divisor,
                      beside = static_cast<long double>(Real(0.7)) * numerator / 2;
    INFO("divisor 1.37 * 2^" << power);
    CHECK(std::fabs(y[0] - exact) <= 3 * u * exact);
    CHECK(y[1] == -y[0]);
    CHECK(std::fabs(y[2] - beside) <= 3 * u * beside);
  }
}

TEMPLATE_TEST_CASE("max_one's rows are right up to the largest row sums, in the mode in which calls run", "",
                   (on<bila::kernel::reference, float>), (on<bila::kernel::reference, double>), (on<bila::kernel::eigen, float>),
                   (on<bila::kernel::eigen, double>)) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  using limits = std::numeric_limits<Real>;
  const long double u = limits::epsilon() / 2;
  for (int power = limits::max_exponent - 12; power < limits::max_exponent; ++power) {
    const Real Z = std::ldexp(Real(1.37L), power);
    std::vector<Real> N = padded<Real>({{Z, Z / 2}}), y(2), z(stride), out(stride);
    z[0] = Z;
    bila::form::head<Real> head{};
    head.y = {y.data(), 1, 2, 2, 1};
    head.scale = 0.125;
    {
      const bila::detail::flush_denormals guard;
      finish<Kernel>(head, 0, tile<Real>{N.data(), 1, 2, stride}, z.data(), out.data(), bila::norm::max_one{});
    }
    INFO("row sum 1.37 * 2^" << power);
    CHECK(std::fabs(y[0] - 1.0L) <= 3 * u);
    CHECK(std::fabs(y[1] - 0.5L) <= 3 * u);
  }
}

TEMPLATE_TEST_CASE("a sweep starts from the given state or from zero, padding included, and keeps what is wanted", "",
                   (on<bila::kernel::reference, float>), (on<bila::kernel::reference, double>), (on<bila::kernel::eigen, float>),
                   (on<bila::kernel::eigen, double>)) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  using bila::form::head_state;
  constexpr Real nan = std::numeric_limits<Real>::quiet_NaN();
  constexpr index_t Dk = 3, Dv = 5, lanes = Kernel::template lanes<Real>;
  std::vector<Real> given(2 * Dk * Dv), sums(2 * Dk);
  for (std::size_t n = 0; n < given.size(); ++n) given[n] = static_cast<Real>(n + 1);
  for (std::size_t n = 0; n < sums.size(); ++n) sums[n] = -static_cast<Real>(n + 1);
  const bila::rows<const Real> S_given{given.data(), Dk, Dv, 2 * Dv, 2}, z_given{sums.data(), Dk, 1, 2, 1};
  for (const bool with_S : {false, true})
    for (const bool with_z : {false, true}) {
      if (with_z && !with_S) continue;
      std::vector<Real> memory((Dk + 1) * stride, nan), s(stride + 1, nan);
      const tile<Real> S{memory.data(), Dk, Dv, stride};
      head_state<const Real> from;
      if (with_S) from.S = S_given;
      if (with_z) from.z = z_given;
      bila::form::load_initial_state<Kernel>(S, s.data(), from);
      for (index_t c = 0; c < Dk; ++c)
        for (index_t d = 0; d < stride; ++d) CHECK(S.row(c)[d] == (with_S && d < Dv ? S_given(c, d) : Real(0)));
      for (index_t c = 0; c < stride; ++c) {
        if (c < bila::kernel::round_up(Dk, lanes))
          CHECK(s[static_cast<std::size_t>(c)] == (with_z && c < Dk ? z_given(c, 0) : Real(0)));
        else
          CHECK(std::isnan(s[static_cast<std::size_t>(c)]));
      }
      CHECK(std::isnan(memory[Dk * stride]));

      std::vector<Real> S_kept(2 * Dk * Dv, 99), z_kept(2 * Dk, 99);
      const bila::rows<Real> S_to{S_kept.data(), Dk, Dv, 2 * Dv, 2}, z_to{z_kept.data(), Dk, 1, 2, 1};
      bila::form::store_final_state(head_state<Real>{}, S, s.data(), 1);
      bila::form::store_final_state(head_state<Real>{{}, z_to}, S, static_cast<const Real*>(nullptr), 1);
      CHECK(z_kept == std::vector<Real>(2 * Dk, 99));
      bila::form::store_final_state(head_state<Real>{S_to, z_to}, S, s.data(), 0.75);
      for (index_t c = 0; c < Dk; ++c) {
        CHECK(z_to(c, 0) == Real(0.75) * s[static_cast<std::size_t>(c)]);
        for (index_t d = 0; d < Dv; ++d)
          CHECK((S_to(c, d) == (with_S ? Real(0.75) * S_given(c, d) : Real(0)) && (&S_to(c, d))[1] == 99));
      }
    }
}

TEST_CASE("a split has its half, or both") {
  using bila::form::split;
  using bila::form::sweep_pass;
  CHECK((split{}.has_half(0) && split{}.has_half(1)));
  for (const sweep_pass at : {sweep_pass::first, sweep_pass::second})
    for (const index_t n : {0, 1}) {
      const split part{0, 1, at, n};
      CHECK((part.has_half(n) && !part.has_half(1 - n)));
    }
}
