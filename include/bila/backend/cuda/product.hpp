// SPDX-License-Identifier: Apache-2.0
// The full form: rows against all keys of their sequence, scores in registers only.
//
// A warp has one block of rows and meets the panels of keys: to the left from the diagonal on, then to the right.
#pragma once

#include <bila/backend/cuda/row_block.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// What a block of threads has to do, worked out once by one of them: divisions of 64 bits are long.
template <class T>
struct product_task {
  index_t row, h, token;          // of the first row
  index_t entry, key_entry;       // of the first row, of the first key
  const T *k, *v;                 // first key
  int rows_left, keys, from_key;  // from the first key to the first row

  __device__ void locate(const product_call<T>& c, index_t task, int rows) {
    const place at = c.s.find(task, c.H, rows);
    const index_t count = c.s.tokens(at.n), first_row = at.unit * rows;
    rows_left = count > first_row ? static_cast<int>(count - first_row < rows ? count - first_row : rows) : 0;
    if (rows_left == 0) return;
    row = c.s.row(at.n);
    h = at.h;
    token = c.s.first(at.n) + first_row;
    entry = c.s.first_entry(at.n, at.h, c.H) + first_row;
    key_entry = entry - first_row;
    from_key = c.keys >= 0 ? 0 : static_cast<int>(first_row);  // keys that are not the rows' tokens are all alike
    keys = static_cast<int>(c.keys >= 0 ? c.keys : count);
    k = c.k.tokens(row, h, token - first_row, keys).data;
    v = c.v.tokens(row, h, token - first_row, keys).data;
  }
};

/// In which steps a task is done: panels of keys, the diagonal's first, then to the left, then to the right.
struct product_steps {
  int middle, to_left, steps;  // the diagonal's panel, how many are looked at to its left, all

  template <class T>
  __device__ product_steps(const product_call<T>& c, const product_task<T>& at, int panel) {
    const int panels = (at.keys + panel - 1) / panel;
    middle = at.from_key / panel;
    to_left = c.left ? middle : 0;
    steps = panels == 0 ? 0 : 1 + to_left + (c.right ? panels - 1 - middle : 0);
  }

  __device__ int panel_of(int step) const { return step <= to_left ? middle - step : middle + step - to_left; }
};

/// What rows have from keys met before: a float sum of thousands of terms drifts, for equal ones round the same way each time. Row
/// sums are kept whatever T is, and what each addition to them loses; the rest for float alone, in 16 bits it would not show.
template <class Rows, bool Whole>
class long_sums {
 public:
  static constexpr int keys = 512;  // whose sums are added at once

  __device__ __forceinline__ void take(Rows& rows) {
    if constexpr (Rows::sums_rows)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = rows.Z[2 * half] + lost_[half], sum = Z_[half] + x;
        lost_[half] = x - (sum - Z_[half]);
        Z_[half] = sum;
#pragma unroll
        for (int e = 0; e < 2; ++e) rows.Z[2 * half + e] = 0;
      }
    if constexpr (Whole) {
      move(rows.N, N_);
      if constexpr (Rows::learns) move(rows.dots, dots_);
    }
  }

  __device__ __forceinline__ void give(Rows& rows) {
    take(rows);
    if constexpr (Rows::sums_rows) rows.Z[0] = Z_[0], rows.Z[2] = Z_[1];
    if constexpr (Whole) {
      move(N_, rows.N);
      if constexpr (Rows::learns) move(dots_, rows.dots);
    }
  }

 private:
  template <int Height, int Width>
  __device__ __forceinline__ static void move(float (&from)[Height][Width], float (&to)[Height][Width]) {
#pragma unroll
    for (int n = 0; n < Height; ++n)
#pragma unroll
      for (int e = 0; e < Width; ++e) to[n][e] += from[n][e], from[n][e] = 0;
  }

  decltype(Rows::N) N_ = {};
  decltype(Rows::dots) dots_ = {};
  float Z_[2] = {}, lost_[2] = {};
};

template <class T, int D, class Tiles, class Finish>
struct product_memory {
  static constexpr product_tile Tile = Tiles::product(static_cast<int>(sizeof(T)), D, result_of<Finish>);
  static constexpr bool learns = Finish::learns;
  static constexpr int rows = Tile.warps * block, threads = Tile.warps * 32;
  static constexpr int stride = D + 16 / static_cast<int>(sizeof(T));
  using stage = key_panel<T, D, D, Tile.panel>;
  alignas(16) T q[rows * stride];
  alignas(16) T partner[learns ? rows * stride : 1];
  alignas(16) stage stages[Tile.stages];
  product_task<T> task;

  /// Starts to copy what a step needs.
  __device__ void load(const product_call<T>& c, const product_steps& steps, int step) {
    const int panel = steps.panel_of(step), from = panel * Tile.panel;
    stages[step % Tile.stages].template load<threads>(c.k, task.k + from * c.k.x.strides[2], c.v, task.v + from * c.v.x.strides[2],
                                                      task.keys - from, c.gaps, task.key_entry + from, write_forward,
                                                      write_backward, panel == steps.middle, learns ? c.column_bias : nullptr);
  }

  static_assert(Tile.panel % rows == 0, "a panel holds whole blocks of rows");
};

template <class T, int D, class Tiles, class Finish>
BILA_KERNEL void __launch_bounds__(product_memory<T, D, Tiles, Finish>::threads, product_memory<T, D, Tiles, Finish>::Tile.per_sm)
    multiply(const __grid_constant__ product_call<T> c, const __grid_constant__ Finish finish, const index_t tasks) {
  using memory = product_memory<T, D, Tiles, Finish>;
  constexpr product_tile Tile = memory::Tile;
  constexpr int stride = memory::stride, threads = memory::threads;
  constexpr bool learns = Finish::learns;
  constexpr bool hold_q = D <= 64 && sizeof(T) == 2 && Tile.per_sm < 3;  // q's fragments stay in registers
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const int warp = warp_number();

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) shared.task.locate(c, task, memory::rows);
    __syncthreads();
    const product_task<T>& at = shared.task;
    if (at.rows_left == 0) continue;
    const bool weighted = c.gaps.weights != nullptr;
    const product_steps walked(c, at, Tile.panel);
    load_tokens<memory::rows, D, stride, threads>(shared.q, c.q.tokens(at.row, at.h, at.token, at.rows_left), c.q.fast);
    if constexpr (learns)
      if (Finish::mirrors || c.dots != nullptr)
        load_tokens<memory::rows, D, stride, threads>(shared.partner, c.partner.tokens(at.row, at.h, at.token, at.rows_left),
                                                      c.partner.fast);

    const int mine = warp * block, there = at.rows_left - mine < block ? at.rows_left - mine : block;  // this warp's rows
    const bool works = there > 0;
    using block_of_rows = row_block<T, D, D, Finish, hold_q, false, 1>;
    using sums = long_sums<block_of_rows, std::is_same_v<T, float>>;
    static_assert(!Finish::mirrors || sizeof(T) == 2, "mirrored rows are not kept");
    block_of_rows rows;
    sums before;
    if (works) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const index_t entry = at.entry + mine + rows.lane.g + 8 * half;
        if (weighted) {
          rows.read_forward[half] = *c.gaps.weight(read_forward, entry);
          rows.read_backward[half] = *c.gaps.weight(read_backward, entry);
        }
        if constexpr (learns)
          if (c.row_bias != nullptr) rows.row_bias[half] = c.row_bias[entry];
      }
      if constexpr (learns) rows.partner.take(shared.partner + mine * stride);
    }

    // The first rounds only load: one place in the code, and a body less.
#pragma unroll 1
    for (int round = 0; round < walked.steps + Tile.stages; ++round) {
      const int step = round - Tile.stages;
      if (step >= 0) {
        wait_for_copies<Tile.stages - 1>();
        __syncthreads();
        const typename memory::stage& here = shared.stages[step % Tile.stages];
        if (step == 0 && works) rows.q.take(shared.q + mine * stride);
        const int from = walked.panel_of(step) * Tile.panel;
        if (works) {
          rows.template meet<false>(c, here, (at.from_key + mine - from) / block, at.keys - from);
          if ((step + 1) % (sums::keys / Tile.panel) == 0) before.take(rows);
        }
        __syncthreads();
      }
      if (round < walked.steps) shared.load(c, walked, round);
      close_copies();
    }
    if (works) {
      before.give(rows);
      rows.leave(c, finish, at.row, at.h, at.token + mine, at.entry + mine, there, 0, c.dots);
      if constexpr (Finish::mirrors) rows.leave_mirror(finish, at.row, at.h, at.token + mine, there);
    }
    __syncthreads();
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
