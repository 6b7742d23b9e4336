// SPDX-License-Identifier: Apache-2.0
// The verbs for decays per channel, in SIMD registers. Every function is a template over the packet's type, so that
// translation units compiled for different processors can be linked. No ratio of decays is formed: every factor is at most one.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/kernel/register_tile.hpp>
#include <bila/kernel/simd.hpp>
#include <bila/view/direction.hpp>

#include <algorithm>
#include <type_traits>

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

/// exp(x) for x <= 0: exactly 0 where the exponential is not a normal number.
template <class Packet>
BILA_ALWAYS_INLINE Packet decay_of(const Packet& log) {
  using Real = typename simd::unpacket_traits<Packet>::type;
  constexpr Real least = std::is_same_v<Real, float> ? Real(-87.33) : Real(-708);
  return simd::pandnot(simd::pexp(log), simd::pcmp_lt(log, simd::pset1<Packet>(least)));
}

/// Multiplies rows of q by the decay from where the sweep enters the chunk, and rows of k by the decay to where it leaves, for
/// `Packets` packets of channels from channel c on. Row u of every tile belongs to the u-th token of the sweep; row u of lambda is
/// the decay of the gap before it. qa or kw may be null.
template <int Packets, class Packet, bool Exclusive, class Real>
BILA_ALWAYS_INLINE void weigh_channels(tile<Real> qa, tile<Real> kw, tile<const Real> q, tile<const Real> k,
                                       tile<const Real> lambda, const Real* read, const Real* write, index_t c) {
  constexpr index_t step = width<Packet>;
  const index_t n = lambda.rows;
  Packet product[Packets];
  BILA_UNROLL
  for (int p = 0; p < Packets; ++p) product[p] = simd::ploadu<Packet>(read + c + p * step);
  for (index_t u = 0; u < n && qa.data != nullptr; ++u) {
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) {
      const index_t at = c + p * step;
      const Packet after = simd::pmul(product[p], simd::ploadu<Packet>(lambda.row(u) + at));
      simd::pstoreu(qa.row(u) + at, simd::pmul(simd::ploadu<Packet>(q.row(u) + at), Exclusive ? product[p] : after));
      product[p] = after;
    }
  }
  BILA_UNROLL
  for (int p = 0; p < Packets; ++p) product[p] = simd::ploadu<Packet>(write + c + p * step);
  for (index_t u = n - 1; u >= 0 && kw.data != nullptr; --u) {
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) {
      const index_t at = c + p * step;
      simd::pstoreu(kw.row(u) + at, simd::pmul(simd::ploadu<Packet>(k.row(u) + at), product[p]));
      product[p] = simd::pmul(product[p], simd::ploadu<Packet>(lambda.row(u) + at));
    }
  }
}

/// Computes the products of a key with the `count` queries on one side of it, nearest first, over `Packets` packets of channels,
/// not yet added over lanes. They are written to `sums`, or with `add` added to it. q and lambda point to the query nearest to the
/// key and to the gap between the two, and go on by the given strides. The key decays at each gap, in registers.
template <int Packets, class Packet, bool Exclusive, class Real>
BILA_ALWAYS_INLINE void walk_from_key(Packet* sums, index_t sums_step, index_t count, bool add, const Packet (&key)[Packets],
                                      const Real* q, index_t q_stride, const Real* lambda, index_t lambda_stride) {
  constexpr index_t step = width<Packet>;
  Packet decayed[Packets];
  BILA_UNROLL
  for (int p = 0; p < Packets; ++p) decayed[p] = key[p];
  for (index_t u = 0; u < count; ++u, q += q_stride, lambda += lambda_stride, sums += sums_step) {
    Packet sum = add ? *sums : simd::pset1<Packet>(Real(0));
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) {
      const Packet after = simd::pmul(decayed[p], simd::ploadu<Packet>(lambda + p * step));
      sum = simd::pmadd(simd::ploadu<Packet>(q + p * step), Exclusive ? decayed[p] : after, sum);
      decayed[p] = after;
    }
    *sums = sum;
  }
}

/// Computes row j of score_channels, not yet added over lanes: sums[i] for query i.
template <int Packets, class Packet, bool Exclusive, class Real>
BILA_ALWAYS_INLINE void score_key(Packet* sums, const tile<const Real>& k, const tile<const Real>& q, const tile<const Real>& up,
                                  const tile<const Real>& down, const Real* own, index_t j, index_t c, bool add) {
  constexpr index_t step = width<Packet>;
  Packet key[Packets];
  Packet sum = add ? sums[j] : simd::pset1<Packet>(Real(0));
  BILA_UNROLL
  for (int p = 0; p < Packets; ++p) {
    key[p] = simd::ploadu<Packet>(k.row(j) + c + p * step);
    sum = simd::pmadd(simd::pmul(simd::ploadu<Packet>(q.row(j) + c + p * step), simd::ploadu<Packet>(own + c + p * step)), key[p],
                      sum);
  }
  sums[j] = sum;
  if (up.data != nullptr && j + 1 < q.rows)
    walk_from_key<Packets, Packet, Exclusive>(sums + j + 1, 1, q.rows - 1 - j, add, key, q.row(j + 1) + c, q.stride,
                                              up.row(j + 1) + c, up.stride);
  if (down.data != nullptr && j > 0)
    walk_from_key<Packets, Packet, Exclusive>(sums + j - 1, -1, j, add, key, q.row(j - 1) + c, -q.stride, down.row(j) + c,
                                              -down.stride);
}

/// Adds to row u of `to` the sum over the rows m < u of weight(u, m) x_m times the decays between them, by Horner's rule. Row g of
/// lambda is the gap between rows g - 1 and g.
template <class Packet, skipped_gap Skipped, class Real, class Weight>
BILA_ALWAYS_INLINE void collect_side(const tile<Real>& to, const tile<const Real>& x, const tile<const Real>& lambda,
                                     const Weight& weight) {
  constexpr index_t step = width<Packet>;
  for (index_t u = 1; u < to.rows; ++u)
    for (index_t c = 0; c < to.columns; c += step) {
      Packet sum = simd::pset1<Packet>(Real(0));
      for (index_t m = 0; m < u; ++m) {
        if (Skipped == skipped_gap::first) sum = simd::pmul(sum, simd::ploadu<Packet>(lambda.row(m + 1) + c));
        sum = simd::pmadd(simd::pset1<Packet>(weight(u, m)), simd::ploadu<Packet>(x.row(m) + c), sum);
        if (Skipped == skipped_gap::none || (Skipped == skipped_gap::last && m + 1 < u))
          sum = simd::pmul(sum, simd::ploadu<Packet>(lambda.row(m + 1) + c));
      }
      add_to(to.row(u) + c, sum);
    }
}

/// The verbs for decays per channel of the kernel layer `packets`.
template <int Bytes>
struct channel_packets {
  template <class Real>
  using packet = typename simd::packet_traits<Real>::type;

  template <class Real>
  static constexpr index_t lanes = simd::unpacket_traits<packet<Real>>::size;

  template <class Real>
  static BILA_NOINLINE void exponentials(const tile<Real>& E) {
    for (index_t i = 0; i < E.rows; ++i)
      for (index_t c = 0; c < E.columns; c += lanes<Real>)
        simd::pstoreu(E.row(i) + c, decay_of(simd::ploadu<packet<Real>>(E.row(i) + c)));
  }

  template <class Real>
  static BILA_NOINLINE void column_sums(double* to, const tile<Real>& E) {
    std::fill_n(to, E.columns, 0.0);
    for (index_t i = 0; i < E.rows; ++i)
      for (index_t c = 0; c < E.columns; ++c) to[c] += static_cast<double>(E.row(i)[c]);
  }

  template <class Real>
  static BILA_NOINLINE void weigh_channels(const tile<Real>& qa, const tile<Real>& kw, operand<Real> q, operand<Real> k,
                                           operand<Real> lambda, const Real* read, const Real* write, bool exclusive) {
    const auto weigh = [&]<bool Exclusive>() BILA_LAMBDA_INLINE {
      index_t c = 0;
      for (; c + 4 * lanes<Real> <= kernel::round_up(lambda.columns, lanes<Real>); c += 4 * lanes<Real>)
        kernel::weigh_channels<4, packet<Real>, Exclusive>(qa, kw, q, k, lambda, read, write, c);
      for (; c < lambda.columns; c += lanes<Real>)
        kernel::weigh_channels<1, packet<Real>, Exclusive>(qa, kw, q, k, lambda, read, write, c);
    };
    exclusive ? weigh.template operator()<true>() : weigh.template operator()<false>();
  }

  template <class Real>
  static BILA_NOINLINE void score_channels(const tile<Real>& A, std::type_identity_t<Real>* z, operand<Real> k, operand<Real> q,
                                           operand<Real> up, operand<Real> down, const Real* own, bool exclusive) {
    exclusive ? score_keys<Real, true>(A, z, k, q, up, down, own) : score_keys<Real, false>(A, z, k, q, up, down, own);
  }

  template <class Real>
  static BILA_NOINLINE void collect_channels(const tile<Real>& N, operand<Real> G, operand<Real> x, operand<Real> lambda,
                                             direction way, bool of_keys, bool exclusive) {
    const index_t n = N.rows;
    const bool turned = (way == direction::backward) != of_keys;  // whether rows are collected from the last to the first
    const tile<Real> to = turned ? reversed(N) : N;
    const tile<const Real> from = turned ? reversed<const Real>(x) : x;
    const tile<const Real> gaps = turned ? tile<const Real>{lambda.row(n), n, lambda.columns, -lambda.stride} : lambda;
    const index_t to_step = of_keys ? G.stride : 1, from_step = of_keys ? 1 : G.stride;
    const index_t sign = turned ? -1 : 1;
    const Real* const first = turned ? G.row(n - 1) + n - 1 : G.data;
    const auto weight = [=](index_t u, index_t m) BILA_LAMBDA_INLINE { return first[sign * (u * to_step + m * from_step)]; };
    if (!exclusive)
      collect_side<packet<Real>, skipped_gap::none>(to, from, gaps, weight);
    else if (of_keys)
      collect_side<packet<Real>, skipped_gap::first>(to, from, gaps, weight);
    else
      collect_side<packet<Real>, skipped_gap::last>(to, from, gaps, weight);
  }

  template <class Real>
  static BILA_NOINLINE void add_products(const tile<Real>& N, const tile<Real>& P, operand<Real> x, operand<Real> w,
                                         operand<Real> y) {
    for (index_t i = 0; i < x.rows; ++i)
      for (index_t c = 0; c < x.columns; c += lanes<Real>) {
        packet<Real> t = simd::ploadu<packet<Real>>(x.row(i) + c);
        if (w.data != nullptr) t = simd::pmul(t, simd::ploadu<packet<Real>>(w.row(i) + c));
        add_to(N.row(i) + c, t);
        if (P.data != nullptr) add_to(P.row(i) + c, simd::pmul(t, simd::ploadu<packet<Real>>(y.row(i) + c)));
      }
  }

  template <class Real>
  static BILA_NOINLINE void sum_gaps(const tile<Real>& D, operand<Real> rows, operand<Real> columns, const Real* start,
                                     operand<Real> lambda, bool exclusive) {
    const index_t n = rows.rows;
    const packet<Real> zero = simd::pset1<packet<Real>>(Real(0));
    for (index_t c = 0; c < rows.columns; c += lanes<Real>) {
      const auto load = [c](const Real* row) BILA_LAMBDA_INLINE { return simd::ploadu<packet<Real>>(row + c); };
      const auto store = [&](index_t u, const packet<Real>& sum) BILA_LAMBDA_INLINE {
        const packet<Real> gap = exclusive ? simd::psub(sum, load(rows.row(u))) : sum;
        simd::pstoreu(D.row(u) + c, simd::pand(gap, simd::pcmp_lt(zero, load(lambda.row(u)))));
      };
      packet<Real> sum = start == nullptr ? zero : load(start);
      if (start != nullptr) {
        for (index_t u = 0; u < n; ++u) sum = simd::padd(sum, load(rows.row(u)));
        for (index_t u = 0; u < n; ++u) {
          store(u, sum);
          sum = simd::padd(sum, simd::psub(load(columns.row(u)), load(rows.row(u))));
        }
      } else {
        for (index_t u = n - 1; u > 0; --u) {
          sum = simd::padd(sum, simd::psub(load(rows.row(u)), load(columns.row(u))));
          store(u, sum);
        }
        simd::pstoreu(D.row(0) + c, zero);
      }
    }
  }

 private:
  template <class Real, bool Exclusive>
  [[gnu::flatten]] static BILA_NOINLINE void score_keys(const tile<Real>& A, Real* z, operand<Real> k, operand<Real> q,
                                                        operand<Real> up, operand<Real> down, const Real* own) {
    constexpr index_t width = lanes<Real>;
    packet<Real> sums[most_channel_tokens];
    for (index_t j = 0; j < k.rows; ++j) {
      std::fill_n(sums, most_channel_tokens, simd::pset1<packet<Real>>(Real(0)));
      index_t c = 0;
      for (; c + 4 * width <= kernel::round_up(k.columns, width); c += 4 * width)
        score_key<4, packet<Real>, Exclusive>(sums, k, q, up, down, own, j, c, c > 0);
      for (; c < k.columns; c += width) score_key<1, packet<Real>, Exclusive>(sums, k, q, up, down, own, j, c, c > 0);
      row_sums<packet<Real>>(
          q.rows, [&](index_t i) BILA_LAMBDA_INLINE { return sums[i]; },
          [&](index_t i, packet<Real> scores) BILA_LAMBDA_INLINE {
            simd::pstoreu(A.row(j) + i, scores);
            if (z != nullptr) add_to(z + i, scores);
          });
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
