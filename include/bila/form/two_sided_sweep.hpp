// SPDX-License-Identifier: Apache-2.0
// The two-sided sweep. The forward sweep starts at the first token, the backward sweep at the last. In the first pass each sweep
// runs as far as the middle and stores its part of the rows. In the second pass each sweep runs over the other half, adds its own
// part to the stored rows and finishes them. No work is done twice and no state is stored. The two halves can run on two threads,
// with the same sums in the same order as on one thread.
#pragma once

#include <bila/config.hpp>
#include <bila/form/compensation.hpp>
#include <bila/form/head.hpp>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The state that a sweep carries from chunk to chunk.
template <class Kernel, class Real>
struct carried_state {
  carried_state(kernel::arena& memory, head_size size, index_t decays = 1)
      : S(memory.padded<Kernel, Real>(size.Dk, size.Dv)),
        s(memory.numbers<Kernel, Real>(size.Dk)),
        pending(memory.numbers<Kernel, double>(decays)),
        rest(memory, size.Dk, size.Dv, size.Dk, std::type_identity<Kernel>()),
        decays_(decays) {}

  void load(const head_state<const Real>& from) const {
    load_initial_state<Kernel>(S, s, from);
    decay_initial_state(S, s, from);
    std::fill_n(pending, decays_, 1.0);
    rest.start();
  }

  kernel::tile<Real> S;     // (Dk, Dv)
  Real* s;                  // (Dk) the column for row sums, sum_j k_j
  double* pending;          // (1), or (Dk) for decays per channel: the true state is this factor times the stored one
  compensation<Real> rest;  // (Dk, Dv) (Dk) rounding errors of S and s

 private:
  index_t decays_;  // numbers in pending
};

/// The memory that the first pass hands to the second: two states and the rows so far. The states lie a page apart. Otherwise the
/// prefetchers of two cores take cache lines from each other, and the recurrent form gains nothing from a second thread.
template <class Kernel, class Real>
struct two_sided_sweep {
  two_sided_sweep(kernel::arena& memory, head_size size, bool narrow_storage, index_t decays = 1)
      : forward(memory, size, decays),
        z(memory.numbers<Kernel, Real>(size.L)),
        partial(memory.padded<Kernel, Real>(narrow_storage ? size.L : 0, size.Dv)),
        apart(memory.numbers<Kernel, double>(512)),
        backward(memory, size, decays) {}

  using state = carried_state<Kernel, Real>;

  state& way(direction w) { return w == direction::forward ? forward : backward; }

  state forward;
  Real* z;                     // (L) row sums so far
  kernel::tile<Real> partial;  // (L, Dv) rows so far, if storing them in y would round them
  double* apart;               // a page between the two states
  state backward;
};

/// The tile to which the first pass writes rows [first, first + n): y, or `partial` if y would round them.
template <class Kernel, class T, class Real>
kernel::tile<Real> rows_for_partial(const head<T>& x, const two_sided_sweep<Kernel, Real>& m, index_t first, index_t n,
                                    kernel::tile<Real> scratch) {
  if constexpr (is_narrow<T>)
    return {m.partial.row(first), n, m.partial.columns, m.partial.stride};
  else
    return kernel::results<Kernel>(x.y.slice(first, n), scratch);
}

/// Calls write(tile) with the tile of rows_for_partial(), then stores the rows in y if the tile is scratch.
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

/// Queues what the next chunk of a sweep reads, tokens [first, first + n) and their rows of y. The verbs of the current chunk
/// prefetch it.
template <class T>
void prefetch_tokens(kernel::prefetch_queue& next, const head<T>& x, direction way, index_t first, index_t n) {
  x.mask.prefetch_channels(way, first, n, next);
  next.add(x.q, first, n);
  next.add(x.k, first, n);
  next.add(x.v, first, n);
  next.add(x.y, first, n);
}

/// What a sweep does with the rows of its tokens.
struct sweep_flags {
  bool finish;       // the sweep adds the pairs inside the chunk, and normalises
  bool has_partial;  // the sweep starts from the rows that the other sweep stored
};

/// Calls sweep(way, first, last, sweep_flags) for each range [first, last) of this split's tokens. `middle` is a border of chunks.
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
