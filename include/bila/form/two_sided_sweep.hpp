// SPDX-License-Identifier: Apache-2.0
// The two-sided sweep. The forward sweep starts at the first token, the backward sweep at the last. In the first pass each goes as
// far as the middle and stores its part of the rows; in the second pass each goes on over the other's half, adds its own part to
// the rows and finishes them. No work is done twice, no state is stored, and the two halves can run on two threads: the sums and
// their order are the same as on one.
#pragma once

#include <bila/config.hpp>
#include <bila/form/compensation.hpp>
#include <bila/form/head.hpp>

#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// A state as a sweep carries it from chunk to chunk.
template <class Kernel, class Real>
struct carried_state {
  carried_state(kernel::arena& memory, head_size size)
      : S(memory.padded<Kernel, Real>(size.Dk, size.Dv)),
        s(memory.numbers<Kernel, Real>(size.Dk)),
        pending(memory.numbers<Kernel, double>(1)),
        rest(memory, size.Dk, size.Dv, size.Dk, std::type_identity<Kernel>()) {}

  void load(const head_state<const Real>& from) const {
    load_initial_state<Kernel>(S, s, from);
    if (from.given()) decay(S, s, S.rows, from.decay);
    *pending = 1;
    rest.start();
  }

  kernel::tile<Real> S;     // (Dk, Dv)
  Real* s;                  // (Dk) its row sums
  double* pending;          // the true state is so many times this one
  compensation<Real> rest;  // (Dk, Dv) (Dk)
};

/// What lives from the first pass to the second: the two states and the rows so far. The states lie far apart: side by side, the
/// prefetchers of two cores take each other's lines away, and the recurrent form gains nothing from a second thread.
template <class Kernel, class Real>
struct two_sided_sweep {
  two_sided_sweep(kernel::arena& memory, head_size size, bool narrow_storage)
      : forward(memory, size),
        z(memory.numbers<Kernel, Real>(size.L)),
        partial(memory.padded<Kernel, Real>(narrow_storage ? size.L : 0, size.Dv)),
        apart(memory.numbers<Kernel, double>(512)),
        backward(memory, size) {}

  using state = carried_state<Kernel, Real>;

  state& way(direction w) { return w == direction::forward ? forward : backward; }

  state forward;
  Real* z;                     // (L) row sums so far
  kernel::tile<Real> partial;  // (L, Dv) rows so far, where y would round them
  double* apart;               // a page
  state backward;
};

/// Where the first pass writes rows [first, first + n): y, unless y would round them.
template <class Kernel, class T, class Real>
kernel::tile<Real> rows_for_partial(const head<T>& x, const two_sided_sweep<Kernel, Real>& m, index_t first, index_t n,
                                    kernel::tile<Real> scratch) {
  if constexpr (is_narrow<T>)
    return {m.partial.row(first), n, m.partial.columns, m.partial.stride};
  else
    return kernel::results<Kernel>(x.y.slice(first, n), scratch);
}

/// Has write(tile) write them there.
template <class Kernel, class T, class Real, class Write>
void store_partial(const head<T>& x, const two_sided_sweep<Kernel, Real>& m, index_t first, index_t n, kernel::tile<Real> scratch,
                   const Write& write) {
  const kernel::tile<Real> rows = rows_for_partial(x, m, first, n, scratch);  // (n, Dv)
  write(rows);
  if constexpr (!is_narrow<T>) kernel::store(x.y.slice(first, n), rows);
}

template <class Kernel, class T, class Real>
kernel::tile<const Real> partial_rows(const head<T>& x, const two_sided_sweep<Kernel, Real>& m, index_t first, index_t n,
                                      kernel::tile<Real> scratch) {
  if constexpr (is_narrow<T>)
    return {m.partial.row(first), n, m.partial.columns, m.partial.stride};
  else
    return kernel::whole_packets<Kernel>(rows<const T>(x.y.slice(first, n)), scratch);
}

/// Has the kernels that come before tokens [first, first + n) prefetch them and their rows of y.
template <class T>
void prefetch_tokens(kernel::prefetch_queue& next, const head<T>& x, index_t first, index_t n) {
  next.add(x.q, first, n);
  next.add(x.k, first, n);
  next.add(x.v, first, n);
  next.add(x.y, first, n);
}

/// What a sweep does with the rows of its tokens.
struct sweep_flags {
  bool finish;       // adds what lies inside the chunk, and normalises
  bool has_partial;  // starts from what the other sweep stored
};

/// Calls sweep(way, first, last, sweep_flags) for the tokens first <= t < last that this split covers; middle is a chunk's border.
template <class T, class Sweep>
void run_two_sided_sweep(const head<T>& x, split part, index_t middle, const Sweep& sweep) {
  constexpr auto forward = direction::forward, backward = direction::backward;
  const index_t L = x.q.count;
  if (x.direction == forward) return sweep(forward, 0, L, sweep_flags{.finish = true, .has_partial = false});
  if (x.direction == backward) return sweep(backward, 0, L, sweep_flags{.finish = true, .has_partial = false});
  constexpr sweep_flags first{.finish = false, .has_partial = false}, second{.finish = true, .has_partial = true};
  if (part.at != sweep_pass::second) {
    if (part.has_half(0) && middle > 0) sweep(forward, 0, middle, first);
    if (part.has_half(1) && middle < L) sweep(backward, middle, L, first);
  }
  if (part.at != sweep_pass::first) {
    if (part.has_half(1) && middle < L) sweep(forward, middle, L, second);
    if (part.has_half(0) && middle > 0) sweep(backward, 0, middle, second);
  }
}

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
