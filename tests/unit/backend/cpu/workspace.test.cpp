// SPDX-License-Identifier: Apache-2.0
// The caller's memory: as much as workspace_bytes says and not one byte less, wherever it starts; and the memory that a thread
// keeps.
#include "support/catch.hpp"
#include "support/problem.hpp"
#include "support/refusal.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace {

using bila::index_t;

constexpr std::byte poison{0xff};  // four or eight of them are a NaN

}  // namespace

TEST_CASE("a call's memory is aligned, its own, and kept for the next call") {
  bila::release_memory();
  const auto is_aligned = [](const std::byte* at) {
    return reinterpret_cast<std::uintptr_t>(at) % bila::kernel::arena::alignment == 0;
  };
  std::byte* first = nullptr;
  {
    const bila::detail::call_memory one({}, 100), other({}, 100);
    first = one.aligned();
    CHECK((is_aligned(first) && is_aligned(other.aligned())));
    CHECK(std::abs(first - other.aligned()) >= 100);
    std::fill_n(first, 100, poison);
  }
  {
    const bila::detail::call_memory one({}, 50), other({}, 100), third({}, 100);
    CHECK((one.aligned() == first || other.aligned() == first));
    CHECK(is_aligned(third.aligned()));
  }
  const bila::detail::call_memory larger({}, 5000);
  CHECK(is_aligned(larger.aligned()));
  std::fill_n(larger.aligned(), 5000, poison);

  std::byte callers[200];
  for (const std::size_t start : {0u, 1u, 63u}) {
    const bila::detail::call_memory own({callers + start, 128}, 64);
    CHECK(is_aligned(own.aligned()));
    CHECK((own.aligned() >= callers + start && own.aligned() < callers + start + bila::kernel::arena::alignment));
  }
}

TEST_CASE("more calls at once than memory is kept for") {
  bila::release_memory();
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<bila::detail::call_memory>> calls;
    std::set<std::byte*> places;
    for (int n = 0; n < 100; ++n) {
      calls.push_back(std::make_unique<bila::detail::call_memory>(std::span<std::byte>(), 64));
      places.insert(calls.back()->aligned());
    }
    CHECK(places.size() == 100);
  }
}

TEMPLATE_TEST_CASE("workspace_bytes is enough, is needed, and nothing beyond it is touched", "", float, double) {
  test::random_source random(611);
  for (const auto& form : test::all_forms)
    for (const auto kind : {test::mask_kind::all_ones, test::mask_kind::two_sided})
      for (const int threads : {1, 3}) {
        INFO(test::name_of(form) << ", " << test::name_of(kind) << ", " << threads << " threads");
        const auto x = test::random_problem<TestType>(random, {1, 2, 130, 9, 37}, kind, bila::norm::row_sum{1e-6});
        const auto expected = test::evaluate(form, x).y;
        auto y = x.output();
        const std::size_t bytes =
            test::workspace_bytes<TestType>({.threads = threads}, form, x.mask(), x.norm, x.inputs(), y.view());
        for (const std::size_t start : {0u, 1u, 4u, 63u}) {
          constexpr std::size_t guard = 256;
          std::vector<std::byte> memory(start + bytes + 2 * guard, poison);
          const std::span<std::byte> space(memory.data() + guard + start, bytes);
          const auto found = test::evaluate(form, x, {.threads = threads, .workspace = space});
          CHECK(found.intact);
          CHECK(same_bits(found.y, expected));
          CHECK(std::all_of(memory.data(), space.data(), [](std::byte b) { return b == poison; }));
          CHECK(std::all_of(space.data() + bytes, memory.data() + memory.size(), [](std::byte b) { return b == poison; }));
        }
        std::vector<std::byte> memory(bytes);
        const std::string words = test::refusal([&] {
          test::attend<TestType>({.threads = threads, .workspace = std::span(memory).first(bytes - 1)}, form, x.mask(), x.norm,
                                 x.inputs(), y.view());
        });
        CHECK(test::has_all(words, {"cpu.workspace", std::to_string(bytes - 1), std::to_string(bytes)}));
        bool untouched = true;
        y.for_each([&](const TestType& value, index_t, index_t, index_t, index_t) { untouched = untouched && std::isnan(value); });
        CHECK(untouched);
      }
}

TEST_CASE("workspace_bytes refuses what the call would refuse, and looks past the workspace given") {
  test::random_source random(612);
  auto x = test::random_problem<float>(random, {1, 2, 30, 9, 7}, test::mask_kind::source, bila::norm::row_sum{1e-6});
  auto y = x.output();
  std::byte one_byte{};
  CHECK(test::workspace_bytes<float>({.workspace = {&one_byte, 1}}, bila::form::full{}, x.mask(), x.norm, x.inputs(), y.view()) ==
        test::workspace_bytes<float>({}, bila::form::full{}, x.mask(), x.norm, x.inputs(), y.view()));
  x.gates(0, 1, 3) = 0.5;
  CHECK(test::has_all(
      test::refusal([&] { test::workspace_bytes<float>({}, bila::form::full{}, x.mask(), x.norm, x.inputs(), y.view()); }),
      {"log_decay[b = 0, h = 1, t = 3]", "0.5"}));
}

TEST_CASE(
    "gradient_workspace_bytes is enough, from the inputs alone or from all arguments, and refuses what the call would refuse") {
  constexpr index_t L = 70, D = 9;
  std::vector<double> q(L * D, 0.5), y(L * D), z(L), gates(L, -0.1), dq(L * D), dgates(L);
  const auto rows = [](std::vector<double>& x) { return bila::bhld(x.data(), 1, 1, L, D); };
  const bila::form::chunkwise form{16};
  const bila::mask::selective_decay mask{bila::bhl(gates.data(), 1, 1, L), bila::gate::source};
  const bila::norm::row_sum norm{1e-6};
  bila::inputs<double> in{rows(q), rows(q), rows(q)};
  bila::attend(form, mask, norm, in, bila::outputs<double>{rows(y), bila::bhl(z.data(), 1, 1, L)});
  const bila::saved<double> kept{rows(y), bila::bhl(z.data(), 1, 1, L)};
  const bila::output_gradients<double> dy{rows(q)};
  bila::gradients<double> to;
  to.q = rows(dq);
  to.log_decay = bila::bhl(dgates.data(), 1, 1, L);
  const std::size_t bytes = bila::gradient_workspace_bytes(bila::cpu{}, form, mask, norm, in, kept, dy, to);
  CHECK(bytes == bila::gradient_workspace_bytes(bila::cpu{}, form, in, bila::tensor_view<const double>(rows(y))));
  std::vector<std::byte> memory(bytes);
  const auto learn = [&](std::size_t given) {
    bila::gradient(bila::cpu{.workspace = std::span(memory).first(given)}, form, mask, norm, in, kept, dy, to);
  };
  learn(bytes);
  CHECK(dgates[5] != 0);
  CHECK(test::has_all(test::refusal([&] { learn(bytes - 1); }), {"cpu.workspace"}));

  gates[3] = 0.5;
  CHECK(test::has_all(test::refusal([&] { bila::gradient_workspace_bytes(bila::cpu{}, form, mask, norm, in, kept, dy, to); }),
                      {"log_decay", "0.5"}));
  const std::vector<index_t> lengths{3, 4};
  in.lengths = lengths;
  CHECK(test::has_all(
      test::refusal([&] { bila::gradient_workspace_bytes(bila::cpu{}, form, in, bila::tensor_view<const double>(rows(y))); }),
      {"lengths", "2 entries"}));
}
