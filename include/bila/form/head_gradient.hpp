// SPDX-License-Identifier: Apache-2.0
// The further inputs and the outputs of one head's gradient, and the functions that the gradients of all forms share.
#pragma once

#include <bila/config.hpp>
#include <bila/form/head.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Where the gradient of q, k or v is written. Heads that read the same tensor add to one gradient, in order: the first head starts
/// the sum, the last head rounds it.
template <class T>
struct gradient_rows {
  rows<T> out;                // data is null if not wanted
  rows<real_of<T>> sum = {};  // where the heads add; `out` itself unless `out` would round
  bool first = true, last = true;
};

/// Where the gradients of one direction's gaps are added if each channel has decays of its own: to the gradients of the gaps
/// themselves, and to that of the mask's parameter, whose row t - before gives the decays of gap t. The caller zeroes both.
/// `entering`: the gradient of the gap between the initial state and the sequence.
template <class Real>
struct channel_gaps {
  rows<Real> gaps, parameter, entering;  // (L, Dk) (L, Dk) (1, Dk); data is null if not wanted
  index_t before = 0;                    // 1 if the decays of gap t come from the gates of token t - 1

  bool wanted() const { return gaps.data != nullptr || parameter.data != nullptr || entering.data != nullptr; }
};

template <class T>
struct head_gradient {
  using Real = real_of<T>;

  rows<const T> y;                                       // (L, Dv), as the forward pass wrote it
  rows<const Real> row_sum;                              // (L, 1), as the forward pass wrote it
  rows<const T> dy;                                      // (L, Dv)
  head_state<const Real> final_forward, final_backward;  // input: gradients with respect to the final states, times their decays
  head_state<Real> initial_forward, initial_backward;    // output: gradients with respect to the initial states
  gradient_rows<T> q, k, v;                              // (L, Dk) (L, Dk) (L, Dv)
  rows<Real> weights;                                    // (L, L) with respect to M, zeroed by the caller; null: not wanted
  rows<Real> own_forward, own_backward;                  // of the parameter that the mask has besides gaps, (L, 1) or (L, levels):
                                                         // added to; own_forward if one serves both directions; null: not wanted
  channel_gaps<Real> channels_forward, channels_backward;
  double* bonus = nullptr;                         // (Dk) this head's part, zeroed by the caller; null: not wanted
  double *forward = nullptr, *backward = nullptr;  // (L + 1) gradients of the log decays of gaps t, 0 <= t <= L;
                                                   // zeroed by the caller; null: not wanted
  double scale = 0, diagonal = 0;                  // this head's part of the gradients with respect to scale and diagonal
  bool of_pairs = true;  // whether the gradient with respect to the diagonal or to gaps between tokens is wanted

  bool has_states() const {
    return initial_forward.given() || initial_backward.given() || final_forward.given() || final_backward.given();
  }

  const auto& final(bila::direction way) const { return way == bila::direction::forward ? final_forward : final_backward; }
  const auto& initial(bila::direction way) const { return way == bila::direction::forward ? initial_forward : initial_backward; }
  const auto& channels(bila::direction way) const { return way == bila::direction::forward ? channels_forward : channels_backward; }
  const auto& own(bila::direction way) const { return way == bila::direction::forward ? own_forward : own_backward; }
  double* gaps(bila::direction way) const { return way == bila::direction::forward ? forward : backward; }
};

/// Writes X as the gradient of tokens [first, first + X.rows), or adds X to the sum of earlier passes and heads. X is overwritten.
template <class Kernel, class T, class Real>
void accumulate_or_store(const gradient_rows<T>& to, index_t first, kernel::tile<Real> X, bool first_pass, bool last_pass) {
  if (to.out.data == nullptr) return;
  if (!to.first || !first_pass) {
    const rows<Real> sum = to.sum.slice(first, X.rows);
    if (const kernel::tile<Real> before = kernel::results<Kernel>(sum, X); before.data != X.data)
      Kernel::add(X, before);
    else
      for (index_t i = 0; i < X.rows; ++i)
        for (index_t d = 0; d < X.columns; ++d) X.row(i)[d] += sum(i, d);
  }
  if (to.last && last_pass)
    kernel::store(to.out.slice(first, X.rows), X);
  else
    kernel::store(to.sum.slice(first, X.rows), X);
}

/// Computes the norm's slopes a and b of tokens [first, first + n): dN_i = a_i dy_i, dZ_i = b_i. The two tiles are scratch for dy
/// and y. Returns these tokens' part in the gradient of the scale.
template <class Kernel, class T, class Real>
BILA_NOINLINE double through_norm(const head<T>& x, const head_gradient<T>& g, index_t first, index_t n, Real* a, Real* b,
                                  double* dots, kernel::tile<Real> scratch_dy, kernel::tile<Real> scratch_y,
                                  const norm_view<Real>& norm) {
  const auto dy = kernel::whole_packets<Kernel>(g.dy.slice(first, n), scratch_dy),
             y = kernel::whole_packets<Kernel>(g.y.slice(first, n), scratch_y);
  Kernel::template dots<Real>(dots, dy, y);
  return norm.slopes(a, b, norm.uses_row_sum ? g.row_sum.slice(first, n) : g.row_sum, dots, n, x.scale, units_of(x, first));
}

/// Loads as load_initial_state() does, but transposed: St (Dv, Dk).
template <class Kernel, class Real>
void load_initial_state_transposed(kernel::tile<Real> St, Real* s, const head_state<const Real>& from) {
  std::fill_n(s, kernel::round_up(St.columns, Kernel::template lanes<Real>), Real(0));
  kernel::clear(St);
  if (from.S.data != nullptr)
    kernel::load(St, rows<const Real>{from.S.data, from.S.width, from.S.count, from.S.column_stride, from.S.row_stride});
  for (index_t c = 0; c < St.columns; ++c) s[c] = from.z.data == nullptr ? Real(0) : from.z(c, 0);
}

/// Adds to the gradients of a chunk's gaps the pairs that also cross a border of the chunk, with E_ij = dl / d log M_ij. rows_i is
/// the sum of E_ij over keys outside, columns_j over queries outside, `pass` over the pairs that cross the whole chunk.
///
///     forward:   to[t] += pass + sum_{i >= t} rows_i + sum_{j < t} columns_j      0 <= t < n, the gap before token t
///     backward:  to[t] += pass + sum_{i < t} rows_i + sum_{j >= t} columns_j      1 <= t <= n
///
/// The sums end with the chunk, so terms that cancel are small. Source: Mamba-2 (arXiv 2405.21060), made local to a chunk.
inline BILA_NOINLINE void gate_gradient_scan(direction way, double pass, const double* rows, const double* columns, index_t n,
                                             double* to) {
  double before = 0, from = 0;
  if (way == direction::forward) {
    for (index_t t = n - 1; t >= 0; --t) to[t] += pass + (from += rows[t]);
    for (index_t t = 1; t < n; ++t) to[t] += before += columns[t - 1];
  } else {
    for (index_t t = 1; t <= n; ++t) to[t] += pass + (before += rows[t - 1]);
    for (index_t t = n - 1; t >= 1; --t) to[t] += from += columns[t];
  }
}

/// Applies the diagonal weight to a block that was computed with weight 1 on the diagonal. First adds the block's part to the
/// gradient of the weight, then multiplies the diagonals of A and G by the weight.
template <class T, class Real>
void weigh_diagonal(const head<T>& x, head_gradient<T>& g, kernel::tile<Real> A, kernel::tile<Real> G, kernel::tile<Real> E) {
  const Real diagonal = static_cast<Real>(x.diagonal);
  for (index_t i = 0; i < A.rows; ++i) {
    g.diagonal += static_cast<double>(E.row(i)[i]);
    A.row(i)[i] *= diagonal;
    G.row(i)[i] *= diagonal;
  }
}

/// Adds the pairs of one block to the gradient of the keys' log weights, dl/dw_j = sum_i E_ji. Row 0 of E is the key of token
/// `first`. A block on the diagonal was computed with weight 1 there, and is corrected. `rows` is scratch for the queries.
template <class Kernel, class T, class Real>
void add_log_weights(const head<T>& x, index_t first, kernel::tile<Real> E, bool on_diagonal, double* rows) {
  if (x.mask.ends == nullptr || x.mask.ends->sums == nullptr) return;
  double* const sums = x.mask.ends->sums + first;
  Kernel::sums(rows, sums, E);
  for (index_t j = 0; on_diagonal && j < E.rows; ++j) sums[j] += (x.diagonal - 1) * static_cast<double>(E.row(j)[j]);
}

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
