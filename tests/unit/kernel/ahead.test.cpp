// SPDX-License-Identifier: Apache-2.0
// Asking for memory ahead of its use changes nothing: no number, no bit of a result, and no address may fault.
#include "support/catch.hpp"
#include "support/random.hpp"

#include <bila/kernel/ahead.hpp>
#include <bila/kernel/eigen.hpp>
#include <bila/kernel/reference.hpp>

#include <cstdint>
#include <vector>

namespace {

using bila::index_t;
using bila::kernel::ahead;

template <class Kernel, class Real>
struct on {
  using kernel = Kernel;
  using real = Real;
};

}  // namespace

TEST_CASE("nothing wanted, nothing left, and more asked for than there is") {
  std::vector<float> memory(4096);
  for (float& x : memory) x = 3;
  ahead nothing;
  for (const int lines : {0, 1, 1000}) nothing.ask(lines);

  const bila::rows<const float> tokens{memory.data(), 7, 33, 40, 1}, backwards{memory.data() + 4000, 7, 33, -40, 1},
      none{nullptr, 0, 33, 40, 1}, apart{memory.data(), 7, 33, 100, 3}, no_features{memory.data(), 7, 0, 40, 1};
  for (const int lines : {0, 1, 2, 16, 100000}) {
    ahead next;
    for (const auto& x : {none, apart, no_features, tokens, backwards}) next.want(x);
    for (int n = 0; n < 40; ++n) next.ask(lines);
  }
  ahead much;  // more streams than it remembers
  for (int n = 0; n < 40; ++n) much.want(tokens);
  much.ask(100000);
  ahead one;
  one.want(bila::rows<const double>{reinterpret_cast<const double*>(memory.data()), 1, 1, 0, 1});
  one.ask(2);
  one.want(tokens);  // after the end
  one.ask(3);

  // Nobody reads them, so they need not be there.
  const auto nowhere = reinterpret_cast<const double*>(std::uintptr_t(1) << 40);
  ahead absent;
  absent.want(bila::rows<const double>{nowhere, 5, 64, 64, 1});
  absent.ask(1000);

  bool same = true;
  for (const float x : memory) same = same && x == 3;
  CHECK(same);
}

TEMPLATE_TEST_CASE("a kernel that asks ahead gives the same bits", "", (on<bila::kernel::reference, float>),
                   (on<bila::kernel::reference, double>), (on<bila::kernel::eigen, float>), (on<bila::kernel::eigen, double>)) {
  using Kernel = typename TestType::kernel;
  using Real = typename TestType::real;
  using tile = bila::kernel::tile<Real>;
  test::random_source random(421);
  constexpr index_t stride = 64, n = 33, Dk = 21, Dv = 43;
  const auto filled = [&](index_t rows, index_t columns) {
    std::vector<Real> x(static_cast<std::size_t>(rows * stride));
    for (index_t i = 0; i < rows; ++i)
      for (index_t j = 0; j < columns; ++j) x[static_cast<std::size_t>(i * stride + j)] = static_cast<Real>(random.uniform(-1, 1));
    return x;
  };
  auto q = filled(n, Dk), k = filled(n, Dk), v = filled(n, Dv), S = filled(Dk, Dv), A = filled(n, n), left = filled(n, Dv),
       r = filled(1, n), out = filled(1, n), h = filled(1, Dk), room = filled(n, Dk);
  const auto none = static_cast<const Real*>(nullptr);

  // A sweep asks for one chunk's rows in all of its verbs; enough, too few, and none.
  for (const index_t wanted : {0, 1, 33}) {
    std::vector<Real> N[2], R[2], s[2];
    for (const int with : {0, 1}) {
      ahead next;
      if (wanted > 0) next.want(bila::rows<const Real>{v.data(), wanted, Dv, stride, 1});
      ahead* const asked = with == 0 ? nullptr : &next;
      N[with].resize(static_cast<std::size_t>(2 * n * stride));
      R[with].resize(static_cast<std::size_t>(Dk * stride));
      s[with].resize(stride);
      Kernel::read(tile{N[with].data(), n, Dv, stride}, static_cast<const Real*>(out.data()), static_cast<const Real*>(r.data()),
                   {q.data(), n, Dk, stride}, {S.data(), Dk, Dv, stride}, {A.data(), n, n, stride}, {v.data(), n, Dv, stride},
                   {left.data(), n, Dv, stride}, asked);
      Kernel::read(tile{N[with].data() + n * stride, n, Dv, stride}, none, static_cast<const Real*>(r.data()),
                   {q.data(), n, Dk, stride}, {S.data(), Dk, Dv, stride}, {}, {}, {}, asked);
      Kernel::accumulate(tile{R[with].data(), Dk, Dv, stride}, s[with].data(), Real(0.5), {S.data(), Dk, Dv, stride},
                         static_cast<const Real*>(h.data()), {k.data(), n, Dk, stride}, static_cast<const Real*>(r.data()),
                         {v.data(), n, Dv, stride}, {room.data(), n, Dk, stride}, asked);
    }
    CHECK(N[0] == N[1]);
    CHECK(R[0] == R[1]);
    CHECK(s[0] == s[1]);
  }
}
