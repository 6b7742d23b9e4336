// SPDX-License-Identifier: Apache-2.0
// The gradient of every form is the derivative of the definition, and that of one form is that of all others.
#include "support/catch.hpp"
#include "support/gradient.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace {

using test::index_t;
using test::lesson;
using test::mask_kind;

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// The first in the full form, where there are no states for it to refuse.
std::vector<test::any_form> forms_for(const lesson<double>& x, index_t chunk) {
  std::vector<test::any_form> forms;
  if (!x.initial_forward.given() && !x.initial_backward.given()) forms.push_back(bila::form::full{});
  forms.push_back(bila::form::recurrent{});
  forms.push_back(bila::form::chunkwise{.size = chunk});
  forms.push_back(bila::form::chunkwise{.size = chunk, .recompute = true});
  forms.push_back(bila::form::automatic{});
  return forms;
}

void check(const lesson<double>& x, const std::vector<test::any_form>& forms, test::random_source& random) {
  INFO(x.name());
  const test::directional expected(x, random);
  const auto first = learn(forms.front(), x);
  for (const test::any_form& form : forms) {
    const auto found = learn(form, x);
    const auto [worst, where] = expected.judge(found);
    INFO(test::name_of(form) << " at " << where);
    CHECK(worst <= 1);
    CHECK(distance(found, first) <= 1e-12);
    CHECK(found.intact());
  }
}

struct shape {
  test::sizes size;
  index_t chunk;
  std::vector<index_t> offsets = {}, lengths = {};
};

const std::vector<shape> shapes{
    {{.B = 2, .H = 2, .L = 13, .Dk = 3, .Dv = 4}, 4},
    {{.B = 1, .H = 1, .L = 1, .Dk = 2, .Dv = 3}, 4},
    {{.B = 1, .H = 2, .L = 9, .Dk = 4, .Dv = 2}, 20},
    {{.B = 1, .H = 2, .L = 23, .Dk = 3, .Dv = 5}, 5, {0, 7, 7, 8, 23}},
    {{.B = 3, .H = 1, .L = 12, .Dk = 3, .Dv = 2}, 5, {}, {12, 0, 7}},
    {{.B = 2, .H = 4, .L = 11, .Dk = 2, .Dv = 3, .Hq = 2, .Hk = 4, .Hv = 1}, 3},
    {{.B = 1, .H = 4, .L = 10, .Dk = 2, .Dv = 3, .Hq = 4, .Hk = 1, .Hv = 2}, 4},
};

const std::array<test::any_norm, 3> norms{bila::norm::none{}, bila::norm::row_sum{1e-3}, bila::norm::max_one{}};

}  // namespace

TEST_CASE("gradients are the derivatives of the definition: every mask, norm, form, direction and shape") {
  test::random_source random(3001);
  for (const shape& at : shapes)
    for (const mask_kind kind : test::all_masks)
      for (const auto& norm : norms)
        for (const auto direction : test::all_directions)
          for (const bool states : {false, true}) {
            auto x = test::random_lesson(random, at.size, kind, norm);
            x.x.offsets = at.offsets, x.x.lengths = at.lengths;
            x.x.direction = direction, x.x.scale = 0.7, x.x.diagonal = 1.3;
            if (states) add_states(x, random);
            leave_kinks(x);
            check(x, forms_for(x, at.chunk), random);
          }
}

TEST_CASE("gradients with keys and values of different widths") {
  test::random_source random(3002);
  for (const auto& [Dk, Dv] : {std::array<index_t, 2>{8, 48}, {48, 8}, {17, 13}, {1, 1}})
    for (const mask_kind kind : {mask_kind::all_ones, mask_kind::fixed, mask_kind::source, mask_kind::two_sided})
      for (const auto& norm : norms) {
        auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 19, .Dk = Dk, .Dv = Dv}, kind, norm);
        x.x.scale = 0.3;
        leave_kinks(x);
        check(x, forms_for(x, 8), random);
      }
}

TEST_CASE("gradients of sequences that are longer than a tile of the full form, in chunks of many sizes") {
  test::random_source random(3003);
  for (const mask_kind kind : {mask_kind::all_ones, mask_kind::fixed, mask_kind::target, mask_kind::two_sided})
    for (const auto& norm : norms) {
      auto x = test::random_lesson(random, {.L = 300, .Dk = 3, .Dv = 2}, kind, norm);
      x.x.scale = 0.2, x.x.diagonal = 0.5;
      leave_kinks(x);
      std::vector<test::any_form> forms{bila::form::full{}, bila::form::recurrent{}, bila::form::automatic{}};
      for (const index_t size : {1, 2, 7, 32, 64, 150, 299, 300, 301})
        for (const bool recompute : {false, true}) forms.push_back(bila::form::chunkwise{.size = size, .recompute = recompute});
      check(x, forms, random);
    }
}

TEST_CASE("at a decay of exactly zero the gradient is exactly zero, and right everywhere else") {
  test::random_source random(3004);
  for (const mask_kind kind : test::all_masks) {
    if (kind == mask_kind::all_ones) continue;
    for (const auto direction : test::all_directions)
      for (const auto& norm : norms) {
        auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = 14, .Dk = 3, .Dv = 4}, kind, norm);
        x.x.direction = direction;
        if (kind == mask_kind::fixed) {
          x.x.gates(0, 1, 0) = minus_infinity;
        } else {
          for (const index_t t : {3, 4, 9}) x.x.gates(0, 0, t) = x.x.gates(1, 1, t + 1) = minus_infinity;
          x.x.other_gates(0, 0, 4) = x.x.other_gates(1, 0, 13) = minus_infinity;
        }
        leave_kinks(x);
        const auto forms = forms_for(x, 5);
        check(x, forms, random);
        const test::gap_logs gaps = x.x.gaps();
        for (const test::any_form& form : forms) {
          const auto found = learn(form, x);
          bool zero = true;
          const auto look = [&](const test::tensor<double>& slope, const std::vector<double>& logs) {
            slope.for_each([&](const double& g, index_t b, index_t h, index_t t, index_t) {
              if (std::isinf(logs[static_cast<std::size_t>((b * 2 + h) * 14 + t)])) zero = zero && g == 0;
            });
          };
          look(found.log_forward, gaps.forward);
          look(found.log_backward, gaps.backward);
          if (x.has_log_decay())
            found.log_decay.for_each([&](const double& g, index_t b, index_t h, index_t t, index_t) {
              if (std::isinf(x.x.gates(b, h, t))) zero = zero && g == 0;
            });
          INFO(test::name_of(form) << ": " << x.name());
          CHECK(zero);
        }
      }
  }
}

TEST_CASE("the gradient of a mask's parameters is that of its gaps, put together as the table of conventions says") {
  test::random_source random(3005);
  for (const mask_kind kind : {mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::earlier})
    for (const std::vector<index_t>& offsets : {std::vector<index_t>{}, {0, 4, 5, 13}}) {
      auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 13, .Dk = 3, .Dv = 2}, kind, bila::norm::row_sum{1e-6});
      x.x.offsets = offsets;
      const auto found = learn(bila::form::chunkwise{.size = 4}, x);
      const auto borders = offsets.empty() ? std::vector<index_t>{0, 13} : offsets;
      for (index_t h = 0; h < 2; ++h)
        for (index_t t = 0; t < 13; ++t) {
          const auto gap = [&](const test::tensor<double>& g, index_t at) {
            return std::find(borders.begin(), borders.end(), at) == borders.end() ? g(0, h, at) : 0.0;
          };
          const bool forward_of_next = kind == mask_kind::source || kind == mask_kind::earlier;
          const bool backward_of_next = kind == mask_kind::target || kind == mask_kind::earlier;
          const double expected = gap(found.log_forward, t + forward_of_next) + gap(found.log_backward, t + backward_of_next);
          INFO(x.name() << " t=" << t);
          CHECK(found.log_decay(0, h, t) == Approx(expected).epsilon(1e-14).margin(1e-14));
        }
    }
}

TEST_CASE("gaps that are not between two tokens of a segment have no gradient") {
  test::random_source random(3006);
  for (const mask_kind kind : test::all_masks)
    for (const test::any_form& form : test::all_forms) {
      auto x = test::random_lesson(random, {.B = 1, .H = 2, .L = 13, .Dk = 3, .Dv = 2}, kind, bila::norm::none{});
      x.x.offsets = {0, 4, 4, 5, 13};
      const auto found = learn(form, x);
      INFO(test::name_of(form) << ": " << x.name());
      bool inside = false;
      for (index_t h = 0; h < 2; ++h)
        for (index_t t = 0; t < 13; ++t)
          if (t == 0 || t == 4 || t == 5) {
            CHECK(found.log_forward(0, h, t) == 0);
            CHECK(found.log_backward(0, h, t) == 0);
          } else {
            inside = inside || found.log_forward(0, h, t) != 0;
          }
      CHECK(inside);
    }
}

TEST_CASE("a row whose row sum is zero passes nothing back") {
  test::random_source random(3007);
  for (const test::any_form& form : test::all_forms) {
    auto x = test::random_lesson(random, {.L = 5, .Dk = 2, .Dv = 3}, mask_kind::source, bila::norm::row_sum{0});
    for (index_t d = 0; d < 2; ++d) x.x.q(0, 0, 2, d) = 0;
    const auto found = learn(form, x);
    INFO(test::name_of(form));
    for (index_t d = 0; d < 2; ++d) CHECK(found.q(0, 0, 2, d) == 0);
    auto without = x;
    for (index_t d = 0; d < 3; ++d) without.dy(0, 0, 2, d) = 0;
    CHECK(distance(found, learn(form, without)) == 0);
  }
}

TEST_CASE("the row sum that attend leaves is the definition's, without the scale, and zero at pads") {
  test::random_source random(3008);
  for (const test::any_norm& norm : {norms[1], norms[2]})
    for (const test::any_form& form : test::all_forms) {
      auto x = test::random_lesson(random, {.B = 2, .H = 2, .L = 40, .Dk = 3, .Dv = 2}, mask_kind::source, norm);
      x.x.lengths = {40, 11};
      x.x.scale = 3;
      const auto found = learn(form, x);
      const auto exact = test::by_definition(x);
      bool good = true;
      found.row_sum.for_each([&](const double& Z, index_t b, index_t h, index_t l, index_t) {
        good = good && std::fabs(Z - exact.row_sum[static_cast<std::size_t>((b * 2 + h) * 40 + l)]) <= 1e-13L;
        if (l >= x.x.lengths[static_cast<std::size_t>(b)]) good = good && Z == 0;
      });
      INFO(test::name_of(form) << ": " << x.name());
      CHECK(good);
    }
}

TEST_CASE("gradients of random calls") {
  test::random_source random(3009);
  const auto one_of = [&random](const auto& list) {
    return list[static_cast<std::size_t>(random.below(static_cast<index_t>(list.size())))];
  };
  const auto heads = [&random](index_t H) {
    index_t d = 1 + random.below(H);
    while (H % d != 0) --d;
    return d;
  };
  for (int n = 0; n < 400; ++n) {
    test::sizes size;
    const bool packed = random.below(3) == 0;
    size.B = packed ? 1 : 1 + random.below(2);
    size.H = 1 + random.below(4);
    size.L = 1 + random.below(random.below(8) == 0 ? 40 : 12);
    size.Dk = 1 + random.below(5);
    size.Dv = 1 + random.below(5);
    for (index_t* const shared : {&size.Hq, &size.Hk, &size.Hv}) *shared = heads(size.H);
    const auto kind = one_of(test::all_masks);
    const auto norm = one_of(norms);
    auto x = test::random_lesson(random, size, kind, norm);
    x.x.q = x.x.q.laid_out(one_of(test::all_layouts));
    x.x.k = x.x.k.laid_out(one_of(test::all_layouts));
    x.x.v = x.x.v.laid_out(one_of(test::all_layouts));
    x.dy = x.dy.laid_out(one_of(test::all_layouts));
    x.x.direction = one_of(test::all_directions);
    x.x.diagonal = one_of(std::array{1.0, 2.0, 0.3});
    if (norm.index() != 1 && random.below(4) == 0) x.x.diagonal = 0;  // nor may a row sum be zero
    x.x.scale = one_of(std::array{1.0, 0.3, -0.8});
    for (auto* const gates : {&x.x.gates, &x.x.other_gates})
      gates->for_each([&](double& gate, index_t, index_t, index_t, index_t) {
        const index_t one_in_12 = random.below(12);
        if (one_in_12 == 0) gate = minus_infinity;
        if (one_in_12 == 1) gate = -60;
        if (one_in_12 == 2) gate = -1e-3;
      });
    if (packed) {
      x.x.offsets = {0, size.L};
      for (index_t k = random.below(5); k > 0; --k) x.x.offsets.push_back(random.below(size.L + 1));
      std::sort(x.x.offsets.begin(), x.x.offsets.end());
    } else if (random.below(3) == 0) {
      for (index_t b = 0; b < size.B; ++b) x.x.lengths.push_back(random.below(size.L + 1));
    }
    if (random.below(2) == 0) add_states(x, random);
    leave_kinks(x);
    INFO("call " << n);
    check(x, forms_for(x, 1 + random.below(14)), random);
  }
}
