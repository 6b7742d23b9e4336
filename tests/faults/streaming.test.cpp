// SPDX-License-Identifier: Apache-2.0
// Faults that users of linear attention have met elsewhere, kept out by a test each: what one call leaves behind for the next.
#include "faults/faults.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

using namespace faults;

TEST_CASE("T5: a result is not changed by the next call", "[streaming]") {
  for (const test::any_form& form : test::all_forms) {
    const auto first = sample({.H = 2, .L = 70, .Dk = 8, .Dv = 8});
    const auto second = sample(first.size, first.kind, first.norm, 2);  // other numbers
    const tensor<float> y = run(form, first), kept = y;
    CHECK_FALSE(same_bits(run(form, second), y));
    CHECK(same_bits(y, kept));
    CHECK(same_bits(run(form, first), y));
  }
}

TEST_CASE("T6: what a workspace holds, from another call or from nowhere, does not enter the result", "[streaming]") {
  for (const mask_kind kind : test::all_masks)
    for (const test::any_form& form : test::all_forms) {
      CAPTURE(test::name_of(kind), test::name_of(form));
      const auto before = sample({.B = 2, .H = 2, .L = 150, .Dk = 24, .Dv = 24}, kind),
                 x = sample({.H = 3, .L = 70, .Dk = 9, .Dv = 5}, kind);
      const auto bytes = [&](const auto& call) {
        return test::workspace_bytes<float>({}, form, call.mask(), call.norm, call.inputs(), call.output().view());
      };
      std::vector<std::byte> memory(std::max(bytes(before), bytes(x)));
      const bila::cpu backend{.workspace = memory};
      const tensor<float> y = run(form, x, backend);  // on zeros

      std::memset(memory.data(), 0xff, memory.size());  // NaN as float and as double
      CHECK(same_bits(run(form, x, backend), y));
      run(form, before, backend);
      CHECK(same_bits(run(form, x, backend), y));

      run(form, before);  // the workspace that the thread keeps
      CHECK(same_bits(run(form, x), y));
    }
}
