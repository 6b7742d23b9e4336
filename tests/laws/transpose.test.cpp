// SPDX-License-Identifier: Apache-2.0
// The transposed operator is the operator with q and k exchanged and the directions exchanged: sum_i u_i . y_i(q, k, v; f, b) =
// sum_j v_j . y_j(k, q, u; b, f). So source and target are each other's transpose, later and earlier their own.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <cmath>

namespace {

using test::index_t;
using test::mask_kind;
using test::wide;

mask_kind transposed(mask_kind kind) {
  return kind == mask_kind::source ? mask_kind::target : kind == mask_kind::target ? mask_kind::source : kind;
}

bila::direction transposed(bila::direction way) {
  return way == bila::direction::forward    ? bila::direction::backward
         : way == bila::direction::backward ? bila::direction::forward
                                            : way;
}

struct inner {
  wide value = 0, allowed = 0;
};

/// sum u y, and what it may be off by.
template <class T>
inner product(const test::tensor<T>& u, const test::problem<T>& x, const test::any_form& form) {
  const auto y = test::evaluate(form, x).y;
  const auto exact = x.exact();
  inner result;
  u.for_each([&](const T& weight, index_t b, index_t h, index_t l, index_t d) {
    result.value += wide(weight) * wide(y(b, h, l, d));
    result.allowed += std::fabs(wide(weight)) * test::bound<T>(exact, exact.place(b, h, l, d), x.size.L, x.size.Dk);
  });
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("the adjoint is the operator with exchanged arguments", "", float, double) {
  test::random_source random(731);
  for (const auto kind : test::all_masks)
    for (const auto direction : test::all_directions)
      for (const auto& form : test::all_forms) {
        auto x = test::random_problem<TestType>(random, {1, 1, 101, 4, 5}, kind, bila::norm::none{});
        x.direction = direction;
        x.diagonal = 0.7;
        test::tensor<TestType> u(1, 1, 101, 5);
        u.fill_uniform(random, -1, 1);

        auto other = x;
        std::swap(other.q, other.k);
        other.v = u;
        other.kind = transposed(kind);
        other.direction = transposed(direction);
        if (kind == mask_kind::two_sided) std::swap(other.gates, other.other_gates);

        const auto one = product(u, x, form), same = product(x.v, other, form);
        INFO(test::name_of(form) << ": " << x.name());
        CHECK(std::fabs(one.value - same.value) <= one.allowed + same.allowed);
      }
}
