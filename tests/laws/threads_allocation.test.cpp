// SPDX-License-Identifier: Apache-2.0
// Once the workspace is warm, a call allocates nothing, on one thread or on several.
#include "allocation/count.hpp"
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <bila/bila.hpp>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

using test::allocations;

namespace {

template <class T>
long allocations_of(const test::any_form& form, const test::problem<T>& x, const bila::cpu& backend) {
  auto y = x.output();
  const auto mask = x.mask();
  const auto in = x.inputs();
  test::attend<T>(backend, form, mask, x.norm, in, y.view());
  const long before = allocations();
  test::attend<T>(backend, form, mask, x.norm, in, y.view());
  return allocations() - before;
}

}  // namespace

TEST_CASE("allocations are seen") {
  void* volatile memory = nullptr;  // or a compiler leaves out what it sees through
  const long before = allocations();
  memory = ::operator new(100);
  CHECK(allocations() - before == 1);
  ::operator delete(memory);

  const long between = allocations();
  memory = ::operator new(100, std::align_val_t(64));
  CHECK(allocations() - between == 1);
  ::operator delete(memory, std::align_val_t(64));

#if TEST_COUNTS_MALLOC
  const long after = allocations();
  memory = std::malloc(100);
  std::free(memory);
  CHECK(allocations() - after == 1);
#endif
}

TEMPLATE_TEST_CASE("the second call allocates nothing", "", float, double) {
  test::random_source random(861);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto& [size, offsets, lengths] :
           {std::tuple<test::sizes, std::vector<test::index_t>, std::vector<test::index_t>>{{2, 3, 200, 9, 40}, {}, {}},
            {{1, 1, 300, 16, 64}, {}, {}},
            {{1, 1, 5, 3, 2}, {}, {}},
            {{1, 2, 200, 9, 40}, {0, 7, 7, 150, 200}, {}},
            {{2, 1, 200, 9, 40}, {}, {200, 3}}}) {
        auto x = test::random_problem<TestType>(random, size, kind, norm);
        x.offsets = offsets;
        x.lengths = lengths;
        for (const auto& form : test::all_forms)
          for (const int threads : {1, 2}) {
            INFO(test::name_of(form) << ", " << threads << " threads: " << x.name());
            CHECK(allocations_of(form, x, {.threads = threads}) == 0);
          }
      }
}

TEST_CASE("with a workspace of the caller's the first call allocates nothing either") {
  test::random_source random(862);
  const auto x = test::random_problem<float>(random, {2, 3, 500, 19, 70}, test::mask_kind::source, bila::norm::row_sum{1e-6});
  for (const auto& form : test::all_forms) {
    auto y = x.output();
    const auto mask = x.mask();
    const auto in = x.inputs();
    std::vector<std::byte> memory(test::workspace_bytes<float>({}, form, mask, x.norm, in, y.view()));
    const long before = allocations();
    test::attend<float>({.workspace = memory}, form, mask, x.norm, in, y.view());
    INFO(test::name_of(form));
    CHECK(allocations() - before == 0);
  }
}

TEST_CASE("cross attention allocates nothing either: no message is made of what is right") {
  constexpr bila::index_t H = 2, L = 40, Lk = 60, D = 8;
  std::vector<float> q(H * L * D, 0.5f), k(H * Lk * D, 0.25f), v(H * Lk * D, 1.0f), y(H * L * D);
  const bila::inputs<float> in{bila::bhld(q.data(), 1, H, L, D), bila::bhld(k.data(), 1, H, Lk, D),
                               bila::bhld(v.data(), 1, H, Lk, D)};
  const auto call = [&] {
    const long before = allocations();
    bila::attend(bila::form::full{}, bila::mask::all_ones{}, bila::norm::row_sum{}, in, bila::bhld(y.data(), 1, H, L, D));
    return allocations() - before;
  };
  call();
  CHECK(call() == 0);
}
