// SPDX-License-Identifier: Apache-2.0
// The kernel layer on Eigen's packets. The verbs that multiply two matrices share one register-tiled product,
// without packing or allocation. Eigen's own product reaches 60 % of the peak at these sizes, and its order of summation depends on
// the address. Here the order does not.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/channels.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/kernel/gradient_sums.hpp>
#include <bila/kernel/levels.hpp>
#include <bila/kernel/prefetch.hpp>
#include <bila/kernel/register_tile.hpp>
#include <bila/kernel/simd.hpp>
#include <bila/kernel/solve.hpp>

#include <algorithm>

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

/// The kernel layer on packets of `Bytes`, the widest that the compiler's flags allow. The width is part of the type, so that
/// translation units compiled with different flags use different functions and can be linked.
template <int Bytes>
struct packets : channel_packets<Bytes>, gradient_sums<Bytes> {
  template <class Real>
  using packet = typename simd::packet_traits<Real>::type;

  template <class Real>
  static constexpr index_t lanes = simd::unpacket_traits<packet<Real>>::size;

  using channel_packets<Bytes>::exponentials;

  template <class Real, class Weights>
  static BILA_NOINLINE void score(const tile<Real>& A, operand<Real> k, operand<Real> qt, const Weights& M,
                                  std::type_identity_t<Real>* z = nullptr) {
    constexpr index_t width = lanes<Real>;
    for_each_tile<lanes<Real>>(A.rows, A.columns, [=]<int Rows, int Packets>(index_t j, index_t i) BILA_LAMBDA_INLINE {
      packet<Real> sum[Rows][Packets], total[Packets];
      clear(sum);
      multiply_add<false>(sum, k.columns, k.row(j), k.stride, qt.data + i, qt.stride);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n)
        total[n] = z == nullptr ? simd::pset1<packet<Real>>(Real(0)) : simd::ploadu<packet<Real>>(z + i + n * width);
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
      for (int n = 0; n < Packets; ++n) simd::pstoreu(z + i + n * width, total[n]);
    });
  }

  template <class Real>
  static BILA_NOINLINE void apply(const tile<Real>& N, operand<Real> A, operand<Real> v) {
    for_each_tile<lanes<Real>>(N.rows, N.columns, [=]<int Rows, int Packets>(index_t i, index_t d) BILA_LAMBDA_INLINE {
      packet<Real> sum[Rows][Packets];
      clear(sum);
      multiply_add<true>(sum, A.rows, A.data + i, A.stride, v.data + d, v.stride);
      kernel::add(sum, N.row(i) + d, N.stride);
      store(N.row(i) + d, N.stride, sum);
    });
  }

  template <class Real>
  static BILA_NOINLINE void read(const tile<Real>& N, argument<read_terms<Real>> x, prefetch_queue* next = nullptr) {
    operand<Real> q = x.q, S = x.S, A = x.A, v = x.v, partial = x.partial;
    const Real *const weights = x.weights, *const row_scales = x.row_scales;
    for_each_tile<lanes<Real>>(N.rows, N.columns, [=]<int Rows, int Packets>(index_t i, index_t d) BILA_LAMBDA_INLINE {
      const prefetch_lines lines(next, q.columns);
      packet<Real> sum[Rows][Packets];
      clear(sum);
      multiply_add<false>(sum, q.columns, q.row(i), q.stride, S.data + d, S.stride, lines);
      scale_rows(sum, weights + i);
      if (A.rows > 0) multiply_add<true>(sum, A.rows, A.data + i, A.stride, v.data + d, v.stride);
      if (partial.data != nullptr) kernel::add(sum, partial.row(i) + d, partial.stride);
      if (row_scales != nullptr) scale_rows(sum, row_scales + i);
      store(N.row(i) + d, N.stride, sum);
    });
  }

  template <class Real>
  [[gnu::flatten]] static BILA_NOINLINE void project(Real* z, const Real* r, operand<Real> q, const Real* s) {
    row_sums<packet<Real>>(
        q.rows, [&](index_t i) BILA_LAMBDA_INLINE { return products<packet<Real>>(q.row(i), s, q.columns); },
        [&](index_t i, packet<Real> sums)
            BILA_LAMBDA_INLINE { add_to(z + i, simd::pmul(simd::ploadu<packet<Real>>(r + i), sums)); });
  }

  /// The loop keeps four sums, because each addition to a sum must wait for the one before it.
  template <class Real>
  static BILA_NOINLINE void project_transposed(Real* z, const Real* r, operand<Real> qt, const Real* s) {
    constexpr index_t width = lanes<Real>;
    for (index_t i = 0; i < qt.columns; i += width) {
      packet<Real> sum[4][1];
      clear(sum);
      const Real* column = qt.data + i;
      index_t c = 0;
      for (; c + 4 <= qt.rows; c += 4) {
        BILA_UNROLL
        for (int n = 0; n < 4; ++n, column += qt.stride)
          sum[n][0] = simd::pmadd(simd::pset1<packet<Real>>(s[c + n]), simd::ploadu<packet<Real>>(column), sum[n][0]);
      }
      for (; c < qt.rows; ++c, column += qt.stride)
        sum[0][0] = simd::pmadd(simd::pset1<packet<Real>>(s[c]), simd::ploadu<packet<Real>>(column), sum[0][0]);
      const auto all = simd::padd(simd::padd(sum[0][0], sum[1][0]), simd::padd(sum[2][0], sum[3][0]));
      add_to(z + i, simd::pmul(simd::ploadu<packet<Real>>(r + i), all));
    }
  }

  template <class Real>
  static BILA_NOINLINE void accumulate(const state<Real>& to, argument<update_terms<Real>> x, prefetch_queue* next = nullptr) {
    constexpr index_t width = lanes<Real>;
    const tile<Real>&S = to.S, &E = x.rest.S, &weighted = x.weighted;
    operand<Real> H = x.from.S, k = x.k, v = x.v;
    Real *const s = to.s, *const e = x.rest.s;
    const Real *const h = x.from.s, *const w = x.weights;
    const row_decays<Real>& g = x.decay;
    const Real* const decays = g.first();
    const index_t decay_step = g.step();
    if (w != nullptr) {
      index_t c = 0;
      for (; c + 4 * width <= kernel::round_up(k.columns, width); c += 4 * width)
        weigh_keys<4, packet<Real>>(s, e, g, h, k, w, weighted, c);
      for (; c < k.columns; c += width) weigh_keys<1, packet<Real>>(s, e, g, h, k, w, weighted, c);
    } else if (s != nullptr) {
      gather(s, e, g, h, k);
    }
    const tile<const Real> keys = w == nullptr ? k : tile<const Real>(weighted);
    for_each_tile<lanes<Real>>(S.rows, S.columns, [=]<int Rows, int Packets>(index_t c, index_t d) BILA_LAMBDA_INLINE {
      const prefetch_lines lines(next, k.rows);
      packet<Real> sum[Rows][Packets];
      if (E.data == nullptr) {
        clear(sum);
      } else {
        load(sum, E.row(c) + d, E.stride);
        const Real* decay = decays + c * decay_step;
        BILA_UNROLL
        for (int m = 0; m < Rows; ++m, decay += decay_step) {
          const packet<Real> decay_m = simd::pset1<packet<Real>>(*decay);
          BILA_UNROLL
          for (int n = 0; n < Packets; ++n) sum[m][n] = simd::pmul(decay_m, sum[m][n]);
        }
      }
      multiply_add<true>(sum, k.rows, keys.data + c, keys.stride, v.data + d, v.stride, lines);
      add_state(S, E, H, decays + c * decay_step, decay_step, sum, c, d);
    });
  }

  template <class Real>
  static BILA_NOINLINE void steps(tile<Real> N, std::type_identity_t<Real>* z, const state<Real>& to, argument<step_terms<Real>> x,
                                  prefetch_queue* next = nullptr) {
    constexpr index_t width = lanes<Real>;
    const tile<Real> S = to.S, weighted = x.weighted;
    const tile<const Real> q = x.q, k = x.k, v = x.v;
    const Real *const r = x.read, *const w = x.write, *const g = x.decay;
    Real* const s = to.s;
    for (index_t i = 0; i < N.rows; ++i)
      for (index_t c = 0; c < k.columns; c += width)
        simd::pstoreu(weighted.row(i) + c, simd::pmul(simd::pset1<packet<Real>>(w[i]), simd::ploadu<packet<Real>>(k.row(i) + c)));
    const index_t columns = kernel::round_up(S.columns, width);
    index_t d = 0;
    for (; d + 2 * width <= columns; d += 2 * width)
      step_columns<step_most, 2, packet<Real>>(N, r, q, S, d, g, tile<const Real>(weighted), v, next);
    if (d < columns) step_columns<step_most, 1, packet<Real>>(N, r, q, S, d, g, tile<const Real>(weighted), v, next);
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
  [[gnu::flatten]] static BILA_NOINLINE void diagonal(tile<Real> N, Real* z, Real w, operand_copy<Real> q, operand_copy<Real> k,
                                                      operand_copy<Real> v) {
    Real row[lanes<Real>];
    row_sums<packet<Real>>(
        N.rows, [&](index_t i) BILA_LAMBDA_INLINE { return products<packet<Real>>(q.row(i), k.row(i), q.columns); },
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
  static BILA_NOINLINE void scale(tile<Real> Y, const Real* out, operand<Real> N) {
    for (index_t i = 0; i < N.rows; ++i) {
      const packet<Real> out_i = simd::pset1<packet<Real>>(out[i]);
      for (index_t d = 0; d < N.columns; d += lanes<Real>)
        simd::pstoreu(Y.row(i) + d, simd::pmul(out_i, simd::ploadu<packet<Real>>(N.row(i) + d)));
    }
  }

  template <class Real>
  static BILA_NOINLINE void divide(Real* n, index_t Dv, Real factor, Real divisor) {
    const auto multiply = simd::pset1<packet<Real>>(factor), by = simd::pset1<packet<Real>>(divisor);
    for (index_t d = 0; d < Dv; d += lanes<Real>)
      simd::pstoreu(n + d, simd::pdiv(simd::pmul(multiply, simd::ploadu<packet<Real>>(n + d)), by));
  }

  template <class Real>
  static BILA_NOINLINE void transpose(const tile<Real>& kt, operand<Real> k) {
    constexpr index_t width = lanes<Real>;
    const index_t rows = width > 1 ? k.rows / width * width : 0;
    for (index_t j = 0; j < rows; j += width)
      for (index_t d = 0; d < k.columns; d += width) transpose_square<packet<Real>>(kt, k, j, d);
    if (rows == k.rows) return;
    for (index_t d = 0; d < k.columns; ++d) {
      for (index_t j = rows; j < k.rows; ++j) kt.row(d)[j] = k.row(j)[d];
      for (index_t j = k.rows; j < kernel::round_up(k.rows, width); ++j) kt.row(d)[j] = 0;
    }
  }

  template <class Real>
  static BILA_NOINLINE void solve(const tile<Real>& E, const tile<Real>& U, operand<Real> T, const Real* beta, direction way,
                                  bool against = false) {
    solve_triangle<packet<Real>>(E, U, T, beta, (way == direction::forward) != against, against);
  }

  /// The last packet may overlap the packet before it, so the logs of the last packet are read first.
  static BILA_NOINLINE void exponentials(double* x, index_t n) {
    constexpr index_t width = lanes<double>;
    double few[width] = {};  // not std::exp, with which a result's last bit would depend on its place in x
    if (n < width) std::copy_n(x, n, few);
    double* const last = n < width ? few : x + n - width;
    const packet<double> logs = simd::ploadu<packet<double>>(last);
    for (index_t t = 0; t + width < n; t += width) simd::pstoreu(x + t, exponential(simd::ploadu<packet<double>>(x + t)));
    simd::pstoreu(last, exponential(logs));
    if (n < width) std::copy_n(few, n, x);
  }

  template <class Real>
  static BILA_NOINLINE void scan_square(tile<Real> M, const double* up, const double* down) {
    constexpr index_t width = lanes<double>;
    const index_t columns = kernel::round_up(M.rows, lanes<Real>);
    index_t first = 0;
    for (; first + 2 * width <= columns; first += 2 * width) scan_columns<2, packet<double>>(M, up, down, first);
    if (first < columns) scan_columns<1, packet<double>>(M, up, down, first);
  }

  template <class Real>
  static BILA_NOINLINE void weigh_levels(const tile<Real>& M, operand<Real> w, direction way) {
    kernel::weigh_levels<packet<Real>>(M, w, way);
  }

  template <class Real>
  static BILA_NOINLINE void sum_levels(const tile<Real>& D, operand<Real> E, direction way) {
    kernel::sum_levels<packet<Real>>(D, E, way);
  }

  template <class Real, class Weights>
  static BILA_NOINLINE void score_gradient(const tile<Real>& A, argument<pair_gradients<Real>> to, operand<Real> v,
                                           operand<Real> dyt, argument<row_slopes<Real>> by, const Weights& M) {
    constexpr index_t width = lanes<Real>;
    const tile<Real>&G = to.G, &E = to.E;
    const Real *const a = by.numerator, *const b = by.row_sum;
    for_each_tile<lanes<Real>>(A.rows, A.columns, [=]<int Rows, int Packets>(index_t j, index_t i) BILA_LAMBDA_INLINE {
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
    for_each_tile<lanes<Real>>(N.rows, N.columns, [=]<int Rows, int Packets>(index_t j, index_t d) BILA_LAMBDA_INLINE {
      packet<Real> sum[Rows][Packets];
      clear(sum);
      multiply_add<false>(sum, A.columns, A.row(j), A.stride, q.data + d, q.stride);
      kernel::add(sum, N.row(j) + d, N.stride);
      store(N.row(j) + d, N.stride, sum);
    });
  }

  template <class Real>
  static BILA_NOINLINE void add(tile<Real> N, operand_copy<Real> x, std::type_identity_t<const Real*> w = nullptr) {
    for (index_t i = 0; i < N.rows; ++i) {
      const packet<Real> w_i = simd::pset1<packet<Real>>(w == nullptr ? Real(1) : w[i]);
      for (index_t d = 0; d < N.columns; d += lanes<Real>)
        simd::pstoreu(N.row(i) + d,
                      simd::pmadd(w_i, simd::ploadu<packet<Real>>(x.row(i) + d), simd::ploadu<packet<Real>>(N.row(i) + d)));
    }
  }

  template <class Real>
  static void gather(Real* s, Real* e, row_decays<std::type_identity_t<Real>> g, const Real* h, operand<Real> k,
                     std::type_identity_t<const Real*> w = nullptr) {
    constexpr index_t width = lanes<Real>;
    index_t c = 0;
    for (; c + 4 * width <= kernel::round_up(k.columns, width); c += 4 * width)
      gather_columns<4, packet<Real>>(s, e, g, h, k, w, c);
    for (; c < k.columns; c += width) gather_columns<1, packet<Real>>(s, e, g, h, k, w, c);
  }

 private:
  /// Computes S_c + E_c = g_c H_c + sum_c for the rows of one register tile, as add_and_keep does. The decay of row
  /// c + m lies at decay + m decay_step.
  template <class Real, int Rows, int Packets>
  static BILA_ALWAYS_INLINE void add_state(tile<Real> S, tile<Real> E, tile<const Real> H, const Real* decay, index_t decay_step,
                                           const packet<Real> (&sum)[Rows][Packets], index_t c, index_t d) {
    constexpr index_t width = lanes<Real>;
    const index_t H_stride = anew(H.stride), S_stride = anew(S.stride), E_stride = anew(E.stride);
    const Real* from = H.row(c) + d;
    Real* to = S.row(c) + d;
    if (E.data == nullptr) {
      BILA_UNROLL
      for (int m = 0; m < Rows; ++m, from += H_stride, to += S_stride, decay += decay_step) {
        const packet<Real> decay_m = simd::pset1<packet<Real>>(*decay);
        BILA_UNROLL
        for (int n = 0; n < Packets; ++n)
          simd::pstoreu(to + n * width, simd::pmadd(decay_m, simd::ploadu<packet<Real>>(from + n * width), sum[m][n]));
      }
      return;
    }
    Real* rest = E.row(c) + d;
    BILA_UNROLL
    for (int m = 0; m < Rows; ++m, from += H_stride, to += S_stride, rest += E_stride, decay += decay_step) {
      const packet<Real> decay_m = simd::pset1<packet<Real>>(*decay);
      BILA_UNROLL
      for (int n = 0; n < Packets; ++n) add_and_keep(to + n * width, rest + n * width, decay_m, from + n * width, sum[m][n]);
    }
  }

  // The most tokens in a pass of steps. Registers: the values and sums of each token and the state's row, two packets each, and two
  // factors; so 20 for four tokens, 12 for two.
  static constexpr int step_most = simd::registers >= 32 ? 4 : 2;

  template <class Real>
  static BILA_ALWAYS_INLINE packet<Real> weight(const tile<const Real>& M, index_t j, index_t i) {
    return simd::ploadu<packet<Real>>(M.row(j) + i);
  }

  template <class Real>
  static BILA_ALWAYS_INLINE packet<Real> weight(const rank_one<Real>& M, index_t j, index_t i) {
    return simd::pmul(simd::pset1<packet<Real>>(M.keys[j]), simd::ploadu<packet<Real>>(M.queries + i));
  }
};

using eigen = packets<sizeof(simd::packet_traits<float>::type)>;

template <>
struct chosen<void> {
  using type = eigen;
};

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
