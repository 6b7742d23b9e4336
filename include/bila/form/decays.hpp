// SPDX-License-Identifier: Apache-2.0
// The weights of one chunk of one head: what crosses its borders, and the dense block inside it.
#pragma once

#include <bila/form/head.hpp>
#include <bila/kernel/scan.hpp>

namespace bila::inline v0_1::form {

/// lambda[m] = decay of gap first + m, 0 <= m <= n.
template <direction Way, class T, class Mask>
void fill_decays(const head<T, Mask>& x, index_t first, index_t n, double* lambda) {
  if constexpr (Mask::gaps == gap::per_token) {
    for (index_t m = 0; m <= n; ++m) lambda[m] = x.template decay<Way>(first + m);
  } else {
    std::fill_n(lambda, n + 1, x.mask.template decay<Way>(1));
    if (first == 0) lambda[0] = x.template decay<Way>(0);
    if (first + n == x.k.count) lambda[n] = x.template decay<Way>(x.k.count);
  }
}

template <direction Way, class T, class Mask, class Real>
void scan_border(const head<T, Mask>& x, index_t first, index_t n, double* lambda, kernel::border_weights<Real>& border) {
  fill_decays<Way>(x, first, n, lambda);
  if constexpr (Way == direction::forward)
    kernel::scan_forward(border, lambda, n);
  else
    kernel::scan_backward(border, lambda, n);
}

/// M (n, n): below, on and above the diagonal, with zeros where the direction does not look. Padding is cleared when `fresh`.
template <class T, class Mask, class Real>
void scan_block(const head<T, Mask>& x, index_t first, kernel::tile<Real> M, double* lambda, double* row, bool fresh) {
  if (fresh) kernel::clear(M);
  if (x.direction != direction::backward) {
    fill_decays<direction::forward>(x, first, M.rows, lambda);
    kernel::scan_lower(M, lambda, row);
  }
  if (x.direction != direction::forward) {
    fill_decays<direction::backward>(x, first, M.rows, lambda);
    kernel::scan_upper(M, lambda, row);
  }
  for (index_t i = 0; i < M.rows; ++i) M.row(i)[i] = static_cast<Real>(x.diagonal);
}

}  // namespace bila::inline v0_1::form
