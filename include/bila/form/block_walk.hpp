// SPDX-License-Identifier: Apache-2.0
// The mask of the full form, one block at a time: which blocks of keys a block of queries sees, and with what weights.
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
        decays(memory, block, std::type_identity<Kernel>()) {
    if (r != nullptr) std::fill_n(r, block, Real(1));
  }

  kernel::tile<Real> M;                       // (block, block) of key and query
  kernel::border_weights<Real> mine, theirs;  // (block) of the queries' block, of the keys' block
  Real* r;                                    // (block)
  gap_decays decays;
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
double weight(const head<T, Mask>& x, index_t i, index_t j, double diagonal) {
  if ((x.direction == direction::forward && j > i) || (x.direction == direction::backward && j < i)) return 0;
  return i == j ? own_weight(x, i) * diagonal : static_cast<double>(x.mask.weight(i, j));
}

/// Calls visit(jb, M) for every block jb of keys that block ib of queries sees, M its weights as the kernel's `score` takes them,
/// with this weight on the diagonal. Any mask: its weights, one by one.
template <class Kernel, class T, class Mask, class Real, class Visit>
void for_each_key_block(const head<T, Mask>& x, index_t ib, double diagonal, walk_scratch<Kernel, Real>& w, const Visit& visit) {
  const index_t queries = (std::min)(block, x.q.count - ib * block);
  const index_t first = x.direction == direction::backward ? ib : 0;
  const index_t last = x.direction == direction::forward ? ib : blocks_in(x.k.count) - 1;
  for (index_t jb = first; jb <= last; ++jb) {
    const kernel::tile<Real> M{w.M.data, (std::min)(block, x.k.count - jb * block), queries, w.M.stride};
    kernel::clear(M);
    for (index_t j = 0; j < M.rows; ++j)
      for (index_t i = 0; i < queries; ++i) M.row(j)[i] = static_cast<Real>(weight(x, ib * block + i, jb * block + j, diagonal));
    visit(jb, M);
  }
}

/// The blocks that reach block ib by crossing gaps `Way`, nearest first, until nothing passes. Their mask has rank one:
/// M_ij = read_i (product of the blocks between) write_j.
template <class Kernel, direction Way, class T, class Mask, class Real, class Visit>
void walk_away(const head<T, Mask>& x, index_t ib, walk_scratch<Kernel, Real>& w, const Visit& visit) {
  constexpr index_t away = Way == direction::forward ? -1 : 1;
  const index_t queries = (std::min)(block, x.q.count - ib * block);
  fill_decays<Kernel, Way>(x, ib * block, queries, w.decays.template way<Way>());
  scan_border<Way>(w.decays, queries, w.mine);
  double between = 1;
  for (index_t jb = ib + away; jb >= 0 && jb < blocks_in(x.k.count) && static_cast<Real>(between) != 0; jb += away) {
    const index_t n = (std::min)(block, x.k.count - jb * block);
    fill_decays<Kernel, Way>(x, jb * block, n, w.decays.template way<Way>());
    scan_border<Way>(w.decays, n, w.theirs);
    for (index_t i = 0; i < queries; ++i) w.r[i] = static_cast<Real>(static_cast<double>(w.mine.read[i]) * between);
    visit(jb, kernel::rank_one<Real>{w.theirs.write, w.r});
    between *= w.theirs.total;
  }
}

/// A gapped mask: the block on the diagonal, then away from it in both directions.
template <class Kernel, class T, gapped Mask, class Real, class Visit>
void for_each_key_block(const head<T, Mask>& x, index_t ib, double diagonal, walk_scratch<Kernel, Real>& w, const Visit& visit) {
  if (Mask::gaps == gap::none && x.direction == direction::both && diagonal == 1) {
    for (index_t jb = 0; jb < blocks_in(x.k.count); ++jb) visit(jb, kernel::rank_one<Real>{w.r, w.r});
    return;
  }
  const index_t first = ib * block, n = (std::min)(block, x.q.count - first);
  if (x.direction != direction::backward) fill_decays<Kernel, direction::forward>(x, first, n, w.decays.forward);
  if (x.direction != direction::forward) fill_decays<Kernel, direction::backward>(x, first, n, w.decays.backward);
  scan_block<Kernel>(x, kernel::tile<Real>{w.M.data, n, n, w.M.stride}, w.decays, diagonal);
  visit(ib, kernel::tile<Real>{w.M.data, n, n, w.M.stride});
  if (x.direction != direction::backward) walk_away<Kernel, direction::forward>(x, ib, w, visit);
  if (x.direction != direction::forward) walk_away<Kernel, direction::backward>(x, ib, w, visit);
}

}  // namespace bila::inline v0_1::form
