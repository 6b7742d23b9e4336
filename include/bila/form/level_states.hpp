// SPDX-License-Identifier: Apache-2.0
// The states of log-linear attention: a binary counter over the chunks.
#pragma once

#include <bila/config.hpp>
#include <bila/form/head.hpp>

#include <bit>
#include <cstdint>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

inline index_t bits_in(index_t n) { return static_cast<index_t>(std::bit_width(static_cast<std::uint64_t>(n))); }

/// The largest number of states that a sweep over L tokens in chunks of C holds at the same time.
inline index_t level_count(index_t L, index_t C) { return std::max<index_t>(1, bits_in((std::max<index_t>(L, 1) - 1) / C)); }

/// The levels on which a chunk sees other chunks in one direction. Level p joins the two halves of a range of 2^p chunks that
/// starts at a multiple of 2^p: a chunk in one half sees the 2^(p - 1) chunks of the other. The largest level comes first.
struct live_levels {
  /// Chunk `index` of a head of L tokens in chunks of C.
  live_levels(direction way, index_t index, index_t L, index_t C) {
    const index_t chunks = (L + C - 1) / C;
    const auto before = static_cast<std::uint64_t>(way == direction::forward ? index + 1 : index);
    const index_t ends = std::countr_zero(before | std::uint64_t(1) << 63);
    for (index_t p = bits_in(chunks - 1); p >= 1; --p) {
      const index_t half = index >> (p - 1);
      if (way == direction::forward ? half % 2 == 0 : half % 2 == 1 || (half + 1) << (p - 1) >= chunks) continue;
      level[count++] = static_cast<std::int8_t>(p);
      merged += p <= ends;
    }
  }

  index_t count = 0;
  index_t merged = 0;  // how many of the smallest levels become one state with the chunk's own sum after the chunk
  std::int8_t level[64] = {};
};

/// The states of the levels that a sweep sees, one below the other, the largest level first. A state is multiplied by a decay only
/// when it is merged into another one: the true state n is held_n times the stored one.
template <class Kernel, class Real>
struct level_states {
  level_states(kernel::arena& memory, index_t states, index_t rows_each, index_t columns, index_t sums_each, index_t sums_apart)
      : S(memory.padded<Kernel, Real>(states * rows_each, columns)),
        s(memory.numbers<Kernel, Real>(states * sums_apart + Kernel::template lanes<Real>)),
        held(memory.numbers<Kernel, double>(states)),
        rows(rows_each),
        sums(sums_each),
        apart(sums_apart),
        count_(states) {}

  /// Gives all row sums finite numbers, because whole packets of them are read.
  void start() const { std::fill_n(s, count_ * apart + Kernel::template lanes<Real>, Real(0)); }

  kernel::tile<Real> at(index_t n) const { return {S.row(n * rows), rows, S.columns, S.stride}; }
  Real* sums_at(index_t n) const { return s + n * apart; }
  kernel::tile<const Real> first(index_t count) const { return {S.data, count * rows, S.columns, S.stride}; }

  index_t states() const { return count_; }

  /// Starts state n at zero.
  void clear(index_t n) const {
    kernel::clear(at(n));
    std::fill_n(sums_at(n), kernel::round_up(sums, Kernel::template lanes<Real>), Real(0));
    held[n] = 0;
  }

  /// Merges state n into state n - 1: applies held to state n - 1, then adds state n, whose held must be 1.
  void merge(index_t n, bool row_sums) const {
    decay(at(n - 1), sums_at(n - 1), row_sums ? sums : 0, held[n - 1]);
    Kernel::add(at(n - 1), at(n));
    for (index_t c = 0; row_sums && c < sums; ++c) sums_at(n - 1)[c] += sums_at(n)[c];
    held[n - 1] = 1;
  }

  kernel::tile<Real> S;       // (states rows, columns)
  Real* s;                    // (states, sums) the columns for row sums, `apart` numbers apart
  double* held;               // (states) decays since the states were made
  index_t rows, sums, apart;  // of one state

 private:
  index_t count_;
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
