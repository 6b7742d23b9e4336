// SPDX-License-Identifier: Apache-2.0
// The weights that a chunk of the delta rule gets from its gaps in one direction: for gaps with one decay, and for gaps with a
// decay for each channel.
#pragma once

#include <bila/config.hpp>
#include <bila/form/channel_weights.hpp>
#include <bila/form/decays.hpp>
#include <bila/form/head.hpp>

#include <algorithm>
#include <limits>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Rows that are multiplied with a state, or summed into one: row i counts weights_i times.
template <class Real>
struct weighed_rows {
  kernel::tile<const Real> x;  // (n, Dk)
  const Real* weights;         // (n)
  bool ones;                   // whether all weights are one

  /// The weights for a sum over the rows: null for ones.
  const Real* of_sum() const { return ones ? nullptr : weights; }
};

/// Whose rows read a state: those of queries, which add what they read to N, or those of keys, which subtract it from V.
enum class reader { query, key };

/// The weights of gaps that have one decay: see delta_chunk. `pending` is the factor that a stored state has not been multiplied
/// by.
template <class Kernel, class Real>
class delta_gaps {
 public:
  delta_gaps(kernel::arena& memory, head_size head, index_t C)
      : M_(memory.padded<Kernel, Real>(C, C)),
        kt_(memory.padded<Kernel, Real>(head.Dk, C)),
        border_{memory.numbers<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)},
        reads_(memory.numbers<Kernel, Real>(2 * C)),
        writes_(memory.numbers<Kernel, Real>(C)),
        decays_(memory, sweep_decays<Kernel>::tokens_for(C), std::type_identity<Kernel>()) {}

  static constexpr index_t most = (std::numeric_limits<index_t>::max)();  // tokens per chunk
  static constexpr index_t pending(head_size) { return 1; }               // numbers in `pending`

  /// The decays of the chunks of a sweep along a direction, computed for several chunks at a time.
  sweep_decays<Kernel> ahead(direction way, index_t C, index_t first, index_t last) {
    return {decays_, way, C, first, last, false};
  }

  /// The decays of one chunk.
  template <class T>
  gap_decays here(const head<T>& x, direction way, index_t at, index_t n) {
    fill_decays<Kernel>(x, way, at, n, decays_.way(way));
    return decays_;
  }

  /// Forgets the weights, before a sweep in another direction.
  void start() { scanned_ = 0; }

  /// Computes the weights of tokens [at, at + n), which have keys k, from the decays of their gaps. Masks without gates have the
  /// same weights in all chunks with neighbours on both sides. Returns whether the weights changed.
  template <class T>
  bool weigh(const head<T>& x, direction way, const gap_decays& decays, index_t at, kernel::operand<Real> k) {
    const index_t n = k.rows;
    kt_now_ = {kt_.data, k.columns, n, kt_.stride};
    Kernel::transpose(kt_now_, k);
    const bool inner = at > 0 && at + n < x.k.count;
    if (x.mask.gaps != gap::per_token && inner && scanned_inner_ && n == scanned_) return false;
    scan_border(x, way, at, decays, n, border_);
    const bool forwards = way == direction::forward;
    Kernel::scan_square(triangle(n), forwards ? nullptr : decays.backward, forwards ? decays.forward : nullptr);
    scanned_ = n;
    scanned_inner_ = inner;
    return true;
  }

  /// A_ij = rows_i . k_j times the decays from token j to token i, where j comes before i in the direction; else zero.
  void score(const kernel::tile<Real>& A, kernel::operand<Real> rows) { Kernel::score(A, rows, kt_now_, triangle(rows.rows)); }

  /// The rows, weighed as readers of the state that enters the chunk. `inverse`: the rows are added to a stored state, which
  /// divides by `pending`. Rows of queries and of keys have memory of their own, and stay until the next call.
  weighed_rows<Real> reads(reader by, kernel::operand<Real> rows, const double* pending, bool inverse = false) {
    Real* const weights = by == reader::query ? reads_ : reads_ + rows.rows;
    const Real factor = static_cast<Real>((by == reader::query ? 1 : -1) * (inverse ? 1 / *pending : *pending));
    for (index_t i = 0; i < rows.rows; ++i) weights[i] = border_.read[i] * factor;
    return {rows, weights, false};
  }

  /// Keys that add to the state which leaves the chunk.
  weighed_rows<Real> writes(kernel::operand<Real> k, const double* pending, bool inverse) {
    const Real factor = static_cast<Real>(inverse ? 1 / *pending : *pending);
    for (index_t i = 0; i < k.rows; ++i) writes_[i] = border_.write[i] * factor;
    return {k, writes_, false};
  }

  /// Lets a state decay over the chunk. decay() is then what the stored state must be multiplied by.
  void cross(double* pending) {
    kernel::pending_decay state(*pending);
    settle_ = static_cast<Real>(state.decay(border_.total));
    *pending = state.factor();
  }

  kernel::row_decays<Real> decay() const { return settle_; }
  double largest() const { return border_.total; }

  static void store(const head_state<Real>& to, kernel::tile<Real> S, const double* pending, double entered = 1) {
    store_final_state<Real>(to, S, nullptr, *pending * entered);
  }

 protected:
  kernel::tile<Real> triangle(index_t n) const { return {M_.data, n, n, M_.stride}; }

  kernel::tile<Real> M_, kt_, kt_now_;   // (C, C) decays between tokens; (Dk, C); (Dk, n)
  kernel::border_weights<Real> border_;  // (C)
  Real *reads_, *writes_;                // (2 C) of queries, then of keys; (C)
  gap_decays decays_;

 private:
  Real settle_ = 1;
  index_t scanned_ = 0;  // tokens of the chunk whose weights were computed last
  bool scanned_inner_ = false;
};

/// The weights of gaps that have a decay for each channel. The rows themselves are multiplied by decays.
template <class Kernel, class Real>
class delta_channels {
 public:
  delta_channels(kernel::arena& memory, head_size head, index_t C)
      : weights_(memory, head, C),
        reads_(memory.padded<Kernel, Real>(2 * C, head.Dk)),
        writes_(memory.padded<Kernel, Real>(C, head.Dk)),
        factors_(memory.zeros<Kernel, Real>(head.Dk)),
        nothing_(memory.zeros<Kernel, Real>(head.Dk)),
        ones_(memory.numbers<Kernel, Real>(2 * C)),
        C_(C) {}

  static constexpr index_t most = kernel::most_channel_tokens;
  static constexpr index_t pending(head_size head) { return head.Dk; }

  struct no_decays {
    template <class T>
    no_decays of(const head<T>&, index_t, index_t) const {
      return {};
    }
  };
  no_decays ahead(direction, index_t, index_t, index_t) { return {}; }
  template <class T>
  no_decays here(const head<T>&, direction, index_t, index_t) {
    return {};
  }

  void start() { std::fill_n(ones_, 2 * C_, Real(1)); }

  template <class T>
  bool weigh(const head<T>& x, direction way, no_decays, index_t at, kernel::operand<Real> k) {
    way_ = way;
    k_ = k;
    weights_.measure(x, way, at, k.rows);
    return true;
  }

  void score(const kernel::tile<Real>& A, kernel::operand<Real> rows) {
    const kernel::tile<const Real> gaps = weights_.decays(way_, rows.rows).top(rows.rows), none;
    const bool forwards = way_ == direction::forward;
    Kernel::score_channels(A, nullptr, rows, k_, forwards ? none : gaps, forwards ? gaps : none, nothing_, false);
  }

  weighed_rows<Real> reads(reader by, kernel::operand<Real> rows, const double* pending, bool inverse = false) {
    const index_t n = rows.rows;
    const kernel::tile<Real> to{reads_.row(by == reader::query ? 0 : n), n, reads_.columns, reads_.stride};  // (n, Dk)
    const Real sign = by == reader::query ? Real(1) : Real(-1);
    for (index_t c = 0; c < rows.columns; ++c) factors_[c] = sign * static_cast<Real>(inverse ? 1 / pending[c] : pending[c]);
    weights_.multiply(way_, false, rows, rows, factors_, factors_, to, {});
    return {to, ones_, true};
  }

  weighed_rows<Real> writes(kernel::operand<Real> k, const double* pending, bool inverse) {
    for (index_t c = 0; c < k.columns; ++c) factors_[c] = static_cast<Real>(inverse ? 1 / pending[c] : pending[c]);
    const kernel::tile<Real> to = writes_.top(k.rows);  // (n, Dk)
    weights_.multiply(way_, false, k, k, factors_, factors_, {}, to);
    return {to, ones_, true};
  }

  void cross(double* pending) { largest_ = weights_.cross(pending); }

  kernel::row_decays<Real> decay() const { return kernel::row_decays<Real>(weights_.settle()); }
  double largest() const { return largest_; }

  static void store(const head_state<Real>& to, kernel::tile<Real> S, const double* pending, double entered = 1) {
    for (index_t c = 0; c < S.rows && to.S.data != nullptr; ++c)
      for (index_t d = 0; d < S.columns; ++d) to.S(c, d) = static_cast<Real>(pending[c] * entered * to.decay) * S.row(c)[d];
  }

 protected:
  channel_borders<Kernel, Real> weights_;
  kernel::tile<Real> reads_, writes_;  // (2 C, Dk) of queries, then of keys; (C, Dk)
  direction way_ = direction::forward;
  kernel::tile<const Real> k_;  // (n, Dk)
  Real *factors_, *nothing_;    // (Dk)
  Real* ones_;                  // (2 C)

 private:
  index_t C_;
  double largest_ = 1;
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
