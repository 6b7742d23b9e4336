// SPDX-License-Identifier: Apache-2.0
// The loops of the verbs for levels, in SIMD registers. The level of two tokens is l(i, j) = bit_width(i xor j): the tokens lie in
// the two halves of a range of 2^l tokens that starts at a multiple of 2^l. Every function is a template over the packet's type, so
// that translation units compiled for different processors can be linked.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/kernel/register_tile.hpp>
#include <bila/kernel/simd.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"
#endif

namespace bila {
inline namespace v0_1 {
namespace kernel {
inline namespace BILA_UNIT {

/// Calls visit(l, first, last) for the tokens [first, last) of [0, n) that lie on one level l >= `least` from token t, before it or
/// after it.
template <class Visit>
BILA_ALWAYS_INLINE void for_each_level(index_t t, index_t n, bool before, int least, const Visit& visit) {
  for (int l = least; index_t(1) << (l - 1) < n; ++l) {
    const index_t length = index_t(1) << (l - 1), half = t >> (l - 1);
    if ((half & 1) != index_t(before)) continue;
    const index_t first = (half ^ 1) * length;
    if (first >= n) return;  // later levels begin even later
    visit(l, first, (std::min)(first + length, n));
  }
}

/// How many levels lie inside one packet: log2 of its size.
template <class Packet>
inline constexpr int levels_inside = std::bit_width(static_cast<std::uint64_t>(width<Packet>)) - 1;

/// Calls visit(j, i, std::integral_constant<count>, l) for keys j and queries [i, i + count) that lie on level l inside the same
/// packet of queries, on one side of the diagonal. Ranges that begin behind the last token are left out.
template <class Packet, class Visit>
BILA_ALWAYS_INLINE void for_each_level_inside(index_t n, direction way, const Visit& visit) {
  [[maybe_unused]] const auto side = [&]<std::size_t L>(index_t j, std::integral_constant<std::size_t, L>) BILA_LAMBDA_INLINE {
    constexpr index_t length = index_t(1) << L;
    const index_t half = j >> L, first = (half ^ 1) * length;
    if ((half & 1) == index_t(way == direction::forward) || first >= n) return;
    visit(j, first, std::integral_constant<index_t, length>(), static_cast<index_t>(L + 1));
  };
  for (index_t j = 0; j < n; ++j) [&]<std::size_t... L>(std::index_sequence<L...>) BILA_LAMBDA_INLINE {
      (side(j, std::integral_constant<std::size_t, L>()), ...);
    }
  (std::make_index_sequence<levels_inside<Packet>>());
}

template <class Packet, class Real>
void weigh_levels(tile<Real> M, tile<const Real> w, direction way) {
  constexpr index_t step = width<Packet>;
  for (index_t i = 0; i < M.columns; i += step)
    for_each_level(i, M.rows, way == direction::forward, levels_inside<Packet> + 1,
                   [&](int l, index_t first, index_t last) BILA_LAMBDA_INLINE {
                     const Packet w_l = simd::ploadu<Packet>(w.row(l) + i);
                     for (index_t j = first; j < last; ++j)
                       simd::pstoreu(M.row(j) + i, simd::pmul(simd::ploadu<Packet>(M.row(j) + i), w_l));
                   });
  for_each_level_inside<Packet>(M.rows, way, [&]<class Count>(index_t j, index_t i, Count, index_t l) BILA_LAMBDA_INLINE {
    Real* const to = M.row(j) + i;
    const Real* const by = w.row(l) + i;
    Real product[Count::value];
    for (index_t n = 0; n < Count::value; ++n) product[n] = to[n] * by[n];
    std::copy_n(product, Count::value, to);
  });
}

template <class Packet, class Real>
void sum_levels(tile<Real> D, tile<const Real> E, direction way) {
  constexpr index_t step = width<Packet>;
  clear(D);
  for_each_level_inside<Packet>(E.rows, way, [&]<class Count>(index_t j, index_t i, Count, index_t l) BILA_LAMBDA_INLINE {
    Real* const to = D.row(l) + i;
    const Real* const more = E.row(j) + i;
    Real sum[Count::value];
    for (index_t n = 0; n < Count::value; ++n) sum[n] = to[n] + more[n];
    std::copy_n(sum, Count::value, to);
  });
  for (index_t i = 0; i < E.columns; i += step)
    for_each_level(i, E.rows, way == direction::forward, levels_inside<Packet> + 1,
                   [&](int l, index_t first, index_t last) BILA_LAMBDA_INLINE {
                     Packet sum = simd::pset1<Packet>(Real(0));
                     for (index_t j = first; j < last; ++j) sum = simd::padd(sum, simd::ploadu<Packet>(E.row(j) + i));
                     add_to(D.row(l) + i, sum);
                   });
}

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
