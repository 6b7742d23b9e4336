// SPDX-License-Identifier: Apache-2.0
// The mask of the full form, one tile at a time: which blocks of keys a block of queries sees, and with what weights.
#pragma once

#include <bila/form/decays.hpp>
#include <bila/form/head.hpp>

namespace bila::inline v0_1::form {

inline constexpr index_t block = 128;  // tokens of a tile's side

inline index_t blocks_in(index_t L) { return (L + block - 1) / block; }

template <class Kernel, class Real>
struct walk_scratch {
  explicit walk_scratch(kernel::arena& memory)
      : M(memory.padded<Kernel, Real>(block, block)),
        mine{memory.numbers<Kernel, Real>(block), memory.numbers<Kernel, Real>(block)},
        theirs{memory.numbers<Kernel, Real>(block), memory.numbers<Kernel, Real>(block)},
        r(memory.numbers<Kernel, Real>(block)),
        lambda(memory.numbers<Kernel, double>(block + 1)),
        row(memory.numbers<Kernel, double>(block)) {}

  kernel::tile<Real> M;                       // (block, block)
  kernel::border_weights<Real> mine, theirs;  // (block): of the row block, of the column block
  Real* r;                                    // (block)
  double *lambda, *row;                       // (block + 1) (block)
};

template <class T, class Mask>
double weight(const head<T, Mask>& x, index_t i, index_t j) {
  if ((x.direction == direction::forward && j > i) || (x.direction == direction::backward && j < i)) return 0;
  return x.mask.weight(i, j) * (i == j ? x.diagonal : 1);
}

/// Calls visit(J, weigh) for every block J of keys that row block I sees; weigh(A, z) multiplies a tile of scores by its weights.
/// Any mask: its weights, one by one.
template <class Kernel, class T, class Mask, class Real, class Visit>
void for_each_column_block(const head<T, Mask>& x, index_t I, walk_scratch<Kernel, Real>& w, const Visit& visit) {
  const index_t rows = std::min(block, x.q.count - I * block);
  const index_t J_first = x.direction == direction::backward ? I : 0;
  const index_t J_last = x.direction == direction::forward ? I : blocks_in(x.k.count) - 1;
  for (index_t J = J_first; J <= J_last; ++J) {
    const kernel::tile<Real> M{w.M.data, rows, std::min(block, x.k.count - J * block), w.M.stride};
    kernel::clear(M);
    for (index_t i = 0; i < M.rows; ++i)
      for (index_t j = 0; j < M.columns; ++j) M.row(i)[j] = static_cast<Real>(weight(x, I * block + i, J * block + j));
    visit(J, [&](kernel::tile<Real> A, Real* z) { Kernel::weigh(A, M, z); });
  }
}

/// The blocks that reach row block I by crossing gaps `Way`, nearest first, until nothing passes. Their mask has rank one:
/// M_ij = read_i (product of the blocks between) write_j.
template <class Kernel, direction Way, class T, class Mask, class Real, class Visit>
void walk_away(const head<T, Mask>& x, index_t I, walk_scratch<Kernel, Real>& w, const Visit& visit) {
  constexpr index_t away = Way == direction::forward ? -1 : 1;
  const index_t rows = std::min(block, x.q.count - I * block);
  scan_border<Way>(x, I * block, rows, w.lambda, w.mine);
  double between = 1;
  for (index_t J = I + away; J >= 0 && J < blocks_in(x.k.count) && static_cast<Real>(between) != 0; J += away) {
    const index_t n = std::min(block, x.k.count - J * block);
    scan_border<Way>(x, J * block, n, w.lambda, w.theirs);
    for (index_t i = 0; i < rows; ++i) w.r[i] = static_cast<Real>(static_cast<double>(w.mine.read[i]) * between);
    std::fill(w.theirs.write + n, w.theirs.write + kernel::round_up(n, Kernel::template lanes<Real>), Real(0));
    visit(J, [&](kernel::tile<Real> A, Real* z) { Kernel::weigh(A, w.r, w.theirs.write, z); });
    between *= w.theirs.total;
  }
}

/// A gapped mask: the block on the diagonal, then away from it in both directions.
template <class Kernel, class T, gapped Mask, class Real, class Visit>
void for_each_column_block(const head<T, Mask>& x, index_t I, walk_scratch<Kernel, Real>& w, const Visit& visit) {
  if (Mask::gaps == gap::none && x.direction == direction::both && x.diagonal == 1) {
    std::fill_n(w.r, block, Real(1));
    for (index_t J = 0; J < blocks_in(x.k.count); ++J)
      visit(J, [&](kernel::tile<Real> A, Real* z) { Kernel::weigh(A, w.r, w.r, z); });
    return;
  }
  const index_t rows = std::min(block, x.q.count - I * block);
  scan_block(x, I * block, w.M.top(rows), w.lambda, w.row, true);
  visit(I, [&](kernel::tile<Real> A, Real* z) { Kernel::weigh(A, w.M, z); });
  if (x.direction != direction::backward) walk_away<Kernel, direction::forward>(x, I, w, visit);
  if (x.direction != direction::forward) walk_away<Kernel, direction::backward>(x, I, w, visit);
}

}  // namespace bila::inline v0_1::form
