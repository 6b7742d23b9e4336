// SPDX-License-Identifier: Apache-2.0
// The verbs for decays per channel: the packets agree with the plain loops of the reference layer, whose sums are wider.
#include "support/catch.hpp"
#include "support/random.hpp"

#include <bila/kernel/contract.hpp>
#include <bila/kernel/packets.hpp>
#include <bila/kernel/reference.hpp>

#include <cmath>
#include <limits>
#include <vector>

namespace {

using bila::direction;
using bila::index_t;
using bila::kernel::tile;
using fast = bila::kernel::eigen;
using plain = bila::kernel::reference;

/// A tile whose rows are whole packets, with zeros in the padding.
template <class Real>
struct padded {
  padded(index_t n, index_t width)
      : stride(bila::kernel::round_up(width, fast::lanes<Real>)), x(size(n)), rows(n), columns(width) {}
  padded(test::random_source& from, index_t n, index_t width, double low, double high) : padded(n, width) {
    for (index_t i = 0; i < n; ++i)
      for (index_t c = 0; c < width; ++c) x[size(i) + static_cast<std::size_t>(c)] = static_cast<Real>(from.uniform(low, high));
  }

  std::size_t size(index_t n) const { return static_cast<std::size_t>(n * stride); }
  tile<Real> get() { return {x.data(), rows, columns, stride}; }

  index_t stride;
  std::vector<Real> x;
  index_t rows, columns;
};

template <class Real>
bool close(padded<Real>& a, padded<Real>& b, double terms) {
  bool good = true;
  for (index_t i = 0; i < a.rows; ++i)
    for (index_t c = 0; c < a.columns; ++c) {
      const double x = static_cast<double>(a.get().row(i)[c]), y = static_cast<double>(b.get().row(i)[c]);
      good = good && std::fabs(x - y) <= terms * static_cast<double>(std::numeric_limits<Real>::epsilon());
    }
  return good;
}

}  // namespace

TEMPLATE_TEST_CASE("packets compute decays per channel as the reference layer does", "", float, double) {
  using Real = TestType;
  test::random_source from(420);
  for (int call = 0; call < 120; ++call) {
    const index_t n = 1 + from.below(16), Dk = 1 + from.below(70);
    const bool exclusive = from.below(2) == 0;
    INFO("n = " << n << ", Dk = " << Dk << ", exclusive = " << exclusive);
    const auto numbers = [&](index_t rows, index_t columns) { return padded<Real>(from, rows, columns, -1, 1); };
    auto q = numbers(n, Dk), k = numbers(n, Dk), read = numbers(1, Dk), write = numbers(1, Dk), own = numbers(1, Dk);
    padded<Real> up(from, n, Dk, 0, 1), down(from, n, Dk, 0, 1);
    for (padded<Real>* gaps : {&up, &down})
      for (Real& x : gaps->x)
        if (from.below(10) == 0) x = 0;  // a cut
    const tile<const Real> none;

    padded<Real> qa(n, Dk), kw(n, Dk), qa_plain(n, Dk), kw_plain(n, Dk), alone(n, Dk);
    fast::weigh_channels(qa.get(), kw.get(), q.get(), k.get(), up.get(), read.x.data(), write.x.data(), exclusive);
    plain::weigh_channels(qa_plain.get(), kw_plain.get(), q.get(), k.get(), up.get(), read.x.data(), write.x.data(), exclusive);
    CHECK((close(qa, qa_plain, 20) && close(kw, kw_plain, 20)));
    fast::weigh_channels(tile<Real>{}, alone.get(), q.get(), k.get(), up.get(), read.x.data(), write.x.data(), exclusive);
    CHECK(alone.x == kw.x);
    fast::weigh_channels(alone.get(), tile<Real>{}, q.get(), k.get(), up.get(), read.x.data(), write.x.data(), exclusive);
    CHECK(alone.x == qa.x);

    const double terms = 24 + static_cast<double>(Dk);
    for (int sides = 0; sides < 4; ++sides) {
      const tile<const Real> above = sides & 1 ? tile<const Real>(up.get()) : none,
                             below = sides & 2 ? tile<const Real>(down.get()) : none;
      padded<Real> A(n, n), A_plain(n, n), z(1, n), z_plain(1, n);
      fast::score_channels(A.get(), z.x.data(), k.get(), q.get(), above, below, own.x.data(), exclusive);
      plain::score_channels(A_plain.get(), z_plain.x.data(), k.get(), q.get(), above, below, own.x.data(), exclusive);
      CHECK((close(A, A_plain, terms) && close(z, z_plain, 16 * terms)));
    }

    auto G = numbers(n, n);
    for (const direction way : {direction::forward, direction::backward})
      for (const bool of_keys : {false, true}) {
        // The verb's gaps around n tokens are n + 1 rows.
        padded<Real> gaps(from, n + 1, Dk, 0, 1), N(n, Dk), N_plain(n, Dk);
        fast::collect_channels(N.get(), G.get(), q.get(), gaps.get(), way, of_keys, exclusive);
        plain::collect_channels(N_plain.get(), G.get(), q.get(), gaps.get(), way, of_keys, exclusive);
        CHECK(close(N, N_plain, 16 * 20));
      }

    auto N = numbers(n, Dk), P = numbers(n, Dk), y = numbers(n, Dk);
    auto N_plain = N, P_plain = P;
    fast::add_products(N.get(), P.get(), q.get(), up.get(), y.get());
    plain::add_products(N_plain.get(), P_plain.get(), q.get(), up.get(), y.get());
    CHECK((close(N, N_plain, 4) && close(P, P_plain, 4)));
    fast::add_products(N.get(), tile<Real>{}, q.get(), none, y.get());
    plain::add_products(N_plain.get(), tile<Real>{}, q.get(), none, y.get());
    CHECK((close(N, N_plain, 8) && close(P, P_plain, 4)));

    for (const Real* start : {static_cast<const Real*>(nullptr), static_cast<const Real*>(read.x.data())}) {
      padded<Real> D(n, Dk), D_plain(n, Dk);
      fast::sum_gaps(D.get(), q.get(), k.get(), start, up.get(), exclusive);
      plain::sum_gaps(D_plain.get(), q.get(), k.get(), start, up.get(), exclusive);
      CHECK(close(D, D_plain, 16 * 32));
    }

    padded<Real> logs(from, n, Dk, -200, 0);
    logs.x[0] = -std::numeric_limits<Real>::infinity();
    auto logs_plain = logs;
    std::vector<double> sums(logs.size(1)), sums_plain(logs.size(1));
    fast::column_sums(sums.data(), logs.get()), plain::column_sums(sums_plain.data(), logs.get());
    fast::exponentials(logs.get()), plain::exponentials(logs_plain.get());
    CHECK((close(logs, logs_plain, 4) && logs.x[0] == 0));
    for (index_t c = 1; c < Dk; ++c)
      CHECK(std::fabs(sums[static_cast<std::size_t>(c)] - sums_plain[static_cast<std::size_t>(c)]) <= 1e-12);
  }
}
