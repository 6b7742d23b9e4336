// SPDX-License-Identifier: Apache-2.0
// The one law that the library is about: every form gives the numbers of the definition, for every mask, norm, direction and type,
// whatever the shape. The same float inputs serve both types, so the definition is evaluated once.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <string>
#include <vector>

namespace {

using test::any_form;
using test::index_t;

std::vector<any_form> forms_for(index_t L) {
  std::vector<any_form> forms{bila::form::full{}, bila::form::recurrent{}, bila::form::automatic{}};
  for (const index_t size : {index_t(1), index_t(7), index_t(24), index_t(64), L + 5})
    forms.push_back(bila::form::chunkwise{.size = size});
  return forms;
}

template <class T>
void check(const test::problem<T>& x, const test::answer& exact) {
  for (const any_form& form : forms_for(x.size.L)) {
    const auto [y, intact] = test::evaluate(form, x);
    INFO(test::name_of(form) << ": " << x.name());
    CHECK(intact);
    CHECK(x.worst_error(y, exact) <= 1);
  }
}

/// All masks, norms and directions on one shape; diagonals, scales and eps take turns.
void check_shape(const test::sizes& size) {
  test::random_source random(static_cast<std::uint64_t>(701 + size.L * 100 + size.Dk));
  constexpr double diagonals[] = {1, 0, 2, 0.3}, scales[] = {1, 0.125, 3, -0.5, 1}, eps[] = {1e-6, 0, 0.5};
  std::size_t turn = 0;
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const auto direction : test::all_directions) {
        auto x = test::random_problem<float>(random, size, kind, norm);
        if (auto* const row_sum = std::get_if<bila::norm::row_sum>(&x.norm)) row_sum->eps = eps[turn % 3];
        x.direction = direction;
        x.diagonal = diagonals[turn % 4];
        x.scale = scales[turn % 5];
        ++turn;
        const auto exact = x.exact();
        check(x, exact);
        check(test::widened(x), exact);
      }
}

}  // namespace

TEST_CASE("empty shapes") {
  for (const test::sizes& size : {test::sizes{1, 2, 0, 3, 5}, test::sizes{0, 2, 4, 3, 5}, test::sizes{2, 0, 4, 3, 5},
                                  test::sizes{1, 1, 7, 0, 3}, test::sizes{1, 1, 7, 3, 0}})
    check_shape(size);
}

TEST_CASE("unit axes and very short sequences") {
  for (const test::sizes& size : {test::sizes{1, 1, 1, 1, 1}, test::sizes{2, 1, 1, 3, 8}, test::sizes{1, 3, 1, 8, 3},
                                  test::sizes{1, 3, 2, 13, 16}, test::sizes{2, 2, 3, 16, 17}, test::sizes{2, 1, 5, 17, 33}})
    check_shape(size);
}

TEST_CASE("lengths around the chunk and the tiles") {
  for (const test::sizes& size : {test::sizes{1, 2, 31, 8, 13}, test::sizes{1, 1, 32, 3, 64}, test::sizes{1, 1, 33, 64, 3},
                                  test::sizes{1, 1, 63, 13, 17}, test::sizes{1, 2, 64, 16, 16}, test::sizes{1, 1, 65, 33, 8},
                                  test::sizes{1, 1, 127, 8, 33}, test::sizes{1, 1, 128, 16, 1}, test::sizes{1, 1, 129, 1, 16}})
    check_shape(size);
}

TEST_CASE("longer sequences") {
  for (const test::sizes& size :
       {test::sizes{2, 1, 200, 3, 3}, test::sizes{1, 1, 200, 17, 13}, test::sizes{1, 1, 257, 8, 8}, test::sizes{1, 1, 390, 2, 2}})
    check_shape(size);
}

TEST_CASE("a head as large as models have") { check_shape({1, 1, 193, 64, 64}); }
