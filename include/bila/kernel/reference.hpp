// SPDX-License-Identifier: Apache-2.0
// The kernel layer as plain loops that sum in a wider type, without Eigen: the oracle of the tests and the baseline of the
// benchmarks.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/view/direction.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace kernel {
inline namespace BILA_UNIT {

struct reference {
  template <class Real>
  static constexpr index_t lanes = 1;

  template <class Real>
  using wide = std::conditional_t<std::is_same_v<Real, float>, double, long double>;

  template <class Real, class Weights>
  static void score(tile<Real> A, operand<Real> k, operand<Real> qt, const Weights& M, std::type_identity_t<Real>* z = nullptr) {
    for (index_t i = 0; i < A.columns; ++i) {
      wide<Real> total = 0;
      for (index_t j = 0; j < A.rows; ++j) {
        wide<Real> sum = 0;
        for (index_t d = 0; d < k.columns; ++d) sum += wide<Real>(k.row(j)[d]) * qt.row(d)[i];
        A.row(j)[i] = static_cast<Real>(sum * weight(M, j, i));
        total += A.row(j)[i];
      }
      if (z != nullptr) z[i] += static_cast<Real>(total);
    }
  }

  template <class Real>
  static void apply(tile<Real> N, operand<Real> A, operand<Real> v) {
    for (index_t i = 0; i < N.rows; ++i)
      for (index_t d = 0; d < N.columns; ++d) {
        wide<Real> sum = 0;
        for (index_t j = 0; j < A.rows; ++j) sum += wide<Real>(A.row(j)[i]) * v.row(j)[d];
        N.row(i)[d] += static_cast<Real>(sum);
      }
  }

  template <class Real>
  static void read(tile<Real> N, argument<read_terms<Real>> x, prefetch_queue* = nullptr) {
    for (index_t i = 0; i < N.rows; ++i)
      for (index_t d = 0; d < N.columns; ++d) {
        wide<Real> sum = 0;
        for (index_t c = 0; c < x.q.columns; ++c) sum += wide<Real>(x.q.row(i)[c]) * x.S.row(c)[d];
        sum *= x.weights[i];
        for (index_t j = 0; j < x.A.rows; ++j) sum += wide<Real>(x.A.row(j)[i]) * x.v.row(j)[d];
        if (x.partial.data != nullptr) sum += x.partial.row(i)[d];
        N.row(i)[d] = static_cast<Real>(x.row_scales == nullptr ? sum : x.row_scales[i] * sum);
      }
  }

  template <class Real>
  static void project(Real* z, const Real* r, operand<Real> q, const Real* s) {
    for (index_t i = 0; i < q.rows; ++i) {
      wide<Real> sum = 0;
      for (index_t c = 0; c < q.columns; ++c) sum += wide<Real>(q.row(i)[c]) * s[c];
      z[i] += static_cast<Real>(r[i] * sum);
    }
  }

  template <class Real>
  static void project_transposed(Real* z, const Real* r, operand<Real> qt, const Real* s) {
    for (index_t i = 0; i < qt.columns; ++i) {
      wide<Real> sum = 0;
      for (index_t c = 0; c < qt.rows; ++c) sum += wide<Real>(qt.row(c)[i]) * s[c];
      z[i] += static_cast<Real>(r[i] * sum);
    }
  }

  template <class Real>
  static void accumulate(const state<Real>& to, argument<update_terms<Real>> x, prefetch_queue* = nullptr) {
    const tile<Real> E = x.rest.S;
    for (index_t c = 0; c < to.S.rows; ++c)
      for (index_t d = 0; d < to.S.columns; ++d) {
        wide<Real> sum = E.data == nullptr ? wide<Real>(0) : wide<Real>(x.decay[c]) * E.row(c)[d];
        for (index_t j = 0; j < x.k.rows; ++j)
          sum += wide<Real>(x.weights == nullptr ? Real(1) : x.weights[j]) * x.k.row(j)[c] * x.v.row(j)[d];
        sum += wide<Real>(x.decay[c]) * x.from.S.row(c)[d];
        to.S.row(c)[d] = static_cast<Real>(sum);
        if (E.data != nullptr) E.row(c)[d] = static_cast<Real>(sum - to.S.row(c)[d]);
      }
    if (to.s != nullptr) gather(to.s, x.rest.s, x.decay, x.from.s, x.k, x.weights);
  }

  template <class Real>
  static void steps(tile<Real> N, std::type_identity_t<Real>* z, const state<Real>& to, argument<step_terms<Real>> x,
                    prefetch_queue* = nullptr) {
    const auto [S, s] = to;
    for (index_t i = 0; i < N.rows; ++i) {
      for (index_t d = 0; d < S.columns; ++d) {
        wide<Real> sum = 0;
        for (index_t c = 0; c < S.rows; ++c) sum += wide<Real>(x.q.row(i)[c]) * S.row(c)[d];
        N.row(i)[d] += static_cast<Real>(x.read[i] * sum);
        for (index_t c = 0; c < S.rows; ++c)
          S.row(c)[d] = static_cast<Real>(x.decay[i] * (S.row(c)[d] + wide<Real>(x.write[i]) * x.k.row(i)[c] * x.v.row(i)[d]));
      }
      if (z == nullptr) continue;
      wide<Real> sum = 0;
      for (index_t c = 0; c < S.rows; ++c) sum += wide<Real>(x.q.row(i)[c]) * s[c];
      z[i] += static_cast<Real>(x.read[i] * sum);
      for (index_t c = 0; c < S.rows; ++c) s[c] = static_cast<Real>(x.decay[i] * (s[c] + wide<Real>(x.write[i]) * x.k.row(i)[c]));
    }
  }

  template <class Real>
  static void diagonal(tile<Real> N, Real* z, Real w, operand<Real> q, operand<Real> k, operand<Real> v) {
    for (index_t i = 0; i < N.rows; ++i) {
      wide<Real> score = 0;
      for (index_t c = 0; c < q.columns; ++c) score += wide<Real>(q.row(i)[c]) * k.row(i)[c];
      score *= w;
      for (index_t d = 0; d < N.columns; ++d) N.row(i)[d] += static_cast<Real>(score * v.row(i)[d]);
      if (z != nullptr) z[i] += static_cast<Real>(score);
    }
  }

  template <class Real>
  static void scale(tile<Real> Y, const Real* out, operand<Real> N) {
    for (index_t i = 0; i < N.rows; ++i)
      for (index_t d = 0; d < N.columns; ++d) Y.row(i)[d] = out[i] * N.row(i)[d];
  }

  template <class Real>
  static void divide(Real* n, index_t Dv, Real factor, Real divisor) {
    for (index_t d = 0; d < Dv; ++d) n[d] = factor * n[d] / divisor;
  }

  template <class Real>
  static void exponentials(const tile<Real>& E) {
    for (index_t i = 0; i < E.rows; ++i)
      for (index_t c = 0; c < E.columns; ++c) {
        const Real x = std::exp(E.row(i)[c]);
        E.row(i)[c] = x < (std::numeric_limits<Real>::min)() ? Real(0) : x;
      }
  }

  template <class Real>
  static void column_sums(double* to, const tile<Real>& E) {
    std::fill_n(to, E.columns, 0.0);
    for (index_t i = 0; i < E.rows; ++i)
      for (index_t c = 0; c < E.columns; ++c) to[c] += static_cast<double>(E.row(i)[c]);
  }

  template <class Real>
  static void weigh_channels(const tile<Real>& qa, const tile<Real>& kw, operand<Real> q, operand<Real> k, operand<Real> lambda,
                             const Real* read, const Real* write, bool exclusive) {
    for (index_t c = 0; c < lambda.columns; ++c) {
      wide<Real> product = read[c];
      for (index_t u = 0; u < lambda.rows && qa.data != nullptr; ++u) {
        const wide<Real> after = product * lambda.row(u)[c];
        qa.row(u)[c] = static_cast<Real>(q.row(u)[c] * (exclusive ? product : after));
        product = after;
      }
      product = write[c];
      for (index_t u = lambda.rows - 1; u >= 0 && kw.data != nullptr; --u) {
        kw.row(u)[c] = static_cast<Real>(k.row(u)[c] * product);
        product *= lambda.row(u)[c];
      }
    }
  }

  /// The decay of channel c between key j and query i. Row t of up and of down is the decay of the gap before token t, crossed
  /// forwards and backwards.
  template <class Real>
  static wide<Real> decay_between(index_t j, index_t i, index_t c, operand<Real> up, operand<Real> down, bool exclusive) {
    wide<Real> product = 1;
    if (j < i)
      for (index_t t = j + 1; t <= i - exclusive; ++t) product *= up.row(t)[c];
    else
      for (index_t t = i + 1 + exclusive; t <= j; ++t) product *= down.row(t)[c];
    return product;
  }

  template <class Real>
  static void score_channels(const tile<Real>& A, std::type_identity_t<Real>* z, operand<Real> k, operand<Real> q, operand<Real> up,
                             operand<Real> down, const Real* own, bool exclusive) {
    for (index_t j = 0; j < k.rows; ++j)
      for (index_t i = 0; i < q.rows; ++i) {
        wide<Real> sum = 0;
        const bool hidden = (i > j && up.data == nullptr) || (i < j && down.data == nullptr);
        for (index_t c = 0; c < k.columns && !hidden; ++c)
          sum += wide<Real>(q.row(i)[c]) * k.row(j)[c] *
                 (i == j ? wide<Real>(own[c]) : decay_between<Real>(j, i, c, up, down, exclusive));
        A.row(j)[i] = static_cast<Real>(sum);
        if (z != nullptr) z[i] += A.row(j)[i];
      }
  }

  template <class Real>
  static void collect_channels(const tile<Real>& N, operand<Real> G, operand<Real> x, operand<Real> lambda, direction way,
                               bool of_keys, bool exclusive) {
    for (index_t j = 0; j < N.rows; ++j)
      for (index_t i = 0; i < N.rows; ++i) {
        if (way == direction::forward ? i <= j : i >= j) continue;
        for (index_t c = 0; c < N.columns; ++c)
          N.row(of_keys ? j : i)[c] += static_cast<Real>(wide<Real>(G.row(j)[i]) * x.row(of_keys ? i : j)[c] *
                                                         decay_between<Real>(j, i, c, lambda, lambda, exclusive));
      }
  }

  template <class Real>
  static void add_products(const tile<Real>& N, const tile<Real>& P, operand<Real> x, operand<Real> w, operand<Real> y) {
    for (index_t i = 0; i < x.rows; ++i)
      for (index_t c = 0; c < x.columns; ++c) {
        const Real t = w.data == nullptr ? x.row(i)[c] : x.row(i)[c] * w.row(i)[c];
        N.row(i)[c] += t;
        if (P.data != nullptr) P.row(i)[c] += t * y.row(i)[c];
      }
  }

  template <class Real>
  static void sum_gaps(const tile<Real>& D, operand<Real> rows, operand<Real> columns, const Real* start, operand<Real> lambda,
                       bool exclusive) {
    for (index_t u = 0; u < rows.rows; ++u)
      for (index_t c = 0; c < rows.columns; ++c) {
        wide<Real> sum = start == nullptr ? 0 : start[c];
        for (index_t m = u + exclusive; m < rows.rows; ++m) sum += rows.row(m)[c];
        if (start != nullptr)
          for (index_t m = 0; m < u; ++m) sum += columns.row(m)[c];
        else
          for (index_t m = u; m < rows.rows; ++m) sum -= columns.row(m)[c];
        D.row(u)[c] = lambda.row(u)[c] > 0 && (start != nullptr || u > 0) ? static_cast<Real>(sum) : Real(0);
      }
  }

  template <class Real>
  static void transpose(tile<Real> kt, operand<Real> k) {
    for (index_t d = 0; d < k.columns; ++d)
      for (index_t j = 0; j < k.rows; ++j) kt.row(d)[j] = k.row(j)[d];
  }

  template <class Real>
  static void solve(tile<Real> E, tile<Real> U, operand<Real> T, const Real* beta, direction way, bool against = false) {
    const index_t n = E.rows;
    const bool ascending = (way == direction::forward) != against;
    for (index_t a = 0; a < n; ++a) {
      const index_t i = ascending ? a : n - 1 - a;
      for (index_t d = 0; d < E.columns; ++d) {
        wide<Real> sum = 0;
        for (index_t b = 0; b < a; ++b) {
          const index_t j = ascending ? b : n - 1 - b;
          sum += wide<Real>(against ? T.row(j)[i] : T.row(i)[j]) * U.row(j)[d];
        }
        E.row(i)[d] = static_cast<Real>(E.row(i)[d] - sum);
        U.row(i)[d] = beta[i] * E.row(i)[d];
      }
    }
  }

  static void exponentials(double* x, index_t n) {
    for (index_t t = 0; t < n; ++t) x[t] = std::exp(x[t]);
  }

  template <class Real>
  static void scan_square(tile<Real> M, const double* up, const double* down) {
    for (index_t a = 0; a < M.rows; ++a) {
      M.row(a)[a] = 0;
      double product = 1;
      for (index_t b = a + 1; b < M.rows; ++b) M.row(a)[b] = static_cast<Real>(product *= up == nullptr ? 0.0 : up[b]);
      product = 1;
      for (index_t b = a - 1; b >= 0; --b) M.row(a)[b] = static_cast<Real>(product *= down == nullptr ? 0.0 : down[b + 1]);
    }
  }

  template <class Real>
  static void weigh_levels(const tile<Real>& M, operand<Real> w, direction way) {
    for (index_t j = 0; j < M.rows; ++j)
      for (index_t i = 0; i < M.columns; ++i)
        if (way == direction::forward ? j < i : j > i) M.row(j)[i] *= w.row(level_of(i, j))[i];
  }

  template <class Real>
  static void sum_levels(const tile<Real>& D, operand<Real> E, direction way) {
    clear(D);
    for (index_t l = 1; l < D.rows; ++l)
      for (index_t i = 0; i < E.columns; ++i) {
        wide<Real> sum = 0;
        for (index_t j = 0; j < E.rows; ++j)
          if ((way == direction::forward ? j < i : j > i) && level_of(i, j) == l) sum += E.row(j)[i];
        D.row(l)[i] = static_cast<Real>(sum);
      }
  }

  template <class Real, class Weights>
  static void score_gradient(tile<Real> A, argument<pair_gradients<Real>> to, operand<Real> v, operand<Real> dyt,
                             argument<row_slopes<Real>> by, const Weights& M) {
    for (index_t j = 0; j < A.rows; ++j)
      for (index_t i = 0; i < A.columns; ++i) {
        wide<Real> sum = 0;
        for (index_t d = 0; d < v.columns; ++d) sum += wide<Real>(v.row(j)[d]) * dyt.row(d)[i];
        const wide<Real> g = by.numerator[i] * sum + by.row_sum[i];
        to.E.row(j)[i] = static_cast<Real>(g * A.row(j)[i]);
        to.G.row(j)[i] = static_cast<Real>(g * weight(M, j, i));
        A.row(j)[i] *= by.numerator[i];
      }
  }

  template <class Real>
  static void multiply(tile<Real> N, operand<Real> A, operand<Real> q) {
    for (index_t j = 0; j < N.rows; ++j)
      for (index_t d = 0; d < N.columns; ++d) {
        wide<Real> sum = 0;
        for (index_t i = 0; i < A.columns; ++i) sum += wide<Real>(A.row(j)[i]) * q.row(i)[d];
        N.row(j)[d] += static_cast<Real>(sum);
      }
  }

  template <class Real>
  static void add(tile<Real> N, operand<Real> x, std::type_identity_t<const Real*> w = nullptr) {
    for (index_t i = 0; i < N.rows; ++i)
      for (index_t d = 0; d < N.columns; ++d) N.row(i)[d] += w == nullptr ? x.row(i)[d] : w[i] * x.row(i)[d];
  }

  template <class Real>
  static void gather(Real* s, Real* e, row_decays<std::type_identity_t<Real>> g, const Real* h, operand<Real> k,
                     std::type_identity_t<const Real*> w = nullptr) {
    for (index_t c = 0; c < k.columns; ++c) {
      wide<Real> sum = wide<Real>(g[c]) * (wide<Real>(h[c]) + e[c]);
      for (index_t j = 0; j < k.rows; ++j) sum += wide<Real>(w == nullptr ? Real(1) : w[j]) * k.row(j)[c];
      s[c] = static_cast<Real>(sum);
      e[c] = static_cast<Real>(sum - s[c]);
    }
  }

  template <class Real>
  static void dots(double* z, operand<Real> a, operand<Real> b) {
    for (index_t i = 0; i < a.rows; ++i) {
      wide<Real> sum = 0;
      for (index_t d = 0; d < a.columns; ++d) sum += wide<Real>(a.row(i)[d]) * b.row(i)[d];
      z[i] = static_cast<double>(sum);
    }
  }

  template <class Real>
  static double inner(operand<Real> a, operand<Real> b) {
    wide<Real> sum = 0;
    for (index_t i = 0; i < a.rows; ++i)
      for (index_t d = 0; d < a.columns; ++d) sum += wide<Real>(a.row(i)[d]) * b.row(i)[d];
    return static_cast<double>(sum);
  }

  template <class Real>
  static double sums(double* queries, double* keys, tile<Real> E) {
    double total = 0;
    for (index_t j = 0; j < E.rows; ++j)
      for (index_t i = 0; i < E.columns; ++i) {
        const auto e = static_cast<double>(E.row(j)[i]);
        queries[i] += e;
        keys[j] += e;
        total += e;
      }
    return total;
  }

  template <class Real>
  static void crossings(double* f, double* b, tile<Real> E, Real*) {
    for (index_t t = 1; t < E.rows; ++t)
      for (index_t before = 0; before < t; ++before)
        for (index_t from = t; from < E.rows; ++from) {
          if (f != nullptr) f[t] += static_cast<double>(E.row(before)[from]);
          if (b != nullptr) b[t] += static_cast<double>(E.row(from)[before]);
        }
  }

 private:
  template <class Real>
  static Real weight(tile<const Real> M, index_t j, index_t i) {
    return M.row(j)[i];
  }

  template <class Real>
  static Real weight(tile<Real> M, index_t j, index_t i) {
    return M.row(j)[i];
  }

  template <class Real>
  static Real weight(const rank_one<Real>& M, index_t j, index_t i) {
    return M.keys[j] * M.queries[i];
  }
};

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila
