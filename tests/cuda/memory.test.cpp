// SPDX-License-Identifier: Apache-2.0
// Strides, alignment, what lies around the tensors and in the workspace, streams and graphs: none of it changes what a call gives.
// That nothing but outputs is written is checked after every call of every program here (support/image.hpp).
#include "cuda/support/laws.hpp"

#include <chrono>

namespace {

using bila::bf16;
using bila::f16;
using test::index_t;
using test::mask_kind;
using test::device::manner;

const std::vector<mask_kind> some_masks{mask_kind::all_ones, mask_kind::fixed, mask_kind::source, mask_kind::two_sided};

/// The lesson with all that it reads in another layout.
template <class T>
test::lesson<T> laid_out(const test::lesson<T>& x, test::layout where) {
  auto result = x;
  result.x.q = x.x.q.laid_out(where), result.x.k = x.x.k.laid_out(where), result.x.v = x.x.v.laid_out(where);
  result.x.gates = x.x.gates.laid_out(where), result.x.other_gates = x.x.other_gates.laid_out(where);
  result.dy = x.dy.laid_out(where);
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("any layout of inputs and output holds the same numbers", "", float, bf16, f16) {
  test::random_source random(5501);
  for (const mask_kind kind : some_masks)
    for (const auto& [Dk, Dv] : std::vector<std::pair<index_t, index_t>>{{64, 64}, {32, 40}, {20, 33}}) {
      const auto x = test::lesson_for<TestType>(
          test::random_lesson(random, {.B = 2, .H = 4, .L = 140, .Dk = Dk, .Dv = Dv, .Hk = 2}, kind, test::random_norm(random)));
      const auto exact = x.x.exact();
      for (const auto& form : test::device_forms) {
        const auto dense = test::device::evaluate(form, x);
        for (const auto where : test::all_layouts)
          for (const index_t shift : {0, 1, 8}) {
            INFO(test::words(form, x) << " in " << name_of(where) << ", " << shift << " elements off alignment");
            auto to = test::device::room_for_outputs(x);
            to.y = to.y.laid_out(where), to.row_sum = to.row_sum.laid_out(where);
            CHECK(test::device::forward(form, laid_out(x, where), to, {.shift = shift}));
            test::check_good("y", judge(to.y, exact));
            CHECK(same_bits(to.y, dense.to.y));
          }
      }
    }
}

TEST_CASE("heads inside tokens, as models have them, padded rows, and inputs that are broadcast") {
  test::random_source random(5502);
  for (const auto& form : test::device_forms) {
    const auto x = test::lesson_for<bf16>(test::random_lesson(random, {.B = 2, .H = 4, .L = 140, .Dk = 64, .Dv = 64, .Hk = 1},
                                                              mask_kind::source, bila::norm::row_sum{1e-6}));
    const auto dense = test::device::evaluate(form, x);
    auto blhd = laid_out(x, test::layout::blhd);
    INFO(test::words(form, x));
    CHECK(same_bits(test::device::evaluate(form, blhd).to.y, dense.to.y));

    // The one head of k by a stride of zero instead of a count.
    test::image memory;
    auto in = test::device::in(memory, x.x.inputs());
    const auto mask = test::device::in(memory, x.x.mask());
    auto to = test::device::room_for_outputs(x);
    const bila::outputs<bf16> out{memory.out(to.y.view())};
    in.k.extents[1] = 4, in.k.strides[1] = 0;
    memory.upload();
    CHECK(test::device::run(memory, test::device::workspace_bytes<bf16>(form, mask, x.x.norm, in, out), {},
                            [&](const test::device::on& at) { test::device::attend<bf16>(at, form, mask, x.x.norm, in, out); }));
    CHECK(same_bits(to.y, dense.to.y));
  }
}

TEMPLATE_TEST_CASE("what the workspace held, and where it starts, changes no bit", "", float, bf16) {
  test::random_source random(5503);
  for (const mask_kind kind : some_masks)
    for (const auto& form : test::device_forms) {
      auto x = test::lesson_for<TestType>(
          test::random_lesson(random, {.B = 1, .H = 3, .L = 521, .Dk = 40, .Dv = 33}, kind, bila::norm::row_sum{1e-6}));
      x.x.offsets = {0, 100, 100, 301, 521};
      INFO(test::words(form, x));
      const auto first = test::device::evaluate(form, x, {.junk = 0xff});
      CHECK(first.intact);
      for (const manner& how : {manner{.junk = 0}, manner{.junk = 0x7f}, manner{.junk = 0xff, .odd_workspace = true}}) {
        const auto again = test::device::evaluate(form, x, how);
        CHECK(again.intact);
        CHECK(same_bits(again.to.y, first.to.y));
        CHECK(same_bits(again.to.row_sum, first.to.row_sum));
      }
    }
}

TEMPLATE_TEST_CASE("captured in a graph and launched twice, a call gives the bits of a direct one", "", float, bf16) {
  test::random_source random(5504);
  for (const mask_kind kind : some_masks)
    for (const auto& form : test::device_forms)
      for (const bool packed : {false, true}) {
        auto lesson =
            test::random_lesson(random, {.B = 1, .H = 4, .L = 700, .Dk = 32, .Dv = 32, .Hk = 2}, kind, bila::norm::max_one{});
        if (packed) lesson.x.offsets = {0, 1, 300, 300, 431, 700};
        if (form.index() != 0) add_states(lesson, random);
        const auto x = test::lesson_for<TestType>(lesson);
        INFO(test::words(form, x));
        const auto direct = test::device::learn(form, x), captured = test::device::learn(form, x, {.captured = true});
        CHECK(captured.intact);
        CHECK(same_bits(direct.to, captured.to));
      }
}

TEST_CASE("a graph holds more segments and lengths than a kernel has parameters for, after the caller's list of them is gone") {
  test::random_source random(5505);
  for (const bool packed : {true, false}) {
    auto lesson = test::random_lesson(random, {.B = packed ? 1 : 1500, .H = 1, .L = packed ? 4500 : 3, .Dk = 16, .Dv = 16},
                                      mask_kind::fixed, bila::norm::none{});
    if (packed)
      for (index_t n = 0; n <= 1500; ++n) lesson.x.offsets.push_back(3 * n);
    else
      for (index_t n = 0; n < 1500; ++n) lesson.x.lengths.push_back(n % 4);
    const auto x = test::lesson_for<bf16>(lesson);
    for (const auto& form : test::device_forms) {
      INFO(test::words(form, x));
      const auto direct = test::device::evaluate(form, x);
      test::image memory;
      auto in = test::device::in(memory, x.x.inputs());
      const auto mask = test::device::in(memory, x.x.mask());
      auto to = test::device::room_for_outputs(x);
      const bila::outputs<bf16> out{memory.out(to.y.view())};
      memory.upload();
      auto offsets = x.x.offsets, lengths = x.x.lengths;
      in.offsets = offsets, in.lengths = lengths;
      const auto room = test::device::workspace(test::device::workspace_bytes<bf16>(form, mask, x.x.norm, in, out), 0xff);
      const test::device::own_stream own;
      test::device::capture(
          own.get(),
          [&] {
            test::device::attend<bf16>({own.get(), room}, form, mask, x.x.norm, in, out);
            std::fill(offsets.begin(), offsets.end(), -1), std::fill(lengths.begin(), lengths.end(), -1);
          },
          2);
      CHECK(memory.download());
      CHECK(same_bits(to.y, direct.to.y));
    }
  }
}

TEST_CASE("a call waits for nothing: it returns while its stream is busy, and runs in the stream's order") {
  test::random_source random(5506);
  for (const auto& form : test::device_forms) {
    auto lesson =
        test::random_lesson(random, {.B = 1, .H = 2, .L = 600, .Dk = 32, .Dv = 32}, mask_kind::source, bila::norm::row_sum{1e-6});
    lesson.x.offsets = {0, 200, 600};
    const auto x = test::lesson_for<bf16>(lesson);
    const auto expected = test::device::learn(form, x).to;
    auto to = test::room_for(x);

    test::image memory;
    const auto in = test::device::in(memory, x.x.inputs());
    const auto mask = test::device::in(memory, x.x.mask());
    const bila::outputs<bf16> out{memory.out(to.y.view()), memory.out(to.row_sum.view())};
    const bila::saved<bf16> saved{out.y, out.row_sum};
    const bila::output_gradients<bf16> dy{memory.in(x.dy.view())};
    const auto gradients = test::device::out(memory, gradients_of(to));
    memory.upload();
    const auto bytes = std::max(test::device::workspace_bytes<bf16>(form, mask, x.x.norm, in, out),
                                test::device::gradient_workspace_bytes<bf16>(form, mask, x.x.norm, in, saved, dy, gradients));
    const auto room = test::device::workspace(bytes, 0xff);
    test::device::finish();
    const test::device::own_stream own;
    test::device::delay(own.get(), 300);
    test::device::attend<bf16>({own.get(), room}, form, mask, x.x.norm, in, out);
    test::device::gradient<bf16>({own.get(), room}, form, mask, x.x.norm, in, saved, dy, gradients);
    INFO(test::words(form, x));
    CHECK(own.busy());
    test::device::finish();
    CHECK(memory.download());
    CHECK(test::device::workspace_intact());
    CHECK(same_bits(to, expected));
  }
}

TEST_CASE("a NaN in a value reaches the tokens that see it, and no other head and no other value feature") {
  test::random_source random(5507);
  for (const auto kind : test::all_masks)
    for (const auto& form : test::device_forms) {
      auto x = test::lesson_for<bf16>(
          test::random_lesson(random, {.B = 2, .H = 2, .L = 150, .Dk = 16, .Dv = 40}, kind, bila::norm::row_sum{1e-6}));
      const auto clean = test::device::evaluate(form, x).to.y;
      x.x.v(1, 1, 70, 11) = bf16(test::not_a_number<float>);
      const auto y = test::device::evaluate(form, x).to.y;
      bool others = true;
      y.for_each([&](const bf16& value, index_t b, index_t h, index_t l, index_t d) {
        if (b != 1 || h != 1 || d != 11) others = others && value.bits == clean(b, h, l, d).bits;
      });
      INFO(test::words(form, x));
      CHECK(others);
      for (const index_t l : {69, 70, 71}) CHECK(std::isnan(static_cast<float>(y(1, 1, l, 11))));
    }
}

TEST_CASE("batch rows that lie more than 2^31 elements apart") {
  constexpr index_t far = (index_t{1} << 31) + 8;
  const std::size_t bytes = static_cast<std::size_t>(far) * sizeof(bf16) + (1 << 20);
  std::byte* const there = test::device::large_memory(bytes);
  if (there == nullptr) {
    WARN("not checked: no 4 GB of device memory are free");
    return;
  }
  test::random_source random(5508);
  const auto x = test::lesson_for<bf16>(
      test::random_lesson(random, {.B = 2, .H = 2, .L = 150, .Dk = 16, .Dv = 16}, mask_kind::fixed, bila::norm::row_sum{1e-6}));
  constexpr index_t row = 2 * 150 * 16;  // of one batch row of each tensor; q, k, v and y lie side by side
  const auto view = [&](int which) {
    return bila::tensor_view<bf16>{reinterpret_cast<bf16*>(there) + which * row, {2, 2, 150, 16}, {far, 150 * 16, 16, 1}};
  };
  int which = 0;
  for (const auto* const from : {&x.x.q, &x.x.k, &x.x.v}) {
    for (index_t b = 0; b < 2; ++b) test::device::write(view(which).data + b * far, &(*from)(b, 0, 0), row * sizeof(bf16));
    ++which;
  }
  for (const auto& form : test::device_forms) {
    INFO(test::words(form, x));
    const auto expected = test::device::evaluate(form, x).to.y;
    test::image memory;
    const auto mask = test::device::in(memory, x.x.mask());
    auto in = x.x.inputs();
    in.q = view(0), in.k = view(1), in.v = view(2);
    const bila::outputs<bf16> out{view(3)};
    memory.upload();
    CHECK(test::device::run(memory, test::device::workspace_bytes<bf16>(form, mask, x.x.norm, in, out), {},
                            [&](const test::device::on& at) { test::device::attend<bf16>(at, form, mask, x.x.norm, in, out); }));
    auto y = expected;
    y.fill(bf16(test::not_a_number<float>));
    for (index_t b = 0; b < 2; ++b) test::device::read(&y(b, 0, 0), view(3).data + b * far, row * sizeof(bf16));
    CHECK(same_bits(y, expected));
  }
  test::device::release_large_memory();
}
