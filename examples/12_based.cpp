// SPDX-License-Identifier: Apache-2.0
// Based (arXiv 2402.18668), in both directions: a layer whose features are the Taylor series of exp sees every token through one
// state, and the next layer is softmax attention in a window. The window is written in Eigen, for comparison: softmax is not
// bila's.
#include <bila/bila.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace {

using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Eigen::Index;
constexpr Index L = 600, d = 16, Dv = 32;
const double root = std::sqrt(static_cast<double>(d));

/// Softmax attention to the tokens at most `reach` away.
matrix window(const matrix& q, const matrix& k, const matrix& v, Index reach) {
  matrix y(L, Dv);
  for (Index i = 0; i < L; ++i) {
    const Index first = std::max<Index>(0, i - reach), n = std::min(L, i + reach + 1) - first;
    Eigen::RowVectorXd p = q.row(i) * k.middleRows(first, n).transpose() / root;  // (n)
    p = (p.array() - p.maxCoeff()).exp();
    y.row(i) = p * v.middleRows(first, n) / p.sum();
  }
  return y;
}

}  // namespace

int main() {
  std::srand(1);
  const matrix q = matrix::Random(L, d), k = matrix::Random(L, d), v = matrix::Random(L, Dv);

  const bila::feature::taylor_packed taylor{};
  const Index width = taylor.width(d);  // 153 features for 16
  matrix phi_q(L, width), phi_k(L, width), y(L, Dv);
  bila::features(bila::cpu{}, taylor, bila::matrix(q), bila::matrix(phi_q));
  bila::features(bila::cpu{}, taylor, bila::matrix(k), bila::matrix(phi_k));
  bila::attend(bila::form::chunkwise{}, bila::mask::all_ones{}, bila::norm::row_sum{},
               bila::inputs<double>{bila::matrix(phi_q), bila::matrix(phi_k), bila::matrix(v)}, bila::matrix(y));

  const matrix s = q * k.transpose() / root, A = (1 + s.array() + s.array().square() / 2).matrix();  // (L, L)
  const matrix plain = A.rowwise().sum().cwiseInverse().asDiagonal() * (A * v);
  const double error = (y - plain).cwiseAbs().maxCoeff();

  const matrix softmax = window(q, k, v, L), local = window(q, k, v, 64);
  const double of_taylor = (y - softmax).norm() / softmax.norm(), of_window = (local - softmax).norm() / softmax.norm();
  std::printf("the Taylor layer, %d features for %d: largest error %.1e\n", static_cast<int>(width), static_cast<int>(d), error);
  std::printf("distance from softmax attention to all %d tokens: Taylor layer %.3f, a softmax window of 64 each way %.3f\n",
              static_cast<int>(L), of_taylor, of_window);
  return error < 1e-13 && of_taylor < 0.1 && of_window > of_taylor ? 0 : 1;
}
