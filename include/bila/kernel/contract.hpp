// SPDX-License-Identifier: Apache-2.0
// The verbs that every kernel layer offers and in which every form is written. A kernel layer is a struct with these static
// members. It knows tiles and numbers, not masks, norms or forms. The reference layer implements the verbs as plain loops.
//
// Scores are stored with the keys in rows, A_ji for key j and query i. A packet then holds queries, so row sums need no horizontal
// addition, and a mask of rank one costs two factors per element. M is a tile or rank_one.
//
//   score(A, k, qt, M, z)              A_ji = (k_j . q_i) M_ji,  z_i += sum_j A_ji      (n, m) = (n, Dk) (Dk, m)
//   apply(N, A, v)                     N_i += sum_j A_ji v_j                            (m, Dv) += (n, m)^T (n, Dv)
//   read(N, x)                         N_i = row_scales_i (weights_i q_i S + sum_j A_ji v_j + partial_i)
//   project(z, r, q, s)                z_i += r_i q_i . s                               s (Dk) of a state, for row sums
//   project_transposed(z, r, qt, s)    project, with q transposed
//   accumulate(to, x)                  to_c + rest_c = decay_c (from_c + rest_c) + sum_j weights_j k_jc [v_j, 1]   row c of a state
//                                      rest keeps the rounding error, exactly if decay_c is a power of two or 0
//   steps(N, z, to, x)                 row by row: [N_i, z_i] += read_i q_i to,  to = decay_i (to + write_i k_i [v_i, 1])
//   diagonal(N, z, w, q, k, v)         N_i += w (q_i . k_i) v_i,  z_i += w (q_i . k_i)
//   scale(Y, out, N)                   Y_i = out_i N_i                                     Y may be N
//   divide(n, Dv, factor, divisor)     n = factor n / divisor                           one row
//   transpose(kt, k)                   kt = k^T
//   solve(E, U, T, beta, way, against) E_i -= sum_j T_ij U_j over the j before i in direction `way`,  U_i = beta_i E_i
//                                      against: E_j -= sum_i T_ij U_i over the i after j. The rest of T (n, n) is not read.
//   exponentials(x, n)                 x_t = exp(x_t), in double; exactly 0 for -inf
//   scan_square(M, up, down)           M_ab = prod up_a+1..b above the diagonal, prod down_b+1..a below it, 0 on it, in double and
//                                      rounded once; 0 on a side without decays (null) and in the padding
//   weigh_levels(M, w, way)            M_ji = w_li M_ji, l = bit_width(i xor j), on one side of the diagonal: j < i for the forward
//                                      direction, j > i for the backward one            (n, n) (levels, n)
//
//   exponentials(E)                    E_ij = exp(E_ij) for E_ij <= 0; exactly 0 where the result is not a normal number
//   column_sums(to, E)                 to_c = sum_i E_ic                                in double
//
// For decays per channel, with at most `most_channel_tokens` rows. lambda_u is the gap before row u. `exclusive`: a query does not
// read through the gap next to it.
//
//   weigh_channels(qa, kw, q, k, lambda, read, write, exclusive)
//                                      qa_u = q_u o read o lambda_0..u (exclusive: 0..u-1),  kw_u = k_u o write o lambda_u+1..n-1;
//                                      qa or kw may be null
//   score_channels(A, z, k, q, up, down, own, exclusive)
//                                      A_ji = sum_c q_ic k_jc decay_c,  z_i += sum_j A_ji;  decay: up_j+1..i below the diagonal,
//                                      down_i+1..j above it, own on it; 0 on a side without decays (null)
//
// and, for gradients,
//
//   collect_channels(N, G, x, lambda, way, of_keys, exclusive)
//                                      queries: N_i += sum_j G_ji x_j o decay(j, i),  keys: N_j += sum_i G_ji x_i o decay(j, i),
//                                      over the pairs on the side of `way`, without the diagonal
//
//   add_products(N, P, x, w, y)        N_i += x_i o w_i,  P_i += x_i o w_i o y_i; null w: ones; P may be null
//   sum_gaps(D, rows, columns, start, lambda, exclusive)
//                                      D_u = start + sum_{m >= u} rows_m + sum_{m < u} columns_m, or without start
//                                      D_u = sum_{m >= u} (rows_m - columns_m), D_0 = 0; exclusive: less rows_u; 0 where lambda_u
//                                      is 0
//
//   sum_levels(D, E, way)              D_li = sum_j E_ji over the keys of level l, on the side of weigh_levels; 0 on level 0
//                                                                                       (levels, n) (n, n)
//   score_gradient(A, to, v, dyt, by, M)   g = numerator_i (v_j . dy_i) + row_sum_i,  E_ji = g A_ji,  G_ji = g M_ji,
//                                      A_ji = numerator_i A_ji;  numerator, row_sum: slopes of the norm, in `by`
//   multiply(N, A, q)                  N_j += sum_i A_ji q_i                            (n, D) += (n, m) (m, D)
//   add(N, x, w)                       N_i += w_i x_i
//   gather(s, e, g, h, k, w)           s_c + e_c = g_c (h_c + e_c) + sum_j w_j k_jc     (Dk); s may be h
//   dots(z, a, b)                      z_i = a_i . b_i                                  z in double
//   inner(a, b)                        sum_ij a_ij b_ij                                 in double
//   sums(queries, keys, E)             queries_i += sum_j E_ji,  keys_j += sum_i E_ji;  returns sum_ij E_ji   in double
//   crossings(f, b, E, x)              f_t += sum_{j < t <= i} E_ji,  b_t += sum_{i < t <= j} E_ji,  0 < t < n; null: not wanted
//                                                                                       x: scratch for n numbers
//
// Optional arguments have defaults in the structs below and in a verb's last parameters. z may be null. w may be null in gather and
// add, for weights of one. A state without s serves no row sums. A verb that adds to its result sums its own products first. In
// steps the rows of tiles may lie backwards in memory: a stride may be negative. Every layer sums over the inner index in a fixed
// order, whatever the address or the number of columns. So the bits of a result's element depend only on the numbers that enter the
// element.
#pragma once

#include <bila/config.hpp>
#include <bila/kernel/prefetch.hpp>
#include <bila/kernel/tile.hpp>
#include <bila/view/direction.hpp>

#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace kernel {
inline namespace BILA_UNIT {

/// A state: the sums over tokens of keys times values, and of keys alone.
template <class Real>
struct state {
  tile<Real> S = {};  // (Dk, Dv)
  Real* s = nullptr;  // (Dk) sums of keys alone, for row sums; null: not wanted

  constexpr operator state<const Real>() const requires(!std::is_const_v<Real>) { return {S, s}; }
};

/// The terms that `read` sums into the rows N_i.
template <class Real>
struct read_terms {
  operand<Real> q, S;                           // (n, Dk) (Dk, Dv)
  const Real* weights;                          // (n) weights of the state in each row
  operand<Real> A = no_tile<const Real>;        // (m, n) scores of m keys
  operand<Real> v = no_tile<const Real>;        // (m, Dv) values of the m keys
  operand<Real> partial = no_tile<const Real>;  // (n, Dv) rows that are added; may be N
  const Real* row_scales = nullptr;             // (n) factors of the rows; null: ones
};

/// The largest number of tokens in a block with decays per channel.
inline constexpr index_t most_channel_tokens = 16;

/// The gap that a sum over decayed rows leaves out: none, or the first or last of those that a row crosses.
enum class skipped_gap { none, first, last };

/// The tile's rows in the opposite order.
template <class Real>
constexpr tile<Real> reversed(const tile<Real>& x) {
  return {x.row(x.rows - 1), x.rows, x.columns, -x.stride};
}

/// The decays of a state's rows: one number for all rows, or one number for each row.
template <class Real>
struct row_decays {
  constexpr row_decays(Real all) : every(all) {}
  constexpr explicit row_decays(const Real* by_row) : each(by_row) {}

  Real operator[](index_t c) const { return first()[c * step()]; }

  // Row c's decay lies at first() + c step(): so an innermost loop needs no branch.
  const Real* first() const { return each == nullptr ? &every : each; }
  index_t step() const { return each == nullptr ? 0 : 1; }

  Real every = 1;              // read where `each` is null
  const Real* each = nullptr;  // (Dk)
};

/// The terms from which `accumulate` computes a state.
template <class Real>
struct update_terms {
  state<const Real> from;  // the state before; may be the state that is written
  row_decays<Real> decay = Real(1);
  operand<Real> k, v;                          // (n, Dk) (n, Dv)
  const Real* weights = nullptr;               // (n) weights of the tokens; null: ones
  const tile<Real>& weighted = no_tile<Real>;  // (n, Dk) scratch for weights o k
  /// The rounding errors of the state, read and written. Null S: the rounding error of the state's S is lost. s must be given if
  /// the state has s.
  state<Real> rest = {};
};

/// The tokens that `steps` processes. The tiles are values, because the verb reads them between its stores.
template <class Real>
struct step_terms {
  tile<const Real> q, k, v;          // (n, Dk) (n, Dk) (n, Dv)
  const Real *read, *write, *decay;  // (n) weights for reading the state, for adding tokens; decays
  tile<Real> weighted;               // (n, Dk) scratch for write o k
};

/// The gradients that `score_gradient` writes for each pair.
template <class Real>
struct pair_gradients {
  const tile<Real>&G, &E;  // (n, m)
};

/// The slopes of the norm for each query: dN_i = numerator_i dy_i, dZ_i = row_sum_i.
template <class Real>
struct row_slopes {
  const Real *numerator, *row_sum;  // (m)
};

/// Weights of rank one, M_ji = keys_j queries_i: the mask between two different blocks of tokens.
template <class Real>
struct rank_one {
  const Real *keys, *queries;
};

/// The level of two tokens in a binary tree over the tokens.
constexpr index_t level_of(index_t i, index_t j) { return static_cast<index_t>(std::bit_width(static_cast<std::uint64_t>(i ^ j))); }

/// A kernel layer for `Real`: the size of its widest packet, and the verbs above except those for decays per channel.
template <class Kernel, class Real>
concept layer = requires(tile<Real> a, tile<const Real> b, state<Real> S, rank_one<Real> M, Real* z, const Real* r, Real g,
                         double* sum) {
  { Kernel::template lanes<Real> } -> std::convertible_to<index_t>;
  Kernel::score(a, b, b, b, z);
  Kernel::score(a, b, b, M);
  Kernel::apply(a, b, b);
  Kernel::read(a, {.q = b, .S = b, .weights = r});
  Kernel::project(z, r, b, r);
  Kernel::project_transposed(z, r, b, r);
  Kernel::accumulate(S, {.from = S, .k = b, .v = b});
  Kernel::steps(a, z, S, {b, b, b, r, r, r, a});
  Kernel::diagonal(a, z, g, b, b, b);
  Kernel::scale(a, r, b);
  Kernel::divide(z, index_t(), g, g);
  Kernel::transpose(a, b);
  Kernel::solve(a, a, b, r, direction::forward, false);
  Kernel::exponentials(sum, index_t());
  Kernel::scan_square(a, sum, sum);
  Kernel::weigh_levels(a, b, direction::forward);
  Kernel::sum_levels(a, b, direction::forward);
  Kernel::score_gradient(a, {a, a}, b, b, {r, r}, b);
  Kernel::score_gradient(a, {a, a}, b, b, {r, r}, M);
  Kernel::multiply(a, b, b);
  Kernel::add(a, b);
  Kernel::add(a, b, r);
  Kernel::gather(z, z, g, r, b, r);
  Kernel::template dots<Real>(sum, b, b);
  { Kernel::template inner<Real>(b, b) } -> std::convertible_to<double>;
  { Kernel::sums(sum, sum, a) } -> std::convertible_to<double>;
  Kernel::crossings(sum, sum, a, z);
};

/// The kernel layer that a caller names. void stands for the fastest layer, which packets.hpp defines.
template <class Kernel>
struct chosen {
  using type = Kernel;
};

template <>
struct chosen<void>;

}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila
