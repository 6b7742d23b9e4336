// SPDX-License-Identifier: Apache-2.0
// What a form is given: the tokens of one segment of one head, its mask, and how a finished row leaves. A form knows nothing of
// batches, heads, threads or of what the gaps mean.
#pragma once

#include <bila/kernel/arena.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/mask/concepts.hpp>
#include <bila/norm/none.hpp>
#include <bila/view/inputs.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <cmath>

namespace bila::inline v0_1::form {

/// A mask as one segment of one head sees it: tokens and gaps count from the segment's first token.
template <class Mask>
struct head_mask {
  const Mask* mask;
  index_t b, h, first;

  /// Decay of gap t crossed this way, in [0, 1]; log decays up to 1e-6 pass the checks and count as 0.
  template <direction Way>
  double decay(index_t t) const {
    const double log = Way == direction::forward ? mask->log_forward(b, h, first + t) : mask->log_backward(b, h, first + t);
    return std::exp(std::min(0.0, log));
  }

  double weight(index_t i, index_t j) const { return mask->weight(b, h, first + i, first + j); }
};

template <class T, class Mask>
struct head {
  rows<const T> q, k, v;  // (L, Dk) (L, Dk) (L, Dv)
  rows<T> y;              // (L, Dv)
  head_mask<Mask> mask;
  double scale, diagonal;
  bila::direction direction;
};

/// The largest sizes that one head of a call can have.
struct head_size {
  index_t L, Dk, Dv;
};

/// One of several equal shares of a head's work that can run at the same time.
struct share {
  index_t index = 0, count = 1;
};

/// Value features in one share of a recurrent or chunkwise head: columns of the state do not see each other. A multiple of every packet.
inline constexpr index_t share_columns = 16;

inline index_t shares_by_column(index_t Dv, index_t wanted) {
  return std::clamp<index_t>(wanted, 1, std::max<index_t>(1, Dv / share_columns));
}

/// The head that has only this share of the value features.
template <class T, class Mask>
head<T, Mask> columns_of(head<T, Mask> x, share part) {
  const index_t blocks = kernel::round_up(x.v.width, share_columns) / share_columns;
  const index_t first = blocks * part.index / part.count * share_columns;
  const index_t last = std::min(blocks * (part.index + 1) / part.count * share_columns, x.v.width);
  x.v = x.v.columns(first, last - first);
  x.y = x.y.columns(first, last - first);
  return x;
}

/// y = factor N / divisor for every row; a row whose divisor is zero is zero.
template <class Kernel, class T, class Real, class Norm>
void finish(rows<T> y, kernel::tile<Real> N, const Real* z, double scale, const Norm& norm) {
  for (index_t i = 0; i < y.count; ++i) {
    const quotient<Real> row = norm(Norm::uses_row_sum ? z[i] : Real(0), static_cast<Real>(scale));
    if (row.divisor == 0)
      std::fill_n(N.row(i), y.width, Real(0));
    else
      Kernel::divide(N.row(i), y.width, row.factor, row.divisor);
  }
  kernel::copy(y, N);
}

}  // namespace bila::inline v0_1::form
