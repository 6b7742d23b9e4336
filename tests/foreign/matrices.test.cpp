// SPDX-License-Identifier: Apache-2.0
// Matrices of a user's own: anything with a pointer and strides becomes a view in one line, and nothing is copied.
#include "support/catch.hpp"
#include "support/problem.hpp"

#include <vector>

namespace {

using bila::index_t;

/// Rows at a pitch in bytes, as image libraries keep them; what lies between the rows belongs to others.
class pitched_matrix {
 public:
  pitched_matrix(index_t rows, index_t columns)
      : rows_(rows),
        columns_(columns),
        pitch_((columns * 4 + 63) / 64 * 64 + 64),
        bytes_(static_cast<std::size_t>(rows * pitch_), std::byte(0xff)) {}

  float* row(index_t i) { return reinterpret_cast<float*>(bytes_.data() + i * pitch_); }
  index_t rows() const { return rows_; }
  index_t columns() const { return columns_; }
  index_t pitch() const { return pitch_; }

  bool padding_is_intact() const {
    for (index_t i = 0; i < rows_; ++i)
      for (index_t byte = columns_ * 4; byte < pitch_; ++byte)
        if (bytes_[static_cast<std::size_t>(i * pitch_ + byte)] != std::byte(0xff)) return false;
    return true;
  }

 private:
  index_t rows_, columns_, pitch_;
  std::vector<std::byte> bytes_;
};

/// The line that a user writes.
bila::tensor_view<float> view_of(pitched_matrix& x) { return {x.row(0), {1, 1, x.rows(), x.columns()}, {0, 0, x.pitch() / 4, 1}}; }

/// Channel after channel, as image libraries keep planes: a token is a pixel, its features are far apart.
struct planes {
  std::vector<float> numbers;
  index_t pixels, channels;
};

bila::tensor_view<float> view_of(planes& x) { return {x.numbers.data(), {1, 1, x.pixels, x.channels}, {0, 0, 1, x.pixels}}; }

/// The same, last pixel first.
bila::tensor_view<float> reversed_view_of(planes& x) {
  return {x.numbers.data() + x.pixels - 1, {1, 1, x.pixels, x.channels}, {0, 0, -1, x.pixels}};
}

void copy(const bila::tensor_view<float>& to, const test::tensor<float>& from) {
  from.for_each([&](float value, index_t b, index_t h, index_t l, index_t d) { to(b, h, l, d) = value; });
}

}  // namespace

TEST_CASE("a user's matrices with padded rows and planes of channels", "[foreign]") {
  const index_t L = 77, Dk = 9, Dv = 6;
  test::random_source random(7);
  const auto x =
      test::random_problem<float>(random, {.L = L, .Dk = Dk, .Dv = Dv}, test::mask_kind::source, bila::norm::row_sum{1e-6});
  pitched_matrix q(L, Dk), y(L, Dv);
  planes k{std::vector<float>(static_cast<std::size_t>(L * Dk)), L, Dk},
      v{std::vector<float>(static_cast<std::size_t>(L * Dv)), L, Dv};
  copy(view_of(q), x.q), copy(view_of(k), x.k), copy(reversed_view_of(v), x.v);
  const test::answer exact = x.exact();

  for (const test::any_form& form : test::all_forms) {
    CAPTURE(test::name_of(form));
    test::attend<float>({}, form, x.mask(), x.norm, {view_of(q), view_of(k), reversed_view_of(v)}, view_of(y));
    test::tensor<float> result = x.output();
    result.for_each([&](float& value, index_t, index_t, index_t l, index_t d) { value = y.row(l)[d]; });
    CHECK(x.worst_error(result, exact) <= 1);
    CHECK(same_bits(result, test::evaluate(form, x).y));
    CHECK((q.padding_is_intact() && y.padding_is_intact()));
  }
}

TEST_CASE("a user's gates may be one member of their records", "[foreign]") {
  struct token {
    double position, log_decay;
    int kind;
  };
  const index_t L = 50, record = sizeof(token) / sizeof(double);
  static_assert(sizeof(token) % sizeof(double) == 0);
  test::random_source random(8);
  const auto x = test::random_problem<float>(random, {.L = L, .Dk = 4, .Dv = 4}, test::mask_kind::later, bila::norm::row_sum{1e-6});
  std::vector<token> tokens(static_cast<std::size_t>(L));
  for (index_t t = 0; t < L; ++t) tokens[static_cast<std::size_t>(t)] = {1e30, x.gates(0, 0, t), -1};
  const bila::mask::selective_decay<double> mask{
      bila::tensor_view<const double>{&tokens[0].log_decay, {1, 1, L, 1}, {0, 0, record, 1}}, bila::gate::later};

  for (const test::any_form& form : test::all_forms) {
    test::tensor<float> y = x.output();
    test::attend<float>({}, form, mask, x.norm, x.inputs(), y.view());
    CHECK(same_bits(y, test::evaluate(form, x).y));
  }
}
