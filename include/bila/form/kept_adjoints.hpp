// SPDX-License-Identifier: Apache-2.0
// What the gradients in chunks share: the adjoints of states that a pass keeps, the order in which it visits chunks, and the sums
// of dq, dk and dv to which the passes of both directions add.
#pragma once

#include <bila/config.hpp>
#include <bila/form/compensation.hpp>
#include <bila/form/head_gradient.hpp>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// How many adjoints are kept. Chunks are grouped into spans: one adjoint is kept for each chunk of the current span, and one for
/// each span.
struct keeping {
  index_t chunks, spans;

  /// For L tokens in chunks of `size`. With `recompute` a span has about sqrt(chunks) chunks, without it all chunks.
  static keeping for_tokens(index_t L, index_t size, bool recompute) {
    const index_t chunks = std::max<index_t>(1, (L + size - 1) / size);
    if (!recompute) return {chunks, 1};
    const auto side = static_cast<index_t>(std::ceil(std::sqrt(static_cast<double>(chunks))));
    return {side, (chunks + side - 1) / side};
  }
};

/// What a pass over the tokens does.
struct pass_flags {
  direction way;
  bool row_sums;  // whether the norm uses row sums
  bool first;     // whether this pass starts the sums dq, dk, dv
  bool dense;     // whether this pass is the last: it adds the pairs inside each chunk, and finishes the sums
};

/// The tokens of a chunk. `step` counts the chunks along the direction.
struct place {
  place(direction way, index_t step, index_t L, index_t C) {
    const index_t chunks = (L + C - 1) / C;
    first = (way == direction::forward ? step : chunks - 1 - step) * C;
    count = (std::min)(C, L - first);
  }
  index_t first, count;
};

/// A chunk's part of a gradient. `to` is the gradient's own memory if its rows are whole packets, else scratch.
template <class Real>
struct running_sum {
  kernel::tile<Real> to;
  bool started;  // true: `to` has sums of earlier passes or heads; false: `to` has no content yet

  kernel::tile<const Real> partial() const { return started ? to : kernel::tile<const Real>{}; }
};

template <class Kernel, class T, class Real>
running_sum<Real> open_sum(const gradient_rows<T>& g, index_t first, kernel::tile<Real> scratch_tile, pass_flags flags) {
  if (g.out.data == nullptr) return {scratch_tile, false};
  const rows<Real> sum = g.sum.slice(first, scratch_tile.rows);
  const running_sum<Real> x{kernel::results<Kernel>(sum, scratch_tile), !g.first || !flags.first};
  if (x.started && x.to.data == scratch_tile.data) kernel::load(scratch_tile, rows<const Real>(sum));
  return x;
}

template <class T, class Real>
void close_sum(const gradient_rows<T>& g, index_t first, kernel::tile<Real> x, pass_flags flags) {
  if (g.out.data == nullptr) return;
  if (g.last && flags.dense)
    kernel::store(g.out.slice(first, x.rows), x);
  else
    kernel::store(g.sum.slice(first, x.rows), x);
}

template <class T>
void prefetch_chunk(const head<T>& x, const head_gradient<T>& g, place at, kernel::prefetch_queue& next, pass_flags flags) {
  x.mask.prefetch_channels(flags.way, at.first, at.count, next);
  next.add(x.q, at.first, at.count);
  next.add(x.k, at.first, at.count);
  next.add(x.v, at.first, at.count);
  next.add(g.dy, at.first, at.count);
  if (flags.first) return;
  if (g.q.out.data != nullptr) next.add(g.q.sum, at.first, at.count);
  if (g.k.out.data != nullptr) next.add(g.k.sum, at.first, at.count);
  if (g.v.out.data != nullptr) next.add(g.v.sum, at.first, at.count);
}

/// The adjoints R of states after chunks, and their columns r for row sums.
template <class Kernel, class Real>
struct kept_adjoints {
  /// `decays`: how many factors each stored adjoint has, by which it must be multiplied to give the true one: 1, or Dk with decays
  /// per channel.
  kept_adjoints(kernel::arena& memory, head_size head, keeping kept, index_t decays)
      : rest(memory, head.Dk, head.Dv, head.Dk, std::type_identity<Kernel>()),
        inside(memory, head, kept.chunks + 1, decays),
        ends(memory, head, kept.spans == 1 ? 0 : kept.spans, decays),
        ends_rest(memory, head, kept.spans == 1 ? 0 : kept.spans, 1) {}

  struct list {
    list(kernel::arena& memory, head_size head, index_t count, index_t decays_each)
        : first(memory.padded<Kernel, Real>(count * head.Dk, head.Dv)),
          row_sums(memory.padded<Kernel, Real>(count, head.Dk)),
          numbers(memory.numbers<Kernel, double>(count * decays_each)),
          Dk(head.Dk),
          decays(decays_each) {}

    kernel::tile<Real> R(index_t n) const { return {first.row(n * Dk), Dk, first.columns, first.stride}; }
    Real* r(index_t n) const { return row_sums.row(n); }
    double* pending(index_t n) const { return numbers + n * decays; }

    void copy(index_t n, const list& to, index_t m) const {
      std::copy_n(R(n).data, Dk * first.stride, to.R(m).data);
      std::copy_n(r(n), row_sums.stride, to.r(m));
      std::copy_n(pending(n), decays, to.pending(m));
    }

    kernel::tile<Real> first, row_sums;  // (count Dk, Dv) (count, Dk)
    double* numbers;                     // (count decays) the true adjoint is this factor times the stored one
    index_t Dk, decays;
  };

  /// Visits the chunks of a pass. First sweep(begin, end) computes the adjoints of chunks [begin, end) against the direction, span
  /// by span; then between() has the adjoint of the first state in inside.R(0); then chunk(step, begin, end) runs along the
  /// direction, with the adjoint of the state after chunk `step` in inside.R(step - begin + 1).
  template <class Sweep, class Between, class Chunk>
  void walk(keeping kept, index_t chunks, const head_state<const Real>& final, bool row_sums, const Sweep& sweep,
            const Between& between, const Chunk& chunk) const {
    const list& last = kept.spans == 1 ? inside : ends;
    const index_t n = kept.spans == 1 ? chunks : kept.spans - 1;
    load_initial_state<Kernel>(last.R(n), last.r(n), final);
    if (!detail::is_exactly(final.decay, 1)) decay(last.R(n), last.r(n), last.Dk, final.decay);
    std::fill_n(last.pending(n), last.decays, 1.0);
    if (!row_sums) std::fill_n(last.r(n), last.Dk, Real(0));
    rest.start();
    if (kept.spans > 1) rest.copy_to(rest_of(kept.spans - 1));
    for (index_t span = kept.spans - 1; span >= 0; --span) {
      const index_t begin = span * kept.chunks, end = (std::min)(begin + kept.chunks, chunks);
      if (kept.spans > 1) ends.copy(span, inside, end - begin);
      sweep(begin, end);
      if (span == 0) continue;
      inside.copy(0, ends, span - 1);
      rest.copy_to(rest_of(span - 1));
    }
    between();
    for (index_t span = 0; span < kept.spans; ++span) {
      const index_t begin = span * kept.chunks, end = (std::min)(begin + kept.chunks, chunks);
      if (span > 0) {
        ends.copy(span, inside, end - begin);
        rest_of(span).copy_to(rest);
        sweep(begin, end);
      }
      for (index_t step = begin; step < end; ++step) chunk(step, begin, end);
    }
  }

  compensation<Real> rest;  // (Dk, Dv) (Dk) rounding errors of R and r
  list inside, ends;        // before and after each chunk of one span; at the ends of spans
  list ends_rest;           // `rest` at the ends of spans

 private:
  compensation<Real> rest_of(index_t span) const { return rest.at(ends_rest.R(span), ends_rest.r(span), ends_rest.pending(span)); }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
