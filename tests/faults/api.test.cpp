// SPDX-License-Identifier: Apache-2.0
// Faults that users of linear attention have met elsewhere, kept out by a test each: calls that mean something else than they say.
#include "faults/faults.hpp"
#include "support/refusal.hpp"

#include <bila/view/eigen.hpp>

#include <Eigen/Core>

#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

using namespace faults;

TEST_CASE("A2: sequences of different lengths in one batch equal each alone, whatever the pads hold", "[api]") {
  for (const mask_kind kind : test::all_masks)
    for (const bila::direction way : test::all_directions)
      for (const float pad : {1e30f, test::not_a_number<float>}) {
        auto x = sample({.B = 2, .H = 2, .L = 7, .Dk = 4, .Dv = 5}, kind);
        x.direction = way;
        x.lengths = {3, 7};
        const auto clean = x;
        for (auto* input : {&x.q, &x.k, &x.v})
          input->for_each([&](float& value, index_t b, index_t, index_t l, index_t) { value = b == 0 && l >= 3 ? pad : value; });
        if (kind != mask_kind::fixed)
          for (auto* gates : {&x.gates, &x.other_gates})
            gates->for_each(
                [&](double& gate, index_t b, index_t, index_t l, index_t) { gate = b == 0 && l >= 3 ? double(pad) : gate; });
        for (const test::any_form& form : test::all_forms) {
          const tensor<float> y = run(form, x);
          CHECK(as_if_alone(form, clean, y, {.b = 0, .H = 2, .L = 3}));
          CHECK(as_if_alone(form, clean, y, {.b = 1, .H = 2, .L = 7}));
          y.for_each([](float value, index_t b, index_t, index_t l, index_t) { CHECK((b != 0 || l < 3 || value == 0)); });
        }
      }
}

TEST_CASE("A3: each packed sequence is reversed on its own", "[api]") {
  const std::array<index_t, 3> borders{0, 3, 8};
  auto x = sample({.H = 2, .L = 8, .Dk = 4, .Dv = 5}, mask_kind::source);
  x.offsets = {0, 3, 8};
  const auto mirror = [&](index_t l) { return l < borders[1] ? borders[1] - 1 - l : borders[1] + borders[2] - 1 - l; };
  auto reversed = x;
  const auto reverse = [&](auto& to, const auto& from) {
    to.for_each([&](auto& value, index_t b, index_t h, index_t l, index_t d) { value = from(b, h, mirror(l), d); });
  };
  reverse(reversed.q, x.q), reverse(reversed.k, x.k), reverse(reversed.v, x.v), reverse(reversed.gates, x.gates);
  const test::answer exact = x.exact();
  for (const test::any_form& form : three_forms(4)) {
    CAPTURE(test::name_of(form));
    const tensor<float> y = run(form, x), y_of_reversed = run(form, reversed);
    tensor<float> back = y;
    reverse(back, y_of_reversed);
    CHECK(x.worst_error(y, exact) <= 1);
    CHECK(x.worst_error(back, exact) <= 1);
    CHECK(as_if_alone(form, x, y, {.H = 2, .l = 0, .L = 3}));
    CHECK(as_if_alone(form, x, y, {.H = 2, .l = 3, .L = 5}));
  }
}

TEST_CASE("A4: a decay that is no log decay is refused, naming its place", "[api]") {
  for (const double wrong :
       {std::log(1.2), 0.1, std::log(-0.1), test::not_a_number<double>, 0.9})  // the last: a decay where its log belongs
    for (const mask_kind kind :
         {mask_kind::fixed, mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::earlier, mask_kind::two_sided})
      for (const test::any_form& form : test::all_forms) {
        auto x = sample({.B = 2, .H = 2, .L = 5, .Dk = 2, .Dv = 2}, kind);
        x.gates(kind == mask_kind::fixed ? 0 : 1, 1, kind == mask_kind::fixed ? 0 : 2) = wrong;
        tensor<float> y = x.output();
        const std::string sentence = test::refusal([&] { test::attend<float>({}, form, x.mask(), x.norm, x.inputs(), y.view()); });
        CAPTURE(sentence);
        const char* const gate = kind == mask_kind::two_sided ? "log_forward" : "log_decay";
        CHECK(test::has_all(sentence, {gate, kind == mask_kind::fixed ? "[h = 1]" : "[b = 1, h = 1, t = 2]", " = "}));
        CHECK(same_bits(y, x.output()));
      }
}

TEST_CASE("A5: offsets and lengths together are refused", "[api]") {
  auto x = sample({.L = 8, .Dk = 2, .Dv = 2}, mask_kind::source);
  x.offsets = {0, 3, 8};
  x.lengths = {8};
  for (const test::any_form& form : test::all_forms) CHECK_THROWS_AS(test::evaluate(form, x), std::invalid_argument);
  x.lengths.clear();
  for (const test::any_form& form : test::all_forms) CHECK_NOTHROW(test::evaluate(form, x));
}

TEST_CASE("A7: the layout is in the name of the view, where no shape could tell", "[api]") {
  const index_t n = 4;  // tokens, heads and features: every swap of axes has the same shape
  auto x = sample({.H = n, .L = n, .Dk = n, .Dv = n}, mask_kind::source);
  const test::answer exact = x.exact();
  std::array<std::array<float, n * n * n>, 3> by_head, by_token;
  const std::array<const tensor<float>*, 3> tensors{&x.q, &x.k, &x.v};
  for (std::size_t which = 0; which < 3; ++which)
    tensors[which]->for_each([&](float value, index_t, index_t h, index_t l, index_t d) {
      by_head[which][static_cast<std::size_t>((h * n + l) * n + d)] = value;
      by_token[which][static_cast<std::size_t>((l * n + h) * n + d)] = value;
    });
  for (const test::any_form& form : test::all_forms) {
    const auto result = [&](const auto& view_of) {
      tensor<float> y = x.output();
      test::attend<float>(bila::cpu{}, form, x.mask(), x.norm, {view_of(0), view_of(1), view_of(2)}, y.view());
      return y;
    };
    const tensor<float> heads =
        result([&](std::size_t which) { return bila::bhld<const float>(by_head[which].data(), 1, n, n, n); });
    const tensor<float> tokens =
        result([&](std::size_t which) { return bila::blhd<const float>(by_token[which].data(), 1, n, n, n); });
    const tensor<float> swapped =
        result([&](std::size_t which) { return bila::bhld<const float>(by_token[which].data(), 1, n, n, n); });
    CHECK(x.worst_error(heads, exact) <= 1);
    CHECK(same_bits(tokens, heads));
    CHECK(x.worst_error(swapped, exact) > 1000);  // the test would see it
  }
}

TEST_CASE("A7: row-major and column-major Eigen matrices are the same sequence", "[api]") {
  const index_t n = 4;
  auto x = sample({.L = n, .Dk = n, .Dv = n}, mask_kind::source);
  Eigen::MatrixXf q(n, n), k(n, n), v(n, n), y(n, n);
  x.q.for_each([&](float value, index_t, index_t, index_t l, index_t d) { q(l, d) = value; });
  x.k.for_each([&](float value, index_t, index_t, index_t l, index_t d) { k(l, d) = value; });
  x.v.for_each([&](float value, index_t, index_t, index_t l, index_t d) { v(l, d) = value; });
  const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> q_rows = q, k_rows = k;
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> y_rows(n, n);
  for (const test::any_form& form : test::all_forms) {
    test::attend<float>(bila::cpu{}, form, x.mask(), x.norm, {bila::matrix(q), bila::matrix(k), bila::matrix(v)}, bila::matrix(y));
    test::attend<float>(bila::cpu{}, form, x.mask(), x.norm, {bila::matrix(q_rows), bila::matrix(k_rows), bila::matrix(v)},
                        bila::matrix(y_rows));
    CHECK(y == y_rows);
    run(form, x).for_each([&](float value, index_t, index_t, index_t l, index_t d) { CHECK(y(l, d) == value); });
  }
}

TEST_CASE("A8, A10: every policy works with its defaults, which are scale 1, diagonal 1, both directions", "[api]") {
  for (const mask_kind kind : test::all_masks)
    for (const test::any_norm& norm :
         {test::any_norm(bila::norm::none{}), test::any_norm(bila::norm::row_sum{}), test::any_norm(bila::norm::max_one{})})
      for (const test::any_form& form : {test::any_form(bila::form::full{}), test::any_form(bila::form::recurrent{}),
                                         test::any_form(bila::form::chunkwise{}), test::any_form(bila::form::automatic{})}) {
        auto x = sample({.L = 70, .Dk = 4, .Dv = 4}, kind, norm);
        x.scale = x.diagonal = 1, x.direction = bila::direction::both;
        tensor<float> y = x.output();
        test::attend<float>({}, form, x.mask(), norm, {x.q.view(), x.k.view(), x.v.view()}, y.view());
        CHECK(x.worst_error(y, x.exact()) <= 1);
      }
}

TEST_CASE("A10: the first token sees the last and the last the first, unless told otherwise", "[api]") {
  const index_t L = 70;
  for (const mask_kind kind : test::all_masks)
    for (const test::any_form& form : test::all_forms)
      for (const bila::direction way : test::all_directions) {
        CAPTURE(test::name_of(kind), test::name_of(form), test::name_of(way));
        auto x = sample({.L = L, .Dk = 2, .Dv = 1}, kind);  // whose direction is the default
        if (way != bila::direction::both) x.direction = way;
        for (auto* gates : {&x.gates, &x.other_gates}) gates->fill(-.01);
        const tensor<float> before = run(form, x);
        auto other_end = x, other_start = x;
        other_end.v(0, 0, L - 1) += 1;
        other_start.v(0, 0, 0) += 1;
        CHECK((run(form, other_end)(0, 0, 0) != before(0, 0, 0)) == (way != bila::direction::forward));
        CHECK((run(form, other_start)(0, 0, L - 1) != before(0, 0, L - 1)) == (way != bila::direction::backward));
      }
}

TEST_CASE("A12: inputs are only read, and the output may lie between them but not on them", "[api]") {
  const index_t H = 2, L = 70, D = 6, row = 4 * H * D;
  for (const test::any_form& form : test::all_forms) {
    const auto x = sample({.H = H, .L = L, .Dk = D, .Dv = D}, mask_kind::two_sided), before = x;
    const tensor<float> y = run(form, x);
    CHECK((same_bits(x.q, before.q) && same_bits(x.k, before.k) && same_bits(x.v, before.v)));
    CHECK((same_bits(x.gates, before.gates) && same_bits(x.other_gates, before.other_gates)));

    std::vector<float> packed(static_cast<std::size_t>(L * row), 7);  // each row: q, k, v, y
    const auto slice = [&](index_t column) {
      return bila::tensor_view<float>{packed.data() + column, {1, H, L, D}, {L * row, D, row, 1}};
    };
    const auto q = slice(0), k = slice(H * D), v = slice(2 * H * D), out = slice(3 * H * D);
    x.q.for_each([&](float value, index_t b, index_t h, index_t l, index_t d) { q(b, h, l, d) = value; });
    x.k.for_each([&](float value, index_t b, index_t h, index_t l, index_t d) { k(b, h, l, d) = value; });
    x.v.for_each([&](float value, index_t b, index_t h, index_t l, index_t d) { v(b, h, l, d) = value; });
    const std::vector<float> before_packed = packed;
    for (const index_t onto : {index_t(0), H * D, 2 * H * D, 2 * H * D + 1, 3 * H * D - 1})
      CHECK_THROWS_AS(test::attend<float>({}, form, x.mask(), x.norm, {q, k, v}, slice(onto)), std::invalid_argument);
    CHECK(packed == before_packed);

    test::attend<float>({}, form, x.mask(), x.norm, {q, k, v}, out);
    bool right = true;
    y.for_each([&](float value, index_t b, index_t h, index_t l, index_t d) { right = right && out(b, h, l, d) == value; });
    CHECK(right);
    for (std::size_t l = 0; l < static_cast<std::size_t>(L); ++l)
      for (std::size_t c = 0; c < static_cast<std::size_t>(3 * H * D); ++c)
        right = right && packed[l * row + c] == before_packed[l * row + c];
    CHECK(right);
  }
}
