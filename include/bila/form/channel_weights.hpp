// SPDX-License-Identifier: Apache-2.0
// How a sweep weighs its chunks if each channel has decays of its own: q and k are multiplied by their decays, so that the verbs
// need no weights.
#pragma once

#include <bila/config.hpp>
#include <bila/form/two_sided_sweep.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/kernel/scan.hpp>

#include <algorithm>
#include <cmath>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The decays of the gaps around n tokens, a row of Dk for each gap: row m is the gap before token m.
template <class Kernel, class Real>
struct channel_decays {
  channel_decays(kernel::arena& memory, index_t n, index_t Dk)
      : forward(memory.padded<Kernel, Real>(n + 1, Dk)), backward(memory.padded<Kernel, Real>(n + 1, Dk)) {}

  kernel::tile<Real> way(direction w, index_t n) const { return (w == direction::forward ? forward : backward).top(n + 1); }

  kernel::tile<Real> forward, backward;  // (n + 1, Dk)
};

/// Writes the log decays of the gaps around tokens [first, first + n), crossed in direction `way`. The gap before the first token
/// of a sweep is that of its initial state: an exclusive read of this token does not cross it.
template <class T, class Real>
BILA_NOINLINE void fill_channel_logs(const head<T>& x, direction way, index_t first, index_t n, const kernel::tile<Real>& E) {
  const bool starts = first == 0, ends = first + n == x.k.count;
  x.mask.channels(way, first + starts, {E.row(starts), n + 1 - starts - ends, E.columns, E.stride});
  for (index_t m = 0; m <= n; ++m)
    std::fill(E.row(m) + E.columns, E.row(m) + E.stride, Real(0));  // exp of the padding stays finite
  const rows<const Real>& entering = x.initial(way).log_decays;
  const auto fill_border = [&](index_t m, bool enters) {
    for (index_t c = 0; c < E.columns; ++c)
      E.row(m)[c] = enters && entering.data != nullptr ? (std::min)(Real(0), entering(0, c)) : Real(0);
  };
  if (starts) fill_border(0, way == direction::forward);
  if (ends) fill_border(n, way == direction::backward);
}

/// rows_along: the rows of a chunk in the order of the sweep. gaps_along: of its n + 1 gaps, the one that the sweep crosses before
/// each row.
template <class Real>
kernel::tile<Real> rows_along(direction way, const kernel::tile<Real>& x) {
  return way == direction::forward || x.data == nullptr ? x : kernel::reversed(x);
}

template <class Real>
kernel::tile<const Real> gaps_along(direction way, const kernel::tile<Real>& E) {
  const index_t n = E.rows - 1;
  if (way == direction::forward) return E.top(n);
  return kernel::tile<const Real>{E.row(n), n, E.columns, -E.stride};
}

/// Writes the weights of the channels for a query's own token, times `diagonal`.
template <class T, class Real>
void fill_own_channels(const head<T>& x, double diagonal, Real* own) {
  std::fill_n(own, x.q.width, Real(1));
  if (x.mask.ask_bonus != nullptr) x.mask.bonus(x.q.width, own);
  for (index_t c = 0; c < x.q.width; ++c) own[c] *= static_cast<Real>(diagonal);
}

/// The decays of a chunk whose gaps have a decay for each channel, and what a state must be multiplied by when it crosses the
/// chunk. A decay of a token is an exponential in Real. The decay of a state over a whole chunk is an exponential of the summed
/// logs in double, so a state does not drift.
template <class Kernel, class Real>
class channel_borders {
 public:
  channel_borders(kernel::arena& memory, head_size head, index_t C)
      : decays_(memory, C, head.Dk),
        read_(memory.zeros<Kernel, Real>(head.Dk)),
        write_(memory.zeros<Kernel, Real>(head.Dk)),
        settle_(memory.zeros<Kernel, Real>(head.Dk)),
        total_(memory.numbers<Kernel, double>(head.Dk)),
        Dk_(head.Dk) {}

  static constexpr index_t pending(head_size head) { return head.Dk; }

  /// Computes the decays around tokens [at, at + n), crossed in direction `way`, and those of the whole chunk.
  template <class T>
  BILA_NOINLINE void measure(const head<T>& x, direction way, index_t at, index_t n) {
    const kernel::tile<Real> E = decays_.way(way, n);  // (n + 1, Dk)
    fill_channel_logs(x, way, at, n, E);
    const kernel::tile<Real> crossed{E.row(way == direction::forward ? 0 : 1), n, E.columns, E.stride};  // (n, Dk)
    Kernel::column_sums(total_, crossed);
    Kernel::exponentials(total_, E.columns);
    Kernel::exponentials(E);
  }

  /// Lets a state cross the chunk. `pending` is what the stored state has not been multiplied by, and is updated; settle() is what
  /// the stored state must now be multiplied by. Returns the largest decay of a channel over the chunk.
  BILA_NOINLINE double cross(double* pending) {
    double largest = 0;
    for (index_t c = 0; c < Dk_; ++c) {
      const double before = pending[c], after = before * total_[c];
      const kernel::split_number split = kernel::split_decay(after);
      const bool settles = after < 0.5;
      pending[c] = settles ? split.factor : after;
      read_[c] = static_cast<Real>(before);
      settle_[c] = settles ? static_cast<Real>(split.power) : Real(1);
      write_[c] = static_cast<Real>(1 / pending[c]);
      largest = (std::max)(largest, total_[c]);
    }
    return largest;
  }

  template <class T>
  double weigh(const head<T>& x, direction way, index_t at, index_t n, double* pending) {
    measure(x, way, at, n);
    return cross(pending);
  }

  /// Writes q o alpha and k o omega for the chunk of the last measure(), times read and write, a factor for each channel. With an
  /// empty qa or kw only the other is written.
  void multiply(direction way, bool exclusive, kernel::operand<Real> q, kernel::operand<Real> k, const Real* read,
                const Real* write, const kernel::tile<Real>& qa, const kernel::tile<Real>& kw) {
    Kernel::weigh_channels(rows_along(way, qa), rows_along(way, kw), rows_along(way, q), rows_along(way, k),
                           gaps_along(way, decays_.way(way, q.rows)), read, write, exclusive);
  }

  const Real* read() const { return read_; }      // (Dk) what the stored state must be multiplied by before the chunk
  const Real* write() const { return write_; }    // (Dk) what a token must be multiplied by for the stored state after it
  const Real* settle() const { return settle_; }  // (Dk) powers of two for the stored state
  const double* total() const { return total_; }  // (Dk) decays over the chunk
  kernel::tile<Real> decays(direction way, index_t n) const { return decays_.way(way, n); }  // (n + 1, Dk)

  /// Computes the decays of the gaps around tokens [at, at + n) alone.
  template <class T>
  void fill(const head<T>& x, direction way, index_t at, index_t n) {
    const kernel::tile<Real> E = decays_.way(way, n);
    fill_channel_logs(x, way, at, n, E);
    Kernel::exponentials(E);
  }

 protected:
  channel_decays<Kernel, Real> decays_;  // (C + 1, Dk)
  Real *read_, *write_, *settle_;        // (Dk)
  double* total_;                        // (Dk) decays over a chunk

 private:
  index_t Dk_;
};

/// The weights of gaps that have a decay for each channel. With alpha_i the decays from where the sweep enters the chunk to token
/// i, and omega_j those from token j to where it leaves the chunk,
///
///     N_i += (q_i o alpha_i) S,    P = decay o S + sum_j (k_j o omega_j) v_j
template <class Kernel, class Real>
class channel_weights : public channel_borders<Kernel, Real> {
 public:
  channel_weights(kernel::arena& memory, head_size head, index_t C)
      : channel_borders<Kernel, Real>(memory, head, C),
        qa_(memory.padded<Kernel, Real>(C, head.Dk)),
        kw_(memory.padded<Kernel, Real>(C, head.Dk)),
        own_(memory.zeros<Kernel, Real>(head.Dk)),
        ones_(memory.numbers<Kernel, Real>(C)) {}

  /// Computes the weights of the channels for a query's own token, times `diagonal`.
  template <class T>
  const Real* own(const head<T>& x, double diagonal) {
    fill_own_channels(x, diagonal, own_);
    return own_;
  }

  /// The weights of one sweep over tokens [first, last).
  class sweep {
   public:
    sweep(channel_weights& w, carried_state<Kernel, Real>& passed, direction way, index_t C, index_t, index_t, bool finish,
          bool both)
        : w_(w), passed_(passed), way_(way), finish_(finish), both_(both) {
      std::fill_n(w.ones_, C, Real(1));
    }

    /// Computes the weights of the n tokens from token `at` on. q and k must outlive the uses of these weights.
    template <class T>
    void weigh(const head<T>& x, index_t at, kernel::operand<Real> q, kernel::operand<Real> k) {
      const index_t n = q.rows;
      total_ = w_.weigh(x, way_, at, n, passed_.pending);
      qa_ = w_.qa_.top(n), kw_ = w_.kw_.top(n);
      w_.multiply(way_, x.mask.exclusive, q, k, w_.read_, w_.write_, w_.qa_.top(n), w_.kw_.top(n));
      if (!finish_) return;
      if (both_) w_.fill(x, other(way_), at, n);
      w_.own(x, x.diagonal);
      up_ = x.direction == direction::backward ? kernel::tile<const Real>{} : w_.decays_.forward.top(n);
      down_ = x.direction == direction::forward ? kernel::tile<const Real>{} : w_.decays_.backward.top(n);
      q_ = &q, k_ = &k;
      exclusive_ = x.mask.exclusive;
    }

    const auto& q() const { return qa_; }  // (n, Dk)
    const auto& k() const { return kw_; }  // (n, Dk)
    const Real* read() const { return w_.ones_; }
    const Real* write() const { return nullptr; }
    kernel::row_decays<Real> decay() const { return kernel::row_decays<Real>(w_.settle_); }
    kernel::state<Real> rest() const { return passed_.rest.after(total_, 1); }

    /// Computes the scores inside the chunk, and adds to z the row sums: of the scores, and of what the queries read of s.
    void score(const kernel::tile<Real>& A, Real* z, const Real* s) {
      if (z != nullptr) Kernel::project(z, w_.ones_, qa_, s);
      Kernel::score_channels(A, z, *k_, *q_, up_, down_, w_.own_, exclusive_);
    }

    /// Ends the sweep. `last`: the state is the head's final state.
    template <class To>
    void finish(bool last, const To& to, Real* s) {
      if (!last || !to.given()) return;
      for (index_t c = 0; c < passed_.S.rows; ++c) {
        const Real factor = static_cast<Real>(passed_.pending[c]);
        for (index_t d = 0; d < passed_.S.stride; ++d) passed_.S.row(c)[d] *= factor;
        if (s != nullptr) s[c] *= factor;
      }
      store_final_state(to, passed_.S, s, 1);
    }

   private:
    channel_weights& w_;
    carried_state<Kernel, Real>& passed_;
    direction way_;
    bool finish_, both_, exclusive_ = false;
    double total_ = 1;
    kernel::tile<const Real> qa_, kw_, up_, down_;
    const kernel::tile<const Real>*q_ = nullptr, *k_ = nullptr;
  };

 private:
  kernel::tile<Real> qa_, kw_;  // (C, Dk) q o alpha, k o omega
  Real *own_, *ones_;           // (Dk) (C)
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
