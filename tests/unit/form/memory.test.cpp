// SPDX-License-Identifier: Apache-2.0
// What each form needs besides its inputs: never an L x L matrix, never a state per token.
#include "support/catch.hpp"
#include "support/refusal.hpp"
#include "support/run.hpp"

#include <bila/form/chunkwise.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace {

using bila::index_t;

/// Bytes for one head of L tokens. The data is never read, so there need not be any.
template <class T>
index_t bytes(const test::any_form& form, index_t L, index_t D, const bila::cpu& backend = {}) {
  T nothing{};
  double gate = 0;
  const bila::tensor_view<const T> constant{&nothing, {1, 1, L, D}, {0, 0, 0, 0}};
  const bila::tensor_view<T> y = bila::bhld(reinterpret_cast<T*>(std::uintptr_t(1) << 40), 1, 1, L, D);
  return static_cast<index_t>(test::workspace_bytes<T>(backend, form, bila::mask::fixed_decay<double>{bila::vec(&gate, 1)},
                                                       bila::norm::row_sum{1e-6}, {constant, constant, constant}, y));
}

}  // namespace

TEMPLATE_TEST_CASE("the full form's memory does not grow with the length", "", float, double) {
  CHECK(bytes<TestType>(bila::form::full{}, 1000, 16) == bytes<TestType>(bila::form::full{}, 1000000, 16));
}

TEMPLATE_TEST_CASE("the linear forms keep one number per token", "", float, double) {
  for (const test::any_form& form : {test::any_form(bila::form::recurrent{}), test::any_form(bila::form::chunkwise{}),
                                     test::any_form(bila::form::automatic{})}) {
    INFO(test::name_of(form));
    const index_t grown = bytes<TestType>(form, 1001000, 16) - bytes<TestType>(form, 1000, 16);
    CHECK(grown >= 0);
    CHECK(grown <= 1000000 * static_cast<index_t>(sizeof(TestType)) + 64);
  }
}

TEST_CASE("a chunk that is longer than the sequence costs no memory") {
  constexpr index_t largest = std::numeric_limits<index_t>::max();
  CHECK(bytes<float>(bila::form::chunkwise{.size = largest}, 70, 16) == bytes<float>(bila::form::chunkwise{.size = 70}, 70, 16));
  CHECK(bytes<float>(bila::form::chunkwise{.size = 71}, 70, 16) == bytes<float>(bila::form::chunkwise{.size = 70}, 70, 16));
  CHECK(bytes<float>(bila::form::chunkwise{.size = 64}, 70, 16) < bytes<float>(bila::form::chunkwise{.size = 70}, 70, 16));
}

TEST_CASE("automatic has room for either of its forms") {
  for (const index_t L : {1, 10, 95, 96, 1000}) {
    INFO("L = " << L);
    CHECK(bytes<float>(bila::form::automatic{}, L, 16) >= bytes<float>(bila::form::full{}, L, 16));
    CHECK(bytes<float>(bila::form::automatic{}, L, 16) >= bytes<float>(bila::form::chunkwise{}, L, 16));
  }
}

TEST_CASE("more threads need more room, but no more than there is work for") {
  for (const test::any_form& form : test::all_forms) {
    INFO(test::name_of(form));
    CHECK(bytes<float>(form, 1, 1, {.threads = 64}) == bytes<float>(form, 1, 1));
    CHECK(bytes<float>(form, 1000, 64, {.threads = 4}) > bytes<float>(form, 1000, 64));
    CHECK(bytes<float>(form, 1000, 64, {.threads = 4}) <= 4 * bytes<float>(form, 1000, 64));
  }
}

TEST_CASE("a chunk holds as many tokens as it is told, or as were measured to be best") {
  using test::has_all;
  CHECK(bila::form::chunkwise{.size = 1}.validate().empty());
  CHECK(bila::form::chunkwise{}.validate().empty());
  CHECK((bila::form::chunkwise{}.tokens() == 16 && bila::form::chunkwise{}.gradient().size == 32));
  CHECK((bila::form::chunkwise{.size = 48}.tokens() == 48 && bila::form::chunkwise{.size = 48}.gradient().size == 48));
  CHECK(has_all(bila::form::chunkwise{.size = -5}.validate(), {"chunkwise.size", "-5"}));
  CHECK(has_all(test::refusal([] { bytes<float>(bila::form::chunkwise{.size = -5}, 70, 16); }), {"chunkwise.size", "-5"}));
}
