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

/// What the diagonal weight multiplies: a gapped mask has 1 on its diagonal.
template <class T, class Mask>
double own_weight(const head<T, Mask>& x, index_t i) {
  if constexpr (gapped<Mask>)
    return 1;
  else
    return x.mask.weight(i, i);
}

template <class T, class Mask>
double weight(const head<T, Mask>& x, index_t i, index_t j) {
  if ((x.direction == direction::forward && j > i) || (x.direction == direction::backward && j < i)) return 0;
  return i == j ? own_weight(x, i) * x.diagonal : static_cast<double>(x.mask.weight(i, j));
}

/// Calls visit(jb, weigh) for every block jb of keys that row block ib sees; weigh(A, z) multiplies a tile of scores by its
/// weights. Any mask: its weights, one by one.
template <class Kernel, class T, class Mask, class Real, class Visit>
void for_each_column_block(const head<T, Mask>& x, index_t ib, walk_scratch<Kernel, Real>& w, const Visit& visit) {
  const index_t rows = (std::min)(block, x.q.count - ib * block);
  const index_t first = x.direction == direction::backward ? ib : 0;
  const index_t last = x.direction == direction::forward ? ib : blocks_in(x.k.count) - 1;
  for (index_t jb = first; jb <= last; ++jb) {
    const kernel::tile<Real> M{w.M.data, rows, (std::min)(block, x.k.count - jb * block), w.M.stride};
    kernel::clear(M);
    for (index_t i = 0; i < M.rows; ++i)
      for (index_t j = 0; j < M.columns; ++j) M.row(i)[j] = static_cast<Real>(weight(x, ib * block + i, jb * block + j));
    visit(jb, [&](kernel::tile<Real> A, Real* z) { Kernel::weigh(A, M, z); });
  }
}

/// The blocks that reach row block ib by crossing gaps `Way`, nearest first, until nothing passes. Their mask has rank one:
/// M_ij = read_i (product of the blocks between) write_j.
template <class Kernel, direction Way, class T, class Mask, class Real, class Visit>
void walk_away(const head<T, Mask>& x, index_t ib, walk_scratch<Kernel, Real>& w, const Visit& visit) {
  constexpr index_t away = Way == direction::forward ? -1 : 1;
  const index_t rows = (std::min)(block, x.q.count - ib * block);
  scan_border<Way>(x, ib * block, rows, w.lambda, w.mine);
  double between = 1;
  for (index_t jb = ib + away; jb >= 0 && jb < blocks_in(x.k.count) && static_cast<Real>(between) != 0; jb += away) {
    const index_t n = (std::min)(block, x.k.count - jb * block);
    scan_border<Way>(x, jb * block, n, w.lambda, w.theirs);
    for (index_t i = 0; i < rows; ++i) w.r[i] = static_cast<Real>(static_cast<double>(w.mine.read[i]) * between);
    std::fill(w.theirs.write + n, w.theirs.write + kernel::round_up(n, Kernel::template lanes<Real>), Real(0));
    visit(jb, [&](kernel::tile<Real> A, Real* z) { Kernel::weigh(A, w.r, w.theirs.write, z); });
    between *= w.theirs.total;
  }
}

/// A gapped mask: the block on the diagonal, then away from it in both directions.
template <class Kernel, class T, gapped Mask, class Real, class Visit>
void for_each_column_block(const head<T, Mask>& x, index_t ib, walk_scratch<Kernel, Real>& w, const Visit& visit) {
  if (Mask::gaps == gap::none && x.direction == direction::both && x.diagonal == 1) {
    std::fill_n(w.r, block, Real(1));
    for (index_t jb = 0; jb < blocks_in(x.k.count); ++jb)
      visit(jb, [&](kernel::tile<Real> A, Real* z) { Kernel::weigh(A, w.r, w.r, z); });
    return;
  }
  const index_t rows = (std::min)(block, x.q.count - ib * block);
  scan_block(x, ib * block, w.M.top(rows), w.lambda, w.row, true);
  visit(ib, [&](kernel::tile<Real> A, Real* z) { Kernel::weigh(A, w.M, z); });
  if (x.direction != direction::backward) walk_away<Kernel, direction::forward>(x, ib, w, visit);
  if (x.direction != direction::forward) walk_away<Kernel, direction::backward>(x, ib, w, visit);
}

}  // namespace bila::inline v0_1::form
