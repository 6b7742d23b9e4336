// SPDX-License-Identifier: Apache-2.0
// The second gradient allocates nothing, on one thread or on several, nor does the first with a workspace of the caller's.
#include "allocation/count.hpp"
#include "support/catch.hpp"
#include "support/gradient.hpp"

#include <cstddef>
#include <new>
#include <vector>

using test::allocations;

namespace {

/// Of the last of `calls` gradients.
template <class T>
long allocations_of(const test::any_form& form, const test::lesson<T>& x, const bila::cpu& backend, int calls) {
  auto to = room_for(x);
  const auto mask = x.x.mask();
  const auto in = x.inputs();
  const auto dy = given_to(x);
  const auto wanted = gradients_of(to);
  const auto kept = saved_of(to);
  test::forward_pass<T>(test::layer::eigen, {}, form, mask, x.x.norm, in, outputs_of(to));
  long before = 0;
  for (int n = 0; n < calls; ++n) {
    before = allocations();
    test::backward_pass<T>(test::layer::eigen, backend, form, mask, x.x.norm, in, kept, dy, wanted);
  }
  return allocations() - before;
}

}  // namespace

TEST_CASE("allocations are seen") {
  const long before = allocations();
  void* volatile memory = ::operator new(100);
  CHECK(allocations() - before == 1);
  ::operator delete(memory);
}

TEMPLATE_TEST_CASE("the second gradient allocates nothing", "", float, double, bila::bf16) {
  test::random_source random(3701);
  for (const auto kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const bool states : {false, true}) {
        auto wide = test::random_lesson(random, {.B = 2, .H = 2, .L = 150, .Dk = 9, .Dv = 20, .Hk = 1}, kind, norm);
        if (states) add_states(wide, random);
        const auto x = test::stored_as<TestType>(wide);
        for (const auto& form :
             {test::any_form(bila::form::full{}), test::any_form(bila::form::recurrent{}),
              test::any_form(bila::form::chunkwise{.size = 24}),
              test::any_form(bila::form::chunkwise{.size = 8, .recompute = true}), test::any_form(bila::form::automatic{})})
          for (const int threads : {1, 2}) {
            if (states && form.index() == 0) continue;
            INFO(test::name_of(form) << ", " << threads << " threads: " << wide.name());
            CHECK(allocations_of(form, x, {.threads = threads}, 2) == 0);
          }
      }
}

TEST_CASE("with a workspace of the caller's the first gradient allocates nothing either") {
  test::random_source random(3702);
  const auto x = test::random_lesson(random, {.B = 2, .H = 3, .L = 500, .Dk = 19, .Dv = 70}, test::mask_kind::source,
                                     bila::norm::row_sum{1e-6});
  for (const auto& form : test::all_forms) {
    std::vector<std::byte> memory(test::backward_bytes<double>({}, form, x.inputs(), x.dy.view()));
    INFO(test::name_of(form));
    CHECK(allocations_of(form, x, {.workspace = memory}, 1) == 0);
  }
}
