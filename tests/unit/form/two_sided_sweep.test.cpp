// SPDX-License-Identifier: Apache-2.0
// Which sweep of a two-sided one visits what, and in which order; and where the first pass stores its rows.
#include "support/catch.hpp"

#include <bila/form/two_sided_sweep.hpp>
#include <bila/kernel/packets.hpp>
#include <bila/kernel/reference.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

using bila::direction;
using bila::index_t;
using bila::form::split;
using bila::form::sweep_pass;

struct call {
  direction way;
  index_t first, last;
  bool finish, has_partial;
  friend bool operator==(const call&, const call&) = default;
};

std::vector<call> calls(direction way, index_t L, index_t middle, split part) {
  bila::form::head<float> x{};
  x.q.count = L;
  x.direction = way;
  std::vector<call> result;
  bila::form::run_two_sided_sweep(x, part, middle,
                                  [&](direction taken, index_t first, index_t last, bila::form::sweep_flags flags) {
                                    result.push_back({taken, first, last, flags.finish, flags.has_partial});
                                  });
  return result;
}

constexpr split whole{};

constexpr split half(sweep_pass at, index_t n) { return {0, 1, at, n}; }

constexpr auto forward = direction::forward, backward = direction::backward, both = direction::both;

}  // namespace

TEST_CASE("one direction is one sweep that does all") {
  for (const direction way : {forward, backward})
    for (const index_t middle : {0, 4, 10}) CHECK(calls(way, 10, middle, whole) == std::vector<call>{{way, 0, 10, true, false}});
}

TEST_CASE("both directions: each sweep stores the rows of its first half and finishes those of the other's") {
  CHECK(calls(both, 10, 4, whole) == std::vector<call>{{forward, 0, 4, false, false},
                                                       {backward, 4, 10, false, false},
                                                       {forward, 4, 10, true, true},
                                                       {backward, 0, 4, true, true}});
  CHECK(calls(both, 3, 0, whole) == std::vector<call>{{backward, 0, 3, false, false}, {forward, 0, 3, true, true}});
  CHECK(calls(both, 3, 3, whole) == std::vector<call>{{forward, 0, 3, false, false}, {backward, 0, 3, true, true}});
}

TEST_CASE("halves do their part of what the whole does, with a pause between the first pass and the second") {
  CHECK(calls(both, 10, 4, half(sweep_pass::first, 0)) == std::vector<call>{{forward, 0, 4, false, false}});
  CHECK(calls(both, 10, 4, half(sweep_pass::first, 1)) == std::vector<call>{{backward, 4, 10, false, false}});
  CHECK(calls(both, 10, 4, half(sweep_pass::second, 0)) == std::vector<call>{{backward, 0, 4, true, true}});
  CHECK(calls(both, 10, 4, half(sweep_pass::second, 1)) == std::vector<call>{{forward, 4, 10, true, true}});
  for (const sweep_pass at : {sweep_pass::first, sweep_pass::second}) CHECK(calls(both, 3, 0, half(at, 0)).empty());
}

TEST_CASE("every token is stored once and then finished once by the other sweep, and each sweep goes on where it stopped") {
  for (index_t L = 1; L <= 9; ++L)
    for (index_t middle = 0; middle <= L; ++middle)
      for (const bool halves : {false, true}) {
        INFO("L=" << L << " middle=" << middle << (halves ? " in halves" : ""));
        std::vector<call> all;
        if (halves) {
          // Within a pass the halves run at the same time: no row may be of both, so their order does not matter.
          for (const sweep_pass at : {sweep_pass::first, sweep_pass::second})
            for (const index_t n : {1, 0})
              for (const call& c : calls(both, L, middle, half(at, n))) {
                CHECK((n == 0 ? c.last <= middle : c.first >= middle));
                all.push_back(c);
              }
        } else {
          all = calls(both, L, middle, whole);
        }
        std::vector<int> left_by(static_cast<std::size_t>(L), 0), finished(static_cast<std::size_t>(L), 0);
        index_t forward_at = 0, backward_at = L;
        for (const call& c : all) {
          CHECK(c.first < c.last);
          CHECK(c.finish == c.has_partial);
          CHECK((c.way == forward ? c.first == forward_at : c.last == backward_at));
          (c.way == forward ? forward_at : backward_at) = c.way == forward ? c.last : c.first;
          for (auto t = static_cast<std::size_t>(c.first); t < static_cast<std::size_t>(c.last); ++t) {
            const int way = c.way == forward ? 1 : 2;
            if (!c.finish) {
              CHECK((left_by[t] == 0 && finished[t] == 0));
              left_by[t] = way;
            } else {
              CHECK((left_by[t] == 3 - way && finished[t] == 0));
              finished[t] = way;
            }
          }
        }
        CHECK((forward_at == L && backward_at == 0));
        CHECK(std::count(left_by.begin(), left_by.end(), 0) + std::count(finished.begin(), finished.end(), 0) == 0);
      }
}

TEMPLATE_TEST_CASE("partial rows are stored in y, unless y would round them", "", float, double, bila::bf16, bila::f16) {
  using Kernel = bila::kernel::eigen;
  using Real = bila::real_of<TestType>;
  constexpr bool narrow = bila::form::is_narrow<TestType>;
  for (const index_t Dv : {16, 17})  // whole packets, and not
    for (const index_t apart : {1, 2}) {
      constexpr index_t L = 5, first = 2, n = 2;
      bila::kernel::arena counter;
      bila::form::two_sided_sweep<Kernel, Real>(counter, {L, 3, Dv}, narrow);
      std::vector<std::byte> memory(counter.used() + bila::kernel::arena::alignment);
      const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % bila::kernel::arena::alignment;
      bila::kernel::arena arena(memory.data() + (bila::kernel::arena::alignment - past) % bila::kernel::arena::alignment);
      const bila::form::two_sided_sweep<Kernel, Real> m(arena, {L, 3, Dv}, narrow);
      CHECK(arena.used() == counter.used());
      CHECK(m.partial.rows == (narrow ? L : 0));

      const index_t stride = apart * Dv + 1;
      std::vector<TestType> y(static_cast<std::size_t>(L * stride), TestType(7));
      bila::form::head<TestType> x{};
      x.y = {y.data(), L, Dv, stride, apart};
      std::vector<Real> space(n * 64), other(n * 64);
      const bila::kernel::tile<Real> room{space.data(), n, Dv, 32}, later{other.data(), n, Dv, 32};
      const auto number = [](index_t i, index_t d) { return Real(1) + static_cast<Real>(100 * i + d) * Real(0x1p-20f); };
      bila::form::store_partial(x, m, first, n, room, [&](bila::kernel::tile<Real> N) {
        CHECK((N.rows == n && N.columns == Dv));
        for (index_t i = 0; i < n; ++i)
          for (index_t d = 0; d < Dv; ++d) N.row(i)[d] = number(i, d);
      });
      const auto found = bila::form::partial_rows(x, m, first, n, later);
      CHECK((found.rows == n && found.columns == Dv));
      bool same = true, beside = true;
      for (index_t i = 0; i < n; ++i)
        for (index_t d = 0; d < Dv; ++d) same = same && found.row(i)[d] == number(i, d);
      CHECK(same);
      for (index_t i = 0; i < L; ++i)
        for (index_t d = 0; d < Dv; ++d) {
          const bool left = !narrow && i >= first && i < first + n;
          beside = beside && static_cast<Real>(x.y(i, d)) == (left ? number(i - first, d) : Real(7));
        }
      CHECK(beside);
    }
}
