// SPDX-License-Identifier: Apache-2.0
// The kernel layer on Eigen's packets: one register-tiled product without packing or allocation serves every verb.
// Eigen's own product reaches 60 % of the peak at these sizes and its order of summation depends on the address; this one does not.
#pragma once

#if defined(__CUDACC__)
#error \
    "bila: nvcc must not compile Eigen (it would change the host's own products at link time); include <bila/cuda.hpp> in .cu files"
#endif

#include <bila/config.hpp>
#include <bila/kernel/ahead.hpp>
#include <bila/kernel/contract.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

// g++ notes that a vector type loses its alignment attribute as a template argument (it is only read and written unaligned here),
// and takes the undefined operand inside its own shuffle intrinsics for an uninitialised variable.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

static_assert(EIGEN_VERSION_AT_LEAST(3, 4, 0), "bila needs Eigen 3.4 or newer");

namespace bila::inline v0_1::kernel {

namespace simd = Eigen::internal;

/// The kernel layer on packets of `Bytes`, the widest that the compiler's flags allow. The width is part of the type so that
/// translation units compiled with different flags can be linked: they use different functions.
template <int Bytes>
struct packets {
  template <class Real>
  using packet = typename simd::packet_traits<Real>::type;

  template <class Real>
  static constexpr index_t lanes = simd::unpacket_traits<packet<Real>>::size;

  template <class Real, class Weights>
  static BILA_NOINLINE void score(tile<Real> A, Real* z, operand<Real> k, operand<Real> qt, const Weights& M) {
    constexpr index_t width = lanes<Real>;
    for_each_tile<Real>(A.rows, A.columns, [&]<int Rows, int Packets>(index_t j, index_t i) BILA_LAMBDA_INLINE {
      packet<Real> sum[Rows][Packets], total[Packets];
      clear(sum);
      multiply_add<false>(sum, k.columns, k.row(j), k.stride, qt.data + i, qt.stride);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) total[n] = simd::pset1<packet<Real>>(Real(0));
      BILA_UNROLL
      for (int m = 0; m < Rows; ++m) {
        BILA_UNROLL
        for (int n = 0; n < Packets; ++n) {
          const packet<Real> weighed = simd::pmul(sum[m][n], weight<Real>(M, j + m, i + n * width));
          simd::pstoreu(A.row(j + m) + i + n * width, weighed);
          total[n] = simd::padd(total[n], weighed);
        }
      }
      if (z == nullptr) return;
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) add_to(z + i + n * width, total[n]);
    });
  }

  template <class Real>
  static BILA_NOINLINE void apply(tile<Real> N, operand<Real> A, operand<Real> v) {
    for_each_tile<Real>(N.rows, N.columns, [&]<int Rows, int Packets>(index_t i, index_t d) BILA_LAMBDA_INLINE {
      packet<Real> sum[Rows][Packets];
      load(sum, N.row(i) + d, N.stride);
      multiply_add<true>(sum, A.rows, A.data + i, A.stride, v.data + d, v.stride);
      store(N.row(i) + d, N.stride, sum);
    });
  }

  template <class Real>
  static BILA_NOINLINE void read(tile<Real> N, const Real* out, const Real* r, operand<Real> q, operand<Real> S, operand<Real> A,
                                 operand<Real> v, operand<Real> left, ahead* next = nullptr) {
    constexpr index_t width = lanes<Real>;
    for_each_tile<Real>(N.rows, N.columns, [&]<int Rows, int Packets>(index_t i, index_t d) BILA_LAMBDA_INLINE {
      packet<Real> sum[Rows][Packets];
      clear(sum);
      multiply_add<false>(sum, q.columns, q.row(i), q.stride, S.data + d, S.stride);
      scale_rows(sum, r + i);
      if (A.rows > 0) multiply_add<true>(sum, A.rows, A.data + i, A.stride, v.data + d, v.stride);
      if (left.data != nullptr) {
        BILA_UNROLL
        for (int m = 0; m < Rows; ++m) {
          BILA_UNROLL
          for (int n = 0; n < Packets; ++n)
            sum[m][n] = simd::padd(sum[m][n], simd::ploadu<packet<Real>>(left.row(i + m) + d + n * width));
        }
      }
      if (out != nullptr) scale_rows(sum, out + i);
      store(N.row(i) + d, N.stride, sum);
      if (next != nullptr) next->ask(lines_per_tile);
    });
  }

  template <class Real>
  [[gnu::flatten]] static BILA_NOINLINE void project(Real* z, const Real* r, operand<Real> q, const Real* s) {
    row_sums<Real>(
        q.rows, [&](index_t i) BILA_LAMBDA_INLINE { return products(q.row(i), s, q.columns); },
        [&](index_t i, packet<Real> sums)
            BILA_LAMBDA_INLINE { add_to(z + i, simd::pmul(simd::ploadu<packet<Real>>(r + i), sums)); });
  }

  template <class Real>
  static BILA_NOINLINE void project_transposed(Real* z, const Real* r, operand<Real> qt, const Real* s) {
    constexpr index_t width = lanes<Real>;
    for_each_tile<Real>(1, qt.columns, [&]<int Rows, int Packets>(index_t, index_t i) BILA_LAMBDA_INLINE {
      packet<Real> sum[Rows][Packets];
      clear(sum);
      multiply_add<false>(sum, qt.rows, s, 0, qt.data + i, qt.stride);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n)
        add_to(z + i + n * width, simd::pmul(simd::ploadu<packet<Real>>(r + i + n * width), sum[0][n]));
    });
  }

  template <class Real>
  static BILA_NOINLINE void accumulate(tile<Real> S, Real* s, Real g, operand<Real> H, const Real* h, operand<Real> k,
                                       const Real* w, operand<Real> v, tile<Real> weighted, ahead* next = nullptr) {
    constexpr index_t width = lanes<Real>;
    if (w != nullptr) {
      index_t c = 0;
      for (; c + 4 * width <= kernel::round_up(k.columns, width); c += 4 * width) weigh_keys<4>(s, g, h, k, w, weighted, c);
      for (; c < k.columns; c += width) weigh_keys<1>(s, g, h, k, w, weighted, c);
    } else if (s != nullptr) {
      gather(s, g, h, k, w);
    }
    const operand<Real> keys = w == nullptr ? k : operand<Real>(weighted);
    const auto decay = simd::pset1<packet<Real>>(g);
    for_each_tile<Real>(S.rows, S.columns, [&]<int Rows, int Packets>(index_t c, index_t d) BILA_LAMBDA_INLINE {
      packet<Real> sum[Rows][Packets];
      load(sum, H.row(c) + d, H.stride);
      BILA_UNROLL
      for (int m = 0; m < Rows; ++m) {
        BILA_UNROLL
        for (int n = 0; n < Packets; ++n) sum[m][n] = simd::pmul(decay, sum[m][n]);
      }
      multiply_add<true>(sum, k.rows, keys.data + c, keys.stride, v.data + d, v.stride);
      store(S.row(c) + d, S.stride, sum);
      if (next != nullptr) next->ask(lines_per_tile);
    });
  }

  template <class Real>
  static BILA_NOINLINE void steps(tile<Real> N, Real* z, const Real* r, operand<Real> q, tile<Real> S, Real* s, const Real* g,
                                  const Real* w, operand<Real> k, operand<Real> v, tile<Real> weighted) {
    constexpr index_t width = lanes<Real>;
    for (index_t i = 0; i < N.rows; ++i)
      for (index_t c = 0; c < k.columns; c += width)
        simd::pstoreu(weighted.row(i) + c, simd::pmul(simd::pset1<packet<Real>>(w[i]), simd::ploadu<packet<Real>>(k.row(i) + c)));
    const index_t columns = kernel::round_up(S.columns, width);
    index_t d = 0;
    for (; d + step_packets * width <= columns; d += step_packets * width)
      step_columns<step_packets>(N, r, q, S, d, g, operand<Real>(weighted), v);
    for (; d < columns; d += width) step_columns<1>(N, r, q, S, d, g, operand<Real>(weighted), v);
    if (z == nullptr) return;
    for (index_t i = 0; i < N.rows; ++i) {
      const packet<Real> decay = simd::pset1<packet<Real>>(g[i]);
      packet<Real> sum = simd::pset1<packet<Real>>(Real(0));
      for (index_t c = 0; c < S.rows; c += width) {
        const packet<Real> state = simd::ploadu<packet<Real>>(s + c);
        sum = simd::pmadd(simd::ploadu<packet<Real>>(q.row(i) + c), state, sum);
        simd::pstoreu(s + c, simd::pmul(decay, simd::padd(simd::ploadu<packet<Real>>(weighted.row(i) + c), state)));
      }
      z[i] += r[i] * simd::predux(sum);
    }
  }

  template <class Real>
  [[gnu::flatten]] static BILA_NOINLINE void diagonal(tile<Real> N, Real* z, Real w, operand<Real> q, operand<Real> k,
                                                      operand<Real> v) {
    Real row[lanes<Real>];
    row_sums<Real>(
        N.rows, [&](index_t i) BILA_LAMBDA_INLINE { return products(q.row(i), k.row(i), q.columns); },
        [&](index_t first, packet<Real> scores) BILA_LAMBDA_INLINE {
          simd::pstoreu(row, simd::pmul(simd::pset1<packet<Real>>(w), scores));
          for (index_t i = first; i < (std::min)(first + lanes<Real>, N.rows); ++i) {
            const auto score = simd::pset1<packet<Real>>(row[i - first]);
            for (index_t d = 0; d < N.columns; d += lanes<Real>)
              add_to(N.row(i) + d, simd::pmul(score, simd::ploadu<packet<Real>>(v.row(i) + d)));
            if (z != nullptr) z[i] += row[i - first];
          }
        });
  }

  template <class Real>
  static void scale(tile<Real> N, const Real* out) {
    for (index_t i = 0; i < N.rows; ++i) {
      const packet<Real> out_i = simd::pset1<packet<Real>>(out[i]);
      Real* const row = N.row(i);
      for (index_t d = 0; d < N.columns; d += lanes<Real>)
        simd::pstoreu(row + d, simd::pmul(out_i, simd::ploadu<packet<Real>>(row + d)));
    }
  }

  template <class Real>
  static void divide(Real* n, index_t Dv, Real factor, Real divisor) {
    const auto multiply = simd::pset1<packet<Real>>(factor), by = simd::pset1<packet<Real>>(divisor);
    for (index_t d = 0; d < Dv; d += lanes<Real>)
      simd::pstoreu(n + d, simd::pdiv(simd::pmul(multiply, simd::ploadu<packet<Real>>(n + d)), by));
  }

  template <class Real>
  static BILA_NOINLINE void transpose(tile<Real> kt, operand<Real> k) {
    constexpr index_t width = lanes<Real>;
    const index_t rows = width > 1 ? k.rows / width * width : 0;
    for (index_t j = 0; j < rows; j += width)
      for (index_t d = 0; d < k.columns; d += width) transpose_square(kt, k, j, d);
    for (index_t d = 0; d < k.columns; ++d) {
      for (index_t j = rows; j < k.rows; ++j) kt.row(d)[j] = k.row(j)[d];
      for (index_t j = k.rows; j < kernel::round_up(k.rows, width); ++j) kt.row(d)[j] = 0;
    }
  }

  static void exponentials(double* x, index_t n) {
    constexpr index_t width = lanes<double>;
    index_t t = 0;
    for (; t + width <= n; t += width) exponential(x + t);
    if (t == n) return;
    double rest[width] = {};  // not by another function: its last bit would depend on the place
    std::copy(x + t, x + n, rest);
    exponential(rest);
    std::copy(rest, rest + (n - t), x + t);
  }

  /// A few columns at a time, whose running products stay in a register.
  template <class Real>
  static BILA_NOINLINE void scan_square(tile<Real> M, const double* up, const double* down) {
    constexpr index_t width = lanes<double>;
    double unit[2 * width] = {};  // from width - m on: one in lane m, zero in the others
    unit[width] = 1;
    const index_t n = M.rows;
    for (index_t first = 0; first < kernel::round_up(n, lanes<Real>); first += width) {
      const index_t last = (std::min)(first + width, n);
      Real* const to = M.data + first;
      packet<double> product = simd::pset1<packet<double>>(0.0);
      for (index_t a = last - 1; a >= 0; --a) {
        product = simd::pmul(product, simd::pset1<packet<double>>(up == nullptr || a + 1 == n ? 0.0 : up[a + 1]));
        store_rounded(to + a * M.stride, product);
        if (a >= first) product = simd::padd(product, simd::ploadu<packet<double>>(unit + width - (a - first)));
      }
      product = simd::pset1<packet<double>>(0.0);
      for (index_t a = first; a < last; ++a) {
        product = simd::pmul(product, simd::pset1<packet<double>>(down == nullptr || a == first ? 0.0 : down[a]));
        Real* const row = to + a * M.stride;
        Real below[width];
        store_rounded(below, product);
        for (index_t m = 0; m < a - first; ++m) row[m] = below[m];
        product = simd::padd(product, simd::ploadu<packet<double>>(unit + width - (a - first)));
      }
      for (index_t a = last; a < n; ++a) {
        product = simd::pmul(product, simd::pset1<packet<double>>(down == nullptr ? 0.0 : down[a]));
        store_rounded(to + a * M.stride, product);
      }
    }
  }

  template <class Real, class Weights>
  static BILA_NOINLINE void score_gradient(tile<Real> G, tile<Real> E, tile<Real> A, operand<Real> v, operand<Real> dyt,
                                           const Real* a, const Real* b, const Weights& M) {
    constexpr index_t width = lanes<Real>;
    for_each_tile<Real>(A.rows, A.columns, [&]<int Rows, int Packets>(index_t j, index_t i) BILA_LAMBDA_INLINE {
      packet<Real> sum[Rows][Packets];
      clear(sum);
      multiply_add<false>(sum, v.columns, v.row(j), v.stride, dyt.data + i, dyt.stride);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) {
        const index_t at = i + n * width;
        const packet<Real> a_i = simd::ploadu<packet<Real>>(a + at), b_i = simd::ploadu<packet<Real>>(b + at);
        BILA_UNROLL
        for (int m = 0; m < Rows; ++m) {
          const packet<Real> g = simd::pmadd(a_i, sum[m][n], b_i), score = simd::ploadu<packet<Real>>(A.row(j + m) + at);
          simd::pstoreu(E.row(j + m) + at, simd::pmul(g, score));
          simd::pstoreu(G.row(j + m) + at, simd::pmul(g, weight<Real>(M, j + m, at)));
          simd::pstoreu(A.row(j + m) + at, simd::pmul(a_i, score));
        }
      }
    });
  }

  template <class Real>
  static BILA_NOINLINE void multiply(tile<Real> N, operand<Real> A, operand<Real> q) {
    for_each_tile<Real>(N.rows, N.columns, [&]<int Rows, int Packets>(index_t j, index_t d) BILA_LAMBDA_INLINE {
      packet<Real> sum[Rows][Packets];
      load(sum, N.row(j) + d, N.stride);
      multiply_add<false>(sum, A.columns, A.row(j), A.stride, q.data + d, q.stride);
      store(N.row(j) + d, N.stride, sum);
    });
  }

  template <class Real>
  static void outer(tile<Real> N, const Real* a, const Real* b) {
    for (index_t i = 0; i < N.rows; ++i) {
      const packet<Real> a_i = simd::pset1<packet<Real>>(a[i]);
      Real* const row = N.row(i);
      for (index_t d = 0; d < N.columns; d += lanes<Real>)
        simd::pstoreu(row + d, simd::pmadd(a_i, simd::ploadu<packet<Real>>(b + d), simd::ploadu<packet<Real>>(row + d)));
    }
  }

  template <class Real>
  static void add(tile<Real> N, operand<Real> x) {
    for (index_t i = 0; i < N.rows; ++i)
      for (index_t d = 0; d < N.columns; d += lanes<Real>) add_to(N.row(i) + d, simd::ploadu<packet<Real>>(x.row(i) + d));
  }

  template <class Real>
  static void gather(Real* s, Real g, const Real* h, operand<Real> k, const Real* w) {
    constexpr index_t width = lanes<Real>;
    index_t c = 0;
    for (; c + 4 * width <= kernel::round_up(k.columns, width); c += 4 * width) gather_columns<4>(s, g, h, k, w, c);
    for (; c < k.columns; c += width) gather_columns<1>(s, g, h, k, w, c);
  }

  template <class Real>
  [[gnu::flatten]] static BILA_NOINLINE void dots(double* z, operand<Real> a, operand<Real> b) {
    Real row[lanes<Real>];
    row_sums<Real>(
        a.rows, [&](index_t i) BILA_LAMBDA_INLINE { return products(a.row(i), b.row(i), a.columns); },
        [&](index_t i, packet<Real> sums) BILA_LAMBDA_INLINE {
          simd::pstoreu(row, sums);
          for (index_t n = 0; n < (std::min)(lanes<Real>, a.rows - i); ++n) z[i + n] = static_cast<double>(row[n]);
        });
  }

  /// One row in `Real`, the rows in double.
  template <class Real>
  [[gnu::flatten]] static BILA_NOINLINE double inner(operand<Real> a, operand<Real> b) {
    double total = 0;
    Real row[lanes<Real>];
    row_sums<Real>(
        a.rows, [&](index_t i) BILA_LAMBDA_INLINE { return products(a.row(i), b.row(i), a.columns); },
        [&](index_t i, packet<Real> sums) BILA_LAMBDA_INLINE {
          simd::pstoreu(row, sums);
          for (index_t n = 0; n < (std::min)(lanes<Real>, a.rows - i); ++n) total += static_cast<double>(row[n]);
        });
    return total;
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
    row_sums<Real>(
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
    // running_i = sum of E_ji over the keys on one side of gap t; what lies on the other side of the gap is summed.
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

 private:
  // Two packets by eight rows fill 32 registers, by six fill 16; measured best or equal on AVX-512, AVX2 and SSE.
  static constexpr int tile_rows = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 8 : 6;

  // Four arrays of 32 tokens are 512 lines at D = 64, a sweep over them 24 to 40 register tiles.
  static constexpr int lines_per_tile = 16;

  /// One packet of rows by as many columns, or what there is of them.
  template <class Real>
  [[gnu::flatten]] static void transpose_square(const tile<Real>& kt, const tile<const Real>& k, index_t j, index_t d) {
    constexpr index_t width = lanes<Real>;
    const index_t columns = (std::min)(width, k.columns - d);
#if defined(EIGEN_VECTORIZE_AVX512)
    // Lanes filled from memory leave half the shuffles of a transposition in registers: 1.6 times as fast.
    if constexpr (std::is_same_v<Real, float>) {
      if (columns == width) {
        constexpr __mmask16 every = 0xffff;  // g++ warns of the undefined operand inside the intrinsics without a mask
        for (index_t c = 0; c < width; c += 4) {
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
    if constexpr (width > 1) {
      simd::PacketBlock<packet<Real>, width> block;
      BILA_UNROLL
      for (index_t n = 0; n < width; ++n) block.packet[n] = simd::ploadu<packet<Real>>(k.row(j + n) + d);
      simd::ptranspose(block);
      for (index_t n = 0; n < columns; ++n) simd::pstoreu(kt.row(d + n) + j, block.packet[n]);
    }
  }

  // Two tokens' values and sums and the state's row: five registers a packet.
  static constexpr int step_packets = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 4 : 2;

  /// Calls visit<Rows, Packets>(i, j) for register tiles that cover (rows, columns), one panel of columns after the other.
  template <class Real, class Visit>
  static BILA_ALWAYS_INLINE void for_each_tile(index_t rows, index_t columns, const Visit& visit) {
    constexpr index_t width = lanes<Real>;
    index_t j = 0;
    for (; j + 2 * width <= kernel::round_up(columns, width); j += 2 * width) panel<2>(rows, j, visit);
    if (j < columns) panel<1>(rows, j, visit);
  }

  template <int Packets, class Visit>
  static BILA_ALWAYS_INLINE void panel(index_t rows, index_t j, const Visit& visit) {
    index_t i = 0;
    for (; i + tile_rows <= rows; i += tile_rows) visit.template operator()<tile_rows, Packets>(i, j);
    if (i + 4 <= rows) visit.template operator()<4, Packets>(i, j), i += 4;
    if (i + 2 <= rows) visit.template operator()<2, Packets>(i, j), i += 2;
    if (i < rows) visit.template operator()<1, Packets>(i, j);
  }

  /// sum += A B, with A (Rows, depth) at a, or A^T (depth, Rows) when `Transposed`, and B (depth, Packets) at b.
  template <bool Transposed, class Real, class Packet, int Rows, int Packets>
  static BILA_ALWAYS_INLINE void multiply_add(Packet (&sum)[Rows][Packets], index_t depth, const Real* a, index_t a_stride,
                                              const Real* b, index_t b_stride) {
    constexpr index_t width = lanes<Real>;
    for (index_t k = 0; k < depth; ++k, a += Transposed ? a_stride : 1, b += b_stride) {
      Packet row[Packets];
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) row[n] = simd::ploadu<Packet>(b + n * width);
      BILA_UNROLL
      for (int m = 0; m < Rows; ++m) {
        const Packet a_m = simd::pset1<Packet>(Transposed ? a[m] : a[m * a_stride]);
        BILA_UNROLL
        for (int n = 0; n < Packets; ++n) sum[m][n] = simd::pmadd(a_m, row[n], sum[m][n]);
      }
    }
  }

  template <class Packet, int Rows, int Packets>
  static BILA_ALWAYS_INLINE void clear(Packet (&sum)[Rows][Packets]) {
    using Real = typename simd::unpacket_traits<Packet>::type;
    BILA_UNROLL
    for (int m = 0; m < Rows; ++m) {
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) sum[m][n] = simd::pset1<Packet>(Real(0));
    }
  }

  // Row by row: products of a stride with every row number would not fit the registers.
  template <class Real, class Packet, int Rows, int Packets>
  static BILA_ALWAYS_INLINE void load(Packet (&sum)[Rows][Packets], const Real* x, index_t stride) {
    BILA_UNROLL
    for (int m = 0; m < Rows; ++m, x += stride) {
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) sum[m][n] = simd::ploadu<Packet>(x + n * lanes<Real>);
    }
  }

  template <class Real, class Packet, int Rows, int Packets>
  static BILA_ALWAYS_INLINE void store(Real* x, index_t stride, const Packet (&sum)[Rows][Packets]) {
    BILA_UNROLL
    for (int m = 0; m < Rows; ++m, x += stride) {
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) simd::pstoreu(x + n * lanes<Real>, sum[m][n]);
    }
  }

  /// Row m times r[m].
  template <class Real, class Packet, int Rows, int Packets>
  static BILA_ALWAYS_INLINE void scale_rows(Packet (&sum)[Rows][Packets], const Real* r) {
    BILA_UNROLL
    for (int m = 0; m < Rows; ++m) {
      const Packet r_m = simd::pset1<Packet>(r[m]);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) sum[m][n] = simd::pmul(r_m, sum[m][n]);
    }
  }

  template <class Real>
  static BILA_ALWAYS_INLINE packet<Real> weight(const tile<const Real>& M, index_t j, index_t i) {
    return simd::ploadu<packet<Real>>(M.row(j) + i);
  }

  template <class Real>
  static BILA_ALWAYS_INLINE packet<Real> weight(const rank_one<Real>& M, index_t j, index_t i) {
    return simd::pmul(simd::pset1<packet<Real>>(M.keys[j]), simd::ploadu<packet<Real>>(M.queries + i));
  }

  /// Eigen's exponential does not reach zero: it stops at exp(-709).
  static BILA_ALWAYS_INLINE void exponential(double* x) {
    const packet<double> log = simd::ploadu<packet<double>>(x);
    const packet<double> vanishes = simd::pcmp_lt(log, simd::pset1<packet<double>>(-708.0));
    simd::pstoreu(x, simd::pandnot(simd::pexp(log), vanishes));
  }

  template <class Real>
  static BILA_ALWAYS_INLINE void add_to(Real* x, const packet<Real>& y) {
    simd::pstoreu(x, simd::padd(simd::ploadu<packet<Real>>(x), y));
  }

#if defined(__GNUC__)
  template <int N>
  struct floats {
    typedef float type __attribute__((vector_size(N * sizeof(float))));
  };
#endif

  template <class Real>
  static BILA_ALWAYS_INLINE void store_rounded(Real* to, const packet<double>& x) {
    if constexpr (std::is_same_v<Real, double>) {
      simd::pstoreu(to, x);
    } else {
#if defined(__GNUC__)
      const auto y = __builtin_convertvector(x, typename floats<lanes<double>>::type);
      std::memcpy(to, &y, sizeof(y));
#else
      double wide[lanes<double>];
      simd::pstoreu(wide, x);
      for (index_t m = 0; m < lanes<double>; ++m) to[m] = static_cast<float>(wide[m]);
#endif
    }
  }

  /// a_c b_c, summed over c as far as lanes go.
  template <class Real>
  static BILA_ALWAYS_INLINE packet<Real> products(const Real* a, const Real* b, index_t n) {
    packet<Real> sum = simd::pset1<packet<Real>>(Real(0));
    for (index_t c = 0; c < n; c += lanes<Real>)
      sum = simd::pmadd(simd::ploadu<packet<Real>>(a + c), simd::ploadu<packet<Real>>(b + c), sum);
    return sum;
  }

  /// take(i, sums) for packets of rows i, i+1, ...: the sum of row(i) over its lanes, many rows with one transposition. Rows past
  /// the last are zero.
  template <class Real, class Row, class Take>
  static BILA_ALWAYS_INLINE void row_sums(index_t rows, const Row& row, const Take& take) {
    constexpr index_t width = lanes<Real>;
    for (index_t i = 0; i < rows; i += width) {
      if constexpr (width == 1) {
        take(i, row(i));
      } else {
        simd::PacketBlock<packet<Real>, width> block;
        for (index_t n = 0; n < width; ++n) block.packet[n] = i + n < rows ? row(i + n) : simd::pset1<packet<Real>>(Real(0));
        simd::ptranspose(block);
        BILA_UNROLL
        for (index_t half = width / 2; half > 0; half /= 2) {
          BILA_UNROLL
          for (index_t n = 0; n < half; ++n) block.packet[n] = simd::padd(block.packet[n], block.packet[n + half]);
        }
        take(i, block.packet[0]);
      }
    }
  }

  template <int Packets, class Real>
  static BILA_ALWAYS_INLINE void weigh_keys(Real* s, Real g, const Real* h, const tile<const Real>& k, const Real* w,
                                            const tile<Real>& weighted, index_t c) {
    constexpr index_t width = lanes<Real>;
    packet<Real> sum[Packets];
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n)
      sum[n] = s == nullptr ? simd::pset1<packet<Real>>(Real(0))
                            : simd::pmul(simd::pset1<packet<Real>>(g), simd::ploadu<packet<Real>>(h + c + n * width));
    const Real* from = k.data + c;
    Real* to = weighted.data + c;
    for (index_t j = 0; j < k.rows; ++j, from += k.stride, to += weighted.stride) {
      const packet<Real> w_j = simd::pset1<packet<Real>>(w[j]);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) {
        const packet<Real> x = simd::pmul(w_j, simd::ploadu<packet<Real>>(from + n * width));
        simd::pstoreu(to + n * width, x);
        sum[n] = simd::padd(sum[n], x);
      }
    }
    if (s == nullptr) return;
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) simd::pstoreu(s + c + n * width, sum[n]);
  }

  template <int Packets, class Real>
  static BILA_ALWAYS_INLINE void gather_columns(Real* s, Real g, const Real* h, const tile<const Real>& k, const Real* w,
                                                index_t c) {
    constexpr index_t width = lanes<Real>;
    packet<Real> sum[Packets];
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n)
      sum[n] = simd::pmul(simd::pset1<packet<Real>>(g), simd::ploadu<packet<Real>>(h + c + n * width));
    for (index_t j = 0; j < k.rows; ++j) {
      const packet<Real> w_j = simd::pset1<packet<Real>>(w == nullptr ? Real(1) : w[j]);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) sum[n] = simd::pmadd(w_j, simd::ploadu<packet<Real>>(k.row(j) + c + n * width), sum[n]);
    }
    BILA_UNROLL
    for (int n = 0; n < Packets; ++n) simd::pstoreu(s + c + n * width, sum[n]);
  }

  /// Two tokens with one pass over the state where nothing has to be settled between them: half its loads and stores.
  template <int Packets, class Real>
  static BILA_ALWAYS_INLINE void step_columns(const tile<Real>& N, const Real* r, const tile<const Real>& q, const tile<Real>& S,
                                              index_t d, const Real* g, const tile<const Real>& k, const tile<const Real>& v) {
    index_t i = 0;
    while (i < N.rows) {
      if (i + 1 < N.rows && g[i] == 1) {
        if (g[i + 1] == 1)
          step_tokens<2, Packets, false>(N, r, q, S, d, i, g, k, v);
        else
          step_tokens<2, Packets, true>(N, r, q, S, d, i, g, k, v);
        i += 2;
      } else {
        step_tokens<1, Packets, true>(N, r, q, S, d, i, g, k, v);
        ++i;
      }
    }
  }

  /// `Decays`: the last token settles.
  template <int Tokens, int Packets, bool Decays, class Real>
  static BILA_ALWAYS_INLINE void step_tokens(const tile<Real>& N, const Real* r, const tile<const Real>& q, const tile<Real>& S,
                                             index_t d, index_t i, const Real* g, const tile<const Real>& k,
                                             const tile<const Real>& v) {
    constexpr index_t width = lanes<Real>;
    const packet<Real> decay = simd::pset1<packet<Real>>(g[i + Tokens - 1]);
    packet<Real> value[Tokens][Packets], sum[Tokens][Packets];
    load(value, v.row(i) + d, v.stride);
    clear(sum);
    const Real *q_i = q.row(i), *k_i = k.row(i);
    for (index_t c = 0; c < S.rows; ++c) {
      Real* const s = S.row(c) + d;
      packet<Real> state[Packets];
      BILA_UNROLL
      for (int p = 0; p < Packets; ++p) state[p] = simd::ploadu<packet<Real>>(s + p * width);
      BILA_UNROLL
      for (int m = 0; m < Tokens; ++m) {
        const packet<Real> q_c = simd::pset1<packet<Real>>(q_i[m * q.stride + c]),
                           k_c = simd::pset1<packet<Real>>(k_i[m * k.stride + c]);
        BILA_UNROLL
        for (int p = 0; p < Packets; ++p) {
          sum[m][p] = simd::pmadd(q_c, state[p], sum[m][p]);
          state[p] = simd::pmadd(k_c, value[m][p], state[p]);
        }
      }
      BILA_UNROLL
      for (int p = 0; p < Packets; ++p) simd::pstoreu(s + p * width, Decays ? simd::pmul(decay, state[p]) : state[p]);
    }
    scale_rows(sum, r + i);
    BILA_UNROLL
    for (int m = 0; m < Tokens; ++m) {
      BILA_UNROLL
      for (int p = 0; p < Packets; ++p) add_to(N.row(i + m) + d + p * width, sum[m][p]);
    }
  }
};

using eigen = packets<sizeof(simd::packet_traits<float>::type)>;

}  // namespace bila::inline v0_1::kernel

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
