// SPDX-License-Identifier: Apache-2.0
// The verbs that every kernel layer offers and every form is written in. A kernel layer is a struct with these static members;
// it knows tiles and numbers, not masks, norms or forms. The reference layer says them in plain loops.
//
//   score(A, q, kt)                    A = q kt                                   (m, n) = (m, Dk) (Dk, n)
//   weigh(A, M, z)                     A = A o M,  z_i += sum_j A_ij
//   weigh(A, r, c, z)                  A_ij = r_i c_j A_ij,  z_i += sum_j A_ij     a rank one mask
//   apply(N, A, v)                     N += A v                                   (m, Dv) += (m, n) (n, Dv)
//   read(N, z, r, q, S, s)             N_i += r_i q_i S,  z_i += r_i q_i . s       the state S (Dk, Dv) and its row sums s (Dk)
//   accumulate(S, s, g, k, w, v, x)    S = g S + (w o k)^T v,  s = g s + k^T w     x: room for w o k
//   step(n, z, r, q, S, s, g, w, k, v) n += r q S,  z += r q . s,  S = g (S + w k v^T),  s = g (s + w k)      one token
//   diagonal(n, z, w, q, k, Dk, v, Dv) n += w (q . k) v,  z += w (q . k)           one token on itself
//   divide(n, Dv, factor, divisor)     n = factor n / divisor                      one row
//   transpose(kt, k)                   kt = k^T
//
// and, for gradients,
//
//   apply_transposed(N, A, q)          N += A^T q                                 (n, D) += (m, n)^T (m, D)
//   outer(N, a, b)                     N_ij += a_i b_j
//   gather(s, g, k, w)                 s = g s + k^T w                            (Dk)
//   dots(z, a, b)                      z_i = a_i . b_i                            z in double
//   inner(a, b)                        sum_ij a_ij b_ij                           in double
//
// z and s are null when no row sum is wanted. Sums run over the inner index in order, whatever the tile, the address or the number
// of columns: the bits of an element of the result depend on the numbers that enter it and on nothing else.
#pragma once

#include <bila/view/tensor_view.hpp>

#include <concepts>
#include <type_traits>

namespace bila::inline v0_1::kernel {

/// A row-major matrix in the workspace or in the user's memory.
///
/// Padded tiles have `stride` a multiple of Kernel::lanes<Real>; the columns from `columns` up to the next multiple are zero and
/// may be read and written with the rest. Tiles that are only read by element (q; k in `accumulate` and `step`) need not be padded.
template <class Real>
struct tile {
  Real* data = nullptr;
  index_t rows = 0, columns = 0;
  index_t stride = 0;

  constexpr Real* row(index_t i) const { return data + i * stride; }

  constexpr tile top(index_t n) const { return {data, n, columns, stride}; }

  constexpr operator tile<const Real>() const requires(!std::is_const_v<Real>) { return {data, rows, columns, stride}; }
};

/// A tile that a verb only reads; its type follows from the tile that the verb writes.
template <class Real>
using operand = std::type_identity_t<tile<const Real>>;

/// A kernel layer for `Real`: how many numbers its widest step holds, and the verbs above.
template <class Kernel, class Real>
concept layer = requires(tile<Real> a, tile<const Real> b, Real* z, const Real* r, Real g) {
  { Kernel::template lanes<Real> } -> std::convertible_to<index_t>;
  Kernel::score(a, b, b);
  Kernel::weigh(a, b, z);
  Kernel::weigh(a, r, r, z);
  Kernel::apply(a, b, b);
  Kernel::read(a, z, r, b, b, r);
  Kernel::accumulate(a, z, g, b, r, b, a);
  Kernel::step(z, z, g, r, a, z, g, g, r, r);
  Kernel::diagonal(z, z, g, r, r, index_t(), r, index_t());
  Kernel::divide(z, index_t(), g, g);
  Kernel::transpose(a, b);
  Kernel::apply_transposed(a, b, b);
  Kernel::outer(a, r, r);
  Kernel::gather(z, g, b, r);
  Kernel::dots(static_cast<double*>(nullptr), a, b);
  { Kernel::inner(a, b) } -> std::convertible_to<double>;
};

constexpr index_t round_up(index_t n, index_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace bila::inline v0_1::kernel
