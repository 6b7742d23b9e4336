// SPDX-License-Identifier: Apache-2.0
// Two sweeps that meet in the middle. The forward sweep starts at the first token, the backward sweep at the last; up to the middle
// each leaves its part of the rows, beyond it each finds the other's and finishes them. No work is done twice, no state is kept,
// and the halves can run on two threads: the same sums in the same order as on one.
#pragma once

#include <bila/config.hpp>
#include <bila/form/compensation.hpp>
#include <bila/form/head.hpp>

#include <type_traits>

namespace bila::inline v0_1::form::inline BILA_UNIT {

/// A state as a sweep carries it from chunk to chunk.
template <class Kernel, class Real>
struct carried_state {
  carried_state(kernel::arena& memory, head_size size)
      : S(memory.padded<Kernel, Real>(size.Dk, size.Dv)),
        s(memory.numbers<Kernel, Real>(size.Dk)),
        held(memory.numbers<Kernel, double>(1)),
        rest(memory, size.Dk, size.Dv, size.Dk, std::type_identity<Kernel>()) {}

  void start(const head_state<const Real>& from) const {
    form::start<Kernel>(S, s, from);
    if (from.given()) decay(S, s, S.rows, from.decay);
    *held = 1;
    rest.start();
  }

  kernel::tile<Real> S;     // (Dk, Dv)
  Real* s;                  // (Dk) its row sums
  double* held;             // the true state is held times this one
  compensation<Real> rest;  // (Dk, Dv) (Dk)
};

/// What one half passes on to the other. The two states lie far apart: side by side, the prefetchers of two cores take each other's
/// lines away, and the recurrent form gains nothing from a second thread.
template <class Kernel, class Real>
struct meeting {
  meeting(kernel::arena& memory, head_size size, bool narrow_storage)
      : forward(memory, size),
        z(memory.numbers<Kernel, Real>(size.L)),
        left(memory.padded<Kernel, Real>(narrow_storage ? size.L : 0, size.Dv)),
        apart(memory.numbers<Kernel, double>(512)),
        backward(memory, size) {}

  using state = carried_state<Kernel, Real>;

  state& way(direction w) { return w == direction::forward ? forward : backward; }

  state forward;
  Real* z;                  // (L) row sums so far
  kernel::tile<Real> left;  // (L, Dv) rows so far, where y would round them
  double* apart;            // a page
  state backward;
};

/// Where the kernel writes rows [first, first + n) for the other sweep: y, unless y would round them.
template <class Kernel, class T, class Real>
kernel::tile<Real> rows_to_leave(const head<T>& x, const meeting<Kernel, Real>& m, index_t first, index_t n,
                                 kernel::tile<Real> room) {
  if constexpr (is_narrow<T>)
    return {m.left.row(first), n, m.left.columns, m.left.stride};
  else
    return kernel::results<Kernel>(x.y.slice(first, n), room);
}

/// Has the kernel write them.
template <class Kernel, class T, class Real, class Write>
void leave_rows(const head<T>& x, const meeting<Kernel, Real>& m, index_t first, index_t n, kernel::tile<Real> room,
                const Write& write) {
  const kernel::tile<Real> rows = rows_to_leave(x, m, first, n, room);  // (n, Dv)
  write(rows);
  if constexpr (!is_narrow<T>) kernel::store(x.y.slice(first, n), rows);
}

template <class Kernel, class T, class Real>
kernel::tile<const Real> left_rows(const head<T>& x, const meeting<Kernel, Real>& m, index_t first, index_t n,
                                   kernel::tile<Real> room) {
  if constexpr (is_narrow<T>)
    return {m.left.row(first), n, m.left.columns, m.left.stride};
  else
    return kernel::whole_packets<Kernel>(rows<const T>(x.y.slice(first, n)), room);
}

/// Tokens [first, first + n) and the rows that belong to them, for a kernel that has work before it comes to them.
template <class T>
void want_tokens(kernel::ahead& next, const head<T>& x, index_t first, index_t n) {
  next.want(x.q, first, n);
  next.want(x.k, first, n);
  next.want(x.v, first, n);
  next.want(x.y, first, n);
}

/// What a sweep over some of the tokens has to do with their rows.
struct duties {
  bool finish;      // adds what lies inside the chunk, and normalises
  bool other_left;  // starts from what the other sweep left
};

/// Calls sweep(way, first, last, duties) for the tokens first <= t < last that this share covers; middle is a chunk's border.
template <class T, class Sweep>
void meet(const head<T>& x, share part, index_t middle, const Sweep& sweep) {
  constexpr auto forward = direction::forward, backward = direction::backward;
  const index_t L = x.q.count;
  if (x.direction == forward) return sweep(forward, 0, L, duties{.finish = true, .other_left = false});
  if (x.direction == backward) return sweep(backward, 0, L, duties{.finish = true, .other_left = false});
  constexpr duties leave{.finish = false, .other_left = false}, finish{.finish = true, .other_left = true};
  if (part.at != stage::finishing) {
    if (part.has_half(0) && middle > 0) sweep(forward, 0, middle, leave);
    if (part.has_half(1) && middle < L) sweep(backward, middle, L, leave);
  }
  if (part.at != stage::leaving) {
    if (part.has_half(1) && middle < L) sweep(forward, middle, L, finish);
    if (part.has_half(0) && middle > 0) sweep(backward, 0, middle, finish);
  }
}

}  // namespace bila::inline v0_1::form::inline BILA_UNIT
