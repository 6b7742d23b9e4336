// SPDX-License-Identifier: Apache-2.0
// The same call on the plain-loop kernel layer: the definition again, with the same guarantees.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <bila/bila.hpp>
#include <bila/kernel/reference.hpp>

namespace {

using bila::kernel::reference;
using test::index_t;

template <class T, class Form>
test::tensor<T> plain(const Form& form, const test::problem<T>& x, const bila::cpu& backend = {}) {
  auto y = x.output();
  const bila::norm::row_sum norm{1e-6};
  if (x.kind == test::mask_kind::all_ones)
    bila::attend<reference>(backend, form, bila::mask::all_ones{}, norm, x.inputs(), y.view());
  else
    bila::attend<reference>(backend, form, bila::mask::two_sided<double>{x.gates.view(), x.other_gates.view()}, norm, x.inputs(),
                            y.view());
  CHECK(y.intact());
  return y;
}

template <class T, class Form>
void check(const Form& form) {
  test::random_source random(891);
  for (const auto kind : {test::mask_kind::all_ones, test::mask_kind::two_sided})
    for (const index_t L : {1, 5, 65, 150})
      for (const auto direction : test::all_directions) {
        auto x = test::random_problem<T>(random, {1, 2, L, 7, 35}, kind, bila::norm::row_sum{1e-6});
        x.direction = direction;
        x.diagonal = 0.3;
        const auto y = plain(form, x);
        INFO(x.name());
        CHECK(x.worst_error(y, x.exact()) <= 1);
        CHECK(same_bits(plain(form, x, {.threads = 3}), y));
        x.v = x.v.laid_out(test::layout::strided);
        CHECK(same_bits(plain(form, x), y));
      }
}

}  // namespace

TEMPLATE_TEST_CASE("attend on the reference layer", "", float, double) {
  check<TestType>(bila::form::full{});
  check<TestType>(bila::form::recurrent{});
  check<TestType>(bila::form::chunkwise{.size = 24});
}
