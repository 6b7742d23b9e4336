// SPDX-License-Identifier: Apache-2.0
// Denormal results are zero while a task runs, denormal inputs keep their value, and the caller's mode comes back.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <bila/bila.hpp>
#include <bila/backend/cpu/denormals.hpp>

#include <cmath>
#include <limits>
#include <vector>

namespace {

using bila::index_t;

/// Whether this thread gets zero where a denormal number should be.
bool flushes() {
  volatile float smallest = std::numeric_limits<float>::min();
  const volatile float half = smallest * 0.5f;
  return half == 0;
}

bool guard_flushes() {
  const bila::detail::flush_denormals guard;
  return flushes();
}

/// Notes the mode in which it is read.
struct noting_mask {
  static constexpr bila::gap gaps = bila::gap::per_token;
  bool* flushed;
  double log_forward(index_t, index_t, index_t) const {
    *flushed = *flushed || flushes();
    return -1;
  }
  double log_backward(index_t, index_t, index_t) const { return -1; }
};

}  // namespace

TEST_CASE("the guard switches and restores") {
  CHECK_FALSE(flushes());
  if (!guard_flushes()) return;  // a processor that the guard does not know
  CHECK_FALSE(flushes());
  {
    const bila::detail::flush_denormals outer;
    CHECK(guard_flushes());
    CHECK(flushes());
  }
  CHECK_FALSE(flushes());
}

TEST_CASE("a call runs with flushing on and leaves the mode as it was, on or off") {
  CHECK_FALSE(flushes());
  if (!guard_flushes()) return;
  std::vector<float> x(40, 1), y(40);
  const auto view = bila::bhld(x.data(), 1, 1, 10, 4);
  bool flushed = false;
  bila::attend(bila::form::recurrent{}, noting_mask{&flushed}, bila::norm::none{}, bila::inputs<float>{view, view, view},
               bila::bhld(y.data(), 1, 1, 10, 4));
  CHECK(flushed);
  CHECK_FALSE(flushes());

  const bila::detail::flush_denormals on;
  bila::attend(bila::form::recurrent{}, noting_mask{&flushed}, bila::norm::none{}, bila::inputs<float>{view, view, view},
               bila::bhld(y.data(), 1, 1, 10, 4));
  CHECK(flushes());
}

TEST_CASE("weights below the smallest normal number are zero, denormal inputs are numbers") {
  CHECK_FALSE(flushes());
  if (!guard_flushes()) return;
  for (const auto& form : test::all_forms) {
    INFO(test::name_of(form));
    test::random_source random(621);
    auto x = test::random_problem<float>(random, {1, 1, 2, 1, 1}, test::mask_kind::later, bila::norm::none{});
    x.q.fill(1);
    x.k.fill(1);
    x.v(0, 0, 0) = 0;
    x.v(0, 0, 1) = 1;
    x.gates(0, 0, 1) = -95;  // e^-95 = 5.5e-42
    CHECK(test::evaluate(form, x).y(0, 0, 0) == 0);

    x.gates(0, 0, 1) = 0;
    x.k.fill(0x1p60f);
    x.v.fill(0x1p-140f);  // denormal
    CHECK(test::evaluate(form, x).y(0, 0, 0) == 0x1p-79f);
  }
}
