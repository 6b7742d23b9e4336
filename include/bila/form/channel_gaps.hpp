// SPDX-License-Identifier: Apache-2.0
// The gradients of gaps that have a decay for each channel, from what the pairs of one chunk give.
#pragma once

#include <bila/config.hpp>
#include <bila/form/channel_weights.hpp>
#include <bila/form/head_gradient.hpp>

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
        start_(memory.zeros<Kernel, Real>(Dk)),
        of_gaps_(memory.padded<Kernel, Real>(C, Dk)) {}

  void clear() const {
    kernel::clear(to_end);
    kernel::clear(to_start);
  }

  /// Adds the pairs that cross a border of the chunk. Row i of to_end has the part of q_i o dq_i from keys before the chunk, row j
  /// of to_start the part of k_j o dk_j from queries after it, and `pass` has the pairs that cross the whole chunk. `decays` are
  /// those of the gaps around the n tokens from `first` on.
  template <class T>
  void add_crossing(const channel_gaps<Real>& to, const head<T>& x, direction way, index_t first,
                    kernel::tile<const Real> decays) const {
    for (index_t c = 0; c < decays.columns; ++c) start_[c] = static_cast<Real>(pass[c]);
    add(to, x, way, first, decays, start_);
  }

  /// Adds the pairs inside the chunk, whose parts of q o dq and k o dk are in to_end and to_start. The pairs that cross a gap are
  /// the sum of to_end over the tokens behind the gap, less the sum of to_start over the same tokens.
  template <class T>
  void add_inner(const channel_gaps<Real>& to, const head<T>& x, direction way, index_t first,
                 kernel::tile<const Real> decays) const {
    add(to, x, way, first, decays, nullptr);
  }

  kernel::tile<Real> to_end, to_start;  // (C, Dk)
  double* pass;                         // (Dk)

 private:
  template <class T>
  BILA_NOINLINE void add(const channel_gaps<Real>& to, const head<T>& x, direction way, index_t first,
                         kernel::tile<const Real> decays, const Real* start) const {
    const index_t n = decays.rows - 1;
    Kernel::sum_gaps(of_gaps_.top(n), rows_along(way, to_end.top(n)), rows_along(way, to_start.top(n)), start,
                     gaps_along(way, decays), x.mask.exclusive);
    for (index_t u = 0; u < n; ++u) {
      const index_t t = first + (way == direction::forward ? u : n - u);
      if (t == (way == direction::forward ? 0 : x.q.count)) {  // the gap of the initial state
        add_row(to.entering, 0, u);
        continue;
      }
      add_row(to.gaps, t, u);
      add_row(to.parameter, t - to.before, u);
    }
  }

  /// Adds the gradient of the gap before the u-th token of the sweep to row t of `to`.
  void add_row(const rows<Real>& to, index_t t, index_t u) const {
    if (to.data == nullptr) return;
    const Real* const of_gap = of_gaps_.row(u);
    if (to.column_stride == 1) {
      Real* const there = &to(t, 0);
      for (index_t c = 0; c < to.width; ++c) there[c] += of_gap[c];
    } else {
      for (index_t c = 0; c < to.width; ++c) to(t, c) += of_gap[c];
    }
  }

  Real* start_;                 // (Dk) pairs that cross the whole chunk
  kernel::tile<Real> of_gaps_;  // (C, Dk) gradients of gaps, in the order of the sweep
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
