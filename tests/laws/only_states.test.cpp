// SPDX-License-Identifier: Apache-2.0
// A call without y is one for its final states: they are those of the call with y, and so are its gradients.
#include "support/catch.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

#include <vector>

namespace {

using test::carried;
using test::index_t;
using test::lesson;
using test::mask_kind;
using test::tensor;

const std::array<test::any_form, 3> forms{bila::form::recurrent{}, bila::form::chunkwise{.size = 24}, bila::form::automatic{}};

template <class T>
bila::inputs<T> without_q(const lesson<T>& x) {
  bila::inputs<T> in = x.inputs();
  in.q = {};
  return in;
}

/// Only the states of the answer are written.
template <class T>
void run(const test::any_form& form, const lesson<T>& x, test::learned<T>& to, const bila::cpu& backend = {}) {
  test::forward_pass<T>(test::layer::eigen, backend, form, x.x.mask(), x.x.norm, without_q(x),
                        {{}, {}, to.final_forward.view(), to.final_backward.view()});
}

/// Keys with a loss by final states alone, in segments, with lengths or whole.
lesson<double> keys(test::random_source& random, mask_kind kind, const test::any_norm& norm, bila::direction direction,
                    int pieces) {
  auto x =
      test::random_lesson(random, {.B = pieces == 1 ? 1 : 3, .H = 4, .L = 150, .Dk = 5, .Dv = 8, .Hk = 2, .Hv = 1}, kind, norm);
  if (pieces == 1) x.x.offsets = {0, 7, 7, 100, 150};
  if (pieces == 2) x.x.lengths = {150, 0, 70};
  x.x.direction = direction;
  add_states(x, random);
  x.dy.fill(0);
  return x;
}

bool close(const carried<double>& x, const carried<double>& y, bool sums) {
  return distance(x.S, y.S) <= 1e-12 && (!sums || distance(x.z, y.z) <= 1e-12);
}

}  // namespace

TEST_CASE("a call without y writes the final states of the call with y") {
  test::random_source random(3201);
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : {test::any_norm{bila::norm::none{}}, test::any_norm{bila::norm::row_sum{1e-3}}})
      for (const auto direction : test::all_directions)
        for (const int pieces : {0, 1, 2}) {
          auto x = keys(random, kind, norm, direction, pieces);
          for (const bool enters : {true, false}) {
            if (!enters) x.initial_forward = x.initial_backward = {};
            for (const test::any_form& form : forms) {
              auto whole = room_for(x), found = whole, spread = whole;
              test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), outputs_of(whole));
              run(form, x, found);
              run(form, x, spread, {.threads = 3});
              INFO(x.name() << ", " << test::name_of(form));
              CHECK(close(found.final_forward, whole.final_forward, x.row_sums()));
              CHECK(close(found.final_backward, whole.final_backward, x.row_sums()));
              CHECK((same_bits(found, spread) && found.intact()));
            }
          }
        }
}

TEST_CASE("what lies beyond the lengths is not read for a state") {
  test::random_source random(3202);
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::target})
    for (const test::any_form& form : forms) {
      auto x = keys(random, kind, bila::norm::row_sum{1e-3}, bila::direction::both, 2);
      auto clean = room_for(x), padded = clean;
      run(form, x, clean);
      for (auto* const t : {&x.x.k, &x.x.v})
        t->for_each([&](double& number, index_t b, index_t, index_t l, index_t) {
          if (l >= x.x.lengths[static_cast<std::size_t>(b)]) number = test::not_a_number<double>;
        });
      run(form, x, padded);
      CHECK(same_bits(padded, clean));
    }
}

TEST_CASE("a state alone may take the place of the one it continues") {
  test::random_source random(3203);
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::source})
    for (const test::any_form& form : forms) {
      auto x = keys(random, kind, bila::norm::row_sum{1e-3}, bila::direction::both, 0);
      auto apart = room_for(x);
      run(form, x, apart);
      auto& S = x.initial_forward;
      test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, without_q(x),
                                 {{}, {}, {S.S.view(), S.z.view()}, {}});
      CHECK((same_bits(S.S, apart.final_forward.S) && same_bits(S.z, apart.final_forward.z)));
    }
}

TEST_CASE("16-bit keys and values give a state in float") {
  test::random_source random(3204);
  for (const test::any_form& form : forms) {
    const auto x =
        test::stored_as<bila::bf16>(keys(random, mask_kind::source, bila::norm::row_sum{1e-3}, bila::direction::both, 0));
    const auto exact = test::stored_as<double>(x);
    auto found = room_for(x);
    auto wanted = room_for(exact);
    run(form, x, found);
    run(form, exact, wanted);
    CHECK(distance(test::converted<double>(found.final_forward.S), wanted.final_forward.S) <= 1e-5);
    CHECK(distance(test::converted<double>(found.final_backward.z), wanted.final_backward.z) <= 1e-5);
  }
}

TEST_CASE("without y the gradient is that of a loss in which y does not occur") {
  test::random_source random(3205);
  for (const mask_kind kind : test::all_masks)
    for (const auto& norm : test::all_norms)
      for (const int pieces : {0, 1, 2}) {
        auto x = keys(random, kind, norm, bila::direction::both, pieces);
        for (const test::any_form& form : forms) {
          const auto whole = learn(form, x);
          auto found = whole;
          for (auto* const t : {&found.k, &found.v, &found.log_decay, &found.log_forward, &found.log_backward})
            t->fill(test::not_a_number<double>);
          auto wanted = gradients_of(found);
          wanted.q = {};
          test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, without_q(x), {},
                                      {{}, x.by_forward.view(), x.by_backward.view()}, wanted);
          INFO(x.name() << ", " << test::name_of(form));
          CHECK(distance(found, whole) <= 1e-12);
        }
      }
}

TEST_CASE("a call without y is refused where it has no meaning") {
  test::random_source random(3206);
  auto x = keys(random, mask_kind::source, bila::norm::row_sum{1e-3}, bila::direction::both, 0);
  auto to = room_for(x);
  const auto words = [&](const test::any_form& form, const bila::inputs<double>& in, const bila::outputs<double>& out) {
    return test::refusal([&] { test::forward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, in, out); });
  };
  const bila::form::chunkwise form;
  const auto in = without_q(x);
  const bila::outputs<double> states{{}, {}, to.final_forward.view(), to.final_backward.view()};
  auto out = states;
  out.row_sum = to.row_sum.view();
  CHECK(test::has_all(words(form, in, out), {"row_sum", "without y"}));
  CHECK(test::has_all(words(bila::form::full{}, in, states), {"form::full"}));
  CHECK(test::has_all(words(form, in, {}), {"y has"}));
  out = states, out.final_backward.S.extents[3] = 7;
  CHECK(test::has_all(words(form, in, out), {"final_backward.S", "[3, 4, 5, 7]", "[3, 4, 5, 8]"}));
  out = states, out.final_forward.z = {};
  CHECK(test::has_all(words(form, in, out), {"final_forward.z is missing"}));
  auto wrong = in;
  wrong.v.extents[2] = 149;
  CHECK(test::has_all(words(form, wrong, states), {"v has length 149", "k has 150"}));
  wrong = in, wrong.k.extents[1] = 3;
  CHECK(test::has_all(words(form, wrong, states), {"k has 3 heads", "4 heads of the output"}));
  wrong.k.extents[1] = wrong.v.extents[1] = 1, wrong.initial_forward = wrong.initial_backward = {};  // 1 divides -1 too
  out = {{}, {}, to.final_forward.view()}, out.final_forward.S.extents[1] = out.final_forward.z.extents[1] = -1;
  CHECK(test::has_all(test::refusal([&] {
                        test::forward_pass<double>(test::layer::eigen, {}, form, bila::mask::all_ones{}, x.x.norm, wrong, out);
                      }),
                      {"final_forward.S", "axis head is -1"}));
  wrong = in, wrong.v.extents[0] = 2;
  CHECK(test::has_all(words(form, wrong, states), {"v has batch size 2", "k has 3"}));
  wrong = in, wrong.k.data = nullptr;
  CHECK(test::has_all(words(form, wrong, states), {"k", "null"}));
  CHECK(std::isnan(to.final_forward.S(0, 0, 0, 0)));
  CHECK(words(form, in, states).empty());
}
