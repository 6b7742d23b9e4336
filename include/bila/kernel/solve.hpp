// SPDX-License-Identifier: Apache-2.0
// Forward and backward substitution on tiles of SIMD registers, for the verb `solve` of kernel/packets.hpp.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/kernel/register_tile.hpp>
#include <bila/kernel/simd.hpp>

// g++ warns without cause: see kernel/packets.hpp.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif

namespace bila {
inline namespace v0_1 {
namespace kernel {
inline namespace BILA_UNIT {

/// The rows of a substitution in the order in which they are solved. Row l lies at E + l E_step, and its coefficient of row m at
/// T + l T_row + m T_column. Steps may be negative.
template <class Real>
struct solved_rows {
  Real *E, *U;
  const Real *T, *beta;
  index_t E_step, U_step, T_row, T_column, beta_step;
};

/// Solves rows [first, first + Rows) of a panel of columns. A row's sum adds the rows before it in order, whatever `Rows` is.
template <int Rows, int Packets, class Packet, class Real>
BILA_ALWAYS_INLINE void solve_rows(const solved_rows<Real> x, index_t first, index_t d) {
  constexpr index_t step = width<Packet>;
  const Real* T = x.T + first * x.T_row;
  const Real* U = x.U + d;
  Packet sum[Rows][Packets];
  clear(sum);
  for (index_t m = 0; m < first; ++m, T += x.T_column, U += x.U_step) {
    Packet row[Packets];
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) row[n] = simd::ploadu<Packet>(U + n * step);
    BILA_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Packet T_r = simd::pset1<Packet>(T[r * x.T_row]);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) sum[r][n] = simd::pmadd(T_r, row[n], sum[r][n]);
    }
  }
  BILA_UNROLL
  for (int r = 0; r < Rows; ++r, T += x.T_column) {
    Real* const E = x.E + (first + r) * x.E_step + d;
    Real* const to = x.U + (first + r) * x.U_step + d;
    const Packet beta = simd::pset1<Packet>(x.beta[(first + r) * x.beta_step]);
    Packet row[Packets];
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) {
      const Packet e = simd::psub(simd::ploadu<Packet>(E + n * step), sum[r][n]);
      row[n] = simd::pmul(beta, e);
      simd::pstoreu(E + n * step, e);
      simd::pstoreu(to + n * step, row[n]);
    }
    BILA_UNROLL
    for (int later = r + 1; later < Rows; ++later) {
      const Packet T_r = simd::pset1<Packet>(T[later * x.T_row]);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) sum[later][n] = simd::pmadd(T_r, row[n], sum[later][n]);
    }
  }
}

template <int Packets, class Packet, class Real>
BILA_ALWAYS_INLINE void solve_columns(const solved_rows<Real>& x, index_t rows, index_t d) {
  index_t first = 0;
  for (; first + 4 <= rows; first += 4) solve_rows<4, Packets, Packet>(x, first, d);
  for (; first < rows; ++first) solve_rows<1, Packets, Packet>(x, first, d);
}

/// The verb `solve`. `ascending`: row 0 is solved first; `transposed`: the system has T^T in place of T.
template <class Packet, class Real>
BILA_ALWAYS_INLINE void solve_triangle(const tile<Real>& E, const tile<Real>& U, const tile<const Real>& T, const Real* beta,
                                       bool ascending, bool transposed) {
  constexpr index_t step = width<Packet>;
  const index_t n = E.rows, sign = ascending ? 1 : -1, start = ascending ? 0 : n - 1;
  if (n == 0) return;
  const solved_rows<Real> x{E.row(start),
                            U.row(start),
                            T.row(start) + start,
                            beta + start,
                            sign * E.stride,
                            sign * U.stride,
                            sign * (transposed ? 1 : T.stride),
                            sign * (transposed ? T.stride : 1),
                            sign};
  const index_t end = kernel::round_up(E.columns, step);
  index_t d = 0;
  if constexpr (simd::registers >= 32)
    for (; d + 4 * step <= end; d += 4 * step) solve_columns<4, Packet>(x, n, d);
  for (; d + 2 * step <= end; d += 2 * step) solve_columns<2, Packet>(x, n, d);
  if (d < end) solve_columns<1, Packet>(x, n, d);
}

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
