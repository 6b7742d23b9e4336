// SPDX-License-Identifier: Apache-2.0
// What a user brings: masks of his own, gates in float, tile choices.
#include "cuda/support/foreign.hpp"
#include "cuda/support/laws.hpp"

#include <stdexcept>
#include <utility>

namespace {

using bila::bf16;
using test::index_t;
using test::mask_kind;
using test::device::foreign_mask;
using test::device::tile_choice;

/// The lesson whose gates are the numbers of the user's mask.
test::lesson<float> with_formula(test::random_source& random, foreign_mask mask, const test::sizes& size) {
  auto x = test::random_lesson(random, size, mask_kind::two_sided, bila::norm::row_sum{1e-6});
  x.x.gates.for_each([&](double& gate, index_t b, index_t h, index_t t, index_t) {
    gate = mask == foreign_mask::per_token ? test::device::formula_forward(b, h, t) : test::device::formula_of_head(h);
  });
  x.x.other_gates.for_each([&](double& gate, index_t b, index_t h, index_t t, index_t) {
    gate = mask == foreign_mask::per_token ? test::device::formula_backward(b, h, t) : test::device::formula_of_head(h);
  });
  return test::lesson_for<float>(x);
}

/// attend(on, form, in, out) and the rest by other doors than that of support/door.hpp.
template <class T>
struct doors {
  std::function<std::size_t(const bila::inputs<T>&, const bila::outputs<T>&)> bytes;
  std::function<void(const test::device::on&, const bila::inputs<T>&, const bila::outputs<T>&)> attend;
  std::function<std::size_t(const bila::inputs<T>&, const bila::saved<T>&, const bila::output_gradients<T>&,
                            const bila::gradients<T>&)>
      gradient_bytes;
  std::function<void(const test::device::on&, const bila::inputs<T>&, const bila::saved<T>&, const bila::output_gradients<T>&,
                     const bila::gradients<T>&)>
      gradient;
};

template <class T>
test::device::outcome<T> learn_by(test::image& memory, const doors<T>& door, const test::lesson<T>& x, test::learned<T> to,
                                  const bila::inputs<T>& in) {
  const bila::outputs<T> out{memory.out(to.y.view()), memory.out(to.row_sum.view()),
                             test::device::out(memory, to.final_forward.view()),
                             test::device::out(memory, to.final_backward.view())};
  const bila::saved<T> saved{out.y, out.row_sum};
  const bila::output_gradients<T> dy{memory.in(x.dy.view()), test::device::in(memory, x.by_forward.view()),
                                     test::device::in(memory, x.by_backward.view())};
  auto wanted = gradients_of(to);
  wanted.log_decay = {};
  const auto gradients = test::device::out(memory, wanted);
  memory.upload();
  const std::size_t bytes = std::max(door.bytes(in, out), door.gradient_bytes(in, saved, dy, gradients));
  const bool intact = test::device::run(memory, bytes, {}, [&](const test::device::on& at) {
    door.attend(at, in, out);
    door.gradient(at, in, saved, dy, gradients);
  });
  return {std::move(to), intact};
}

template <class T>
void check_tiles(tile_choice tiles, const test::lesson<T>& x) {
  const auto exact = test::step_by_definition(x);
  for (const auto& form : test::device_forms) {
    if (form.index() == 0 && (x.initial_forward.given() || x.initial_backward.given())) continue;
    test::image memory;
    const auto in = test::device::in(memory, x.inputs());
    const auto mask = std::get<test::device::gap_mask>(test::device::in(memory, x.x.mask()));
    const doors<T> door{[&](const auto& i, const auto& o) { return test::device::workspace_bytes<T>(tiles, form, mask, i, o); },
                        [&](const auto& at, const auto& i, const auto& o) { test::device::attend<T>(at, tiles, form, mask, i, o); },
                        [&](const auto& i, const auto& s, const auto& d, const auto& g) {
                          return test::device::gradient_workspace_bytes<T>(tiles, form, mask, i, s, d, g);
                        },
                        [&](const auto& at, const auto& i, const auto& s, const auto& d, const auto& g) {
                          test::device::gradient<T>(at, tiles, form, mask, i, s, d, g);
                        }};
    const auto found = learn_by<T>(memory, door, x, test::room_for(x), in);
    INFO((tiles == tile_choice::smallest ? "smallest tiles, " : "large tiles, ") << test::words(form, x));
    CHECK(found.intact);
    check_outputs(x, found.to, exact);
    check_gradients(x, found.to, exact);
  }
}

}  // namespace

TEST_CASE("a user's own mask gives the bits of the same gaps in memory") {
  test::random_source random(6301);
  for (const foreign_mask mask : {foreign_mask::per_token, foreign_mask::per_head})
    for (const auto& form : test::device_forms) {
      auto x = with_formula(random, mask, {.B = 1, .H = 3, .L = 430, .Dk = 40, .Dv = 33});
      x.x.offsets = {0, 0, 33, 161, 430};
      const auto expected = test::device::learn(form, x).to;
      test::image memory;
      const auto in = test::device::in(memory, x.inputs());
      const doors<float> door{[&](const auto& i, const auto& o) { return test::device::workspace_bytes(mask, form, i, o); },
                              [&](const auto& at, const auto& i, const auto& o) { test::device::attend(at, mask, form, i, o); },
                              [&](const auto& i, const auto& s, const auto& d, const auto& g) {
                                return test::device::gradient_workspace_bytes(mask, form, i, s, d, g);
                              },
                              [&](const auto& at, const auto& i, const auto& s, const auto& d, const auto& g) {
                                test::device::gradient(at, mask, form, i, s, d, g);
                              }};
      const auto found = learn_by<float>(memory, door, x, test::room_for(x), in);
      INFO(test::words(form, x));
      CHECK(found.intact);
      CHECK(same_bits(found.to, expected));
    }
}

TEST_CASE("float gates are the same numbers as double gates") {
  test::random_source random(6302);
  for (const auto kind : {mask_kind::fixed, mask_kind::later}) {
    auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = 300, .Dk = 64, .Dv = 40}, kind, bila::norm::none{});
    test::tensor<float> narrow(x.x.gates.extent(0), 2, x.x.gates.extent(2), 1);
    narrow.for_each([&](float& gate, index_t b, index_t h, index_t t, index_t) { gate = static_cast<float>(x.x.gates(b, h, t)); });
    x.x.gates.for_each(
        [&](double& gate, index_t b, index_t h, index_t t, index_t) { gate = static_cast<double>(narrow(b, h, t)); });
    const auto in_float = test::lesson_for<float>(x);
    const auto expected = test::device::evaluate(bila::form::chunkwise{}, in_float).to.y;
    for (const auto where : test::all_layouts) {
      const auto gates = narrow.laid_out(where);
      auto to = test::device::room_for_outputs(in_float);
      test::image memory;
      const auto in = test::device::in(memory, in_float.x.inputs());
      const auto there = memory.in(gates.view());
      const bila::outputs<float> out{memory.out(to.y.view())};
      memory.upload();
      CHECK(test::device::run(memory, test::device::workspace_bytes_with_float_gates(there, in, out), {},
                              [&](const test::device::on& at) { test::device::attend_with_float_gates(at, there, in, out); }));
      INFO(test::words<float>(bila::form::chunkwise{}, in_float) << " gates in " << name_of(where));
      CHECK(same_bits(to.y, expected));
    }
  }
}

TEMPLATE_TEST_CASE("outputs and gradients do not depend on the tiles", "", float, bf16) {
  test::random_source random(6303);
  for (const tile_choice tiles : {tile_choice::smallest, tile_choice::large})
    for (const auto& [Dk, Dv] : tiles == tile_choice::smallest
                                    ? std::vector<std::pair<index_t, index_t>>{{20, 33}, {64, 64}, {128, 96}}
                                    : std::vector<std::pair<index_t, index_t>>{{64, 20}, {128, 128}, {200, 256}})
      for (const bool states : {false, true}) {
        auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = 300, .Dk = Dk, .Dv = Dv, .Hk = 1}, mask_kind::two_sided,
                                     bila::norm::row_sum{1e-6});
        test::draw_options(random, x.x);
        if (states)
          add_states(x, random);
        else
          x.x.lengths = {300, 77};
        check_tiles(tiles, test::lesson_for<TestType>(x));
      }
}

TEST_CASE("heads wider than the tiles are for") {
  test::random_source random(6305);
  const auto x =
      test::lesson_for<float>(test::random_lesson(random, {.L = 20, .Dk = 65, .Dv = 8}, mask_kind::all_ones, bila::norm::none{}));
  auto to = test::device::room_for_outputs(x);
  CHECK(test::has_all(test::refusal([&] {
                        test::device::workspace_bytes(foreign_mask::per_token, bila::form::full{}, x.x.inputs(),
                                                      bila::outputs<float>{to.y.view()});
                      }),
                      {"q has width 65", "64"}));
}

TEST_CASE("what CUDA refuses is a runtime error in CUDA's words; the next call is none the worse for it") {
  test::random_source random(6304);
  const auto x =
      test::lesson_for<float>(test::random_lesson(random, {.L = 20, .Dk = 40, .Dv = 8}, mask_kind::all_ones, bila::norm::none{}));
  auto to = test::device::room_for_outputs(x);
  test::image memory;
  const auto in = test::device::in(memory, x.x.inputs());
  const bila::outputs<float> out{memory.out(to.y.view())};
  memory.upload();
  std::string words;
  try {
    test::device::attend_with_impossible_tiles(in, out);
  } catch (const std::invalid_argument&) {
    words = "an invalid argument, which it is not";
  } catch (const std::runtime_error& failure) {
    words = failure.what();
  }
  INFO(words);
  CHECK(test::has_all(words, {"bila: cuda: "}));
  CHECK(memory.download());
  CHECK(std::isnan(to.y(0, 0, 0)));
  test::device::forget_refusal();
  CHECK(test::device::evaluate(bila::form::full{}, x).intact);
}
