// SPDX-License-Identifier: Apache-2.0
// What the gradient promises besides its value: pads, strides, buffers, repetition, workspaces and kernel layers.
#include "support/catch.hpp"
#include "support/gradient.hpp"

#include <cstddef>
#include <cstring>
#include <vector>

namespace {

using test::index_t;
using test::mask_kind;

const double poison = test::not_a_number<double>;

test::lesson<double> padded(test::random_source& random, mask_kind kind, const test::any_norm& norm) {
  auto x = test::random_lesson(random, {.B = 3, .H = 2, .L = 37, .Dk = 3, .Dv = 4, .Hk = 1}, kind, norm);
  x.x.lengths = {37, 0, 20};
  return x;
}

/// Every number at a pad of every token's tensor becomes `value`.
void fill_pads(test::lesson<double>& x, double value) {
  for (auto* const t : {&x.x.q, &x.x.k, &x.x.v, &x.dy, &x.x.gates, &x.x.other_gates})
    if (t->extent(2) == x.x.size.L)
      t->for_each([&](double& to, index_t b, index_t, index_t l, index_t) {
        if (l >= x.x.lengths[static_cast<std::size_t>(b)]) to = value;
      });
}

/// The step with a gradient whose buffers hold `junk` first, and with any output gradient.
test::learned<double> learn_with(const test::any_form& form, const test::lesson<double>& x,
                                 const bila::tensor_view<const double>& dy, double junk = poison, const bila::cpu& backend = {}) {
  auto to = room_for(x);
  for (auto* const t : {&to.q, &to.k, &to.v, &to.log_decay, &to.log_forward, &to.log_backward}) t->fill(junk);
  test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), outputs_of(to));
  test::backward_pass<double>(test::layer::eigen, backend, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(to), {dy},
                              gradients_of(to));
  return to;
}

}  // namespace

TEST_CASE("the gradient at pads is exactly zero, and what pads hold changes no bit") {
  test::random_source random(3101);
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const test::any_form& form : test::all_forms) {
        auto x = padded(random, kind, norm);
        const auto clean = learn(form, x);
        fill_pads(x, poison);
        const auto poisoned = learn(form, x);
        INFO(test::name_of(form) << ": " << x.name());
        CHECK(same_bits(clean, poisoned));
        bool zero = true;
        const auto look = [&](const test::tensor<double>& g) {
          if (g.extent(2) != 37) return;
          g.for_each([&](const double& value, index_t b, index_t, index_t l, index_t) {
            if (l >= x.x.lengths[static_cast<std::size_t>(b)]) zero = zero && value == 0;
          });
        };
        for (const auto* g :
             {&poisoned.q, &poisoned.k, &poisoned.v, &poisoned.log_decay, &poisoned.log_forward, &poisoned.log_backward})
          look(*g);
        CHECK(zero);
      }
}

TEST_CASE("an output gradient of any strides gives the bits of its dense copy") {
  test::random_source random(3102);
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::source, mask_kind::two_sided})
    for (const auto& norm : test::all_norms)
      for (const test::any_form& form : test::all_forms) {
        auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = 70, .Dk = 3, .Dv = 20}, kind, norm);
        INFO(test::name_of(form) << ": " << x.name());
        const auto dense = learn(form, x);
        for (const auto where : test::all_layouts) {
          const auto other = x.dy.laid_out(where);
          CHECK(same_bits(learn_with(form, x, other.view()), dense));
        }
        const double one = 0.75;
        x.dy.fill(one);
        CHECK(same_bits(learn_with(form, x, {&one, {2, 2, 70, 20}, {0, 0, 0, 0}}), learn(form, x)));
      }
}

TEST_CASE("gradients in any layout hold the same bits") {
  test::random_source random(3103);
  for (const test::any_form& form : test::all_forms) {
    const auto x = test::random_lesson(random, {.B = 2, .H = 4, .L = 70, .Dk = 5, .Dv = 18, .Hk = 2, .Hv = 1}, mask_kind::source,
                                       bila::norm::row_sum{1e-6});
    const auto dense = learn(form, x);
    for (const auto where : test::all_layouts) {
      auto to = room_for(x);
      for (auto* const t : {&to.q, &to.k, &to.v, &to.y}) *t = t->laid_out(where);
      to.log_decay = to.log_decay.laid_out(where);
      to.row_sum = to.row_sum.laid_out(where);
      test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), outputs_of(to));
      test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(to), given_to(x),
                                  gradients_of(to));
      INFO(test::name_of(form) << " in " << name_of(where));
      CHECK(same_bits(to, dense));
      CHECK(to.intact());
    }
  }
}

TEST_CASE("gradients overwrite what their buffers held, and twice is as once") {
  test::random_source random(3104);
  for (const mask_kind kind : test::all_masks)
    for (const test::any_form& form : test::all_forms) {
      const auto x =
          test::random_lesson(random, {.B = 2, .H = 4, .L = 40, .Dk = 3, .Dv = 5, .Hq = 2, .Hk = 1}, kind, bila::norm::max_one{});
      INFO(test::name_of(form) << ": " << x.name());
      auto once = learn_with(form, x, x.dy.view(), poison);
      const auto keep = once;
      CHECK(same_bits(once, learn_with(form, x, x.dy.view(), 1e6)));
      test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(keep), given_to(x),
                                  gradients_of(once));
      CHECK(same_bits(once, keep));
    }
}

TEST_CASE("what is not asked for is not needed: each gradient alone has the bits that it has among all") {
  test::random_source random(3105);
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::fixed, mask_kind::source, mask_kind::two_sided})
    for (const test::any_form& form : test::all_forms) {
      const auto x =
          test::random_lesson(random, {.B = 2, .H = 2, .L = 40, .Dk = 3, .Dv = 5, .Hv = 1}, kind, bila::norm::row_sum{1e-6});
      const auto all = learn(form, x);
      auto alone = room_for(x);
      const auto whole = gradients_of(alone);
      std::vector<bila::gradients<double>> wanted(8);
      wanted[0].q = whole.q, wanted[1].k = whole.k, wanted[2].v = whole.v, wanted[3].log_decay = whole.log_decay;
      wanted[4].log_forward = whole.log_forward, wanted[5].log_backward = whole.log_backward;
      wanted[6].scale = whole.scale, wanted[7].diagonal = whole.diagonal;
      for (const auto& to : wanted)
        test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(all), given_to(x), to);
      INFO(test::name_of(form) << ": " << x.name());
      alone.y = all.y, alone.row_sum = all.row_sum;
      CHECK(same_bits(alone, all));
    }
}

TEST_CASE("a workspace full of NaN changes nothing") {
  test::random_source random(3106);
  for (const mask_kind kind : test::all_masks)
    for (const test::any_form& form : test::all_forms)
      for (const int threads : {1, 3}) {
        const auto x = test::random_lesson(random, {.B = 2, .H = 3, .L = 50, .Dk = 5, .Dv = 7}, kind, bila::norm::row_sum{1e-6});
        std::vector<double> memory(
            test::backward_bytes<double>({.threads = threads}, form, x.inputs(), x.dy.view()) / sizeof(double) + 1, poison);
        INFO(test::name_of(form) << " on " << threads << ": " << x.name());
        const bila::cpu backend{.threads = threads, .workspace = std::as_writable_bytes(std::span(memory))};
        CHECK(same_bits(learn_with(form, x, x.dy.view(), poison, backend), learn(form, x)));
      }
}

TEST_CASE("a chunkwise step with recomputation has the bits of one without") {
  test::random_source random(3107);
  for (const mask_kind kind : test::all_masks)
    for (const index_t size : {1, 3, 16}) {
      auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 100, .Dk = 5, .Dv = 7}, kind, bila::norm::max_one{});
      add_states(x, random);
      INFO(x.name() << " size=" << size);
      CHECK(same_bits(learn(bila::form::chunkwise{.size = size, .recompute = true}, x),
                      learn(bila::form::chunkwise{.size = size}, x)));
    }
}

TEST_CASE("both kernel layers give the same gradient") {
  test::random_source random(3108);
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const bool states : {false, true})
        for (const test::any_form& form : test::all_forms) {
          if (states && form.index() == 0) continue;
          auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 140, .Dk = 5, .Dv = 9, .Hk = 1}, kind, norm);
          if (states) add_states(x, random);
          x.x.scale = 0.4;
          leave_kinks(x);
          INFO(test::name_of(form) << ": " << x.name());
          CHECK(distance(learn(form, x, {}, test::layer::reference), learn(form, x)) <= 1e-12);
        }
}

TEST_CASE("gradient and value agree in float and double") {
  test::random_source random(3109);
  for (const mask_kind kind : test::all_masks)
    for (const test::any_form& form : test::all_forms) {
      const auto x = test::stored_as<float>(
          test::random_lesson(random, {.B = 2, .H = 2, .L = 60, .Dk = 8, .Dv = 8}, kind, bila::norm::row_sum{1e-6}));
      const auto found = learn(form, x);
      const auto exact = learn(form, test::stored_as<double>(x));
      INFO(test::name_of(form) << ": " << x.name());
      // 200 roundings of 2^-24 at most lie between inputs and gradient, relative to the largest.
      for (const auto member : {&test::learned<float>::q, &test::learned<float>::k, &test::learned<float>::v})
        CHECK(distance(test::converted<double>(found.*member), member == &test::learned<float>::q   ? exact.q
                                                               : member == &test::learned<float>::k ? exact.k
                                                                                                    : exact.v) < 200 * 0x1p-24);
      CHECK(distance(test::converted<double>(found.log_forward), exact.log_forward) < 200 * 0x1p-24);
      CHECK(distance(test::converted<double>(found.log_decay), exact.log_decay) < 400 * 0x1p-24);
    }
}
