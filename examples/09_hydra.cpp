// SPDX-License-Identifier: Apache-2.0
// Hydra (arXiv 2407.09941): each direction has projections of its own and reads the tokens before, or after, a token without the
// token itself. An exclusive one-way read is the inclusive one on views shifted by a token, and both directions add to one y.
#include <bila/bila.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace {

using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Eigen::Index;
constexpr Index L = 300, H = 3, P = 8, N = 16, taps = 7;  // tokens, heads, features of a head and of a state, width of the kernel

/// Random weights that keep numbers near one.
matrix random(Index from, Index to) { return matrix::Random(from, to) / std::sqrt(static_cast<double>(from)); }

/// x with the features of head h multiplied by column h.
matrix scaled(matrix x, const matrix& by) {
  for (Index h = 0; h < H; ++h) x.middleCols(h * P, P).array().colwise() *= by.col(h).array();
  return x;
}

struct one_way {   // the projections of a direction
  matrix C, B, v;  // (L, N) (L, N) (L, H P) queries and keys that all heads share, tokens times their step
  matrix a{L, H};  // (L, H) log decays

  explicit one_way(const matrix& x) : C(x * random(H * P, N)), B(x * random(H * P, N)) {
    const matrix raw = x * random(H * P, H), A = matrix::Zero(1, H);
    bila::gates::log_decays(bila::gates::mamba{bila::vec(A.data(), H)}, bila::blh(raw.data(), 1, L, H),
                            bila::blh(a.data(), 1, L, H));
    v = scaled(x, raw.unaryExpr([](double r) { return bila::gates::softplus(r); }));
  }

  /// Adds to y what tokens read. Forwards q, k and v are tokens 0 to L - 2 and y tokens 1 to L - 1, so token i of y gets what the
  /// state holds at token i - 1; backwards the other way round.
  void read(bila::direction way, matrix& y) const {
    const Index first = way == bila::direction::forward ? 0 : 1;
    const auto from = [](auto x, Index token) {
      x.data = &x(0, 0, token, 0);
      x.extents[2] = L - 1;
      return x;
    };
    bila::inputs<double> in{from(bila::bhld(C.data(), 1, 1, L, N), first), from(bila::bhld(B.data(), 1, 1, L, N), first),
                            from(bila::blhd(v.data(), 1, L, H, P), first)};
    in.direction = way;
    bila::outputs<double> out{from(bila::blhd(y.data(), 1, L, H, P), 1 - first)};
    out.add = true;
    const bila::mask::selective_decay mask{from(bila::blh(a.data(), 1, L, H), first), bila::gate::target};
    bila::attend(bila::form::chunkwise{}, mask, bila::norm::none{}, in, out);
  }

  /// The definition, with steps of 1 from the past or -1 from the future.
  void read_plainly(Index step, matrix& y) const {
    for (Index h = 0; h < H; ++h)
      for (Index i = 0; i < L; ++i) {
        double log = 0;
        for (Index j = i - step; j >= 0 && j < L; log += a(j, h), j -= step)
          y.row(i).segment(h * P, P) += std::exp(log) * C.row(i - step).dot(B.row(j)) * v.row(j).segment(h * P, P);
      }
  }
};

}  // namespace

int main() {
  std::srand(1);
  const matrix u = matrix::Random(L, H * P), weights = matrix::Random(taps, H * P);
  matrix x(L, H * P), plain_x = matrix::Zero(L, H * P);
  const bila::feature::convolution centred{bila::matrix(weights), bila::direction::both};
  bila::convolve(bila::cpu{}, centred, bila::matrix(u), bila::matrix(x));

  const one_way past(x), future(x);
  matrix y = scaled(x, x * random(H * P, H)), plain = y;  // the token itself has a learned weight
  past.read(bila::direction::forward, y);
  future.read(bila::direction::backward, y);

  for (Index i = 0; i < L; ++i)
    for (Index j = std::max<Index>(0, i - taps / 2); j <= std::min(L - 1, i + taps / 2); ++j)
      plain_x.row(i) += weights.row(j - i + taps / 2).cwiseProduct(u.row(j));
  past.read_plainly(1, plain);
  future.read_plainly(-1, plain);
  const double error = (y - plain).cwiseAbs().maxCoeff(), of_convolution = (x - plain_x).cwiseAbs().maxCoeff();
  std::printf("a Hydra mixer over %d tokens: largest error %.1e, of the convolution before it %.1e\n", static_cast<int>(L), error,
              of_convolution);
  return error < 1e-12 && of_convolution < 1e-13 ? 0 : 1;
}
