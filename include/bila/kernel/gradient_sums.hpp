// SPDX-License-Identifier: Apache-2.0
// The verbs of a gradient that only sum: dots of rows, and sums of pairs over queries, keys and gaps.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/kernel/register_tile.hpp>
#include <bila/kernel/simd.hpp>

#include <algorithm>
#include <numeric>

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

/// The verbs dots, inner, sums and crossings of the kernel layer `packets`.
template <int Bytes>
struct gradient_sums {
  template <class Real>
  using packet = typename simd::packet_traits<Real>::type;

  template <class Real>
  static constexpr index_t lanes = simd::unpacket_traits<packet<Real>>::size;

  template <class Real>
  [[gnu::flatten]] static BILA_NOINLINE void dots(double* z, operand<Real> a, operand<Real> b) {
    Real row[lanes<Real>];
    row_sums<packet<Real>>(
        a.rows, [&](index_t i) BILA_LAMBDA_INLINE { return products<packet<Real>>(a.row(i), b.row(i), a.columns); },
        [&](index_t i, packet<Real> sums) BILA_LAMBDA_INLINE {
          simd::pstoreu(row, sums);
          for (index_t n = 0; n < (std::min)(lanes<Real>, a.rows - i); ++n) z[i + n] = static_cast<double>(row[n]);
        });
  }

  /// The sum of a row is computed in `Real`, the sum over rows in double.
  template <class Real>
  [[gnu::flatten]] static BILA_NOINLINE double inner(operand<Real> a, operand<Real> b) {
    double total[lanes<Real>] = {};
    for (index_t i = 0; i < a.rows; ++i) {
      Real row[lanes<Real>];
      simd::pstoreu(row, products<packet<Real>>(a.row(i), b.row(i), a.columns));
      for (index_t n = 0; n < lanes<Real>; ++n) total[n] += static_cast<double>(row[n]);
    }
    return std::accumulate(total, total + lanes<Real>, 0.0);
  }

  template <class Real>
  [[gnu::flatten]] static BILA_NOINLINE double sums(double* queries, double* keys, tile<Real> E) {
    constexpr index_t width = lanes<Real>;
    for (index_t i = 0; i < E.columns; i += width) {
      packet<Real> total = simd::pset1<packet<Real>>(Real(0));
      for (index_t j = 0; j < E.rows; ++j) total = simd::padd(total, simd::ploadu<packet<Real>>(E.row(j) + i));
      Real column[width];
      simd::pstoreu(column, total);
      for (index_t n = 0; n < (std::min)(width, E.columns - i); ++n) queries[i + n] += static_cast<double>(column[n]);
    }
    Real row[width];
    double all = 0;
    row_sums<packet<Real>>(
        E.rows,
        [&](index_t j) BILA_LAMBDA_INLINE {
          packet<Real> total = simd::pset1<packet<Real>>(Real(0));
          for (index_t i = 0; i < E.columns; i += width) total = simd::padd(total, simd::ploadu<packet<Real>>(E.row(j) + i));
          return total;
        },
        [&](index_t j, packet<Real> totals) BILA_LAMBDA_INLINE {
          simd::pstoreu(row, totals);
          for (index_t n = 0; n < (std::min)(width, E.rows - j); ++n) {
            keys[j + n] += static_cast<double>(row[n]);
            all += static_cast<double>(row[n]);
          }
        });
    return all;
  }

  template <class Real>
  static BILA_NOINLINE void crossings(double* f, double* b, tile<Real> E, Real* running) {
    constexpr index_t width = lanes<Real>;
    const index_t n = E.rows, columns = kernel::round_up(n, width);
    // running_i is the sum of E_ji over the keys on one side of gap t. The total adds running_i over the queries on the other side.
    if (f != nullptr) {
      std::fill_n(running, columns, Real(0));
      for (index_t t = 1; t < n; ++t) {
        packet<Real> total = simd::pset1<packet<Real>>(Real(0));
        for (index_t i = 0; i < columns; i += width) {
          add_to(running + i, simd::ploadu<packet<Real>>(E.row(t - 1) + i));
          if (i + width <= t) continue;
          const packet<Real> place = simd::plset<packet<Real>>(static_cast<Real>(i));
          const packet<Real> crossed = simd::pcmp_le(simd::pset1<packet<Real>>(static_cast<Real>(t)), place);
          total = simd::padd(total, simd::pand(crossed, simd::ploadu<packet<Real>>(running + i)));
        }
        f[t] += static_cast<double>(simd::predux(total));
      }
    }
    if (b == nullptr) return;
    std::fill_n(running, columns, Real(0));
    for (index_t t = n - 1; t >= 1; --t) {
      packet<Real> total = simd::pset1<packet<Real>>(Real(0));
      for (index_t i = 0; i < t; i += width) {
        add_to(running + i, simd::ploadu<packet<Real>>(E.row(t) + i));
        const packet<Real> place = simd::plset<packet<Real>>(static_cast<Real>(i));
        const packet<Real> crossed = simd::pcmp_lt(place, simd::pset1<packet<Real>>(static_cast<Real>(t)));
        total = simd::padd(total, simd::pand(crossed, simd::ploadu<packet<Real>>(running + i)));
      }
      b[t] += static_cast<double>(simd::predux(total));
    }
  }
};

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
