// SPDX-License-Identifier: Apache-2.0
// Grouped linear attention (FLASH, arXiv 2202.10447; linearized language models, arXiv 2406.07368), in both directions: squared
// relu scores inside groups of c tokens, linear attention over all tokens, and a short convolution of the values. bila computes the
// last two.
#include <bila/bila.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

int main() {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Eigen::Index;
  constexpr Index L = 500, D = 32, c = 64, taps = 9;  // the last group is not full
  constexpr float local = 1, global = 1.0f / L;       // weights of the two parts
  std::srand(1);
  matrix q = matrix::Random(L, D), k = matrix::Random(L, D), y(L, D);
  const matrix v = matrix::Random(L, D), kernel = matrix::Random(taps, 1);
  for (matrix* x : {&q, &k}) bila::features(bila::cpu{}, bila::feature::l2_norm{}, bila::matrix(*x), bila::matrix(*x));

  // The convolution writes y, the other parts add to it: no part needs a tensor of its own.
  const bila::feature::convolution centred{bila::matrix(kernel), bila::direction::both};  // one kernel, shared by all features
  bila::convolve(bila::cpu{}, centred, bila::matrix(v), bila::matrix(y));
  bila::inputs<float> in{bila::matrix(q), bila::matrix(k), bila::matrix(v)};
  in.scale = global;
  bila::outputs<float> sum{bila::matrix(y)};
  sum.add = true;
  bila::attend(bila::form::chunkwise{}, bila::mask::all_ones{}, bila::norm::none{}, in, sum);
  for (Index first = 0; first < L; first += c) {
    const Index n = std::min(c, L - first);
    const matrix scores = q.middleRows(first, n) * k.middleRows(first, n).transpose();  // (n, n)
    y.middleRows(first, n) += local * scores.cwiseMax(0).cwiseAbs2() * v.middleRows(first, n);
  }

  // All three are one matrix of pairs, which none of them has held.
  const Eigen::MatrixXd S = q.cast<double>() * k.cast<double>().transpose();
  const Eigen::MatrixXd A = Eigen::MatrixXd::NullaryExpr(L, L, [&](Index i, Index j) {
    const double in_group = i / c == j / c ? local * std::pow(std::max(S(i, j), 0.0), 2) : 0;
    const double near = std::abs(i - j) <= taps / 2 ? static_cast<double>(kernel(j - i + taps / 2, 0)) : 0;
    return in_group + global * S(i, j) + near;
  });
  const double error = (y.cast<double>() - A * v.cast<double>()).cwiseAbs().maxCoeff();
  std::printf("groups of %d, all %d tokens and %d taps: largest error %.1e\n", static_cast<int>(c), static_cast<int>(L),
              static_cast<int>(taps), error);
  return error < 1e-5 ? 0 : 1;
}
