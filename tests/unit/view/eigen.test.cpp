// SPDX-License-Identifier: Apache-2.0
// Eigen matrices, Maps, Refs and Blocks of either storage order seen as one head of one sequence.
#include "support/catch.hpp"

#include <bila/view/eigen.hpp>

#include <Eigen/Core>

#include <type_traits>
#include <vector>

namespace {

using bila::index_t;
using row_major = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using column_major = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;

template <class View, class Expression>
bool shows(const View& view, const Expression& x) {
  bool same = view.extents == bila::per_axis{1, 1, x.rows(), x.cols()};
  for (index_t i = 0; i < x.rows(); ++i)
    for (index_t d = 0; d < x.cols(); ++d) same = same && view(0, 0, i, d) == x(i, d);
  return same;
}

template <class Matrix>
Matrix counting(index_t rows, index_t columns) {
  Matrix x(rows, columns);
  for (index_t i = 0; i < rows; ++i)
    for (index_t d = 0; d < columns; ++d) x(i, d) = static_cast<double>(100 * i + d);
  return x;
}

template <class X>
concept accepted = requires(X&& x) {
  bila::matrix(static_cast<X&&>(x));
};

}  // namespace

TEMPLATE_TEST_CASE("a matrix and its blocks, either storage order", "", row_major, column_major) {
  TestType x = counting<TestType>(7, 5);
  CHECK(shows(bila::matrix(x), x));
  CHECK(bila::matrix(x).data == x.data());
  CHECK(shows(bila::matrix(x.block(2, 1, 4, 3)), x.block(2, 1, 4, 3)));
  CHECK(shows(bila::matrix(x.topRows(3)), x.topRows(3)));
  CHECK(shows(bila::matrix(x.middleCols(1, 2)), x.middleCols(1, 2)));
  CHECK(shows(bila::matrix(x.transpose()), x.transpose()));

  bila::matrix(x)(0, 0, 6, 4) = -1;
  CHECK(x(6, 4) == -1);
}

TEST_CASE("a column vector of gates is one number per token") {
  Eigen::VectorXf gates = Eigen::VectorXf::LinSpaced(9, 0, 8);
  const auto view = bila::matrix(gates);
  CHECK(view.extents == bila::per_axis{1, 1, 9, 1});
  for (index_t t = 0; t < 9; ++t) CHECK(view(0, 0, t, 0) == static_cast<float>(t));

  const row_major x = counting<row_major>(6, 4);
  CHECK(shows(bila::matrix(x.col(2)), x.col(2)));
  const column_major y = counting<column_major>(6, 4);
  CHECK(shows(bila::matrix(y.col(2)), y.col(2)));
}

TEST_CASE("a Map with inner and outer strides") {
  std::vector<double> memory(200);
  for (std::size_t n = 0; n < memory.size(); ++n) memory[n] = static_cast<double>(n);
  using strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  const Eigen::Map<row_major, 0, strides> x(memory.data() + 3, 5, 4, strides(17, 3));
  CHECK(shows(bila::matrix(x), x));
  CHECK(bila::matrix(x)(0, 0, 2, 1) == 3 + 2 * 17 + 1 * 3);
  const Eigen::Map<column_major, 0, strides> y(memory.data() + 3, 5, 4, strides(17, 3));
  CHECK(shows(bila::matrix(y), y));
  CHECK(bila::matrix(y)(0, 0, 2, 1) == 3 + 1 * 17 + 2 * 3);
  const Eigen::Map<row_major, 0, strides> z(memory.data() + 150, 5, 4, strides(-20, -2));
  CHECK(shows(bila::matrix(z), z));
  CHECK(shows(bila::matrix(x.block(1, 1, 3, 2)), x.block(1, 1, 3, 2)));
  CHECK(shows(bila::matrix(Eigen::Map<const row_major>(memory.data(), 6, 7)), Eigen::Map<const row_major>(memory.data(), 6, 7)));
}

TEST_CASE("a Ref of a block") {
  row_major x = counting<row_major>(8, 6);
  Eigen::Ref<row_major> part = x.block(1, 2, 5, 3);
  CHECK(shows(bila::matrix(part), part));
  CHECK(bila::matrix(part).data == &x(1, 2));
  const Eigen::Ref<const row_major> read = x;
  CHECK(shows(bila::matrix(read), x));
}

TEST_CASE("the view is writable when the matrix is") {
  row_major x = counting<row_major>(2, 2);
  const row_major y = x;
  static_assert(std::is_same_v<decltype(bila::matrix(x)), bila::tensor_view<double>>);
  static_assert(std::is_same_v<decltype(bila::matrix(y)), bila::tensor_view<const double>>);
  static_assert(std::is_same_v<decltype(bila::matrix(y.row(0))), bila::tensor_view<const double>>);
  static_assert(
      std::is_same_v<decltype(bila::matrix(Eigen::Map<const row_major>(nullptr, 0, 0))), bila::tensor_view<const double>>);
  static_assert(accepted<row_major&> && accepted<const row_major&>);
  static_assert(!accepted<std::vector<double>&> && !accepted<double&>);
  CHECK(shows(bila::matrix(y), x));
}

TEST_CASE("an empty matrix") {
  row_major x(0, 3);
  CHECK(bila::matrix(x).empty());
  CHECK(bila::matrix(x).features() == 3);
}
