// SPDX-License-Identifier: Apache-2.0
// The weights of one chunk of one head: what crosses its borders, and the dense block inside it.
#pragma once

#include <bila/form/head.hpp>
#include <bila/kernel/scan.hpp>

#include <type_traits>

namespace bila::inline v0_1::form {

constexpr direction other(direction way) { return way == direction::forward ? direction::backward : direction::forward; }

/// The decays of the gaps of some tokens, either way, in double.
struct gap_decays {
  template <class Kernel>
  gap_decays(kernel::arena& memory, index_t n, std::type_identity<Kernel>)
      : forward(memory.numbers<Kernel, double>(n + 1)), backward(memory.numbers<Kernel, double>(n + 1)) {}

  template <direction Way>
  double* way() const {
    return Way == direction::forward ? forward : backward;
  }

  /// Of the tokens from the m-th on.
  gap_decays after(index_t m) const {
    gap_decays later = *this;
    later.forward += m;
    later.backward += m;
    return later;
  }

  double *forward, *backward;  // (n + 1) of gap m, the one before token m, 0 <= m <= n
};

/// Of the gaps of tokens [first, first + n), crossed this way; a given state enters by the one before the head's first token or
/// after its last.
template <class Kernel, direction Way, class T, class Mask>
void fill_decays(const head<T, Mask>& x, index_t first, index_t n, double* lambda) {
  const bool starts = first == 0, ends = first + n == x.k.count;
  if constexpr (Mask::gaps == gap::per_token) {
    lambda[0] = lambda[n] = 0;
    for (index_t m = starts; m <= n - ends; ++m) lambda[m] = x.mask.template log_decay<Way>(first + m);
    Kernel::exponentials(lambda, n + 1);
  } else {
    std::fill_n(lambda, n + 1, x.mask.template decay<Way>(1));
  }
  if (starts) lambda[0] = x.template initial<Way>().decay;
  if (ends) lambda[n] = x.template initial<Way>().decay;
}

/// The decays of a sweep's chunks, filled for several of them at a time: a gap between two chunks belongs to both, and exponentials
/// of 16 tokens wait for each other, 1 % of a selective sweep.
template <class Kernel, direction Way>
class sweep_decays {
 public:
  static constexpr index_t tokens_for(index_t C) { return (std::max)(C, 128 / C * C); }

  sweep_decays(const gap_decays& room, index_t C, index_t first, index_t last, bool both)
      : room_(room), C_(C), first_(first), last_(last), both_(both) {}

  template <class T, class Mask>
  gap_decays of(const head<T, Mask>& x, index_t at, index_t n) {
    if (at < begin_ || end_ < at + n) {
      const index_t tokens = tokens_for(C_);
      begin_ = Way == direction::forward ? at : (std::max)(first_, at + C_ - tokens);
      end_ = Way == direction::forward ? (std::min)(at + tokens, last_) : at + n;
      fill_decays<Kernel, Way>(x, begin_, end_ - begin_, room_.template way<Way>());
      if (both_) fill_decays<Kernel, other(Way)>(x, begin_, end_ - begin_, room_.template way<other(Way)>());
    }
    return room_.after(at - begin_);
  }

 private:
  gap_decays room_;
  index_t C_, first_, last_;
  bool both_;
  index_t begin_ = 0, end_ = 0;  // tokens whose decays are at hand
};

template <direction Way, class Real>
void scan_border(const gap_decays& decays, index_t n, kernel::border_weights<Real>& border) {
  if constexpr (Way == direction::forward)
    kernel::scan_forward(border, decays.forward, n);
  else
    kernel::scan_backward(border, decays.backward, n);
}

/// M_ji (n, n) of key j and query i, from the decays of the ways that the call looks; zeros where it does not.
template <class Kernel, class T, class Mask, class Real>
void scan_block(const head<T, Mask>& x, kernel::tile<Real> M, const gap_decays& decays, double diagonal) {
  Kernel::scan_square(M, x.direction == direction::backward ? nullptr : decays.forward,
                      x.direction == direction::forward ? nullptr : decays.backward);
  for (index_t i = 0; i < M.rows; ++i) M.row(i)[i] = static_cast<Real>(diagonal);
}

}  // namespace bila::inline v0_1::form
