// SPDX-License-Identifier: Apache-2.0
// How a sweep weighs its chunks. A sweep reads and writes a state through these weights and scores the pairs inside a chunk with
// them, and does not know whether a gap has one decay or a decay for each channel.
#pragma once

#include <bila/config.hpp>
#include <bila/form/decays.hpp>
#include <bila/form/two_sided_sweep.hpp>

#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The weights of gaps that have one decay. With S the state that enters a chunk and P the one that leaves it,
///
///     N_i += read_i q_i S,    P = decay S + sum_j write_j k_j v_j,    A_ji = M_ij (q_i . k_j)
///
/// S and P are stored without the factor that kernel::pending_decay collects, and the weights make up for it.
template <class Kernel, class Real>
class scalar_weights {
 public:
  scalar_weights(kernel::arena& memory, head_size head, index_t C)
      : M_(memory.padded<Kernel, Real>(C, C)),
        qt_(memory.padded<Kernel, Real>(head.Dk, C)),
        border_{memory.numbers<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)},
        now_{memory.zeros<Kernel, Real>(C), memory.numbers<Kernel, Real>(C)},
        decays_(memory, sweep_decays<Kernel>::tokens_for(C), std::type_identity<Kernel>()) {}

  /// How many decays are collected beside a state (carried_state::pending).
  static constexpr index_t pending(head_size) { return 1; }

  /// The weights of one sweep over tokens [first, last).
  class sweep {
   public:
    sweep(scalar_weights& w, carried_state<Kernel, Real>& passed, direction way, index_t C, index_t first, index_t last,
          bool finish, bool both)
        : w_(w),
          passed_(passed),
          state_(*passed.pending),
          way_(way),
          finish_(finish),
          gaps_(w.decays_, way, C, first, last, both) {}

    /// Computes the weights of the n tokens from token `at` on. q and k must outlive the uses of these weights.
    template <class T>
    void weigh(const head<T>& x, index_t at, kernel::operand<Real> q, kernel::operand<Real> k) {
      const index_t n = q.rows;
      const bool inner = at > 0 && at + n < x.q.count;
      if (x.mask.gaps == gap::per_token || !inner || !scanned_inner_ || n != scanned_) {
        const gap_decays decays = gaps_.of(x, at, n);
        scan_border(x, way_, at, decays, n, w_.border_);
        if (finish_) scan_block<Kernel>(x, at, kernel::tile<Real>{w_.M_.data, n, n, w_.M_.stride}, decays, x.diagonal);
        scanned_ = n;
        scanned_inner_ = inner;
      }
      const double before = state_.factor();
      decay_ = static_cast<Real>(state_.decay(w_.border_.total));
      kernel::weigh_borders(w_.border_, before, state_.factor(), n, w_.now_);
      q_ = &q, k_ = &k;
    }

    const auto& q() const { return *q_; }  // (n, Dk)
    const auto& k() const { return *k_; }  // (n, Dk)
    const Real* read() const { return w_.now_.read; }
    const Real* write() const { return w_.now_.write; }
    kernel::row_decays<Real> decay() const { return decay_; }
    kernel::state<Real> rest() const { return passed_.rest.after(w_.border_.total, 1); }

    /// Computes the scores inside the chunk, and adds to z the row sums: of the scores, and of what the queries read of s.
    void score(const kernel::tile<Real>& A, Real* z, const Real* s) {
      const kernel::tile<Real> qt{w_.qt_.data, q_->columns, q_->rows, w_.qt_.stride};  // (Dk, n)
      Kernel::transpose(qt, *q_);
      if (z != nullptr) Kernel::project_transposed(z, w_.now_.read, qt, s);
      Kernel::score(A, *k_, qt, w_.M_, z);
    }

    /// Ends the sweep. `last`: the state is the head's final state.
    template <class To>
    void finish(bool last, const To& to, Real* s) {
      *passed_.pending = state_.factor();
      if (last) store_final_state(to, passed_.S, s, state_.factor());
    }

   private:
    scalar_weights& w_;
    carried_state<Kernel, Real>& passed_;
    kernel::pending_decay state_;
    direction way_;
    bool finish_;
    sweep_decays<Kernel> gaps_;
    index_t scanned_ = 0;         // tokens of the chunk whose weights were computed last
    bool scanned_inner_ = false;  // whether that chunk has neighbours on both sides
    Real decay_ = 1;
    // Tiles of the chunk. Pointers, because copies of tiles stall the verbs that read them.
    const kernel::tile<const Real>*q_ = nullptr, *k_ = nullptr;
  };

 private:
  kernel::tile<Real> M_, qt_;                  // (C, C) rows are keys, columns are queries; (Dk, C)
  kernel::border_weights<Real> border_, now_;  // (C) weights at the chunk's borders; now: rescaled for the stored state
  gap_decays decays_;
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
