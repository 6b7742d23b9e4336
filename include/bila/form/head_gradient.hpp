// SPDX-License-Identifier: Apache-2.0
// What the gradient of one head is given beside the head itself, where it goes, and the pieces that every form's gradient shares.
#pragma once

#include <bila/form/head.hpp>

namespace bila::inline v0_1::form {

/// Where the gradient of q, k or v goes. Heads that read one tensor add to one gradient, in order: the first starts the sum, the
/// last rounds it.
template <class T>
struct gradient_rows {
  rows<T> out;                // without data: not wanted
  rows<real_of<T>> sum = {};  // where the heads add; out itself unless it would round
  bool first = true, last = true;
};

template <class T>
struct head_gradient {
  using Real = real_of<T>;

  rows<const T> y;                                       // (L, Dv), as the forward pass wrote it
  rows<const Real> row_sum;                              // (L, 1), the same
  rows<const T> dy;                                      // (L, Dv)
  head_state<const Real> final_forward, final_backward;  // of the loss by the final states
  head_state<Real> initial_forward, initial_backward;    // of the loss by the initial states: out
  gradient_rows<T> q, k, v;                              // (L, Dk) (L, Dk) (L, Dv)
  double *forward = nullptr, *backward = nullptr;        // (L + 1) by the log decay of gap t, 0 <= t <= L, zero at the start; null:
                                                         // not wanted
  double scale = 0, diagonal = 0;                        // by the scalars: this head's part

  bool has_states() const {
    return initial_forward.S.data != nullptr || initial_backward.S.data != nullptr || final_forward.S.data != nullptr ||
           final_backward.S.data != nullptr;
  }

  template <bila::direction Way>
  const auto& final() const {
    if constexpr (Way == bila::direction::forward)
      return final_forward;
    else
      return final_backward;
  }

  template <bila::direction Way>
  const auto& initial() const {
    if constexpr (Way == bila::direction::forward)
      return initial_forward;
    else
      return initial_backward;
  }

  template <bila::direction Way>
  double* gaps() const {
    return Way == bila::direction::forward ? forward : backward;
  }
};

/// Writes the gradient of tokens [first, first + X.rows), or adds it to what earlier passes and heads left. X is used up.
template <class T, class Real>
void deliver(const gradient_rows<T>& to, index_t first, kernel::tile<Real> X, bool first_pass, bool last_pass) {
  if (to.out.data == nullptr) return;
  if (!to.first || !first_pass)
    for (index_t i = 0; i < X.rows; ++i)
      for (index_t d = 0; d < X.columns; ++d) X.row(i)[d] += to.sum(first + i, d);
  if (to.last && last_pass)
    kernel::store(to.out.slice(first, X.rows), X);
  else
    kernel::store(to.sum.slice(first, X.rows), X);
}

/// Through the normaliser: dN = a dy, dZ = b of tokens [first, first + dN.rows), with a and b the norm's slope; `room` is for y.
/// Returns these tokens' part in the gradient of the scale.
template <class Kernel, class T, class Mask, class Real, class Norm>
double through_norm(const head<T, Mask>& x, const head_gradient<T>& g, index_t first, kernel::tile<Real> dN, Real* dZ,
                    kernel::tile<Real> room, const Norm& norm) {
  kernel::load(dN, g.dy.slice(first, dN.rows));
  kernel::load(room, g.y.slice(first, dN.rows));
  double scale = 0;
  for (index_t i = 0; i < dN.rows; ++i) {
    double dy_y = 0;
    Kernel::dots(&dy_y, kernel::tile<Real>{dN.row(i), 1, dN.columns, dN.stride}, {room.row(i), 1, room.columns, room.stride});
    const Real Z = Norm::uses_row_sum ? g.row_sum(first + i, 0) : Real(0);
    const slope<Real> by = norm.slope(Z, static_cast<Real>(x.scale), static_cast<Real>(dy_y));
    for (index_t d = 0; d < dN.columns; ++d) dN.row(i)[d] *= by.numerator;
    dZ[i] = by.row_sum;
    scale += static_cast<double>(by.scale);
  }
  return scale;
}

/// start(), transposed: St (Dv, Dk).
template <class Real>
void start_transposed(kernel::tile<Real> St, Real* s, const head_state<const Real>& from) {
  kernel::clear(St);
  if (from.S.data != nullptr)
    kernel::load(St, rows<const Real>{from.S.data, from.S.width, from.S.count, from.S.column_stride, from.S.row_stride});
  for (index_t c = 0; c < St.columns; ++c) s[c] = from.z.data == nullptr ? Real(0) : from.z(c, 0);
}

/// Adds to the gradient of a chunk's gaps what crosses them, E_ij = dl / d log M_ij. `rows` holds what each of its n tokens reads
/// by such pairs, `columns` what is read of it, `pass` the pairs that jump over the whole chunk.
///
///     forward:   to[t] += pass + sum_{i >= t} rows_i + sum_{j < t} columns_j      0 <= t < n, the gap before token t
///     backward:  to[t] += pass + sum_{i < t} rows_i + sum_{j >= t} columns_j      1 <= t <= n
///
/// Sums end with the chunk, so what cancels in them is small. Source: Mamba-2 (arXiv 2405.21060), made local to a chunk.
template <direction Way>
void spread(double pass, const double* rows, const double* columns, index_t n, double* to) {
  double before = 0, from = 0;
  if constexpr (Way == direction::forward) {
    for (index_t t = n - 1; t >= 0; --t) to[t] += pass + (from += rows[t]);
    for (index_t t = 1; t < n; ++t) to[t] += before += columns[t - 1];
  } else {
    for (index_t t = 1; t <= n; ++t) to[t] += pass + (before += rows[t - 1]);
    for (index_t t = n - 1; t >= 1; --t) to[t] += from += columns[t];
  }
}

/// The same for the pairs inside the chunk: E = P o G on one side of the diagonal. Such a pair crosses the gaps between its tokens,
/// and rows - columns counts it from the one up to the other.
template <direction Way, class Real>
void block_gaps(kernel::tile<Real> P, kernel::tile<Real> G, double* rows, double* columns, double* to) {
  const index_t n = P.rows;
  std::fill_n(rows, n, 0.0);
  std::fill_n(columns, n, 0.0);
  for (index_t i = 0; i < n; ++i) {
    const index_t begin = Way == direction::forward ? 0 : i + 1, end = Way == direction::forward ? i : n;
    double sum = 0;
    for (index_t j = begin; j < end; ++j) {
      const double e = static_cast<double>(P.row(i)[j]) * static_cast<double>(G.row(i)[j]);
      sum += e;
      columns[j] += e;
    }
    rows[i] = sum;
  }
  for (index_t i = 0; i < n; ++i) {
    rows[i] -= columns[i];
    columns[i] = 0;
  }
  spread<Way>(0, rows, columns, n, to);
}

}  // namespace bila::inline v0_1::form
