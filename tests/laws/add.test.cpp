// SPDX-License-Identifier: Apache-2.0
// outputs::add: y += result, whatever the form, the type, the layout and the threads.
#include "support/catch.hpp"
#include "support/refusal.hpp"

#include <bila/bila.hpp>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace {

using bila::index_t;

constexpr index_t B = 2, H = 3, L = 41, Dk = 6, Dv = 20;

template <class T>
std::vector<T> numbers(index_t count, double low, double high, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> any(low, high);
  std::vector<T> x(static_cast<std::size_t>(count));
  for (T& one : x) one = T(static_cast<bila::real_of<T>>(any(random)));
  return x;
}

template <class T>
struct call {
  std::vector<T> q = numbers<T>(B * H * L * Dk, 0, 1, 1), k = numbers<T>(B * H * L * Dk, 0, 1, 2),
                 v = numbers<T>(B * H * L * Dv, -1, 1, 3), before = numbers<T>(B * H * L * Dv, -1, 1, 4);
  std::vector<double> gates = numbers<double>(B * H * L, -0.3, 0, 5);
  bila::mask::selective_decay<double> mask{bila::bhl(gates.data(), B, H, L), bila::gate::source};
  bila::inputs<T> in{bila::bhld(q.data(), B, H, L, Dk), bila::bhld(k.data(), B, H, L, Dk), bila::bhld(v.data(), B, H, L, Dv)};
};

}  // namespace

TEMPLATE_TEST_CASE("y += result is the result, rounded, added and rounded", "", float, double, bila::bf16, bila::f16) {
  using Real = bila::real_of<TestType>;
  call<TestType> x;
  const std::vector<index_t> lengths{L, 7};
  const auto check = [&](const auto& form, int threads, bool padded) {
    auto in = x.in;
    if (padded) in.lengths = lengths;
    std::vector<TestType> result = x.before, sum = x.before;
    const bila::cpu backend{.threads = threads};
    bila::attend(backend, form, x.mask, bila::norm::none{}, in, bila::blhd(result.data(), B, L, H, Dv));
    bila::outputs<TestType> out{bila::blhd(sum.data(), B, L, H, Dv)};
    out.add = true;
    std::vector<std::byte> memory(bila::workspace_bytes(backend, form, x.mask, bila::norm::none{}, in, out));
    bila::attend(bila::cpu{.threads = threads, .workspace = memory}, form, x.mask, bila::norm::none{}, in, out);
    for (index_t b = 0; b < B; ++b)
      for (index_t l = 0; l < L; ++l)
        for (index_t n = 0; n < H * Dv; ++n) {
          const auto at = static_cast<std::size_t>((b * L + l) * H * Dv + n);
          const bool padding = padded && l >= lengths[static_cast<std::size_t>(b)];
          const TestType wanted = padding ? x.before[at] : TestType(Real(x.before[at]) + Real(result[at]));
          REQUIRE(std::memcmp(&sum[at], &wanted, sizeof wanted) == 0);
        }
  };
  for (const int threads : {1, 4})
    for (const bool padded : {false, true}) {
      check(bila::form::full{}, threads, padded);
      check(bila::form::recurrent{}, threads, padded);
      check(bila::form::chunkwise{8}, threads, padded);
    }
}

TEST_CASE("two one-way calls on shifted views add up to both ways without the diagonal") {
  call<double> x;
  const auto tokens = [](const auto& from, index_t first) {  // all but one
    auto part = from;
    part.extents[2] = L - 1;
    part.data += first * from.strides[2];
    return part;
  };
  std::vector<double> whole(x.before.size()), sum(x.before.size(), 0.0),
      shifted_gates(static_cast<std::size_t>(B * H * (L - 1)), 0.0);
  auto in = x.in;
  in.diagonal = 0;
  const bila::form::chunkwise form{8};
  const bila::mask::all_ones mask;
  bila::attend(form, mask, bila::norm::none{}, in, bila::bhld(whole.data(), B, H, L, Dv));
  const auto y = bila::bhld(sum.data(), B, H, L, Dv);
  for (const bool forward : {true, false}) {
    bila::inputs<double> one{tokens(x.in.q, forward ? 1 : 0), tokens(x.in.k, forward ? 0 : 1), tokens(x.in.v, forward ? 0 : 1)};
    one.direction = forward ? bila::direction::forward : bila::direction::backward;
    bila::outputs<double> out{tokens(y, forward ? 1 : 0)};
    out.add = true;
    bila::attend(form, mask, bila::norm::none{}, one, out);
  }
  for (std::size_t n = 0; n < sum.size(); ++n) REQUIRE(std::abs(sum[n] - whole[n]) <= 1e-12);
}

TEST_CASE("adding is refused where rows are divided by their sums, and without y") {
  call<float> x;
  std::vector<float> y = x.before, S(B * H * Dk * Dv);
  bila::outputs<float> out{bila::bhld(y.data(), B, H, L, Dv)};
  out.add = true;
  const auto words = [&](const auto& norm) {
    return test::refusal([&] { bila::attend(bila::form::chunkwise{8}, x.mask, norm, x.in, out); });
  };
  CHECK(test::has_all(words(bila::norm::row_sum{1e-6}), {"outputs.add", "norm"}));
  out.y = {};
  out.final_forward.S = bila::bhld(S.data(), B, H, Dk, Dv);
  CHECK(test::has_all(words(bila::norm::none{}), {"outputs.add", "no y"}));
  CHECK(y == x.before);
}
