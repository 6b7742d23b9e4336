// SPDX-License-Identifier: Apache-2.0
// The weights of one chunk of one head: the decays at the chunk's borders, and the dense block inside the chunk.
#pragma once

#include <bila/config.hpp>
#include <bila/form/ends.hpp>
#include <bila/form/head.hpp>
#include <bila/kernel/scan.hpp>

#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The decays of the gaps around n tokens, for both directions, in double.
struct gap_decays {
  template <class Kernel>
  gap_decays(kernel::arena& memory, index_t n, std::type_identity<Kernel>)
      : forward(memory.numbers<Kernel, double>(n + 1)), backward(memory.numbers<Kernel, double>(n + 1)) {}

  explicit gap_decays(double* ahead, double* back) : forward(ahead), backward(back) {}

  double* way(direction w) const { return w == direction::forward ? forward : backward; }

  /// The decays of the gaps around the tokens from token m on.
  gap_decays after(index_t m) const {
    gap_decays later = *this;
    later.forward += m;
    later.backward += m;
    return later;
  }

  double *forward, *backward;  // (n + 1) decay of gap m, which lies before token m, 0 <= m <= n
};

/// Writes the decays of the gaps around tokens [first, first + n), crossed in direction `way`. The gaps before the head's first
/// token and after its last get decay 1: a given state has crossed its gap before the sweep starts.
template <class Kernel, class T>
BILA_NOINLINE void fill_decays(const head<T>& x, direction way, index_t first, index_t n, double* lambda) {
  if (x.mask.ends != nullptr) return void(std::copy_n(x.mask.ends->decays(way) + first, n + 1, lambda));
  const bool starts = first == 0, ends = first + n == x.k.count;
  if (x.mask.gaps == gap::per_token) {
    lambda[0] = lambda[n] = 0;
    x.mask.log_decays(way, first + starts, n + 1 - starts - ends, lambda + starts);
    Kernel::exponentials(lambda, n + 1);
  } else {
    std::fill_n(lambda, n + 1, x.k.count > 1 ? x.mask.decay(way, 1) : 1.0);  // a single token has no gap between tokens
  }
  if (starts) lambda[0] = 1;
  if (ends) lambda[n] = 1;
}

/// The decays of a sweep's chunks, computed for several chunks at a time. Two neighbouring chunks share a gap, and exponentials of
/// only 16 tokens keep the processor waiting. Both together would cost 1 % of a selective sweep.
template <class Kernel>
class sweep_decays {
 public:
  static constexpr index_t tokens_for(index_t C) { return (std::max)(C, 128 / C * C); }

  sweep_decays(const gap_decays& scratch, direction way, index_t C, index_t first, index_t last, bool both)
      : scratch_(scratch), way_(way), C_(C), first_(first), last_(last), both_(both) {}

  template <class T>
  gap_decays of(const head<T>& x, index_t at, index_t n) {
    if (x.mask.ends != nullptr) return gap_decays(x.mask.ends->forward, x.mask.ends->backward).after(at);
    if (at < begin_ || end_ < at + n) {
      const index_t tokens = tokens_for(C_);
      begin_ = way_ == direction::forward ? at : (std::max)(first_, at + C_ - tokens);
      end_ = way_ == direction::forward ? (std::min)(at + tokens, last_) : at + n;
      fill_decays<Kernel>(x, way_, begin_, end_ - begin_, scratch_.way(way_));
      if (both_) fill_decays<Kernel>(x, other(way_), begin_, end_ - begin_, scratch_.way(other(way_)));
    }
    return scratch_.after(at - begin_);
  }

 private:
  gap_decays scratch_;
  direction way_;
  index_t C_, first_, last_;
  bool both_;
  index_t begin_ = 0, end_ = 0;  // tokens whose decays are in scratch_
};

/// Computes the weights at the borders of tokens [first, first + n), whose decays are given.
template <class T, class Real>
void scan_border(const head<T>& x, direction way, index_t first, const gap_decays& decays, index_t n,
                 kernel::border_weights<Real>& border) {
  if (way == direction::forward)
    kernel::scan_forward(border, decays.forward, n);
  else
    kernel::scan_backward(border, decays.backward, n);
  if (x.mask.ends != nullptr) x.mask.ends->weigh_border(way, first, n, border);
}

/// Fills M_ji (n, n) of key j and query i, tokens from `first` on, with the products of decays. Weights that the call's direction
/// hides are zero.
template <class Kernel, class T, class Real>
void scan_block(const head<T>& x, index_t first, kernel::tile<Real> M, const gap_decays& decays, double diagonal) {
  Kernel::scan_square(M, x.direction == direction::backward ? nullptr : decays.forward,
                      x.direction == direction::forward ? nullptr : decays.backward);
  for (index_t i = 0; i < M.rows; ++i) M.row(i)[i] = static_cast<Real>(diagonal);
  if (x.mask.ends != nullptr) x.mask.ends->weigh_block(first, M);
}

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
