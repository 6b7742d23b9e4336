// SPDX-License-Identifier: Apache-2.0
// A chunk of the delta rule in one direction: the weights that its gaps give, and the triangular system of its tokens.
#pragma once

#include <bila/config.hpp>
#include <bila/form/decays.hpp>
#include <bila/form/head.hpp>
#include <bila/form/two_sided_sweep.hpp>

#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// What the gaps give to a chunk in one direction. The delta rule asks for it here and nowhere else.
template <class Kernel, class Real>
struct delta_weights {
  delta_weights(kernel::arena& memory, index_t C)
      : border{memory.numbers<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)}, M(memory.padded<Kernel, Real>(C, C)) {}

  /// Computes the weights of tokens [at, at + n) from the decays of their gaps. Masks without gates have the same weights in all
  /// chunks that have neighbours on both sides. Returns whether the weights changed.
  template <class T>
  bool weigh(const head<T>& x, direction way, const gap_decays& decays, index_t at, index_t n) {
    const bool inner = at > 0 && at + n < x.k.count;
    if (x.mask.gaps != gap::per_token && inner && scanned_inner_ && n == scanned_) return false;
    scan_border(x, way, at, decays, n, border);
    const bool forwards = way == direction::forward;
    Kernel::scan_square(triangle(n), forwards ? nullptr : decays.backward, forwards ? decays.forward : nullptr);
    scanned_ = n;
    scanned_inner_ = inner;
    return true;
  }

  /// Forgets the weights, before a sweep in another direction.
  void start() { scanned_ = 0; }

  /// The decays between token i and an earlier token j of the direction; zero elsewhere.
  kernel::tile<Real> triangle(index_t n) const { return {M.data, n, n, M.stride}; }

  kernel::border_weights<Real> border;  // (C)
  kernel::tile<Real> M;                 // (C, C)

 private:
  index_t scanned_ = 0;  // tokens of the chunk whose weights were computed last
  bool scanned_inner_ = false;
};

/// The factors of what both directions leave of a token: how much of its own value y_i gets, b_i (q_i . k_i) v_i times the diagonal
/// weight. b is beta, or the mean of two betas in a call in both directions.
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
template <class Kernel, class Real>
struct delta_chunk {
  delta_chunk(kernel::arena& memory, head_size size, index_t C)
      : k(memory.padded<Kernel, Real>(C, size.Dk)),
        weighted(memory.padded<Kernel, Real>(C, size.Dk)),
        kt(memory.padded<Kernel, Real>(size.Dk, C)),
        v(memory.padded<Kernel, Real>(C, size.Dv)),
        E(memory.padded<Kernel, Real>(C, size.Dv)),
        U(memory.padded<Kernel, Real>(C, size.Dv)),
        T(memory.padded<Kernel, Real>(C, C)),
        beta(memory.numbers<Kernel, Real>(C)),
        erase(memory.numbers<Kernel, Real>(C)),
        now{memory.numbers<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)},
        weights(memory, C),
        decays(memory, sweep_decays<Kernel>::tokens_for(C), std::type_identity<Kernel>()) {}

  kernel::tile<Real> k, weighted, kt;  // (C, Dk) (C, Dk) (Dk, C)
  kernel::tile<Real> v, E, U;          // (C, Dv)
  kernel::tile<Real> T;                // (C, C) rows read what columns wrote
  Real *beta, *erase;                  // (C) erase: minus the weights with which keys read the stored state
  kernel::border_weights<Real> now;    // (C) weights at the chunk's borders, rescaled for the stored state
  delta_weights<Kernel, Real> weights;
  gap_decays decays;
};

/// Computes U, the values that tokens k (n, Dk), v (n, Dv) add to the state S. The true state is `pending` times S.
template <class Kernel, class Real>
void write_values(delta_chunk<Kernel, Real>& w, direction way, kernel::tile<const Real> k, kernel::tile<const Real> v,
                  kernel::tile<const Real> S, double pending) {
  const index_t n = k.rows;
  const Real minus = static_cast<Real>(-pending);
  for (index_t i = 0; i < n; ++i) w.erase[i] = minus * w.weights.border.read[i];
  const kernel::tile<Real> kt{w.kt.data, k.columns, n, w.kt.stride}, T{w.T.data, n, n, w.T.stride};  // (Dk, n) (n, n)
  Kernel::transpose(kt, k);
  Kernel::score(T, k, kt, w.weights.triangle(n));
  Kernel::read(w.E.top(n), {.q = k, .S = S, .weights = w.erase, .partial = v});
  Kernel::solve(w.E.top(n), w.U.top(n), T, w.beta, way);
}

/// Adds the tokens' values U to the state, and lets the state decay.
template <class Kernel, class Real>
void update_state(delta_chunk<Kernel, Real>& w, const carried_state<Kernel, Real>& to, kernel::tile<const Real> k,
                  kernel::pending_decay& state, kernel::prefetch_queue* next = nullptr) {
  const double total = w.weights.border.total, before = state.factor();
  const Real settle = static_cast<Real>(state.decay(total));
  kernel::weigh_borders(w.weights.border, before, state.factor(), k.rows, w.now);
  const kernel::state<Real> S{to.S};
  Kernel::accumulate(S,
                     {.from = S,
                      .decay = settle,
                      .k = k,
                      .v = w.U.top(k.rows),
                      .weights = w.now.write,
                      .weighted = w.weighted,
                      .rest = {to.rest.after(total, 1).S}},
                     next);
}

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
