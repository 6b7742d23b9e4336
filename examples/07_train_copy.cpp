// SPDX-License-Identifier: Apache-2.0
// Training: one layer of LION-S learns to copy. A sequence is L random symbols, one of them marked; every token must name the marked
// one, wherever it stands. Projections, softmax and the descent are Eigen by hand; everything between them is bila, both ways.
#include <bila/bila.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstdio>
#include <random>

namespace {

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr Eigen::Index L = 24, symbols = 6, width = symbols + 1, D = 12;  // a token: which symbol it is, and whether it is marked

struct example {
  matrix x = matrix::Zero(L, width);  // (L, width)
  Eigen::Index answer = 0;

  explicit example(std::mt19937& random) {
    const auto marked = static_cast<Eigen::Index>(random() % L);
    for (Eigen::Index t = 0; t < L; ++t) {
      const auto symbol = static_cast<Eigen::Index>(random() % symbols);
      x(t, symbol) = 1;
      if (t != marked) continue;
      x(t, symbols) = 1;
      answer = symbol;
    }
  }
};

struct weights {  // or the gradient of the loss by them
  matrix q = matrix::Zero(width, D), k = q, v = q, gate = matrix::Zero(width, 1), out = matrix::Zero(D, symbols);
};

/// The mean loss of one example; its gradient is added to d.
float learn(const weights& w, const example& e, weights& d) {
  const bila::feature::silu_norm phi{};
  const bila::gates::log_sigmoid sigmoid{};
  const bila::norm::row_sum norm{};
  const bila::form::chunkwise form{};

  const matrix xq = e.x * w.q, xk = e.x * w.k, v = e.x * w.v, xa = e.x * w.gate;  // (L, D) (L, D) (L, D) (L, 1)
  matrix q(L, D), k(L, D), a(L, 1), y(L, D), Z(L, 1);
  bila::features(bila::cpu{}, phi, bila::matrix(xq), bila::matrix(q));
  bila::features(bila::cpu{}, phi, bila::matrix(xk), bila::matrix(k));
  bila::gates::log_decays(sigmoid, bila::matrix(xa), bila::matrix(a));
  const bila::inputs<float> in{bila::matrix(q), bila::matrix(k), bila::matrix(v)};
  const bila::mask::selective_decay mask{bila::matrix(a), bila::gate::source};
  bila::attend(form, mask, norm, in, bila::outputs<float>{bila::matrix(y), bila::matrix(Z)});

  matrix p = (y * w.out).array().exp();  // (L, symbols)
  float loss = 0;
  for (Eigen::Index t = 0; t < L; ++t) {
    p.row(t) /= p.row(t).sum();
    loss -= std::log(p(t, e.answer)) / L;
    p(t, e.answer) -= 1;
  }
  p /= L;  // the gradient by the logits

  const matrix dy = p * w.out.transpose();                                   // (L, D)
  matrix dq(L, D), dk(L, D), dv(L, D), da(L, 1), dxq(L, D), dxk(L, D), dxa(L, 1);
  bila::gradients<float> to;
  to.q = bila::matrix(dq);
  to.k = bila::matrix(dk);
  to.v = bila::matrix(dv);
  to.log_decay = bila::matrix(da);
  bila::gradient(form, mask, norm, in, {bila::matrix(y), bila::matrix(Z)}, {bila::matrix(dy)}, to);
  bila::features_gradient(bila::cpu{}, phi, bila::matrix(xq), bila::matrix(dq), bila::matrix(dxq));
  bila::features_gradient(bila::cpu{}, phi, bila::matrix(xk), bila::matrix(dk), bila::matrix(dxk));
  bila::gates::pull_back(sigmoid, bila::matrix(xa), bila::matrix(da), bila::matrix(dxa));

  d.q += e.x.transpose() * dxq;
  d.k += e.x.transpose() * dxk;
  d.v += e.x.transpose() * dv;
  d.gate += e.x.transpose() * dxa;
  d.out += y.transpose() * p;
  return loss;
}

}  // namespace

int main() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.3f);
  weights w;
  for (matrix* x : {&w.q, &w.k, &w.v, &w.out}) *x = x->unaryExpr([&](float) { return normal(random); });

  const float guessing = std::log(static_cast<float>(symbols));
  constexpr int batch = 16;
  float loss = guessing;
  for (int step = 0; step <= 1000; ++step) {
    weights d;
    float now = 0;
    for (int n = 0; n < batch; ++n) now += learn(w, example(random), d) / batch;
    const float rate = 1.0f / batch;
    w.q -= rate * d.q;
    w.k -= rate * d.k;
    w.v -= rate * d.v;
    w.gate -= rate * d.gate;
    w.out -= rate * d.out;
    loss += 0.05f * (now - loss);
    if (step % 100 == 0) std::printf("step %4d  loss %.3f  (guessing: %.3f)\n", step, static_cast<double>(loss), static_cast<double>(guessing));
  }
  return loss < 0.5f * guessing ? 0 : 1;
}
