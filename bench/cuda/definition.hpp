// SPDX-License-Identifier: Apache-2.0
// The definition, one row at a time in double, of what the device wrote: an independent answer for a few rows of a few heads in
// O(L D) each, whatever the length. Its own gaps and sums; nothing of bila's forms is used.
#pragma once

#include <bila/view/tensor_view.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

namespace bench {

using bila::index_t;
using row = std::vector<double>;

/// One head on the host, [L, D] each, and the decays of its gaps: forward[t] and backward[t] of the gap between t-1 and t.
struct head {
  index_t L = 0, D = 0;
  std::vector<float> q, k, v, dy;
  std::vector<float> y, row_sum;  // as the device saved them: what the gradient is defined from
  std::vector<double> forward, backward;
  double eps = 0;

  const float* at(const std::vector<float>& x, index_t l) const { return x.data() + l * D; }

  double dot(const float* a, const float* b) const {
    double sum = 0;
    for (index_t d = 0; d < D; ++d) sum += static_cast<double>(a[d]) * static_cast<double>(b[d]);
    return sum;
  }

  /// visit(j, M_ij) for all j, outwards from the diagonal. A weight that no sum can feel ends its side.
  template <class Visit>
  void along_row(index_t i, const Visit& visit) const {
    walk(i, forward, backward, visit);
  }

  /// visit(i, M_ij) for all i.
  template <class Visit>
  void along_column(index_t j, const Visit& visit) const {
    walk(j, backward, forward, visit);
  }

  /// N_i / (Z_i + eps), and Z_i.
  struct answer {
    row y;
    double Z = 0;
  };

  answer attend(index_t i) const {
    answer out{row(static_cast<std::size_t>(D)), 0};
    along_row(i, [&](index_t j, double M) {
      const double A = dot(at(q, i), at(k, j)) * M;
      add(out.y, A, at(v, j));
      out.Z += A;
    });
    for (double& x : out.y) x /= out.Z + eps;
    return out;
  }

  row dq(index_t i) const {
    row out(static_cast<std::size_t>(D));
    along_row(i, [&](index_t j, double M) { add(out, M * score_gradient(i, j), at(k, j)); });
    return out;
  }

  row dk(index_t j) const {
    row out(static_cast<std::size_t>(D));
    along_column(j, [&](index_t i, double M) { add(out, M * score_gradient(i, j), at(q, i)); });
    return out;
  }

  row dv(index_t j) const {
    row out(static_cast<std::size_t>(D));
    along_column(j, [&](index_t i, double M) { add(out, M * dot(at(q, i), at(k, j)) / divisor(i), at(dy, i)); });
    return out;
  }

  /// The gradient by the log decays a_t where f_t = b_t = a_t (gate::later): the sum over all pairs that cross gap t. O(L^2 D).
  row later_gates() const {
    row out(static_cast<std::size_t>(L) + 1);
    for (index_t i = 0; i < L; ++i)
      along_row(i, [&](index_t j, double M) {
        const double E = M * dot(at(q, i), at(k, j)) * score_gradient(i, j);
        out[static_cast<std::size_t>(i < j ? i : j) + 1] += E;
        out[static_cast<std::size_t>(i < j ? j : i) + 1] -= E;
      });
    for (std::size_t t = 1; t < out.size(); ++t) out[t] += out[t - 1];
    out.pop_back();
    return out;
  }

 private:
  double divisor(index_t i) const { return static_cast<double>(row_sum[static_cast<std::size_t>(i)]) + eps; }

  /// By A_ij: dN_i . v_j + dZ_i with dN_i = dy_i / n_i, dZ_i = -(dy_i . y_i) / n_i.
  double score_gradient(index_t i, index_t j) const { return (dot(at(dy, i), at(v, j)) - dot(at(dy, i), at(y, i))) / divisor(i); }

  void add(row& sum, double weight, const float* x) const {
    for (index_t d = 0; d < D; ++d) sum[static_cast<std::size_t>(d)] += weight * static_cast<double>(x[d]);
  }

  template <class Visit>
  void walk(index_t from, const std::vector<double>& down, const std::vector<double>& up, const Visit& visit) const {
    constexpr double negligible = 1e-30;
    visit(from, 1.0);
    double M = 1;
    for (index_t n = from; n > 0 && (M *= down[static_cast<std::size_t>(n)]) > negligible; --n) visit(n - 1, M);
    M = 1;
    for (index_t n = from + 1; n < L && (M *= up[static_cast<std::size_t>(n)]) > negligible; ++n) visit(n, M);
  }
};

/// |x - reference| / |reference| over everything that is given; NaN if anything is.
class distance {
 public:
  void add(double x, double reference) {
    difference_ += (x - reference) * (x - reference);
    size_ += reference * reference;
  }

  double value() const { return std::sqrt(difference_ / size_); }

 private:
  double difference_ = 0, size_ = 0;
};

}  // namespace bench
