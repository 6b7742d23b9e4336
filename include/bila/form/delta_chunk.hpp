// SPDX-License-Identifier: Apache-2.0
// A chunk of the delta rule in one direction: the triangular system of its tokens, and the state that they write.
#pragma once

#include <bila/config.hpp>
#include <bila/form/delta_weights.hpp>
#include <bila/form/head.hpp>
#include <bila/form/two_sided_sweep.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Writes b_i, with which y_i gets the token's own value: b_i (q_i . k_i) v_i, times the diagonal weight. b is the beta of the
/// call's direction. In a call in both directions it is the mean of the two betas.
template <class T, class Real>
void own_betas(const head<T>& x, index_t at, index_t n, Real* b, Real* other) {
  if (x.direction != direction::both || x.mask.own == detail::own_parameter::beta)
    return x.mask.strengths(x.direction == direction::backward ? direction::backward : direction::forward, at, n, b);
  x.mask.strengths(direction::forward, at, n, b);
  x.mask.strengths(direction::backward, at, n, other);
  for (index_t i = 0; i < n; ++i) b[i] = (b[i] + other[i]) / 2;
}

/// The tokens of a chunk as the delta rule writes them, with S the state before the chunk (MATH.md 6.6):
///
///     E = (I + T diag(beta))^-1 (V - read o K S),   T = strict(K K^T o M),   U = beta o E
///     S <- total S + (write o K)^T U
///
/// read_i is the decay from where the direction enters the chunk to token i, write_j the one from token j to where it leaves the
/// chunk. With decays per channel read_i, write_j and M_ij have a number for each channel.
template <class Kernel, class Real, class Weights>
struct delta_chunk {
  delta_chunk(kernel::arena& memory, head_size size, index_t C)
      : k(memory.padded<Kernel, Real>(C, size.Dk)),
        weighted(memory.padded<Kernel, Real>(C, size.Dk)),
        v(memory.padded<Kernel, Real>(C, size.Dv)),
        E(memory.padded<Kernel, Real>(C, size.Dv)),
        U(memory.padded<Kernel, Real>(C, size.Dv)),
        T(memory.padded<Kernel, Real>(C, C)),
        beta(memory.numbers<Kernel, Real>(C)),
        weights(memory, size, C) {}

  /// Computes U, the values that tokens k (n, Dk), v (n, Dv) add to the state S.
  void write_values(direction way, kernel::operand<Real> k_now, kernel::operand<Real> v_now, const carried_state<Kernel, Real>& S) {
    const index_t n = k_now.rows;
    const kernel::tile<Real> T_now{T.data, n, n, T.stride};  // (n, n)
    weights.score(T_now, k_now);
    const weighed_rows<Real> reads = weights.reads(reader::key, k_now, S.pending);
    Kernel::read(E.top(n), {.q = reads.x, .S = S.S, .weights = reads.weights, .partial = v_now});
    Kernel::solve(E.top(n), U.top(n), T_now, beta, way);
  }

  /// Adds the tokens' values U to the state, and lets the state decay.
  void update_state(const carried_state<Kernel, Real>& to, kernel::operand<Real> k_now, kernel::prefetch_queue* next = nullptr) {
    weights.cross(to.pending);
    const weighed_rows<Real> writes = weights.writes(k_now, to.pending, true);
    const kernel::state<Real> S{to.S};
    Kernel::accumulate(S,
                       {.from = S,
                        .decay = weights.decay(),
                        .k = writes.x,
                        .v = U.top(k_now.rows),
                        .weights = writes.of_sum(),
                        .weighted = weighted,
                        .rest = {to.rest.after(weights.largest(), 1).S}},
                       next);
  }

  kernel::tile<Real> k, weighted;  // (C, Dk)
  kernel::tile<Real> v, E, U;      // (C, Dv)
  kernel::tile<Real> T;            // (C, C) rows read what columns wrote
  Real* beta;                      // (C)
  Weights weights;
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
