// SPDX-License-Identifier: Apache-2.0
// The gradients of gaps that have a decay for each channel, from what the pairs of one chunk give.
#pragma once

#include <bila/config.hpp>
#include <bila/form/channel_weights.hpp>
#include <bila/form/head_gradient.hpp>

#include <algorithm>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The products of a chunk's tokens with their own gradients, channel by channel, from which the gradients of gaps are summed.
template <class Kernel, class Real>
struct channel_gap_sums {
  channel_gap_sums(kernel::arena& memory, index_t C, index_t Dk)
      : to_end(memory.padded<Kernel, Real>(C, Dk)),
        to_start(memory.padded<Kernel, Real>(C, Dk)),
        pass(memory.numbers<Kernel, double>(Dk)),
        running(memory.numbers<Kernel, Real>(Dk)),
        of_gap(memory.numbers<Kernel, Real>(Dk)) {}

  /// Adds the pairs that cross a border of the chunk: row i of to_end has the products of query i with keys before the chunk, row j
  /// of to_start those of key j with queries after it, and `pass` the pairs that cross the whole chunk. `decays` are those of the
  /// gaps around the n tokens from `first` on.
  template <class T>
  BILA_NOINLINE void add_crossing(const channel_gaps<Real>& to, const head<T>& x, direction way, index_t first,
                                  kernel::tile<const Real> decays) const {
    const index_t n = decays.rows - 1, Dk = decays.columns;
    const kernel::tile<Real> rows = rows_along(way, to_end.top(n)), columns = rows_along(way, to_start.top(n));  // (n, Dk)
    for (index_t c = 0; c < Dk; ++c) running[c] = static_cast<Real>(pass[c]);
    for (index_t u = 0; u < n; ++u)
      for (index_t c = 0; c < Dk; ++c) running[c] += rows.row(u)[c];
    for (index_t u = 0; u < n; ++u) {
      add(to, x, way, first, decays, u, x.mask.exclusive ? rows.row(u) : nullptr);
      for (index_t c = 0; c < Dk; ++c) running[c] += columns.row(u)[c] - rows.row(u)[c];
    }
  }

  /// Adds the pairs inside the chunk: to_end and to_start hold the products of queries and keys with each other. The pairs across
  /// the gap before the u-th token are those of the queries from there on, less those of the keys from there on.
  template <class T>
  BILA_NOINLINE void add_inner(const channel_gaps<Real>& to, const head<T>& x, direction way, index_t first,
                               kernel::tile<const Real> decays) const {
    const index_t n = decays.rows - 1, Dk = decays.columns;
    const kernel::tile<Real> rows = rows_along(way, to_end.top(n)), columns = rows_along(way, to_start.top(n));  // (n, Dk)
    std::fill_n(running, Dk, Real(0));
    for (index_t u = n - 1; u >= 1; --u) {
      for (index_t c = 0; c < Dk; ++c) running[c] += rows.row(u)[c] - columns.row(u)[c];
      add(to, x, way, first, decays, u, x.mask.exclusive ? rows.row(u) : nullptr);
    }
  }

  kernel::tile<Real> to_end, to_start;  // (C, Dk)
  double* pass;                         // (Dk)

 private:
  /// Adds the row `running`, less `read` if it is not null, to the gradients of the gap before the u-th token of the sweep. A gap
  /// of decay zero has gradient zero.
  template <class T>
  void add(const channel_gaps<Real>& to, const head<T>& x, direction way, index_t first, kernel::tile<const Real> decays, index_t u,
           const Real* read) const {
    const index_t gap = way == direction::forward ? u : decays.rows - 1 - u, t = first + gap;
    const bool enters = t == (way == direction::forward ? 0 : x.q.count);  // the gap of the initial state
    const Real* const decay = decays.row(gap);
    for (index_t c = 0; c < decays.columns; ++c)
      of_gap[c] = decay[c] > 0 ? (read == nullptr ? running[c] : running[c] - read[c]) : Real(0);
    if (enters) return add_row(to.entering, 0);
    add_row(to.gaps, t);
    add_row(to.parameter, t - to.before);
  }

  /// Adds the gap's gradient to row t of `to`.
  void add_row(const rows<Real>& to, index_t t) const {
    if (to.data == nullptr) return;
    if (to.column_stride == 1) {
      Real* const there = &to(t, 0);
      for (index_t c = 0; c < to.width; ++c) there[c] += of_gap[c];
    } else {
      for (index_t c = 0; c < to.width; ++c) to(t, c) += of_gap[c];
    }
  }

  Real *running, *of_gap;  // (Dk) running sums over gaps; a gap's gradient
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
