// SPDX-License-Identifier: Apache-2.0
// The kernel layer in plain loops with wide sums: the oracle of the tests and the baseline of the benchmarks. No Eigen.
#pragma once

#include <bila/kernel/contract.hpp>

#include <type_traits>

namespace bila::inline v0_1::kernel {

struct reference {
  template <class Real>
  static constexpr index_t lanes = 1;

  template <class Real>
  using wide = std::conditional_t<std::is_same_v<Real, float>, double, long double>;

  template <class Real>
  static void score(tile<Real> A, operand<Real> q, operand<Real> kt) {
    for (index_t i = 0; i < A.rows; ++i)
      for (index_t j = 0; j < A.columns; ++j) {
        wide<Real> sum = 0;
        for (index_t d = 0; d < q.columns; ++d) sum += wide<Real>(q.row(i)[d]) * kt.row(d)[j];
        A.row(i)[j] = static_cast<Real>(sum);
      }
  }

  template <class Real>
  static void weigh(tile<Real> A, operand<Real> M, Real* z) {
    for (index_t i = 0; i < A.rows; ++i) {
      wide<Real> sum = 0;
      for (index_t j = 0; j < A.columns; ++j) sum += A.row(i)[j] *= M.row(i)[j];
      if (z != nullptr) z[i] += static_cast<Real>(sum);
    }
  }

  template <class Real>
  static void weigh(tile<Real> A, const Real* r, const Real* c, Real* z) {
    for (index_t i = 0; i < A.rows; ++i) {
      wide<Real> sum = 0;
      for (index_t j = 0; j < A.columns; ++j) sum += A.row(i)[j] *= r[i] * c[j];
      if (z != nullptr) z[i] += static_cast<Real>(sum);
    }
  }

  template <class Real>
  static void apply(tile<Real> N, operand<Real> A, operand<Real> v) {
    for (index_t i = 0; i < N.rows; ++i)
      for (index_t d = 0; d < N.columns; ++d) {
        wide<Real> sum = 0;
        for (index_t j = 0; j < A.columns; ++j) sum += wide<Real>(A.row(i)[j]) * v.row(j)[d];
        N.row(i)[d] += static_cast<Real>(sum);
      }
  }

  template <class Real>
  static void read(tile<Real> N, Real* z, const Real* r, operand<Real> q, operand<Real> S, const Real* s) {
    for (index_t i = 0; i < N.rows; ++i) {
      for (index_t d = 0; d < N.columns; ++d) {
        wide<Real> sum = 0;
        for (index_t c = 0; c < q.columns; ++c) sum += wide<Real>(q.row(i)[c]) * S.row(c)[d];
        N.row(i)[d] += static_cast<Real>(r[i] * sum);
      }
      if (z == nullptr) continue;
      wide<Real> sum = 0;
      for (index_t c = 0; c < q.columns; ++c) sum += wide<Real>(q.row(i)[c]) * s[c];
      z[i] += static_cast<Real>(r[i] * sum);
    }
  }

  template <class Real>
  static void accumulate(tile<Real> S, Real* s, Real g, operand<Real> k, const Real* w, operand<Real> v, tile<Real>) {
    for (index_t c = 0; c < S.rows; ++c) {
      for (index_t d = 0; d < S.columns; ++d) {
        wide<Real> sum = 0;
        for (index_t j = 0; j < k.rows; ++j) sum += wide<Real>(w[j]) * k.row(j)[c] * v.row(j)[d];
        S.row(c)[d] = static_cast<Real>(wide<Real>(g) * S.row(c)[d] + sum);
      }
      if (s == nullptr) continue;
      wide<Real> sum = 0;
      for (index_t j = 0; j < k.rows; ++j) sum += wide<Real>(w[j]) * k.row(j)[c];
      s[c] = static_cast<Real>(wide<Real>(g) * s[c] + sum);
    }
  }

  template <class Real>
  static void step(Real* n, Real* z, Real r, const Real* q, tile<Real> S, Real* s, Real g, Real w, const Real* k, const Real* v) {
    for (index_t d = 0; d < S.columns; ++d) {
      wide<Real> sum = 0;
      for (index_t c = 0; c < S.rows; ++c) sum += wide<Real>(q[c]) * S.row(c)[d];
      n[d] += static_cast<Real>(r * sum);
      for (index_t c = 0; c < S.rows; ++c) S.row(c)[d] = static_cast<Real>(g * (S.row(c)[d] + wide<Real>(w) * k[c] * v[d]));
    }
    if (z == nullptr) return;
    wide<Real> sum = 0;
    for (index_t c = 0; c < S.rows; ++c) sum += wide<Real>(q[c]) * s[c];
    *z += static_cast<Real>(r * sum);
    for (index_t c = 0; c < S.rows; ++c) s[c] = static_cast<Real>(g * (s[c] + wide<Real>(w) * k[c]));
  }

  template <class Real>
  static void diagonal(Real* n, Real* z, Real w, const Real* q, const Real* k, index_t Dk, const Real* v, index_t Dv) {
    wide<Real> score = 0;
    for (index_t c = 0; c < Dk; ++c) score += wide<Real>(q[c]) * k[c];
    score *= w;
    for (index_t d = 0; d < Dv; ++d) n[d] += static_cast<Real>(score * v[d]);
    if (z != nullptr) *z += static_cast<Real>(score);
  }

  template <class Real>
  static void divide(Real* n, index_t Dv, Real factor, Real divisor) {
    for (index_t d = 0; d < Dv; ++d) n[d] = factor * n[d] / divisor;
  }

  template <class Real>
  static void transpose(tile<Real> kt, operand<Real> k) {
    for (index_t d = 0; d < k.columns; ++d)
      for (index_t j = 0; j < k.rows; ++j) kt.row(d)[j] = k.row(j)[d];
  }

  template <class Real>
  static void apply_transposed(tile<Real> N, operand<Real> A, operand<Real> q) {
    for (index_t j = 0; j < N.rows; ++j)
      for (index_t d = 0; d < N.columns; ++d) {
        wide<Real> sum = 0;
        for (index_t i = 0; i < A.rows; ++i) sum += wide<Real>(A.row(i)[j]) * q.row(i)[d];
        N.row(j)[d] += static_cast<Real>(sum);
      }
  }

  template <class Real>
  static void outer(tile<Real> N, const Real* a, const Real* b) {
    for (index_t i = 0; i < N.rows; ++i)
      for (index_t j = 0; j < N.columns; ++j) N.row(i)[j] += a[i] * b[j];
  }

  template <class Real>
  static void gather(Real* s, Real g, operand<Real> k, const Real* w) {
    for (index_t c = 0; c < k.columns; ++c) {
      wide<Real> sum = 0;
      for (index_t j = 0; j < k.rows; ++j) sum += wide<Real>(w[j]) * k.row(j)[c];
      s[c] = static_cast<Real>(wide<Real>(g) * s[c] + sum);
    }
  }

  template <class Real>
  static void dots(double* z, tile<Real> a, operand<Real> b) {
    for (index_t i = 0; i < a.rows; ++i) {
      wide<Real> sum = 0;
      for (index_t d = 0; d < a.columns; ++d) sum += wide<Real>(a.row(i)[d]) * b.row(i)[d];
      z[i] = static_cast<double>(sum);
    }
  }

  template <class Real>
  static double inner(tile<Real> a, operand<Real> b) {
    wide<Real> sum = 0;
    for (index_t i = 0; i < a.rows; ++i)
      for (index_t d = 0; d < a.columns; ++d) sum += wide<Real>(a.row(i)[d]) * b.row(i)[d];
    return static_cast<double>(sum);
  }
};

}  // namespace bila::inline v0_1::kernel
