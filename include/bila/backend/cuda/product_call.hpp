// SPDX-License-Identifier: Apache-2.0
// What a masked product is asked for, and where a block of threads keeps it.
#pragma once

#include <bila/backend/cuda/states.hpp>

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
  operand<T> partner;      // without data: not the gradient of something that meets gates
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
    state = c.states.S == nullptr ? 0 : c.of_states.number({at.n, at.h, c.only_state ? 0 : chunk}, c.H, c.chunk);
  }
};

/// In which steps a task is done: panels of keys, the diagonal's first, then to the left, then to the right; then pieces of the
/// states.
struct product_steps {
  int middle, to_left;   // the diagonal's panel, and how many are looked at to its left
  int key_steps, steps;  // of the keys; all
  bool twice;            // the diagonal's panel comes again: the left is to be complete before the diagonal is added
  bool ordered;          // else every key is like another

  template <class T>
  __device__ product_steps(const product_call<T>& c, const product_task<T>& at, int panel, int D, bool in_order, bool learns)
      : ordered(in_order) {
    const int panels = (at.keys + panel - 1) / panel;
    middle = ordered ? at.from_key / panel : 0;
    to_left = !ordered || !c.left ? 0 : middle;
    const int to_right = !ordered ? panels - 1 : c.right ? panels - 1 - middle : 0;
    twice = learns && to_left > 0;
    key_steps = panels == 0 ? 0 : 1 + to_left + to_right + (twice ? 1 : 0);
    steps = key_steps + (c.states.S != nullptr ? (D + panel - 1) / panel : 0);
  }

  __device__ int panel_of(int step) const {
    if (step <= to_left) return middle - step;
    return ordered ? middle + step - to_left - (twice ? 1 : 0) : step;
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

  /// Starts to copy what a step needs.
  __device__ void load(const product_call<T>& c, const product_steps& steps, int step) {
    stage& to = stages[step % Tile.stages];
    const product_task<T>& at = task;
    constexpr int panel = Tile.panel;
    if (step >= steps.key_steps) {
      const int piece = (step - steps.key_steps) * panel;
      const T* const S = c.states.S + 2 * at.state * D * D + piece * D;
      constexpr int there = D < panel ? D : panel;
      load_tokens<there, D, stride, threads>(to.k, bila::rows<const T>{S, there, D, D, 1}, true);
      if (!c.only_state) load_tokens<there, D, stride, threads>(to.v, bila::rows<const T>{S + D * D, there, D, D, 1}, true);
      if (piece > 0) return;
      load_numbers<threads>(z, c.states.z + 2 * at.state * D, 2 * D, c.only_state ? D : 2 * D);
      if (threadIdx.x < 2) unit[threadIdx.x] = threadIdx.x == 1 && c.only_state ? 1 : c.states.unit[2 * at.state + threadIdx.x];
      return;
    }
    const int from = steps.panel_of(step) * panel, there = at.keys - from;
    const auto rows_of = [&](const operand<T>& x, const T* data) {
      return bila::rows<const T>{data + from * x.x.strides[2], there, x.x.features(), x.x.strides[2], x.x.strides[3]};
    };
    load_tokens<panel, D, stride, threads>(to.k, rows_of(c.k, at.k), c.k.fast);
    load_tokens<panel, D, stride, threads>(to.v, rows_of(c.v, at.v), c.v.fast);
    const int entries = (there + block - 1) / block * block;
    if (c.gaps.weights != nullptr) {
      load_numbers<threads>(to.weights, c.gaps.weights + at.key_entry + from, panel, entries);
      if (from / panel == steps.middle) load_numbers<threads>(to.sums, c.gaps.sums + at.key_entry + from, panel, entries);
      if (const int i = static_cast<int>(threadIdx.x); i < panel / block)  // too few, and not aligned, for copies of 16 bytes
        to.block_sums[i] =
            i < entries / block ? c.gaps.block_sums[(at.key_entry + from) / block + i] : both_ways<exponent<T>>{0, 0};
    }
    if constexpr (Learns)
      if (c.column_bias != nullptr) load_numbers<threads>(to.bias, c.column_bias + at.key_entry + from, panel, entries);
  }

  static_assert(Tile.panel % rows == 0 && 128 % Tile.panel == 0, "a panel holds whole blocks of rows, and divides every chunk");
};

/// e^x for x <= 0, to 2^-22 + |x| 2^-24 of it; what would be no normal number is 0.
template <class Exponent>
__device__ float fast_exp(Exponent x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(static_cast<float>(x) * 1.4426950408889634f));
  return y;
}

/// sum_x of the four lanes that share a row.
__device__ inline float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
