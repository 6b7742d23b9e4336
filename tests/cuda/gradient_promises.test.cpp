// SPDX-License-Identifier: Apache-2.0
// What the gradient promises besides its value: strides, buffers, workspaces, and that each gradient can be asked for alone.
#include "cuda/support/laws.hpp"

#include <utility>

namespace {

using bila::bf16;
using test::index_t;
using test::mask_kind;

const std::vector<mask_kind> some_masks{mask_kind::all_ones, mask_kind::fixed, mask_kind::source, mask_kind::two_sided};

}  // namespace

TEMPLATE_TEST_CASE("an output gradient of any strides, and one that is broadcast", "", float, bf16) {
  test::random_source random(6101);
  for (const mask_kind kind : some_masks) {
    auto x = test::lesson_for<TestType>(
        test::random_lesson(random, {.B = 2, .H = 2, .L = 140, .Dk = 16, .Dv = 40}, kind, test::random_norm(random)));
    leave_rows_at_kinks(x, test::precision<TestType>::spread);
    const auto check = [&](const bila::tensor_view<const TestType>& dy, const test::step_answer& exact, index_t shift) {
      for (const auto& form : test::device_forms) {
        INFO(test::words(form, x) << ", " << shift << " elements off alignment");
        auto to = test::room_for(x);
        CHECK(test::device::forward(form, x, to));
        const auto kept = to;
        CHECK(test::device::backward(form, x, kept, dy, gradients_of(to), {.shift = shift}));
        check_gradients(x, to, exact);
      }
    };
    const auto exact = test::step_by_definition(x);
    for (const auto where : test::all_layouts) {
      const auto other = x.dy.laid_out(where);
      for (const index_t shift : {0, 1}) check(other.view(), exact, shift);
    }
    if (std::holds_alternative<bila::norm::max_one>(x.x.norm)) continue;  // rows at its kink are to have no gradient
    const TestType one(0.75f);
    x.dy.fill(one);
    check({&one, {2, 2, 140, 40}, {0, 0, 0, 0}}, test::step_by_definition(x), 0);
  }
}

TEMPLATE_TEST_CASE("gradients in any layout", "", float, bf16) {
  test::random_source random(6102);
  for (const mask_kind kind : {mask_kind::fixed, mask_kind::source})
    for (const auto& [Dk, Dv] : std::vector<std::pair<index_t, index_t>>{{32, 18}, {64, 64}}) {
      const auto x = test::lesson_for<TestType>(test::random_lesson(
          random, {.B = 2, .H = 4, .L = 140, .Dk = Dk, .Dv = Dv, .Hk = 2, .Hv = 1}, kind, bila::norm::row_sum{1e-6}));
      const auto exact = test::step_by_definition(x);
      for (const auto& form : test::device_forms)
        for (const auto where : test::all_layouts)
          for (const index_t shift : {0, 1}) {
            auto laid_out = x;
            laid_out.x.q = x.x.q.laid_out(where), laid_out.x.k = x.x.k.laid_out(where), laid_out.x.v = x.x.v.laid_out(where);
            laid_out.x.gates = x.x.gates.laid_out(where);
            auto to = test::room_for(x);
            for (auto* const t : {&to.q, &to.k, &to.v, &to.y}) *t = t->laid_out(where);
            for (auto* const t : {&to.log_decay, &to.log_forward, &to.log_backward, &to.row_sum}) *t = t->laid_out(where);
            INFO(test::words(form, x) << " in " << name_of(where) << ", " << shift << " elements off alignment");
            CHECK(test::device::forward(form, laid_out, to, {.shift = shift}));
            const auto kept = to;
            CHECK(test::device::backward(form, laid_out, kept, x.dy.view(), gradients_of(to), {.shift = shift}));
            check_outputs(x, to, exact);
            check_gradients(x, to, exact);
          }
    }
}

TEMPLATE_TEST_CASE("what the workspace held changes no bit", "", float, bf16) {
  test::random_source random(6103);
  for (const mask_kind kind : some_masks)
    for (const auto& form : test::device_forms) {
      auto wide = test::random_lesson(random, {.B = 1, .H = 4, .L = 521, .Dk = 40, .Dv = 33, .Hq = 2, .Hk = 1}, kind,
                                      bila::norm::max_one{});
      wide.x.offsets = {0, 100, 100, 301, 521};
      if (form.index() != 0) add_states(wide, random);
      const auto x = test::lesson_for<TestType>(wide);
      const auto first = test::device::learn(form, x, {.junk = 0xff});
      INFO(test::words(form, x));
      CHECK(first.intact);
      for (const test::device::manner& how :
           {test::device::manner{.junk = 0}, test::device::manner{.junk = 0x7f, .odd_workspace = true}}) {
        const auto again = test::device::learn(form, x, how);
        CHECK(again.intact);
        CHECK(same_bits(again.to, first.to));
      }
    }
}

TEST_CASE("what is not asked for is not needed: each gradient alone has the bits that it has among all") {
  test::random_source random(6104);
  for (const mask_kind kind : some_masks)
    for (const auto& form : test::device_forms) {
      if (std::holds_alternative<bila::form::automatic>(form)) continue;  // for the gates it takes another form than for q alone
      const auto x = test::lesson_for<bf16>(
          test::random_lesson(random, {.B = 2, .H = 2, .L = 300, .Dk = 16, .Dv = 24, .Hv = 1}, kind, bila::norm::row_sum{1e-6}));
      auto kept = test::room_for(x), all = kept, alone = kept;
      INFO(test::words(form, x));
      CHECK(test::device::forward(form, x, kept));
      const auto wanted_of = [&](test::learned<bf16>& to) {
        auto wanted = gradients_of(to);
        if (kind == mask_kind::all_ones) wanted.log_forward = wanted.log_backward = {};  // the one state of all keys has no gaps
        return wanted;
      };
      CHECK(test::device::backward(form, x, kept, x.dy.view(), wanted_of(all)));
      const auto whole = wanted_of(alone);
      std::vector<bila::gradients<bf16>> wanted(8);
      wanted[0].q = whole.q, wanted[1].k = whole.k, wanted[2].v = whole.v, wanted[3].log_decay = whole.log_decay;
      wanted[4].log_forward = whole.log_forward, wanted[5].log_backward = whole.log_backward;
      wanted[6].scale = whole.scale, wanted[7].diagonal = whole.diagonal;
      for (const auto& to : wanted) CHECK(test::device::backward(form, x, kept, x.dy.view(), to));
      CHECK(test::device::backward(form, x, kept, x.dy.view(), bila::gradients<bf16>{}));  // nothing at all
      CHECK(same_bits(alone, all));
    }
}

TEST_CASE("any form's gradient may follow any form's forward pass") {
  test::random_source random(6105);
  for (const mask_kind kind : some_masks)
    for (const auto& norm : test::all_norms) {
      auto x = test::lesson_for<float>(test::random_lesson(random, {.B = 1, .H = 2, .L = 200, .Dk = 16, .Dv = 24}, kind, norm));
      leave_rows_at_kinks(x, test::precision<float>::spread);
      const auto exact = test::step_by_definition(x);
      const bila::tensor_view<const float> dy = std::as_const(x).dy.view();
      for (const auto& one : test::device_forms) {
        auto to = test::room_for(x);
        CHECK(test::device::forward(one, x, to));
        for (const auto& other : test::device_forms) {
          auto gradients = to;
          INFO(test::words(other, x) << " after " << test::name_of(one));
          CHECK(test::device::backward(other, x, to, dy, gradients_of(gradients)));
          check_gradients(x, gradients, exact);
        }
      }
    }
}

TEST_CASE("the gap before a state that is not given has the gradient zero, whatever else is asked for") {
  test::random_source random(6107);
  for (const mask_kind kind : test::all_masks)
    for (const index_t L : {0, 1, 140})
      for (const auto& form : test::stateful_forms) {
        const auto x = test::lesson_for<float>(
            test::random_lesson(random, {.B = 2, .H = 2, .L = L, .Dk = 16, .Dv = 8}, kind, bila::norm::row_sum{1e-6}));
        auto kept = test::room_for(x);
        CHECK(test::device::forward(form, x, kept));
        test::tensor<float> before(2, 2, 1, 1), after(2, 2, 1, 1);
        before.fill(test::not_a_number<float>), after.fill(test::not_a_number<float>);
        bila::gradients<float> wanted;
        wanted.initial_forward.log_decay = before.view(), wanted.initial_backward.log_decay = after.view();
        CHECK(test::device::backward(form, x, kept, x.dy.view(), wanted));
        bool zero = true;
        for (const auto* gap : {&before, &after})
          gap->for_each([&zero](const float& g, index_t, index_t, index_t, index_t) { zero = zero && g == 0; });
        INFO(test::words(form, x));
        CHECK(zero);
      }
}

TEST_CASE("gradients of heads that no head of y reads are zero") {
  test::random_source random(6108);
  for (const auto& form : test::device_forms) {
    const auto x = test::lesson_for<float>(
        test::random_lesson(random, {.B = 2, .H = 2, .L = 40, .Dk = 16, .Dv = 8}, mask_kind::all_ones, bila::norm::row_sum{1e-6}));
    auto to = test::room_for(x);
    const auto headless = [](auto view) {
      view.extents[1] = 0;
      return view;
    };
    test::image memory;
    const auto in = test::device::in(memory, x.x.inputs());
    const test::any_mask mask = bila::mask::all_ones{};
    const bila::saved<float> kept{headless(memory.in(x.dy.view()))};
    const bila::output_gradients<float> dy{kept.y};
    bila::gradients<float> wanted;
    wanted.q = to.q.view(), wanted.k = to.k.view(), wanted.v = to.v.view();
    wanted.scale = &to.scale, wanted.diagonal = &to.diagonal;
    wanted = test::device::out(memory, wanted);
    memory.upload();
    CHECK(test::device::run(
        memory, test::device::gradient_workspace_bytes<float>(form, mask, x.x.norm, in, kept, dy, wanted), {},
        [&](const test::device::on& at) { test::device::gradient<float>(at, form, mask, x.x.norm, in, kept, dy, wanted); }));
    bool zero = to.scale == 0 && to.diagonal == 0;
    for (const auto* g : {&to.q, &to.k, &to.v})
      g->for_each([&zero](const float& value, index_t, index_t, index_t, index_t) { zero = zero && value == 0; });
    INFO(test::name_of(form));
    CHECK(zero);
  }
}

TEST_CASE("heads and rows apart: a loss by one final state reaches no other sequence's gates") {
  test::random_source random(6106);
  for (const auto& form : test::stateful_forms) {
    auto wide = test::random_lesson(random, {.B = 2, .H = 3, .L = 140, .Dk = 16, .Dv = 8}, mask_kind::source, bila::norm::none{});
    add_states(wide, random);
    wide.dy.fill(0);
    wide.by_backward.S.fill(0), wide.by_backward.z.fill(0);
    wide.by_forward.S.for_each([](double& D, index_t n, index_t h, index_t, index_t) {
      if (n != 0 || h != 0) D = 0;
    });
    const auto x = test::lesson_for<float>(wide);
    const auto found = test::device::learn(form, x).to;
    bool zero = true, some = false;
    found.log_decay.for_each([&](const float& g, index_t b, index_t h, index_t, index_t) {
      if (b == 0 && h == 0)
        some = some || g != 0;
      else
        zero = zero && g == 0;
    });
    INFO(test::words(form, x));
    CHECK(zero);
    CHECK(some);
  }
}
