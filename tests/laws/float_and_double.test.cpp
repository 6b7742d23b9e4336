// SPDX-License-Identifier: Apache-2.0
// float is double with fewer digits: the same call in both types differs by what float may differ from the definition, and by no
// less than float has digits. Gates may be of either type.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <bila/bila.hpp>

#include <cmath>

namespace {

using test::index_t;
using test::wide;

template <class T, class Gate>
test::tensor<T> with_gates_of(const test::problem<T>& x, const test::tensor<Gate>& gates) {
  auto y = x.output();
  const bila::norm::row_sum norm{1e-6};
  if (x.kind == test::mask_kind::fixed)
    bila::attend(bila::form::chunkwise{.size = 24}, bila::mask::fixed_decay<Gate>{gates.view()}, norm, x.inputs(), y.view());
  else if (x.kind == test::mask_kind::source)
    bila::attend(bila::form::chunkwise{.size = 24}, bila::mask::selective_decay<Gate>{gates.view(), bila::gate::source}, norm,
                 x.inputs(), y.view());
  else
    bila::attend(bila::form::chunkwise{.size = 24}, bila::mask::two_sided<Gate>{gates.view(), gates.view()}, norm, x.inputs(),
                 y.view());
  return y;
}

}  // namespace

TEST_CASE("the same call in float and in double") {
  test::random_source random(881);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms) {
      const auto x = test::random_problem<float>(random, {1, 2, 150, 8, 9}, kind, norm);
      const auto exact = x.exact();
      for (const auto& form : test::all_forms) {
        const auto narrow = test::evaluate(form, x).y;
        const auto wider = test::evaluate(form, test::widened(x)).y;
        bool close = true, equal = true;
        narrow.for_each([&](const float& value, index_t b, index_t h, index_t l, index_t d) {
          const std::size_t at = exact.place(b, h, l, d);
          const wide difference = std::fabs(wide(value) - wide(wider(b, h, l, d)));
          close = close && difference <= test::bound<float>(exact, at, 150, 8) + test::bound<double>(exact, at, 150, 8);
          equal = equal && difference == 0;
        });
        INFO(test::name_of(form) << ": " << x.name());
        CHECK(close);
        CHECK_FALSE(equal);
      }
    }
}

TEMPLATE_TEST_CASE("float gates are the same numbers as double gates", "", float, double) {
  test::random_source random(882);
  for (const auto kind : {test::mask_kind::fixed, test::mask_kind::source, test::mask_kind::two_sided}) {
    auto x = test::random_problem<TestType>(random, {2, 2, 100, 5, 6}, kind, bila::norm::row_sum{1e-6});
    test::tensor<float> narrow(x.gates.extent(0), x.gates.extent(1), x.gates.extent(2), 1);
    narrow.for_each([&](float& gate, index_t b, index_t h, index_t t, index_t) { gate = static_cast<float>(x.gates(b, h, t)); });
    x.gates.for_each([&](double& gate, index_t b, index_t h, index_t t, index_t) { gate = static_cast<double>(narrow(b, h, t)); });
    x.other_gates = x.gates;
    INFO(x.name());
    CHECK(same_bits(with_gates_of(x, narrow), with_gates_of(x, x.gates)));
    CHECK(x.worst_error(with_gates_of(x, narrow), x.exact()) <= 1);
  }
}
