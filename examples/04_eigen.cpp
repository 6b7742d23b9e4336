// SPDX-License-Identifier: Apache-2.0
// Eigen in, Eigen out: a two-head layer on one wide activation matrix, without copying a head. Checked against the definition.
#include <bila/bila.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstdlib>
#include <iostream>

int main() {
  constexpr Eigen::Index L = 120, D = 8, H = 2;
  std::srand(1);

  // What a projection would give: row l holds [q_0 q_1 k_0 k_1 v_0 v_1] of token l. Column major, which is no obstacle.
  Eigen::MatrixXd qkv = Eigen::MatrixXd::Random(L, 3 * H * D);
  qkv.leftCols(2 * H * D) = qkv.leftCols(2 * H * D).unaryExpr([](double x) { return x > 0 ? x + 1 : std::exp(x); });  // 1 + elu
  Eigen::MatrixXd y(L, H * D);
  const Eigen::VectorXd log_decay{{-0.05, -0.5}};  // a patient head and an impatient one

  double worst = 0;
  for (Eigen::Index h = 0; h < H; ++h) {
    const auto q = qkv.middleCols(h * D, D), k = qkv.middleCols((H + h) * D, D), v = qkv.middleCols((2 * H + h) * D, D);
    auto y_h = y.middleCols(h * D, D);

    bila::attend(bila::form::chunkwise{.size = 32}, bila::mask::fixed_decay{bila::vec(&log_decay[h], 1)}, bila::norm::row_sum{},
                 bila::inputs<double>{bila::matrix(q), bila::matrix(k), bila::matrix(v)}, bila::matrix(y_h));

    const Eigen::MatrixXd M = Eigen::MatrixXd::NullaryExpr(
        L, L, [&](Eigen::Index i, Eigen::Index j) { return std::exp(log_decay[h] * static_cast<double>(std::abs(i - j))); });
    const Eigen::MatrixXd A = (q * k.transpose()).cwiseProduct(M);  // the definition needs an L x L matrix; bila never holds one
    const Eigen::MatrixXd expected = A.rowwise().sum().cwiseInverse().asDiagonal() * (A * v);
    worst = std::fmax(worst, (y_h - expected).cwiseAbs().maxCoeff());
  }
  std::cout << "token 60, head by head:\n" << y.row(60).reshaped<Eigen::RowMajor>(H, D) << "\nlargest error " << worst << '\n';
  return worst < 1e-13 ? 0 : 1;
}
