// SPDX-License-Identifier: Apache-2.0
// Whatever the workspace holds, signalling NaNs included, nothing is computed from it: no call raises a flag that a program may
// trap on.
#include "support/catch.hpp"
#include "support/gradient.hpp"

#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace {

using test::index_t;

/// Random bytes, among them infinities and NaNs of both kinds.
std::vector<std::byte> junk(test::random_source& random) {
  std::vector<std::byte> memory(1 << 20);
  for (std::size_t n = 0; n < memory.size(); n += 8) {
    std::uint64_t word = random.bits();
    if (random.below(2) == 0) word |= 0x7f8000007f800000u;   // an infinity or a NaN of float
    if (random.below(4) == 0) word |= 0x7ff0000000000000u;   // of double
    if (random.below(2) == 0) word &= ~0x0008000000400000u;  // which signals
    std::memcpy(memory.data() + n, &word, sizeof(word));
  }
  return memory;
}

/// The flags that f raises and that a program may trap on.
template <class Function>
int flags_of(const Function& f) {
#if defined(__clang__)
  f();
  return 0;
#else
  constexpr int trapped = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
  std::feclearexcept(FE_ALL_EXCEPT);
  f();
  return std::fetestexcept(trapped);
#endif
}

}  // namespace

TEMPLATE_TEST_CASE("no call computes with what the workspace held", "", float, double, bila::bf16) {
  test::random_source random(881);
  const std::vector<std::byte> held = junk(random);
  for (int n = 0; n < 200; ++n) {
    test::sizes size;
    size.H = 1 + random.below(2);
    size.L = 1 + random.below(random.below(4) == 0 ? 150 : 20);
    size.Dk = 1 + random.below(20);
    size.Dv = 1 + random.below(36);
    const auto kind = test::all_masks[static_cast<std::size_t>(random.below(7))];
    const auto norm = test::all_norms[static_cast<std::size_t>(random.below(3))];
    auto wide = test::random_lesson(random, size, kind, norm);
    wide.x.direction = test::all_directions[static_cast<std::size_t>(random.below(3))];
    const bool states = random.below(2) == 0;
    if (states) add_states(wide, random);
    const auto x = test::stored_as<TestType>(wide);
    for (const test::any_form& form :
         {test::any_form(bila::form::full{}), test::any_form(bila::form::recurrent{}),
          test::any_form(bila::form::chunkwise{.size = 1 + random.below(40), .recompute = random.below(2) == 0})}) {
      if (states && form.index() == 0) continue;  // full carries no state
      INFO(test::name_of(form) << ": " << x.name());
      auto to = room_for(x);
      const auto start = static_cast<std::size_t>(8 * random.below(1000));
      auto memory = held;
      const bila::cpu backend{.workspace = std::span(memory).subspan(start)};
      CHECK(flags_of([&] {
              test::forward_pass<TestType>(test::layer::eigen, backend, form, x.x.mask(), x.x.norm, x.inputs(), outputs_of(to));
            }) == 0);
      memory = held;
      CHECK(flags_of([&] {
              test::backward_pass<TestType>(test::layer::eigen, backend, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(to),
                                            given_to(x), gradients_of(to));
            }) == 0);
    }
  }
}
