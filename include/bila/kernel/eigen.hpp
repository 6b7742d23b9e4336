// SPDX-License-Identifier: Apache-2.0
// The kernel layer on Eigen's packets: one register-tiled product without packing or allocation serves every verb.
// Eigen's own product reaches 60 % of the peak at these sizes and its order of summation depends on the address; this one does not.
#pragma once

#if defined(__CUDACC__)
#error \
    "bila: nvcc must not compile Eigen (it would change the host's own products at link time); include <bila/cuda.hpp> in .cu files"
#endif

#include <bila/config.hpp>
#include <bila/kernel/contract.hpp>

#include <Eigen/Core>

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

  template <class Real>
  static void score(tile<Real> A, operand<Real> q, operand<Real> kt) {
    product<false>(A, q.columns, q, kt, [](packet<Real> sum, packet<Real>, index_t) BILA_LAMBDA_INLINE { return sum; });
  }

  template <class Real>
  static void apply(tile<Real> N, operand<Real> A, operand<Real> v) {
    product<false>(N, A.columns, A, v,
                   [](packet<Real> sum, packet<Real> old, index_t) BILA_LAMBDA_INLINE { return simd::padd(old, sum); });
  }

  template <class Real>
  static void weigh(tile<Real> A, operand<Real> M, Real* z) {
    for (index_t i = 0; i < A.rows; ++i)
      weigh_row(A.row(i), A.columns, z == nullptr ? z : z + i, [m = M.row(i)](packet<Real> a, index_t j) BILA_LAMBDA_INLINE {
        return simd::pmul(a, simd::ploadu<packet<Real>>(m + j));
      });
  }

  template <class Real>
  static void weigh(tile<Real> A, const Real* r, const Real* c, Real* z) {
    for (index_t i = 0; i < A.rows; ++i) {
      const auto r_i = simd::pset1<packet<Real>>(r[i]);
      weigh_row(A.row(i), A.columns, z == nullptr ? z : z + i, [r_i, c](packet<Real> a, index_t j) BILA_LAMBDA_INLINE {
        return simd::pmul(a, simd::pmul(r_i, simd::ploadu<packet<Real>>(c + j)));
      });
    }
  }

  template <class Real>
  static void read(tile<Real> N, Real* z, const Real* r, operand<Real> q, operand<Real> S, const Real* s) {
    product<false>(N, q.columns, q, S, [r](packet<Real> sum, packet<Real> old, index_t i) BILA_LAMBDA_INLINE {
      return simd::pmadd(simd::pset1<packet<Real>>(r[i]), sum, old);
    });
    if (z == nullptr) return;
    for (index_t i = 0; i < N.rows; ++i) z[i] += r[i] * dot(q.row(i), s, q.columns);
  }

  template <class Real>
  static void accumulate(tile<Real> S, Real* s, Real g, operand<Real> k, const Real* w, operand<Real> v, tile<Real> weighted) {
    for (index_t j = 0; j < k.rows; ++j) {
      const Real *from = k.row(j), w_j = w[j];
      along(k.columns, weighted.row(j),
            [from, w_j](auto x, index_t c) BILA_LAMBDA_INLINE { return simd::pmul(set(x, w_j), load(x, from + c)); });
    }
    product<true>(S, k.rows, weighted, v, [g](packet<Real> sum, packet<Real> old, index_t) BILA_LAMBDA_INLINE {
      return simd::pmadd(simd::pset1<packet<Real>>(g), old, sum);
    });
    if (s == nullptr) return;
    along(k.columns, s, [g](auto x, index_t) BILA_LAMBDA_INLINE { return simd::pmul(set(x, g), x); });
    for (index_t j = 0; j < k.rows; ++j)
      along(k.columns, s,
            [from = weighted.row(j)](auto x, index_t c) BILA_LAMBDA_INLINE { return simd::padd(x, load(x, from + c)); });
  }

  template <class Real>
  static void step(Real* n, Real* z, Real r, const Real* q, tile<Real> S, Real* s, Real g, Real w, const Real* k, const Real* v) {
    constexpr index_t width = lanes<Real>;
    index_t d = 0;
    for (; d + 4 * width <= kernel::round_up(S.columns, width); d += 4 * width) step_columns<4>(n + d, r, q, S, d, g, w, k, v + d);
    for (; d < S.columns; d += width) step_columns<1>(n + d, r, q, S, d, g, w, k, v + d);
    if (z == nullptr) return;
    *z += r * dot(q, s, S.rows);
    along(S.rows, s, [g, w, k](auto x, index_t c) BILA_LAMBDA_INLINE {
      return simd::pmul(set(x, g), simd::pmadd(set(x, w), load(x, k + c), x));
    });
  }

  template <class Real>
  static void diagonal(Real* n, Real* z, Real w, const Real* q, const Real* k, index_t Dk, const Real* v, index_t Dv) {
    const Real score = w * dot(q, k, Dk);
    along(Dv, n, [v, score](auto x, index_t d) BILA_LAMBDA_INLINE { return simd::pmadd(set(x, score), load(x, v + d), x); });
    if (z != nullptr) *z += score;
  }

  template <class Real>
  static void divide(Real* n, index_t Dv, Real factor, Real divisor) {
    along(Dv, n, [factor, divisor](auto x, index_t) BILA_LAMBDA_INLINE {
      return simd::pdiv(simd::pmul(set(x, factor), x), set(x, divisor));
    });
  }

  template <class Real>
  [[gnu::flatten]] static void transpose(tile<Real> kt, operand<Real> k) {
    constexpr index_t width = lanes<Real>;
    const index_t rows = width > 1 ? k.rows / width * width : 0, columns = k.columns / width * width;
    if constexpr (width > 1)
      for (index_t j = 0; j < rows; j += width)
        for (index_t d = 0; d < columns; d += width) {
          simd::PacketBlock<packet<Real>, width> block;
          BILA_UNROLL
          for (index_t n = 0; n < width; ++n) block.packet[n] = simd::ploadu<packet<Real>>(k.row(j + n) + d);
          simd::ptranspose(block);
          BILA_UNROLL
          for (index_t n = 0; n < width; ++n) simd::pstoreu(kt.row(d + n) + j, block.packet[n]);
        }
    for (index_t d = 0; d < k.columns; ++d) {
      for (index_t j = d < columns ? rows : 0; j < k.rows; ++j) kt.row(d)[j] = k.row(j)[d];
      for (index_t j = k.rows; j < kernel::round_up(k.rows, width); ++j) kt.row(d)[j] = 0;
    }
  }

  template <class Real>
  static void apply_transposed(tile<Real> N, operand<Real> A, operand<Real> q) {
    product<true>(N, A.rows, A, q,
                  [](packet<Real> sum, packet<Real> old, index_t) BILA_LAMBDA_INLINE { return simd::padd(old, sum); });
  }

  template <class Real>
  static void outer(tile<Real> N, const Real* a, const Real* b) {
    for (index_t i = 0; i < N.rows; ++i)
      along(N.columns, N.row(i),
            [b, a_i = a[i]](auto x, index_t d) BILA_LAMBDA_INLINE { return simd::pmadd(set(x, a_i), load(x, b + d), x); });
  }

  template <class Real>
  static void gather(Real* s, Real g, operand<Real> k, const Real* w) {
    along(k.columns, s, [g](auto x, index_t) BILA_LAMBDA_INLINE { return simd::pmul(set(x, g), x); });
    for (index_t j = 0; j < k.rows; ++j)
      along(k.columns, s, [from = k.row(j), w_j = w[j]](auto x, index_t c) BILA_LAMBDA_INLINE {
        return simd::pmadd(set(x, w_j), load(x, from + c), x);
      });
  }

  template <class Real>
  static void dots(double* z, tile<Real> a, operand<Real> b) {
    for (index_t i = 0; i < a.rows; ++i) z[i] = static_cast<double>(dot(static_cast<const Real*>(a.row(i)), b.row(i), a.columns));
  }

  /// One row in `Real`, the rows in double.
  template <class Real>
  static double inner(tile<Real> a, operand<Real> b) {
    double sum = 0;
    for (index_t i = 0; i < a.rows; ++i) sum += static_cast<double>(dot(static_cast<const Real*>(a.row(i)), b.row(i), a.columns));
    return sum;
  }

 private:
  // Two packets by eight rows fill 32 registers, by six fill 16; measured best or equal on AVX-512, AVX2 and SSE.
  static constexpr int tile_rows = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 8 : 6;

  /// C = finish(A B, C, row) with A (m, depth), or A^T when `Transposed`, and B (depth, n); m, n from C.
  template <bool Transposed, class Real, class Finish>
  static void product(tile<Real> C, index_t depth, operand<Real> A, operand<Real> B, const Finish& finish) {
    constexpr index_t width = lanes<Real>;
    index_t j = 0;
    for (; j + 2 * width <= kernel::round_up(C.columns, width); j += 2 * width) panel<Transposed, 2>(C, j, depth, A, B, finish);
    if (j < C.columns) panel<Transposed, 1>(C, j, depth, A, B, finish);
  }

  template <bool Transposed, int Packets, class Real, class Finish>
  static void panel(tile<Real> C, index_t j, index_t depth, operand<Real> A, operand<Real> B, const Finish& finish) {
    index_t i = 0;
    for (; i + tile_rows <= C.rows; i += tile_rows) micro<Transposed, tile_rows, Packets>(C, i, j, depth, A, B, finish);
    if (i + 4 <= C.rows) micro<Transposed, 4, Packets>(C, i, j, depth, A, B, finish), i += 4;
    if (i + 2 <= C.rows) micro<Transposed, 2, Packets>(C, i, j, depth, A, B, finish), i += 2;
    if (i < C.rows) micro<Transposed, 1, Packets>(C, i, j, depth, A, B, finish);
  }

  template <bool Transposed, int Rows, int Packets, class Real, class Finish>
  static BILA_ALWAYS_INLINE void micro(tile<Real> C, index_t i, index_t j, index_t depth, operand<Real> A, operand<Real> B,
                                       const Finish& finish) {
    constexpr index_t width = lanes<Real>;
    packet<Real> sum[Rows][Packets];
    BILA_UNROLL
    for (int m = 0; m < Rows; ++m) {
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) sum[m][n] = simd::pset1<packet<Real>>(Real(0));
    }
    const Real* a = Transposed ? A.data + i : A.row(i);
    const Real* b = B.data + j;
    for (index_t k = 0; k < depth; ++k, a += Transposed ? A.stride : 1, b += B.stride) {
      packet<Real> row[Packets];
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) row[n] = simd::ploadu<packet<Real>>(b + n * width);
      BILA_UNROLL
      for (int m = 0; m < Rows; ++m) {
        const packet<Real> a_m = simd::pset1<packet<Real>>(Transposed ? a[m] : a[m * A.stride]);
        BILA_UNROLL
        for (int n = 0; n < Packets; ++n) sum[m][n] = simd::pmadd(a_m, row[n], sum[m][n]);
      }
    }
    BILA_UNROLL
    for (int m = 0; m < Rows; ++m) {
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) {
        Real* c = C.row(i + m) + j + n * width;
        simd::pstoreu(c, finish(sum[m][n], simd::ploadu<packet<Real>>(c), i + m));
      }
    }
  }

  template <class Real, class Weigh>
  static BILA_ALWAYS_INLINE void weigh_row(Real* a, index_t columns, Real* z, const Weigh& weigh) {
    packet<Real> sum = simd::pset1<packet<Real>>(Real(0));
    for (index_t j = 0; j < columns; j += lanes<Real>) {
      const packet<Real> weighed = weigh(simd::ploadu<packet<Real>>(a + j), j);
      simd::pstoreu(a + j, weighed);
      sum = simd::padd(sum, weighed);
    }
    if (z != nullptr) *z += simd::predux(sum);
  }

  template <int Packets, class Real>
  static BILA_ALWAYS_INLINE void step_columns(Real* n, Real r, const Real* q, tile<Real> S, index_t d, Real g, Real w,
                                              const Real* k, const Real* v) {
    constexpr index_t width = lanes<Real>;
    const packet<Real> decay = simd::pset1<packet<Real>>(g);
    packet<Real> value[Packets], sum[Packets];
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) {
      value[p] = simd::ploadu<packet<Real>>(v + p * width);
      sum[p] = simd::pset1<packet<Real>>(Real(0));
    }
    for (index_t c = 0; c < S.rows; ++c) {
      const packet<Real> q_c = simd::pset1<packet<Real>>(r * q[c]), k_c = simd::pset1<packet<Real>>(w * k[c]);
      BILA_UNROLL
      for (int p = 0; p < Packets; ++p) {
        Real* s = S.row(c) + d + p * width;
        const packet<Real> state = simd::ploadu<packet<Real>>(s);
        sum[p] = simd::pmadd(q_c, state, sum[p]);
        simd::pstoreu(s, simd::pmul(decay, simd::pmadd(k_c, value[p], state)));
      }
    }
    BILA_UNROLL
    for (int p = 0; p < Packets; ++p) simd::pstoreu(n + p * width, simd::padd(simd::ploadu<packet<Real>>(n + p * width), sum[p]));
  }

  /// x[c] = f(x[c], c) for c < n, in packets and then one by one.
  template <class Real, class Function>
  static BILA_ALWAYS_INLINE void along(index_t n, Real* x, const Function& f) {
    constexpr index_t width = lanes<Real>;
    index_t c = 0;
    for (; c + width <= n; c += width) simd::pstoreu(x + c, f(simd::ploadu<packet<Real>>(x + c), c));
    for (; c < n; ++c) x[c] = f(x[c], c);
  }

  template <class Packet, class Real>
  static BILA_ALWAYS_INLINE Packet set(const Packet&, Real x) {
    return simd::pset1<Packet>(x);
  }

  template <class Packet, class Real>
  static BILA_ALWAYS_INLINE Packet load(const Packet&, const Real* x) {
    return simd::ploadu<Packet>(x);
  }

  template <class Real>
  static BILA_ALWAYS_INLINE Real dot(const Real* a, const Real* b, index_t n) {
    constexpr index_t width = lanes<Real>;
    const index_t whole = n / width * width;
    packet<Real> sum = simd::pset1<packet<Real>>(Real(0));
    for (index_t d = 0; d < whole; d += width)
      sum = simd::pmadd(simd::ploadu<packet<Real>>(a + d), simd::ploadu<packet<Real>>(b + d), sum);
    Real total = simd::predux(sum);
    for (index_t d = whole; d < n; ++d) total += a[d] * b[d];
    return total;
  }
};

using eigen = packets<sizeof(simd::packet_traits<float>::type)>;

}  // namespace bila::inline v0_1::kernel

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
