// SPDX-License-Identifier: Apache-2.0
// Sequences: batch rows or packed segments. Where the tokens of each sequence lie, and how pieces of work are numbered.
#pragma once

#include <bila/backend/cuda/launch.hpp>
#include <bila/call/segments.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

inline constexpr int mma_rows = 16;  // rows of a matrix instruction; a block of tokens has as many

/// a / b. A 64-bit division takes as long as a hundred other instructions, so 32 bits are used where they suffice.
__device__ inline index_t divide(index_t a, index_t b) {
  if (((a | b) >> 32) == 0) return static_cast<index_t>(static_cast<unsigned>(a) / static_cast<unsigned>(b));
  return a / b;
}

/// The smaller of `left`, the number of remaining tokens, and `most`.
__device__ inline int up_to(index_t left, int most) { return left < most ? static_cast<int>(left) : most; }

/// A piece of work: some neighbouring tokens of one head of one sequence.
struct place {
  index_t n, h, unit;  // sequence, head, index of the piece in the head
};

/// The sequences of a call. Pieces of `size` tokens have consecutive numbers, sequence by sequence and head by head. Where lengths
/// differ, sequence n has the numbers [first_unit(n) H, first_unit(n + 1) H), and the last piece of a head may have no tokens.
struct sequences {
  /// Three numbers per sequence: its first token, its number of tokens, the number of 16-token blocks of all earlier sequences. One
  /// more triple follows the last sequence. Null: all sequences have L tokens.
  const index_t* table;
  index_t count, L;  // number of sequences; tokens of a batch row
  bool packed;       // whether all sequences lie in one batch row

  __device__ index_t row(index_t n) const { return packed ? 0 : n; }
  __device__ index_t first(index_t n) const { return table != nullptr && packed ? table[3 * n] : 0; }
  __device__ index_t tokens(index_t n) const { return table != nullptr ? table[3 * n + 1] : L; }

  __device__ index_t first_unit(index_t n, index_t size) const {
    if (table == nullptr) return n * divide(L + size - 1, size);
    return divide(table[3 * n + 2] * mma_rows, size) + n;
  }

  __device__ index_t units(index_t n, index_t size) const { return first_unit(n + 1, size) - first_unit(n, size); }

  /// The number of a piece.
  __device__ index_t number(const place& at, index_t H, index_t size) const {
    if (table == nullptr) return (at.n * H + at.h) * divide(L + size - 1, size) + at.unit;
    return first_unit(at.n, size) * H + at.h * units(at.n, size) + at.unit;
  }

  __device__ place find(index_t number, index_t H, index_t size) const {
    if (table == nullptr) {
      const index_t each = divide(L + size - 1, size), head = divide(number, each), n = divide(head, H);
      return {n, head - n * H, number - head * each};
    }
    index_t low = 0, high = count;  // first_unit(low) H <= number < first_unit(high) H
    while (high - low > 1) {
      const index_t middle = (low + high) / 2;
      (first_unit(middle, size) * H <= number ? low : high) = middle;
    }
    const index_t rest = number - first_unit(low, size) * H, each = units(low, size), h = divide(rest, each);
    return {low, h, rest - h * each};
  }

  /// The index of a head's first token in arrays with one entry per token, where each head is padded to whole blocks of mma_rows.
  __device__ index_t first_entry(index_t n, index_t h, index_t H) const { return number({n, h, 0}, H, mma_rows) * mma_rows; }
};

/// A piece of the table. It is a kernel parameter, so a CUDA graph stores the numbers.
struct table_piece {
  static constexpr int size = 480;
  index_t first, count, numbers[size];
};

template <int = 0>  // a template, so that several .cu files may define it
BILA_KERNEL void write_table(index_t* table, const __grid_constant__ table_piece piece) {
  for (index_t i = threadIdx.x; i < piece.count; i += blockDim.x) table[piece.first + i] = piece.numbers[i];
}

/// Writes the table of packed or ragged sequences to device memory.
inline void send_table(launcher& launch, const sequences& to, index_t* table, const segments& pieces) {
  table_piece piece{0, 0, {}};
  index_t blocks_before = 0;
  const auto send = [&] {
    launch("write_table", write_table<>, grid{1, 256}, table, piece);
    piece.first += piece.count;
    piece.count = 0;
  };
  const auto add = [&](index_t x) {
    piece.numbers[piece.count++] = x;
    if (piece.count == table_piece::size) send();
  };
  for (index_t n = 0; n < to.count; ++n) {
    const segment s = to.packed ? pieces(0, n) : pieces(n, 0);
    add(s.first);
    add(s.count);
    add(blocks_before);
    blocks_before += (s.count + mma_rows - 1) / mma_rows;
  }
  for (const index_t x : {index_t{0}, index_t{0}, blocks_before}) add(x);
  if (piece.count > 0) send();
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
