// SPDX-License-Identifier: Apache-2.0
// Asking for memory ahead of its use changes nothing: no number, no bit of a result, and no address may fault.
#include "support/catch.hpp"
#include "support/random.hpp"

#include <bila/kernel/packets.hpp>
#include <bila/kernel/prefetch.hpp>
#include <bila/kernel/reference.hpp>

#include <cstdint>
#include <vector>

namespace {

using bila::index_t;
using bila::kernel::prefetch_queue;

template <class Kernel, class Real>
struct on {
  using kernel = Kernel;
  using real = Real;
};

}  // namespace

TEST_CASE("what is wanted is handed out in order, once, and then nothing") {
  std::vector<float> memory(4096);
  const auto lines_of = [](prefetch_queue& next, index_t steps) {
    std::vector<const char*> lines;
    for (prefetch_queue::run run = next.take(steps); run.at != nullptr; run = next.take(steps))
      for (index_t n = 0; n < steps; ++n) lines.push_back(run.at + n * run.step);
    return lines;
  };
  const auto address = [&](index_t n) { return reinterpret_cast<const char*>(memory.data() + n); };

  prefetch_queue nothing;
  CHECK(lines_of(nothing, 4).empty());

  // Rows of 32 numbers are two lines each; without gaps one run, else a run down the rows for each line.
  prefetch_queue whole, apart;
  whole.add(bila::rows<const float>{memory.data(), 20, 32, 32, 1}, 2, 4);
  apart.add(bila::rows<const float>{memory.data(), 20, 32, 48, 1}, 2, 4);
  std::vector<const char*> in_a_row, down;
  for (index_t n = 0; n < 8; ++n) in_a_row.push_back(address(2 * 32 + 16 * n));
  for (index_t column = 0; column < 2; ++column)
    for (index_t i = 2; i < 6; ++i) down.push_back(address(48 * i + 16 * column));
  CHECK(lines_of(whole, 4) == in_a_row);
  CHECK(lines_of(apart, 4) == down);
  CHECK(lines_of(apart, 4).empty());

  prefetch_queue longer;  // a loop of more steps than a run has lines goes on behind it
  longer.add(bila::rows<const float>{memory.data(), 20, 32, 32, 1}, 2, 4);
  longer.add(bila::rows<const float>{memory.data(), 20, 16, 16, 1}, 7, 1);
  std::vector<const char*> taken = in_a_row;
  taken.push_back(address(2 * 32 + 16 * 8));
  for (index_t n = 0; n < 3; ++n) taken.push_back(address(7 * 16 + 16 * n));
  CHECK(lines_of(longer, 3) == taken);

  prefetch_queue two;  // one after the other, the second wanted after the first was handed out too
  two.add(bila::rows<const float>{memory.data(), 1, 16, 16, 1}, 0, 1);
  CHECK(two.take(1).at == address(0));
  CHECK(two.take(1).at == nullptr);
  two.add(bila::rows<const float>{memory.data(), 1, 16, 16, 1}, 0, 1);
  CHECK(two.take(1).at == address(0));

  prefetch_queue none;  // no rows, no features, features apart
  none.add(bila::rows<const float>{nullptr, 0, 33, 40, 1}, 0, 0);
  none.add(bila::rows<const float>{memory.data(), 7, 0, 40, 1}, 0, 7);
  none.add(bila::rows<const float>{memory.data(), 7, 33, 100, 3}, 0, 7);
  CHECK(lines_of(none, 3).empty());

  prefetch_queue much;  // more than it remembers
  for (int n = 0; n < 40; ++n) much.add(bila::rows<const float>{memory.data(), 1, 16, 16, 1}, 0, 1);
  CHECK(lines_of(much, 1).size() == 8);
}

TEST_CASE("a line that is asked for need not be there") {
  std::vector<float> memory(4096);
  prefetch_queue next;
  next.add(bila::rows<const double>{reinterpret_cast<const double*>(std::uintptr_t(1) << 40), 5, 64, 64, 1}, 0, 5);
  next.add(bila::rows<const float>{memory.data() + 4000, 7, 33, -40, 1}, 1, 5);  // backwards
  for (int n = 0; n < 40; ++n) {
    bila::kernel::prefetch_lines lines(&next, 3);
    for (int step = 0; step < 3; ++step) lines();
  }
  CHECK(next.take(3).at == nullptr);  // all of it was asked for, and nothing faulted
}

TEMPLATE_TEST_CASE("a kernel that prefetches gives the same bits", "", (on<bila::kernel::reference, float>),
                   (on<bila::kernel::reference, double>), (on<bila::kernel::eigen, float>), (on<bila::kernel::eigen, double>)) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  using tile = bila::kernel::tile<Real>;
  test::random_source random(421);
  constexpr index_t stride = 64, n = 33, Dk = 21, Dv = 57;
  const auto filled = [&](index_t rows, index_t columns) {
    std::vector<Real> x(static_cast<std::size_t>(rows * stride));
    for (index_t i = 0; i < rows; ++i)
      for (index_t j = 0; j < columns; ++j) x[static_cast<std::size_t>(i * stride + j)] = static_cast<Real>(random.uniform(-1, 1));
    return x;
  };
  auto q = filled(n, Dk), k = filled(n, Dk), v = filled(n, Dv), S = filled(Dk, Dv), A = filled(n, n), left = filled(n, Dv),
       r = filled(1, n), out = filled(1, n), h = filled(1, Dk), room = filled(n, Dk);

  // A sweep asks for one chunk's rows in all of its verbs; enough, too few, and none.
  for (const index_t wanted : {0, 1, 33}) {
    std::vector<Real> N[2], R[2], s[2], e[2], T[2];
    for (const int with : {0, 1}) {
      prefetch_queue next;
      if (wanted > 0) next.add(bila::rows<const Real>{v.data(), wanted, Dv, stride, 1}, 0, wanted);
      prefetch_queue* const asked = with == 0 ? nullptr : &next;
      N[with].resize(static_cast<std::size_t>(2 * n * stride));
      R[with].resize(static_cast<std::size_t>(Dk * stride));
      s[with].resize(stride);
      e[with].resize(stride);
      T[with] = S;
      const tile rows{N[with].data(), n, Dv, stride}, more{N[with].data() + n * stride, n, Dv, stride},
          scratch{room.data(), n, Dk, stride};
      const tile queries{q.data(), n, Dk, stride}, keys{k.data(), n, Dk, stride}, values{v.data(), n, Dv, stride};
      const bila::kernel::state<Real> before{{S.data(), Dk, Dv, stride}, h.data()},
          after{{R[with].data(), Dk, Dv, stride}, s[with].data()}, stepped{{T[with].data(), Dk, Dv, stride}};
      Kernel::read(rows,
                   {.q = queries,
                    .S = before.S,
                    .weights = r.data(),
                    .A = tile{A.data(), n, n, stride},
                    .v = values,
                    .partial = tile{left.data(), n, Dv, stride},
                    .row_scales = out.data()},
                   asked);
      Kernel::read(more, {.q = queries, .S = before.S, .weights = r.data()}, asked);
      Kernel::accumulate(after,
                         {.from = before,
                          .decay = Real(0.5),
                          .k = keys,
                          .v = values,
                          .weights = r.data(),
                          .weighted = scratch,
                          .rest = {{}, e[with].data()}},
                         asked);
      Kernel::steps(
          rows, nullptr, stepped,
          {.q = queries, .k = keys, .v = values, .read = r.data(), .write = out.data(), .decay = r.data(), .weighted = scratch},
          asked);
    }
    CHECK(N[0] == N[1]);
    CHECK(R[0] == R[1]);
    CHECK(s[0] == s[1]);
    CHECK(T[0] == T[1]);
  }
}
