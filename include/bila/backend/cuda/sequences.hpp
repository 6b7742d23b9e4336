// SPDX-License-Identifier: Apache-2.0
// Where the tokens of each sequence (batch row or packed segment) lie, and how work over them is numbered.
#pragma once

#include <bila/backend/cuda/launch.hpp>
#include <bila/call/segments.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

inline constexpr int block = 16;  // tokens of a block: the rows of one matrix instruction, and where gates are weighed

/// a / b; a division of 64 bits takes as long as a hundred other instructions, and few calls need one.
__device__ inline index_t divide(index_t a, index_t b) {
  if (((a | b) >> 32) == 0) return static_cast<index_t>(static_cast<unsigned>(a) / static_cast<unsigned>(b));
  return a / b;
}

/// How many of `most` tokens there are where `left` are left.
__device__ inline int up_to(index_t left, int most) { return left < most ? static_cast<int>(left) : most; }

/// A head's share of a piece of work.
struct place {
  index_t n, h, unit;  // sequence, head, and which piece of its tokens
};

/// The sequences of a call. Pieces of `size` tokens are numbered through: sequence by sequence, head by head. Where lengths differ
/// a sequence gets the numbers [first_unit(n) H, first_unit(n + 1) H), of which the last of each head may have no tokens.
struct sequences {
  const index_t* table;  // per sequence: first token, tokens, blocks before it; one entry more at the end. Null: all alike
  index_t count, L;      // how many; tokens of a batch row
  bool packed;           // all in one batch row

  __device__ index_t row(index_t n) const { return packed ? 0 : n; }
  __device__ index_t first(index_t n) const { return table != nullptr && packed ? table[3 * n] : 0; }
  __device__ index_t tokens(index_t n) const { return table != nullptr ? table[3 * n + 1] : L; }

  __device__ index_t first_unit(index_t n, index_t size) const {
    if (table == nullptr) return n * divide(L + size - 1, size);
    return divide(table[3 * n + 2] * block, size) + n;
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

  /// Where a head's tokens begin in arrays with an entry per token, whole blocks of them.
  __device__ index_t first_entry(index_t n, index_t h, index_t H) const { return number({n, h, 0}, H, block) * block; }
};

/// What the host knows of them.
struct sequence_plan {
  sequences on_device;
  bool ragged;     // there is a table, which on_device has none of while memory is only counted
  index_t* table;  // where it is written
  index_t blocks;  // of all sequences, if ragged

  index_t units(index_t size) const {
    if (!ragged) return on_device.count * ((on_device.L + size - 1) / size);
    return blocks * block / size + on_device.count;
  }
  index_t entries(index_t H) const { return units(block) * block * H; }
};

/// A piece of the table, carried by the kernel's own parameters, so that a graph keeps it.
struct table_piece {
  static constexpr int size = 480;
  index_t first, count, numbers[size];
};

template <int = 0>  // a template, so that every unit may have it
BILA_KERNEL void write_table(index_t* table, const __grid_constant__ table_piece piece) {
  for (index_t i = threadIdx.x; i < piece.count; i += blockDim.x) table[piece.first + i] = piece.numbers[i];
}

/// Writes the table of packed or ragged sequences to the device.
inline void send_table(launcher& launch, const sequence_plan& plan, const segments& pieces) {
  if (!plan.ragged) return;
  table_piece piece{0, 0, {}};
  index_t blocks_before = 0;
  const auto send = [&] {
    launch("write_table", write_table<>, 1, 256, 0, plan.table, piece);
    piece.first += piece.count;
    piece.count = 0;
  };
  const auto add = [&](index_t x) {
    piece.numbers[piece.count++] = x;
    if (piece.count == table_piece::size) send();
  };
  for (index_t n = 0; n < plan.on_device.count; ++n) {
    const segment s = plan.on_device.packed ? pieces(0, n) : pieces(n, 0);
    add(s.first);
    add(s.count);
    add(blocks_before);
    blocks_before += (s.count + block - 1) / block;
  }
  for (const index_t x : {index_t{0}, index_t{0}, blocks_before}) add(x);
  if (piece.count > 0) send();
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
