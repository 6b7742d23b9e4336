// SPDX-License-Identifier: Apache-2.0
// What lies around the tensors and what the workspace held before changes no bit: NaN or enormous numbers, in every shape that is
// no multiple of anything.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace {

using test::index_t;

template <class T>
void fill_with(std::vector<std::byte>& memory, T value) {
  for (std::size_t n = 0; n + sizeof(T) <= memory.size(); n += sizeof(T)) std::memcpy(memory.data() + n, &value, sizeof(T));
}

template <class T>
test::problem<T> surrounded_by(const test::problem<T>& x, T poison, test::layout where) {
  auto result = x;
  result.q = x.q.laid_out(where, poison);
  result.k = x.k.laid_out(where, poison);
  result.v = x.v.laid_out(where, poison);
  result.gates = x.gates.laid_out(where, static_cast<double>(poison));
  result.other_gates = x.other_gates.laid_out(where, static_cast<double>(poison));
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("poison around the tensors and in the workspace", "", float, double) {
  test::random_source random(871);
  for (const auto kind : test::all_masks)
    for (const auto& [L, D] : {std::pair<index_t, index_t>{71, 1}, {150, 13}, {71, 17}, {131, 60}, {71, 80}}) {
      const auto x = test::random_problem<TestType>(random, {1, 1, L, D, D + 2}, kind, bila::norm::row_sum{1e-6});
      const auto exact = x.exact();
      for (const auto& form : test::all_forms) {
        const auto clean = test::evaluate(form, surrounded_by<TestType>(x, 0, test::layout::bhld)).y;
        CHECK(x.worst_error(clean, exact) <= 1);
        auto y = x.output();
        std::vector<std::byte> memory(
            test::workspace_bytes<TestType>({.threads = 2}, form, x.mask(), x.norm, x.inputs(), y.view()));
        for (const TestType poison : {test::not_a_number<TestType>, TestType(1e30), -std::numeric_limits<TestType>::infinity()})
          for (const auto where : {test::layout::bhld, test::layout::packed, test::layout::strided})
            for (const int threads : {1, 2}) {
              fill_with(memory, poison);
              const auto found =
                  test::evaluate(form, surrounded_by(x, poison, where), {.threads = threads, .workspace = memory}, where);
              INFO(test::name_of(form) << ", poison " << poison << ", " << test::name_of(where) << ", " << threads
                                       << " threads: " << x.name());
              CHECK(found.intact);
              CHECK(same_bits(found.y, clean));
            }
      }
    }
}

TEMPLATE_TEST_CASE("a NaN in v reaches the tokens that see it, and no other head and no other value feature", "", float, double) {
  test::random_source random(872);
  for (const auto kind : test::all_masks)
    for (const auto& form : test::all_forms) {
      auto x = test::random_problem<TestType>(random, {1, 2, 150, 6, 20}, kind, bila::norm::row_sum{1e-6});
      const auto clean = test::evaluate(form, x).y;
      x.v(0, 1, 70, 11) = test::not_a_number<TestType>;
      const auto y = test::evaluate(form, x).y;
      bool others = true;
      y.for_each([&](const TestType& value, index_t b, index_t h, index_t l, index_t d) {
        if (h != 1 || d != 11) others = others && value == clean(b, h, l, d);
      });
      INFO(test::name_of(form) << ": " << x.name());
      CHECK(others);
      for (const index_t l : {69, 70, 71}) CHECK(std::isnan(y(0, 1, l, 11)));
    }
}
