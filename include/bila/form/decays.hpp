// SPDX-License-Identifier: Apache-2.0
// The weights of one chunk of one head: what crosses its borders, and the dense block inside it.
#pragma once

#include <bila/form/head.hpp>
#include <bila/kernel/scan.hpp>

#include <type_traits>

namespace bila::inline v0_1::form {

constexpr direction other(direction way) { return way == direction::forward ? direction::backward : direction::forward; }

/// The decays of the gaps of one chunk, either way, in double. Those of several chunks can be filled at once, for a gap between two
/// chunks is the last of one and the first of the other: few exponentials wait for each other, many do not.
struct gap_decays {
  template <class Kernel>
  gap_decays(kernel::arena& memory, index_t C, std::type_identity<Kernel>)
      : forward(memory.numbers<Kernel, double>(C + 1)), backward(memory.numbers<Kernel, double>(C + 1)) {}

  template <direction Way>
  double* way() const {
    return Way == direction::forward ? forward : backward;
  }

  /// Of the chunk that starts m tokens later.
  gap_decays after(index_t m) const {
    gap_decays later = *this;
    later.forward += m;
    later.backward += m;
    return later;
  }

  double *forward, *backward;  // (C + 1) of gap m, the one before token m, 0 <= m <= n
};

/// Of the chunk's gaps, crossed this way; a given state enters by the one before the first token or after the last.
template <class Kernel, direction Way, class T, class Mask>
void fill_decays(const head<T, Mask>& x, index_t first, index_t n, double* lambda) {
  const bool starts = first == 0, ends = first + n == x.k.count;
  if constexpr (Mask::gaps == gap::per_token) {
    lambda[0] = lambda[n] = 0;
    for (index_t m = starts; m <= n - ends; ++m) lambda[m] = x.mask.template log_decay<Way>(first + m);
    Kernel::exponentials(lambda, n + 1);
  } else {
    std::fill_n(lambda, n + 1, x.mask.template decay<Way>(1));
  }
  if (starts) lambda[0] = x.template initial<Way>().decay;
  if (ends) lambda[n] = x.template initial<Way>().decay;
}

template <direction Way, class Real>
void scan_border(const gap_decays& decays, index_t n, kernel::border_weights<Real>& border) {
  if constexpr (Way == direction::forward)
    kernel::scan_forward(border, decays.forward, n);
  else
    kernel::scan_backward(border, decays.backward, n);
}

/// M_ji (n, n) of key j and query i, from the decays of the ways that the call looks; zeros where it does not.
template <class Kernel, class T, class Mask, class Real>
void scan_block(const head<T, Mask>& x, kernel::tile<Real> M, const gap_decays& decays, double diagonal) {
  Kernel::scan_square(M, x.direction == direction::backward ? nullptr : decays.forward,
                      x.direction == direction::forward ? nullptr : decays.backward);
  for (index_t i = 0; i < M.rows; ++i) M.row(i)[i] = static_cast<Real>(diagonal);
}

}  // namespace bila::inline v0_1::form
