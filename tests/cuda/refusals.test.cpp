// SPDX-License-Identifier: Apache-2.0
// A call that cannot be meant is refused before anything is launched, in one sentence that names the argument; nothing is written.
#include "cuda/support/laws.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace {

using bila::bf16;
using test::index_t;
using test::mask_kind;

/// A lesson on the device, whose arguments a test may spoil.
struct call {
  explicit call(const test::lesson<bf16>& lesson, const test::any_form& with = bila::form::chunkwise{}, bool states = false)
      : x(lesson), form(with), to(test::room_for(x)), norm(x.x.norm) {
    in = test::device::in(memory, x.x.inputs());
    if (states) in = test::device::in(memory, x.inputs());
    mask = test::device::in(memory, x.x.mask());
    out = {memory.out(to.y.view()), memory.out(to.row_sum.view())};
    dy = {memory.in(std::as_const(x).dy.view())};
    gradients = test::device::out(memory, gradients_of(to));
    saved = {out.y, out.row_sum};
    memory.upload();
  }

  std::string forward(std::span<std::byte> workspace) {
    return test::refusal([&] { test::device::attend<bf16>({nullptr, workspace}, form, mask, norm, in, out); });
  }
  std::string forward() { return forward(test::device::workspace(1 << 24, 0xff)); }
  std::string backward(std::span<std::byte> workspace) {
    return test::refusal([&] { test::device::gradient<bf16>({nullptr, workspace}, form, mask, norm, in, saved, dy, gradients); });
  }
  std::string backward() { return backward(test::device::workspace(1 << 24, 0xff)); }

  std::size_t forward_bytes() { return test::device::workspace_bytes<bf16>(form, mask, norm, in, out); }
  std::size_t backward_bytes() { return test::device::gradient_workspace_bytes<bf16>(form, mask, norm, in, saved, dy, gradients); }

  /// Nothing, not even an output, has been written.
  bool untouched() {
    test::device::finish();
    const bool intact = memory.download();
    bool all = true;
    const auto look = [&all](const auto& t) {
      t.for_each(
          [&all](const auto& value, index_t, index_t, index_t, index_t) { all = all && std::isnan(static_cast<double>(value)); });
    };
    look(to.y), look(to.row_sum), look(to.q), look(to.k), look(to.v), look(to.log_decay), look(to.log_forward),
        look(to.log_backward);
    return intact && all && std::isnan(to.scale) && std::isnan(to.diagonal);
  }

  test::lesson<bf16> x;
  test::any_form form;
  test::learned<bf16> to;
  test::any_norm norm;
  test::image memory;
  bila::inputs<bf16> in;
  test::any_mask mask;
  bila::outputs<bf16> out;
  bila::saved<bf16> saved;
  bila::output_gradients<bf16> dy;
  bila::gradients<bf16> gradients;
};

test::lesson<bf16> some_lesson(const test::sizes& size = {.B = 2, .H = 2, .L = 140, .Dk = 16, .Dv = 24},
                               const test::any_norm& norm = bila::norm::row_sum{1e-6}) {
  test::random_source random(6201);
  return test::lesson_for<bf16>(test::random_lesson(random, size, mask_kind::source, norm));
}

}  // namespace

TEST_CASE("a workspace that is too small or missing") {
  for (const auto& form : test::device_forms) {
    call c(some_lesson(), form);
    INFO(test::name_of(form));
    for (const bool way_back : {false, true}) {
      const std::size_t needed = way_back ? c.backward_bytes() : c.forward_bytes();
      const auto with = [&](std::span<std::byte> workspace) { return way_back ? c.backward(workspace) : c.forward(workspace); };
      if (needed == 0) continue;
      const std::string ending = " bytes, this call needs " + std::to_string(needed);
      CHECK(test::has_all(with(test::device::workspace(needed - 1, 0xff)),
                          {"bila: ", "cuda::on.workspace has " + std::to_string(needed - 1) + ending}));
      CHECK(test::has_all(with({}), {"cuda::on.workspace has 0" + ending}));
    }
    CHECK(c.untouched());
  }
}

TEST_CASE("exactly the workspace that was asked for is enough, and what a call needs does not depend on the numbers in it") {
  for (const auto& form : test::device_forms) {
    call c(some_lesson(), form);
    CHECK(c.forward_bytes() == c.forward_bytes());
    CHECK(c.forward(test::device::workspace(c.forward_bytes(), 0xff)).empty());
    test::device::finish();
    CHECK(test::device::workspace_intact());
    CHECK(c.backward(test::device::workspace(c.backward_bytes(), 0xff)).empty());
    test::device::finish();
    CHECK(test::device::workspace_intact());
  }
}

TEST_CASE("shapes") {
  call c(some_lesson());
  c.in.v.extents[2] = 139;
  CHECK(test::has_all(c.forward(), {"v has length 139", "k has 140"}));
  c.in.v.extents[2] = 140, c.in.q.extents[0] = 3;
  CHECK(test::has_all(c.forward(), {"q has batch size 3", "y has 2"}));
  c.in.q.extents[0] = 2, c.in.k.extents[1] = 3;
  CHECK(test::has_all(c.forward(), {"k has 3 heads"}));
  c.in.k.extents[1] = 2, c.in.k.extents[3] = 15;
  CHECK(test::has_all(c.forward(), {"k has width 15", "q has 16"}));
  c.in.k.extents[3] = 16, c.in.q.data = nullptr;
  CHECK(test::has_all(c.forward(), {"q: the data pointer is null"}));
  CHECK(c.untouched());
}

TEST_CASE("states where the keys are not the rows' tokens") {
  call c(some_lesson());
  c.mask = bila::mask::all_ones{};
  c.in.k.extents[2] = c.in.v.extents[2] = 130;
  CHECK(c.forward().empty());
  test::device::finish();
  call with(some_lesson());
  with.mask = bila::mask::all_ones{};
  with.in.k.extents[2] = with.in.v.extents[2] = 130;
  with.out.final_forward.S = bila::bhld(static_cast<float*>(nullptr) + 64, 2, 2, 16, 24);  // where, it does not matter
  with.out.final_forward.z = bila::bhld(static_cast<float*>(nullptr) + 65536, 2, 2, 16, 1);
  CHECK(test::has_all(with.forward(), {"k has length 130 but q has 140", "states need them equal"}));
  CHECK(with.untouched());
}

TEST_CASE("heads wider than 256") {
  for (const test::sizes& size : {test::sizes{.L = 3, .Dk = 257, .Dv = 8}, test::sizes{.L = 3, .Dk = 8, .Dv = 300}}) {
    call c(some_lesson(size));
    const std::string width = std::to_string(std::max(size.Dk, size.Dv));
    CHECK(test::has_all(c.forward(), {"width " + width, "256"}));
    CHECK(test::has_all(c.backward(), {"width " + width, "256"}));
    CHECK(c.untouched());
  }
}

TEST_CASE("options") {
  call c(some_lesson());
  c.in.scale = INFINITY;
  CHECK(test::has_all(c.forward(), {"scale = inf"}));
  c.in.scale = 1, c.in.diagonal = NAN;
  CHECK(test::has_all(c.forward(), {"diagonal"}));
  c.in.diagonal = 1;
  const std::vector<index_t> lengths{140, 141}, offsets{0, 140};
  c.in.lengths = lengths;
  CHECK(test::has_all(c.forward(), {"lengths[1] = 141"}));
  c.in.lengths = {}, c.in.offsets = offsets;
  CHECK(test::has_all(c.forward(), {"offsets", "batch size of 1"}));
  c.in.offsets = {}, c.norm = bila::norm::row_sum{-1};
  CHECK(test::has_all(c.forward(), {"eps = -1"}));
  c.norm = c.x.x.norm, c.form = bila::form::chunkwise{.size = -1};
  CHECK(test::has_all(c.forward(), {"chunkwise.size = -1"}));
  CHECK(c.untouched());

  call packed(some_lesson({.H = 2, .L = 140, .Dk = 16, .Dv = 24}));
  const std::vector<index_t> falling{0, 100, 90, 140};
  packed.in.offsets = falling;
  CHECK(test::has_all(packed.forward(), {"offsets[2] = 90", "offsets[1] = 100"}));
  CHECK(packed.untouched());
}

TEST_CASE("memory that is read and written") {
  call c(some_lesson({.B = 2, .H = 2, .L = 140, .Dk = 24, .Dv = 24}));
  const auto y = c.out.y;
  c.out.y.data = const_cast<bf16*>(c.in.v.data);
  CHECK(test::has_all(c.forward(), {"y overlaps v"}));
  c.out.y.data = const_cast<bf16*>(c.in.q.data) + 8;
  CHECK(test::has_all(c.forward(), {"y overlaps q"}));
  c.out.y = y;
  c.out.y.strides[2] = 0;
  CHECK(test::has_all(c.forward(), {"y: two of its elements share memory"}));
  c.out.y = y;
  c.gradients.q.data = const_cast<bf16*>(c.dy.y.data);
  CHECK(test::has_all(c.backward(), {"gradients.q overlaps dy"}));
  CHECK(c.untouched());
}

TEST_CASE("states that a call cannot use") {
  test::random_source random(6202);
  auto wide =
      test::random_lesson(random, {.B = 2, .H = 2, .L = 140, .Dk = 16, .Dv = 24}, mask_kind::source, bila::norm::row_sum{1e-6});
  add_states(wide, random);
  const auto x = test::lesson_for<bf16>(wide);
  call full(x, bila::form::full{}, true);
  CHECK(test::has_all(full.forward(), {"initial_forward", "form::full carries no state"}));
  CHECK(test::has_all(full.backward(), {"initial_forward", "form::full carries no state"}));
  CHECK(full.untouched());
  call one_way(x, bila::form::recurrent{}, true);
  one_way.in.direction = bila::direction::backward;
  CHECK(test::has_all(one_way.forward(), {"initial_forward", "direction"}));
  one_way.in.direction = bila::direction::both, one_way.in.initial_backward.z = {};
  CHECK(test::has_all(one_way.forward(), {"initial_backward.z is missing", "row sum"}));
  CHECK(one_way.untouched());
}

TEST_CASE("keys that are not the queries' tokens") {
  call c(some_lesson({.B = 2, .H = 2, .L = 140, .Dk = 16, .Dv = 24}));
  c.in.k.extents[2] = c.in.v.extents[2] = 100;
  CHECK(test::has_all(c.forward(), {"k has length 100 but q has 140", "a mask with decay"}));
  c.mask = bila::mask::all_ones{};
  c.gradients.log_decay = {};
  CHECK(test::has_all(c.backward(), {"k has length 100 but q has 140", "on a GPU the gradient needs them equal"}));
  const std::vector<bila::index_t> valid{100, 70};
  c.in.key_lengths = valid;
  CHECK(test::has_all(c.forward(), {"key_lengths", "GPU"}));
  CHECK(test::has_all(c.backward(), {"key_lengths", "GPU"}));
  c.out = {};
  c.out.final_forward.S = bila::bhld(static_cast<float*>(nullptr) + 64, 2, 2, 16, 24);  // where, it does not matter
  CHECK(test::has_all(c.forward(), {"y is missing", "GPU"}));
  CHECK(c.untouched());
}

TEST_CASE("what a gradient needs") {
  call c(some_lesson());
  const auto kept = c.saved;
  c.saved.row_sum = {};
  CHECK(test::has_all(c.backward(), {"row_sum is missing"}));
  c.saved = kept, c.in.scale = 0;
  CHECK(test::has_all(c.backward(), {"scale = 0"}));
  c.in.scale = 1, c.gradients.k.extents[2] = 139;
  CHECK(test::has_all(c.backward(), {"gradients.k has shape"}));
  c.gradients.k.extents[2] = 140, c.mask = bila::mask::all_ones{};
  CHECK(test::has_all(c.backward(), {"gradients.log_decay is given"}));
  CHECK(c.untouched());
}
