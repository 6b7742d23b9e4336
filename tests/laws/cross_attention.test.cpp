// SPDX-License-Identifier: Apache-2.0
// Cross attention with the mask of ones: its gradient is the derivative of the definition, keys beyond key_lengths are never
// looked at, and with as many keys as queries it is what the same call gives that asks for more.
#include "support/catch.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

#include <vector>

namespace {

using test::index_t;
using test::lesson;
using test::mask_kind;
using test::tensor;

const std::array<test::any_norm, 3> norms{bila::norm::none{}, bila::norm::row_sum{1e-3}, bila::norm::max_one{}};

std::vector<test::any_form> forms_for(const lesson<double>& x) {
  std::vector<test::any_form> forms(test::all_forms.begin(), test::all_forms.end());
  if (x.initial_forward.given()) forms.erase(forms.begin());  // full has no states
  return forms;
}

struct shape {
  test::sizes size;
  std::vector<index_t> lengths = {}, key_lengths = {};
};

const std::vector<shape> shapes{
    {{.B = 2, .H = 2, .L = 5, .Dk = 3, .Dv = 4, .Lk = 9}},
    {{.B = 1, .H = 4, .L = 13, .Dk = 4, .Dv = 2, .Hq = 2, .Hk = 4, .Hv = 1, .Lk = 3}},
    {{.B = 1, .H = 2, .L = 150, .Dk = 3, .Dv = 2, .Lk = 260}},
    {{.B = 1, .H = 1, .L = 300, .Dk = 8, .Dv = 17, .Lk = 65}},
    {{.B = 3, .H = 2, .L = 6, .Dk = 3, .Dv = 4, .Hk = 1, .Lk = 8}, {}, {8, 0, 5}},
    {{.B = 4, .H = 1, .L = 7, .Dk = 2, .Dv = 3, .Lk = 7}, {7, 3, 0, 0}, {4, 7, 6, 0}},
    {{.B = 1, .H = 2, .L = 0, .Dk = 2, .Dv = 3, .Lk = 4}},
    {{.B = 1, .H = 2, .L = 4, .Dk = 2, .Dv = 3, .Lk = 0}},
};

lesson<double> cross_lesson(test::random_source& random, const shape& at, const test::any_norm& norm) {
  auto x = test::random_lesson(random, at.size, mask_kind::all_ones, norm);
  x.x.lengths = at.lengths, x.x.key_lengths = at.key_lengths;
  x.x.scale = 0.7;
  return x;
}

/// Rows from `lengths` on become `value`.
void pad(tensor<double>& x, const std::vector<index_t>& lengths, double value) {
  x.for_each([&](double& number, index_t b, index_t, index_t l, index_t) {
    if (!lengths.empty() && l >= lengths[static_cast<std::size_t>(b)]) number = value;
  });
}

bool zero_from(const tensor<double>& x, const std::vector<index_t>& lengths) {
  bool all = true;
  x.for_each([&](double number, index_t b, index_t, index_t l, index_t) {
    all = all && (lengths.empty() || l < lengths[static_cast<std::size_t>(b)] || number == 0);
  });
  return all;
}

}  // namespace

TEST_CASE("the gradient of cross attention is the derivative of the definition") {
  test::random_source random(3101);
  for (const shape& at : shapes)
    for (const auto& norm : norms)
      for (const bool states : {false, true}) {
        auto x = cross_lesson(random, at, norm);
        if (states) add_states(x, random);
        leave_kinks(x);
        const test::directional expected(x, random);
        const auto exact = by_definition(x);
        for (const test::any_form& form : forms_for(x))
          for (const test::layer kernel : {test::layer::eigen, test::layer::reference}) {
            const auto found = learn(form, x, {}, kernel);
            const auto [worst, where] = expected.judge(found);
            INFO(x.name() << ", " << test::name_of(form) << " at " << where);
            CHECK(worst <= 1);
            CHECK(found.intact());
            double error = 0;
            std::size_t place = 0;
            found.y.for_each([&](double y, index_t b, index_t, index_t l, index_t) {
              const bool valid = x.x.lengths.empty() || l < x.x.lengths[static_cast<std::size_t>(b)];
              error = std::fmax(error, std::fabs(y - (valid ? static_cast<double>(exact.y[place]) : 0.0)));
              ++place;
            });
            CHECK(error <= 1e-12);
          }
      }
}

TEST_CASE("queries and keys beyond their lengths are never read, and their gradients are zero") {
  test::random_source random(3102);
  for (const shape& at : shapes)
    for (const bool states : {false, true}) {
      auto x = cross_lesson(random, at, bila::norm::row_sum{1e-3});
      if (states) add_states(x, random);
      auto poisoned = x;
      for (auto* const t : {&poisoned.x.q, &poisoned.dy}) pad(*t, at.lengths, test::not_a_number<double>);
      for (auto* const t : {&poisoned.x.k, &poisoned.x.v}) pad(*t, at.key_lengths, test::not_a_number<double>);
      for (const test::any_form& form : forms_for(x)) {
        const auto found = learn(form, x);
        INFO(x.name() << ", " << test::name_of(form));
        CHECK(same_bits(learn(form, poisoned), found));
        CHECK(same_bits(learn(form, x, {.threads = 3}), found));
        CHECK((zero_from(found.q, at.lengths) && zero_from(found.k, at.key_lengths) && zero_from(found.v, at.key_lengths)));
      }
    }
}

TEST_CASE("with the mask of ones the gradients of tensors do not depend on what else is asked for") {
  test::random_source random(3103);
  for (const auto& norm : norms)
    for (const bool states : {false, true})
      for (const int pieces : {0, 1, 2})
        for (const index_t L : {20, 150}) {
          auto x = test::random_lesson(random, {.B = pieces == 1 ? 1 : 3, .H = 4, .L = L, .Dk = 5, .Dv = 8, .Hk = 2, .Hv = 1},
                                       mask_kind::all_ones, norm);
          if (pieces == 1) x.x.offsets = {0, 7, 7, L};
          if (pieces == 2) x.x.lengths = {L, 0, 11};
          x.x.scale = 0.3;
          if (states) add_states(x, random);
          leave_kinks(x);
          for (const test::any_form& form : forms_for(x)) {
            const auto all = learn(form, x);
            auto some = room_for(x);
            auto wanted = gradients_of(some);
            wanted.log_forward = wanted.log_backward = {}, wanted.diagonal = nullptr;
            test::backward_pass<double>(test::layer::eigen, {}, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(all), given_to(x),
                                        wanted);
            some.log_forward = all.log_forward, some.log_backward = all.log_backward, some.diagonal = all.diagonal;
            some.y = all.y, some.row_sum = all.row_sum;
            some.final_forward = all.final_forward, some.final_backward = all.final_backward;
            INFO(x.name() << ", " << test::name_of(form));
            CHECK(same_bits(some, all));
            CHECK(test::directional(x, random).judge(all).worst <= 1);
          }
        }
}

TEST_CASE("cross attention of 16-bit tensors: gradients are within 2e-2 of double") {
  test::random_source random(3104);
  for (const auto& norm : norms) {
    const shape at{{.B = 2, .H = 4, .L = 40, .Dk = 16, .Dv = 12, .Hk = 2, .Hv = 1, .Lk = 100}, {}, {100, 70}};
    auto wide = cross_lesson(random, at, norm);
    wide.x.scale = 0.05;
    const auto x = test::stored_as<bila::bf16>(wide);
    for (const test::any_form& form : test::all_forms) {
      const auto found = learn(form, x);
      const auto exact = learn(form, test::stored_as<double>(x));
      INFO(wide.name() << ", " << test::name_of(form));
      CHECK(distance(test::converted<double>(found.q), exact.q) <= 2e-2);
      CHECK(distance(test::converted<double>(found.k), exact.k) <= 2e-2);
      CHECK(distance(test::converted<double>(found.v), exact.v) <= 2e-2);
    }
  }
}

TEST_CASE("key_lengths and what has no meaning in cross attention are refused by name") {
  test::random_source random(3105);
  const shape at{{.B = 2, .H = 1, .L = 5, .Dk = 2, .Dv = 2, .Lk = 7}};
  const auto x = cross_lesson(random, at, bila::norm::none{});
  auto to = room_for(x);
  const auto forward = [&](lesson<double> of) {
    return test::refusal([&] {
      test::forward_pass<double>(test::layer::eigen, {}, bila::form::full{}, of.x.mask(), of.x.norm, of.inputs(), {to.y.view()});
    });
  };
  const auto with = [&](const std::vector<index_t>& lengths, const std::vector<index_t>& key_lengths, const lesson<double>& like) {
    auto of = like;
    of.x.lengths = lengths, of.x.key_lengths = key_lengths;
    return forward(of);
  };
  CHECK(test::has_all(with({}, {7}, x), {"key_lengths", "1 entries", "batch size is 2"}));
  CHECK(test::has_all(with({}, {3, 8}, x), {"key_lengths[1] = 8", "0..7"}));
  CHECK(test::has_all(with({}, {-1, 8}, x), {"key_lengths[0] = -1", "0..7"}));
  CHECK(test::has_all(with({7, 7}, {}, x), {"lengths", "k has length 7", "q has 5", "key_lengths"}));
  CHECK(test::has_all(with({6, 5}, {7, 7}, x), {"lengths[0] = 6", "0..5"}));
  CHECK(with({5, 0}, {7, 7}, x).empty());
  auto equal = test::random_lesson(random, {.B = 2, .L = 5, .Dk = 2, .Dv = 2}, mask_kind::source, bila::norm::none{});
  CHECK(test::has_all(with({}, {5, 5}, equal), {"key_lengths", "decay"}));
  equal.x.kind = mask_kind::all_ones;
  CHECK(with({5, 3}, {5, 5}, equal).empty());
  equal.x.direction = bila::direction::forward;
  CHECK(test::has_all(with({}, {5, 5}, equal), {"key_lengths", "direction"}));

  const auto backward = [&](const bila::gradients<double>& wanted) {
    return test::refusal([&] {
      test::backward_pass<double>(test::layer::eigen, {}, bila::form::full{}, x.x.mask(), x.x.norm, x.inputs(), saved_of(to),
                                  given_to(x), wanted);
    });
  };
  bila::gradients<double> wanted;
  wanted.diagonal = &to.diagonal;
  CHECK(test::has_all(backward(wanted), {"gradients.diagonal", "cross attention"}));
  wanted = {}, wanted.log_forward = to.log_forward.view();
  CHECK(test::has_all(backward(wanted), {"gradients.log_forward", "cross attention"}));
  wanted = {}, wanted.log_backward = to.log_backward.view();
  CHECK(test::has_all(backward(wanted), {"gradients.log_backward", "cross attention"}));
}
