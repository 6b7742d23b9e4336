// SPDX-License-Identifier: Apache-2.0
// What a masked product is asked for, and where a block of threads keeps it.
#pragma once

#include <bila/backend/cuda/states.hpp>
#include <bila/view/direction.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct product_call {
  sequences s;
  index_t H, chunk;  // chunk 0: all keys are one
  index_t keys;      // cross attention: how many keys there are; else -1
  operand<T> q, k, v;
  gap_table<exponent<T>> gaps;
  state_table<T> states;  // null: none
  sequences of_states;    // whose chunks they are: the keys'
  index_t row_chunks;     // of a whole batch row
  bool transposed;        // q is as wide as a state's columns: read H^T
  bool only_state;        // no scores: the keys are all in the one state
  bool left, right;       // where a row looks
  float diagonal;
  tensor_view<T> out;  // data null: not wanted
  bool fast_out;
  tensor_view<float> row_sum;  // data null: not wanted

  // The gradient's: score biases, per entry (null: ones), and, for the gates, the parts of partner_i . out_i.
  bool biased;
  const float *row_bias, *column_bias;
  operand<T> partner;
  float* dots;             // 3 per entry: from the left, from the right inside the chunk, from the right's state; null: not wanted
  tensor_view<float> sum;  // takes the place of out where heads are yet to be added up; without data there is no need
};

/// Rows leave through the norm.
template <class Norm>
struct normalised {
  static constexpr bool learns = false, sums_rows = Norm::uses_row_sum;
  Norm norm;
  float scale;
};

/// Rows leave as they are: a gradient.
struct as_it_is {
  static constexpr bool learns = true, sums_rows = false;
};

/// What a block of threads has to do, worked out once by one of them: divisions of 64 bits are long.
template <class T>
struct product_task {
  index_t row, h, token;     // of the first row
  index_t entry, key_entry;  // of the first row, of the first key
  index_t state;
  const T *k, *v;                 // first key
  int rows_left, keys, from_key;  // from the first key to the first row

  __device__ void locate(const product_call<T>& c, index_t task, int rows) {
    const place at = c.s.find(task, c.H, rows);
    const index_t count = c.s.tokens(at.n), first_row = at.unit * rows;
    rows_left = count > first_row ? static_cast<int>(count - first_row < rows ? count - first_row : rows) : 0;
    if (rows_left == 0) return;
    const index_t all_keys = c.keys >= 0 ? c.keys : count, chunk = c.chunk > 0 ? divide(first_row, c.chunk) : 0;
    const index_t first_key = chunk * c.chunk, left = all_keys - first_key;
    row = c.s.row(at.n);
    h = at.h;
    token = c.s.first(at.n) + first_row;
    entry = c.s.first_entry(at.n, at.h, c.H) + first_row;
    key_entry = entry - first_row + first_key;
    from_key = static_cast<int>(first_row - first_key);
    keys = c.only_state ? 0 : static_cast<int>(c.chunk > 0 && c.chunk < left ? c.chunk : left);
    k = c.k.tokens(row, h, token - from_key, keys).data;
    v = c.v.tokens(row, h, token - from_key, keys).data;
    const index_t own = c.only_state ? 0 : chunk;
    state = c.states.S == nullptr          ? 0
            : c.of_states.table == nullptr ? (at.n * c.H + at.h) * c.row_chunks + own
                                           : c.of_states.number({at.n, at.h, own}, c.H, c.chunk);
  }
};

template <class T, int D, class Tiles, bool Learns>
struct product_memory {
  static constexpr product_tile Tile = Tiles::product(static_cast<int>(sizeof(T)), D);
  static constexpr int rows = Tile.warps * block, threads = Tile.warps * 32;
  static constexpr int stride = D + 16 / static_cast<int>(sizeof(T));  // so that 8 rows are in different banks
  struct stage {
    T k[Tile.panel * stride], v[Tile.panel * stride];
    token_weights weights[Tile.panel];
    both_ways<exponent<T>> sums[Tile.panel], block_sums[Tile.panel / block];
    float bias[Tile.panel];
  };
  static constexpr bool keeps_partner = Learns && D <= 64;  // beyond, two blocks of threads would not fit a multiprocessor
  alignas(16) T q[rows * stride];
  alignas(16) T partner[keeps_partner ? rows * stride : 1];
  alignas(16) stage stages[Tile.stages];
  float z[2 * D], unit[2];  // of the states
  product_task<T> task;

  static_assert(Tile.panel % rows == 0 && 128 % Tile.panel == 0, "a panel holds whole blocks of rows, and divides every chunk");
};

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
