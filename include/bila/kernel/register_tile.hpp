// SPDX-License-Identifier: Apache-2.0
// Tiles of SIMD registers, from which the verbs of kernel/packets.hpp are made. Every function is a template over the packet's
// type, so that translation units compiled for different processors can be linked.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/kernel/prefetch.hpp>
#include <bila/kernel/simd.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

// g++ warns without cause: that a vector type loses its alignment attribute as a template argument (every access here is
// unaligned), that the undefined operand inside g++'s own shuffle intrinsics is uninitialised, and that converting a constant
// length changes the sign.
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

template <class Packet>
inline constexpr index_t width = simd::unpacket_traits<Packet>::size;

/// Calls visit for tiles that cover the rows of a panel of `Packets` packets of columns. A tile of six rows by four packets fills
/// 29 of 32 registers, and loads ten times for 24 multiply-adds; a tile of eight by two loads ten times for 16. Six by four is 1.00
/// to 1.05 times as fast on a core of its own, and 1.07 to 1.13 times where another thread of the core loads too. Six by two fills
/// 15 of 16 registers, and was measured best or equal on AVX2 and SSE.
template <int Packets, class Visit>
BILA_ALWAYS_INLINE void panel(index_t rows, index_t j, const Visit& visit) {
  constexpr int most = simd::registers < 32 || Packets == 4 ? 6 : 8;
  index_t i = 0;
  for (; i + most <= rows; i += most) {
    if (most == 6 && (rows - i == 8 || rows - i == 9)) break;  // two tiles of four rows waste less than one of six and single rows
    visit.template operator()<most, Packets>(i, j);
  }
  for (; i + 4 <= rows; i += 4) visit.template operator()<4, Packets>(i, j);
  for (; i < rows; ++i) visit.template operator()<1, Packets>(i, j);
}

/// Calls visit<Rows, Packets>(i, j) for register tiles that cover (rows, columns), one panel of columns after the other. `visit`
/// captures by value: g++ reads references again for every tile, 3 % of the time of a chunk.
template <index_t Width, class Visit>
BILA_ALWAYS_INLINE void for_each_tile(index_t rows, index_t columns, const Visit& visit) {
  const index_t end = kernel::round_up(columns, Width);
  index_t j = 0;
  if constexpr (simd::registers >= 32)
    for (; j + 4 * Width <= end; j += 4 * Width) panel<4>(rows, j, visit);
  for (; j + 2 * Width <= end; j += 2 * Width) panel<2>(rows, j, visit);
  if (j < end) panel<1>(rows, j, visit);
}

/// The default for the extra work of multiply_add in each step: none.
struct nothing_beside {
  void operator()() const {}
};

/// Prefetches one cache line in each step of a loop, if the queue has lines for the loop.
struct prefetch_lines {
  BILA_ALWAYS_INLINE prefetch_lines(prefetch_queue* next, index_t steps)
      : lines(next == nullptr ? prefetch_queue::run() : next->take(steps)) {}

  BILA_ALWAYS_INLINE void operator()() {
    if (lines.at == nullptr) return;
    prefetch_line(lines.at);
    lines.at += lines.step;
  }

  prefetch_queue::run lines;
};

/// Adds A B to sum, with A (Rows, depth) at a, or A^T (depth, Rows) at a if `Transposed`, and B (depth, Packets) at b.
template <bool Transposed, class Real, class Packet, int Rows, int Packets, class Beside = nothing_beside>
BILA_ALWAYS_INLINE void multiply_add(Packet (&sum)[Rows][Packets], index_t depth, const Real* a, index_t a_stride, const Real* b,
                                     index_t b_stride, Beside beside = {}) {
  constexpr index_t step = width<Packet>;
  for (index_t k = 0; k < depth; ++k, a += Transposed ? a_stride : 1, b += b_stride) {
    beside();
    Packet row[Packets];
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) row[n] = simd::ploadu<Packet>(b + n * step);
    BILA_UNROLL
    for (int m = 0; m < Rows; ++m) {
      const Packet a_m = simd::pset1<Packet>(Transposed ? a[m] : a[m * a_stride]);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) sum[m][n] = simd::pmadd(a_m, row[n], sum[m][n]);
    }
  }
}

template <class Packet, int Rows, int Packets>
BILA_ALWAYS_INLINE void clear(Packet (&sum)[Rows][Packets]) {
  using Real = typename simd::unpacket_traits<Packet>::type;
  BILA_UNROLL
  for (int m = 0; m < Rows; ++m) {
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) sum[m][n] = simd::pset1<Packet>(Real(0));
  }
}

/// Returns x, but hides from the compiler that the value is x. If g++ knows a tile's stride, it keeps the stride's products with
/// every row number in registers through all tiles. `accumulate` then ran out of registers and loaded an operand of every step from
/// memory: chunkwise took 1.14 times as long.
BILA_ALWAYS_INLINE index_t anew(index_t x) {
#if defined(__GNUC__)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

template <class Real, class Packet, int Rows, int Packets>
BILA_ALWAYS_INLINE void load(Packet (&sum)[Rows][Packets], const Real* x, index_t stride) {
  stride = anew(stride);
  BILA_UNROLL
  for (int m = 0; m < Rows; ++m, x += stride) {
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) sum[m][n] = simd::ploadu<Packet>(x + n * width<Packet>);
  }
}

template <class Real, class Packet, int Rows, int Packets>
BILA_ALWAYS_INLINE void add(Packet (&sum)[Rows][Packets], const Real* x, index_t stride) {
  Packet more[Rows][Packets];
  load(more, x, stride);
  BILA_UNROLL
  for (int m = 0; m < Rows; ++m) {
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) sum[m][n] = simd::padd(sum[m][n], more[m][n]);
  }
}

template <class Real, class Packet, int Rows, int Packets>
BILA_ALWAYS_INLINE void store(Real* x, index_t stride, const Packet (&sum)[Rows][Packets]) {
  stride = anew(stride);
  BILA_UNROLL
  for (int m = 0; m < Rows; ++m, x += stride) {
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) simd::pstoreu(x + n * width<Packet>, sum[m][n]);
  }
}

/// Multiplies row m by r[m].
template <class Real, class Packet, int Rows, int Packets>
BILA_ALWAYS_INLINE void scale_rows(Packet (&sum)[Rows][Packets], const Real* r) {
  BILA_UNROLL
  for (int m = 0; m < Rows; ++m) {
    const Packet r_m = simd::pset1<Packet>(r[m]);
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) sum[m][n] = simd::pmul(r_m, sum[m][n]);
  }
}

/// Transposes a square of one packet of rows by as many columns, or by the columns that are left.
template <class Packet, class Real>
[[gnu::flatten]] inline void transpose_square(const tile<Real>& kt, const tile<const Real>& k, index_t j, index_t d) {
  constexpr index_t side = width<Packet>;
  const index_t columns = (std::min)(side, k.columns - d);
#if defined(EIGEN_VECTORIZE_AVX512)
  // Filling lanes from memory saves half of the shuffles in registers: the transposition is 1.6 times as fast.
  if constexpr (std::is_same_v<Real, float>) {
    if (columns == side) {
      constexpr __mmask16 every = 0xffff;  // without a mask g++ warns of the intrinsics' undefined operand
      for (index_t c = 0; c < side; c += 4) {
        const auto row = [&](index_t i) BILA_LAMBDA_INLINE {
          const float* const x = k.row(j + i) + d + c;
          __m512 all = _mm512_castps128_ps512(_mm_loadu_ps(x));
          all = _mm512_maskz_insertf32x4(every, all, _mm_loadu_ps(x + 4 * k.stride), 1);
          all = _mm512_maskz_insertf32x4(every, all, _mm_loadu_ps(x + 8 * k.stride), 2);
          return _mm512_maskz_insertf32x4(every, all, _mm_loadu_ps(x + 12 * k.stride), 3);
        };
        const __m512 r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
        const __m512 low01 = _mm512_maskz_unpacklo_ps(every, r0, r1), low23 = _mm512_maskz_unpacklo_ps(every, r2, r3);
        const __m512 high01 = _mm512_maskz_unpackhi_ps(every, r0, r1), high23 = _mm512_maskz_unpackhi_ps(every, r2, r3);
        float* const to = kt.row(d + c) + j;
        _mm512_storeu_ps(to, _mm512_maskz_shuffle_ps(every, low01, low23, 0x44));
        _mm512_storeu_ps(to + kt.stride, _mm512_maskz_shuffle_ps(every, low01, low23, 0xee));
        _mm512_storeu_ps(to + 2 * kt.stride, _mm512_maskz_shuffle_ps(every, high01, high23, 0x44));
        _mm512_storeu_ps(to + 3 * kt.stride, _mm512_maskz_shuffle_ps(every, high01, high23, 0xee));
      }
      return;
    }
  }
#endif
  if constexpr (side > 1) {
    simd::PacketBlock<Packet, side> block;
    BILA_UNROLL
    for (index_t n = 0; n < side; ++n) block.packet[n] = simd::ploadu<Packet>(k.row(j + n) + d);
    simd::ptranspose(block);
    for (index_t n = 0; n < columns; ++n) simd::pstoreu(kt.row(d + n) + j, block.packet[n]);
  }
}

/// The exponential that reaches zero: it is 0 below log = -708, where Eigen's stops at exp(-709).
template <class Packet>
BILA_ALWAYS_INLINE Packet exponential(const Packet& log) {
  return simd::pandnot(simd::pexp(log), simd::pcmp_lt(log, simd::pset1<Packet>(-708.0)));
}

template <class Real, class Packet>
BILA_ALWAYS_INLINE void add_to(Real* x, const Packet& y) {
  simd::pstoreu(x, simd::padd(simd::ploadu<Packet>(x), y));
}

#if defined(__GNUC__)
template <int N>
struct floats {
  typedef float type __attribute__((vector_size(N * sizeof(float))));
};
#endif

/// Stores x rounded to `Real`. With `Add`, the rounded x is added to the numbers at `to`.
template <bool Add = false, class Real, class Packet>
BILA_ALWAYS_INLINE void store_rounded(Real* to, const Packet& x) {
  if constexpr (std::is_same_v<Real, double>) {
    simd::pstoreu(to, Add ? simd::padd(simd::ploadu<Packet>(to), x) : x);
  } else if constexpr (width<Packet> == 1) {  // no register holds several doubles
    *to = (Add ? *to : Real(0)) + static_cast<Real>(x);
  } else {
#if defined(__GNUC__)
    auto y = __builtin_convertvector(x, typename floats<width<Packet>>::type);
    if constexpr (Add) {
      decltype(y) there;
      std::memcpy(&there, to, sizeof(there));
      y += there;
    }
    std::memcpy(to, &y, sizeof(y));
#else
    double wide[width<Packet>];
    simd::pstoreu(wide, x);
    for (index_t m = 0; m < width<Packet>; ++m) to[m] = (Add ? to[m] : 0) + static_cast<float>(wide[m]);
#endif
  }
}

/// Computes a few columns of scan_square from column `first` on, with running products in registers. Several packets advance
/// together, because a multiplication waits for the one before it. A product starts as one where its column crosses the diagonal.
template <int Packets, class Packet, class Real>
BILA_ALWAYS_INLINE void scan_columns(const tile<Real>& M, const double* up, const double* down, index_t first) {
  constexpr index_t step = width<Packet>, all = Packets * step;
  double unit[2 * all] = {};  // the numbers from unit + all - m on are one in lane m, zero in the others
  unit[all] = 1;
  const index_t n = M.rows, last = (std::min)(first + all, n);
  Packet product[Packets];
  const auto start = [&]() BILA_LAMBDA_INLINE {
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) product[p] = simd::pset1<Packet>(0.0);
  };
  const auto cross = [&](double decay) BILA_LAMBDA_INLINE {
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) product[p] = simd::pmul(product[p], simd::pset1<Packet>(decay));
  };
  const auto meet_diagonal = [&](index_t a) BILA_LAMBDA_INLINE {
    const double* const here = unit + all - (a - first);
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) product[p] = simd::padd(product[p], simd::ploadu<Packet>(here + p * step));
  };
  const auto store = [&]<bool Add>(index_t a) BILA_LAMBDA_INLINE {
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) store_rounded<Add>(M.row(a) + first + p * step, product[p]);
  };
  start();
  for (index_t a = last - 1; a >= 0; --a) {
    cross(up == nullptr || a + 1 == n ? 0.0 : up[a + 1]);
    store.template operator()<false>(a);
    if (a >= first) meet_diagonal(a);
  }
  start();
  for (index_t a = first; a < last; ++a) {
    cross(down == nullptr || a == first ? 0.0 : down[a]);
    store.template operator()<true>(a);  // either the stored number or the product is 0
    meet_diagonal(a);
  }
  for (index_t a = last; a < n; ++a) {
    cross(down == nullptr ? 0.0 : down[a]);
    store.template operator()<false>(a);
  }
}

/// Sums a_c b_c over c, separately for each lane.
template <class Packet, class Real>
BILA_ALWAYS_INLINE Packet products(const Real* a, const Real* b, index_t n) {
  Packet sum = simd::pset1<Packet>(Real(0));
  for (index_t c = 0; c < n; c += width<Packet>) sum = simd::pmadd(simd::ploadu<Packet>(a + c), simd::ploadu<Packet>(b + c), sum);
  return sum;
}

/// Calls take(i, sums) for the packet of rows i, i + 1, ... A sum adds the lanes of row(i); one transposition serves all rows of a
/// packet. Rows past the last have the sum zero.
template <class Packet, class Row, class Take>
BILA_ALWAYS_INLINE void row_sums(index_t rows, const Row& row, const Take& take) {
  constexpr index_t rows_at_once = width<Packet>;
  for (index_t i = 0; i < rows; i += rows_at_once) {
    if constexpr (rows_at_once == 1) {
      take(i, row(i));
    } else {
      simd::PacketBlock<Packet, rows_at_once> block;
      for (index_t n = 0; n < rows_at_once; ++n) block.packet[n] = i + n < rows ? row(i + n) : simd::pset1<Packet>(0);
      simd::ptranspose(block);
      BILA_UNROLL
      for (index_t half = rows_at_once / 2; half > 0; half /= 2) {
        BILA_UNROLL
        for (index_t n = 0; n < half; ++n) block.packet[n] = simd::padd(block.packet[n], block.packet[n + half]);
      }
      take(i, block.packet[0]);
    }
  }
}

/// Computes S = g H + sum, rounded, and the rounding error E, which is exact if g is a power of two or 0, because g H then is. If E
/// is null, the error is lost.
template <class Packet, class Real>
BILA_ALWAYS_INLINE void add_and_keep(Real* S, Real* E, const Packet& g, const Real* H, const Packet& sum) {
  const Packet before = simd::pmul(g, simd::ploadu<Packet>(H)), after = simd::padd(before, sum);
  simd::pstoreu(S, after);
  if (E != nullptr) simd::pstoreu(E, simd::psub(sum, simd::psub(after, before)));
}

/// The decays of a packet of rows from row c on.
template <class Packet, class Real>
BILA_ALWAYS_INLINE Packet load_decays(const row_decays<Real>& g, index_t c) {
  return g.each == nullptr ? simd::pset1<Packet>(g.every) : simd::ploadu<Packet>(g.each + c);
}

template <int Packets, class Packet, class Real>
BILA_ALWAYS_INLINE void weigh_keys(Real* s, Real* e, const row_decays<Real>& g, const Real* h, const tile<const Real>& k,
                                   const Real* w, const tile<Real>& weighted, index_t c) {
  constexpr index_t step = width<Packet>;
  Packet sum[Packets];
  BILA_UNROLL
  for (int n = 0; n < Packets; ++n)
    sum[n] = s == nullptr ? simd::pset1<Packet>(Real(0))
                          : simd::pmul(load_decays<Packet>(g, c + n * step), simd::ploadu<Packet>(e + c + n * step));
  const Real* from = k.data + c;
  Real* to = weighted.data + c;
  for (index_t j = 0; j < k.rows; ++j, from += k.stride, to += weighted.stride) {
    const Packet w_j = simd::pset1<Packet>(w[j]);
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) {
      const Packet x = simd::pmul(w_j, simd::ploadu<Packet>(from + n * step));
      simd::pstoreu(to + n * step, x);
      sum[n] = simd::padd(sum[n], x);
    }
  }
  if (s == nullptr) return;
  BILA_UNROLL
  for (int n = 0; n < Packets; ++n)
    add_and_keep(s + c + n * step, e + c + n * step, load_decays<Packet>(g, c + n * step), h + c + n * step, sum[n]);
}

template <int Packets, class Packet, class Real>
BILA_ALWAYS_INLINE void gather_columns(Real* s, Real* e, const row_decays<Real>& g, const Real* h, const tile<const Real>& k,
                                       const Real* w, index_t c) {
  constexpr index_t step = width<Packet>;
  Packet sum[Packets];
  BILA_UNROLL
  for (int n = 0; n < Packets; ++n)
    sum[n] = simd::pmul(load_decays<Packet>(g, c + n * step), simd::ploadu<Packet>(e + c + n * step));
  for (index_t j = 0; j < k.rows; ++j) {
    const Packet w_j = simd::pset1<Packet>(w == nullptr ? Real(1) : w[j]);
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) sum[n] = simd::pmadd(w_j, simd::ploadu<Packet>(k.row(j) + c + n * step), sum[n]);
  }
  BILA_UNROLL
  for (int n = 0; n < Packets; ++n)
    add_and_keep(s + c + n * step, e + c + n * step, load_decays<Packet>(g, c + n * step), h + c + n * step, sum[n]);
}

/// Lets `Tokens` tokens from token i on read and update `Packets` packets of the state's columns. `Decays`: the last token's decay
/// is not 1, and multiplies the state.
template <int Tokens, int Packets, bool Decays, class Packet, class Real>
BILA_ALWAYS_INLINE void step_tokens(tile<Real> N, const Real* r, tile<const Real> q, tile<Real> S, index_t d, index_t i,
                                    const Real* g, tile<const Real> k, tile<const Real> v, prefetch_queue* next) {
  constexpr index_t step = width<Packet>;
  const Packet decay = simd::pset1<Packet>(g[i + Tokens - 1]);
  Packet value[Tokens][Packets], sum[Tokens][Packets];
  load(value, v.row(i) + d, v.stride);
  clear(sum);
  const Real *q_i = q.row(i), *k_i = k.row(i);
  prefetch_lines lines(next, S.rows);
  for (index_t c = 0; c < S.rows; ++c) {
    lines();
    Real* const s = S.row(c) + d;
    Packet state[Packets];
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) state[p] = simd::ploadu<Packet>(s + p * step);
    BILA_UNROLL
    for (int m = 0; m < Tokens; ++m) {
      const Packet q_c = simd::pset1<Packet>(q_i[m * q.stride + c]), k_c = simd::pset1<Packet>(k_i[m * k.stride + c]);
      BILA_UNROLL
      for (int p = 0; p < Packets; ++p) {
        sum[m][p] = simd::pmadd(q_c, state[p], sum[m][p]);
        state[p] = simd::pmadd(k_c, value[m][p], state[p]);
      }
    }
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) simd::pstoreu(s + p * step, Decays ? simd::pmul(decay, state[p]) : state[p]);
  }
  scale_rows(sum, r + i);
  BILA_UNROLL
  for (int m = 0; m < Tokens; ++m) {
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) add_to(N.row(i + m) + d + p * step, sum[m][p]);
  }
}

/// Processes up to `Most` tokens (4 or 2) in one pass over the state, if no decay must be applied between these tokens. n tokens
/// then need 1 / n of the state's loads and stores.
template <int Most, int Packets, class Packet, class Real>
BILA_ALWAYS_INLINE void step_columns(tile<Real> N, const Real* r, tile<const Real> q, tile<Real> S, index_t d, const Real* g,
                                     tile<const Real> k, tile<const Real> v, prefetch_queue* next) {
  const auto pass = [=]<int Tokens>(index_t i) BILA_LAMBDA_INLINE {
    if (g[i + Tokens - 1] >= 1)
      step_tokens<Tokens, Packets, false, Packet>(N, r, q, S, d, i, g, k, v, next);
    else
      step_tokens<Tokens, Packets, true, Packet>(N, r, q, S, d, i, g, k, v, next);
    return i + Tokens;
  };
  for (index_t i = 0; i < N.rows;) {
    index_t tokens = 1;
    while (tokens < Most && i + tokens < N.rows && g[i + tokens - 1] >= 1) ++tokens;
    if (Most == 4 && tokens == 4)
      i = pass.template operator()<Most>(i);
    else
      i = tokens >= 2 ? pass.template operator()<2>(i) : pass.template operator()<1>(i);
  }
}

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
