// SPDX-License-Identifier: Apache-2.0
// How tensors lie in memory changes no bit: slices, transposed, reversed and broadcast ones, at any address.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <vector>

namespace {

using test::index_t;
using test::layout;

template <class T>
test::problem<T> laid_out(const test::problem<T>& x, layout q, layout k, layout v, layout gates) {
  auto result = x;
  result.q = x.q.laid_out(q);
  result.k = x.k.laid_out(k);
  result.v = x.v.laid_out(v);
  result.gates = x.gates.laid_out(gates);
  result.other_gates = x.other_gates.laid_out(gates);
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("every layout of every tensor", "", float, double) {
  test::random_source random(791);
  for (const auto kind : {test::mask_kind::all_ones, test::mask_kind::fixed, test::mask_kind::source, test::mask_kind::two_sided})
    for (const auto& [Dk, Dv] :
         {std::pair<index_t, index_t>{5, 7}, {16, 32}, {1, 1}}) {  // rows that are whole packets are read in place
      auto x = test::random_problem<TestType>(random, {2, 2, 133, Dk, Dv}, kind, bila::norm::row_sum{1e-6});
      x.diagonal = 0.5;
      for (const auto& form : test::all_forms) {
        const auto plain = test::evaluate(form, x).y;
        for (std::size_t n = 0; n < test::all_layouts.size(); ++n) {
          const auto turn = [n](std::size_t by) { return test::all_layouts[(n + by) % test::all_layouts.size()]; };
          for (const std::size_t by : {0u, 1u}) {  // all alike, and each its own
            INFO(test::name_of(form) << ", from " << test::name_of(turn(0)) << " on by " << by << ": " << x.name());
            const auto [y, intact] =
                test::evaluate(form, laid_out(x, turn(0), turn(by), turn(2 * by), turn(3 * by)), {}, turn(4 * by));
            CHECK(intact);
            CHECK(same_bits(y, plain));
          }
        }
      }
    }
}

TEMPLATE_TEST_CASE("a stride of zero repeats what a copy would repeat", "", float, double) {
  test::random_source random(792);
  for (const auto kind : {test::mask_kind::all_ones, test::mask_kind::source})
    for (std::size_t axis = 0; axis < 4; ++axis) {
      auto dense = test::random_problem<TestType>(random, {2, 3, 70, 8, 16}, kind, bila::norm::row_sum{1e-6});
      const auto repeat = [axis](auto& x) {  // along the axis, all like the first
        auto first = x;
        x.for_each([&](auto& value, index_t b, index_t h, index_t l, index_t d) {
          value = first(axis == 0 ? 0 : b, axis == 1 ? 0 : h, axis == 2 ? 0 : l, axis == 3 ? 0 : d);
        });
      };
      repeat(dense.q);
      repeat(dense.k);
      repeat(dense.v);
      repeat(dense.gates);

      auto in = dense.inputs();
      in.q.strides[axis] = in.k.strides[axis] = in.v.strides[axis] = 0;
      auto mask = dense.mask();
      if (auto* const selective = std::get_if<bila::mask::selective_decay<double>>(&mask)) selective->log_decay.strides[axis] = 0;
      for (const auto& form : test::all_forms) {
        INFO(test::name_of(form) << ", axis " << axis << ": " << dense.name());
        auto y = dense.output();
        test::attend<TestType>({}, form, mask, dense.norm, in, y.view());
        CHECK(same_bits(y, test::evaluate(form, dense).y));
      }
    }
}

TEMPLATE_TEST_CASE("every address of the memory", "", float, double) {
  test::random_source random(793);
  const auto x = test::random_problem<TestType>(random, {1, 1, 70, 16, 16}, test::mask_kind::source, bila::norm::row_sum{1e-6});
  for (const auto& form : test::all_forms) {
    const auto plain = test::evaluate(form, x).y;
    for (std::size_t offset = 0; offset < 17; ++offset) {
      std::vector<TestType> memory(4 * 70 * 16 + 80);
      TestType* const start = memory.data() + offset;
      const auto place = [&](const test::tensor<TestType>& from, index_t n) {
        const auto to = bila::bhld(start + n * (70 * 16 + 16 + n), 1, 1, 70, 16);
        from.for_each([&](const TestType& value, index_t b, index_t h, index_t l, index_t d) { to(b, h, l, d) = value; });
        return to;
      };
      const auto y = bila::bhld(start + 3 * (70 * 16 + 16 + 3), 1, 1, 70, 16);
      test::attend<TestType>({}, form, x.mask(), x.norm, {place(x.q, 0), place(x.k, 1), place(x.v, 2)}, y);
      bool same = true;
      plain.for_each(
          [&](const TestType& value, index_t b, index_t h, index_t l, index_t d) { same = same && value == y(b, h, l, d); });
      INFO(test::name_of(form) << ", offset " << offset);
      CHECK(same);
    }
  }
}
