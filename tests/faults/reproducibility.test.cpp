// SPDX-License-Identifier: Apache-2.0
// Faults that users of linear attention have met elsewhere, kept out by a test each: results that depend on luck or on neighbours.
#include "faults/faults.hpp"

using namespace faults;

TEST_CASE("R2: twenty runs, one result (forward)", "[reproducibility]") {
  const auto x = sample({.B = 2, .H = 3, .L = 200, .Dk = 16, .Dv = 48});
  for (const test::any_form& form : test::all_forms)
    for (const int threads : {1, 2}) {
      const tensor<float> y = run(form, x);
      for (int repetition = 0; repetition < 20; ++repetition) CHECK(same_bits(run(form, x, {.threads = threads}), y));
    }
}

TEST_CASE("R3: five runs over 99 batch rows on several threads, one result", "[reproducibility]") {
  const auto x = sample({.B = 99, .H = 2, .L = 33, .Dk = 8, .Dv = 8});
  for (const test::any_form& form : test::all_forms) {
    const tensor<float> y = run(form, x);
    for (int repetition = 0; repetition < 5; ++repetition) CHECK(same_bits(run(form, x, {.threads = 4}), y));
  }
}

TEST_CASE("R4: a sample does not depend on its batch", "[reproducibility]") {
  for (const mask_kind kind : test::all_masks) {
    const auto eight = sample({.B = 8, .H = 2, .L = 90, .Dk = 12, .Dv = 20}, kind);
    for (const test::any_form& form : test::all_forms) {
      const tensor<float> y = run(form, eight);
      for (index_t b = 0; b < 8; ++b) CHECK(as_if_alone(form, eight, y, {.b = b, .H = 2, .L = 90}));
    }
  }
}
