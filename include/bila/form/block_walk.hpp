// SPDX-License-Identifier: Apache-2.0
// The mask of the full form, block by block: which blocks of keys a block of queries sees, and the weights between the two blocks.
#pragma once

#include <bila/config.hpp>
#include <bila/form/decays.hpp>
#include <bila/form/head.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

inline constexpr index_t block = 128;  // side of a tile, in tokens

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

  kernel::tile<Real> M;                       // (block, block) rows are keys, columns are queries
  kernel::border_weights<Real> mine, theirs;  // (block) weights of the queries' block; of the keys' block
  Real* r;                                    // (block) ones; for a mask with decay, the queries' read weights
  gap_decays decays;
};

/// The further weights of a mask that has only gaps: none. level_walk has the same members for masks whose pairs have weights by
/// level.
struct gaps_alone {
  static constexpr bool changes = false;

  template <class Real>
  void weigh_own(index_t, const kernel::tile<Real>&) const {}  // block ib of queries and its own keys

  template <class Real>
  void weigh_queries(direction, index_t, index_t, index_t, Real*) const {}  // block ib of queries that meets block jb of keys

  template <class Real>
  void weigh_gradient(index_t, index_t, kernel::tile<Real>, kernel::tile<Real>, kernel::tile<Real>) const {}
};

/// Fills M with a pairwise mask's weights for block ib of queries and block jb of keys, and multiplies the diagonal by `diagonal`.
/// A pair that the call's direction hides, or that is beyond the mask's reach, gets weight zero without asking the mask.
template <class Kernel, class T, class Real>
BILA_NOINLINE void fill_block(const head<T>& x, index_t ib, index_t jb, double diagonal, double* scratch, kernel::tile<Real> M) {
  const index_t reach = x.mask.reach();
  for (index_t j = 0; j < M.rows; ++j) {
    const index_t own = jb * block + j - ib * block;  // the query whose token is key j
    const index_t first = std::clamp<index_t>(x.direction == direction::forward ? own : own - reach, 0, M.columns);
    const index_t last = std::clamp<index_t>(x.direction == direction::backward ? own + 1 : own + reach + 1, 0, M.columns);
    x.mask.weights(ib * block + first, last - first, jb * block + j, scratch);
    std::fill_n(M.row(j), M.stride, Real(0));
    for (index_t i = first; i < last; ++i)
      M.row(j)[i] = static_cast<Real>(i == own ? scratch[i - first] * diagonal : scratch[i - first]);
  }
}

/// Visits the other blocks of keys that block ib of queries sees in direction `way`, nearest first, until their decay is zero.
/// The weights between two different blocks have rank one: M_ij = read_i (product of the totals of the blocks between) write_j.
template <class Kernel, class T, class Real, class Visit, class More>
BILA_NOINLINE void walk_away(const head<T>& x, direction way, index_t ib, walk_scratch<Kernel, Real>& w, const Visit& visit,
                             const More& more) {
  const index_t away = way == direction::forward ? -1 : 1;
  const index_t queries = (std::min)(block, x.q.count - ib * block);
  fill_decays<Kernel>(x, way, ib * block, queries, w.decays.way(way));
  scan_border(x, way, ib * block, w.decays, queries, w.mine);
  double between = 1;
  for (index_t jb = ib + away; jb >= 0 && jb < blocks_in(x.k.count) && static_cast<Real>(between) > 0; jb += away) {
    const index_t n = (std::min)(block, x.k.count - jb * block);
    fill_decays<Kernel>(x, way, jb * block, n, w.decays.way(way));
    scan_border(x, way, jb * block, w.decays, n, w.theirs);
    for (index_t i = 0; i < queries; ++i) w.r[i] = static_cast<Real>(static_cast<double>(w.mine.read[i]) * between);
    more.weigh_queries(way, ib, jb, queries, w.r);
    visit(jb, kernel::rank_one<Real>{w.theirs.write, w.r});
    between *= w.theirs.total;
  }
}

/// Calls visit(jb, M) for every block jb of keys that block ib of queries sees. M holds the weights as the kernel's `score` takes
/// them, with `diagonal` on the diagonal. A mask with decay starts with the block on the diagonal, then goes outwards in each
/// direction.
template <class Kernel, class T, class Real, class Visit, class More = gaps_alone>
void for_each_key_block(const head<T>& x, index_t ib, double diagonal, walk_scratch<Kernel, Real>& w, const Visit& visit,
                        const More& more = {}) {
  const index_t queries = (std::min)(block, x.q.count - ib * block), keys = blocks_in(x.k.count);
  const auto table = [&](index_t jb) {
    return kernel::tile<Real>{w.M.data, (std::min)(block, x.k.count - jb * block), queries, w.M.stride};
  };
  if (!x.mask.gapped) {
    const index_t reach = x.mask.reach(), first_query = ib * block, last_query = first_query + queries - 1;
    const index_t last = x.direction == direction::forward ? ib : (std::min)(keys - 1, (last_query + reach) / block);
    for (index_t jb = x.direction == direction::backward ? ib : (std::max<index_t>)(0, first_query - reach) / block; jb <= last;
         ++jb) {
      fill_block<Kernel>(x, ib, jb, diagonal, w.decays.forward, table(jb));
      visit(jb, table(jb));
    }
    return;
  }
  if (!More::changes && x.mask.gaps == gap::none && x.direction == direction::both && detail::is_exactly(diagonal, 1)) {
    for (index_t jb = 0; jb < keys; ++jb) visit(jb, kernel::rank_one<Real>{w.r, w.r});
    return;
  }
  constexpr direction ways[] = {direction::forward, direction::backward};
  for (const direction way : ways)
    if (x.direction != other(way)) fill_decays<Kernel>(x, way, ib * block, queries, w.decays.way(way));
  scan_block<Kernel>(x, ib * block, table(ib), w.decays, diagonal);
  more.weigh_own(ib, table(ib));
  visit(ib, table(ib));
  for (const direction way : ways)
    if (x.direction != other(way)) walk_away(x, way, ib, w, visit, more);
}

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
