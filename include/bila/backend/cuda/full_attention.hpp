// SPDX-License-Identifier: Apache-2.0
// The full form: rows attend to all keys of their sequence, and scores stay in registers. A warp processes 16 rows. It starts with
// the tile of keys on the diagonal, continues with the tiles to the left, nearest first, and ends with those to the right.
#pragma once

#include <bila/backend/cuda/row_block.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// The rows and keys that a block of threads processes. One thread computes them, because 64-bit divisions are slow.
template <class T>
struct attention_task {
  index_t row, h, token;          // batch row, head, token of the first row
  index_t entry, key_entry;       // entry of the first row, of the first key
  const T *k, *v;                 // the first key and its value
  int row_count, keys, from_key;  // from_key: tokens from the first key to the first row

  __device__ void locate(const product_call<T>& c, index_t task, int rows) {
    const place at = c.s.find(task, c.H, rows);
    const index_t count = c.s.tokens(at.n), first_row = at.unit * rows;
    row_count = count > first_row ? static_cast<int>(count - first_row < rows ? count - first_row : rows) : 0;
    if (row_count == 0) return;
    row = c.s.row(at.n);
    h = at.h;
    token = c.s.first(at.n) + first_row;
    entry = c.s.first_entry(at.n, at.h, c.H) + first_row;
    key_entry = entry - first_row;
    from_key = c.keys >= 0 ? 0 : static_cast<int>(first_row);  // in cross attention a key's position has no effect
    keys = static_cast<int>(c.keys >= 0 ? c.keys : count);
    k = c.k.tokens(row, h, token - first_row, keys).data;
    v = c.v.tokens(row, h, token - first_row, keys).data;
  }

  /// The place in tensors of `count` rows, from row `first` of the task on.
  __device__ __forceinline__ row_place place_of(int first, int count) const {
    return {row, h, token + first, entry + first, count};
  }
};

/// The order of a task's tiles of keys: the tile on the diagonal, then the tiles to its left, then the tiles to its right.
struct attention_steps {
  int middle, to_left, steps;  // the diagonal's tile; number of tiles to its left, and of all tiles, that rows see

  template <class T>
  __device__ attention_steps(const product_call<T>& c, const attention_task<T>& at, int kv_tile) {
    const int tiles = (at.keys + kv_tile - 1) / kv_tile;
    middle = at.from_key / kv_tile;
    to_left = c.left ? middle : 0;
    steps = tiles == 0 ? 0 : 1 + to_left + (c.right ? tiles - 1 - middle : 0);
  }

  __device__ int tile_of(int step) const { return step <= to_left ? middle - step : middle + step - to_left; }
};

/// Long sums over keys. A float sum of thousands of equal terms drifts, because each addition rounds the same way. So 512 keys at a
/// time are summed separately, and then added here. Row sums are kept here for every T, with the rounding error of each addition. N
/// and the dot products are kept here only if `Whole`, for float: the rounding of 16-bit results is larger than the drift.
template <class Rows, bool Whole>
class long_sums {
 public:
  static constexpr int keys = 512;  // keys that are summed separately

  __device__ __forceinline__ void add(Rows& rows) {
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
      if constexpr (Rows::is_backward) move(rows.dots, dots_);
    }
  }

  /// Gives the rows the sums over all keys.
  __device__ __forceinline__ void finish(Rows& rows) {
    add(rows);
    if constexpr (Rows::sums_rows) rows.Z[0] = Z_[0], rows.Z[2] = Z_[1];
    if constexpr (Whole) {
      move(N_, rows.N);
      if constexpr (Rows::is_backward) move(dots_, rows.dots);
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

template <class T, int D, class Tiles, class Epilogue>
struct full_attention_memory {
  static constexpr attention_tile Tile = Tiles::full_attention(static_cast<int>(sizeof(T)), D, result_of<Epilogue>);
  static constexpr bool is_backward = Epilogue::is_backward;
  static constexpr int rows = Tile.warps * mma_rows, threads = Tile.warps * 32;
  static constexpr int stride = D + 16 / static_cast<int>(sizeof(T));
  using stage = key_tile<T, D, D, Tile.kv_tile>;
  alignas(16) T q[rows * stride];
  alignas(16) T dot_operand[is_backward ? rows * stride : 1];
  alignas(16) stage stages[Tile.stages];
  attention_task<T> task;

  /// Starts to copy the rows to shared memory.
  __device__ __forceinline__ void load_rows(const product_call<T>& c, const Epilogue& epilogue) {
    load_tokens<rows, D, stride, threads>(q, c.q.tokens(task.row, task.h, task.token, task.row_count), c.q.fast);
    if constexpr (is_backward)
      if (needs_dot_operand(epilogue)) {
        const operand<T>& x = epilogue.terms.dot_operand;
        load_tokens<rows, D, stride, threads>(dot_operand, x.tokens(task.row, task.h, task.token, task.row_count), x.fast);
      }
  }

  /// Starts to copy the keys and values of a step to shared memory.
  __device__ __forceinline__ void load_keys(const product_call<T>& c, const Epilogue& epilogue, const attention_steps& steps,
                                            int step) {
    const int tile = steps.tile_of(step), from = tile * Tile.kv_tile;
    stages[step % Tile.stages].template load<threads>(c.k, task.k + from * c.k.x.strides[2], c.v, task.v + from * c.v.x.strides[2],
                                                      task.keys - from, c.gaps, task.key_entry + from, write_forward,
                                                      write_backward, tile == steps.middle, column_bias_of(epilogue));
  }

  static_assert(Tile.kv_tile % rows == 0, "a tile holds whole blocks of rows");
};

/// Reads the gap weights and the biases of a warp's rows.
template <class Rows, class Epilogue, class T>
__device__ __forceinline__ void load_row_factors(Rows& rows, const product_call<T>& c, const Epilogue& epilogue,
                                                 index_t first_entry) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const index_t entry = first_entry + rows.lane.g + 8 * half;
    if (c.gaps.weights != nullptr) {
      rows.read_forward[half] = *c.gaps.weight(read_forward, entry);
      rows.read_backward[half] = *c.gaps.weight(read_backward, entry);
    }
    if constexpr (Rows::is_backward)
      if (epilogue.terms.row_bias != nullptr) rows.row_bias[half] = epilogue.terms.row_bias[entry];
  }
}

template <class T, int D, class Tiles, class Epilogue>
BILA_KERNEL void __launch_bounds__(full_attention_memory<T, D, Tiles, Epilogue>::threads,
                                   full_attention_memory<T, D, Tiles, Epilogue>::Tile.per_sm)
    full_attention(const __grid_constant__ product_call<T> c, const __grid_constant__ Epilogue epilogue, const index_t tasks) {
  using memory = full_attention_memory<T, D, Tiles, Epilogue>;
  constexpr attention_tile Tile = memory::Tile;
  constexpr bool q_in_registers = D <= 64 && sizeof(T) == 2 && Tile.per_sm < 3;
  using block_of_rows = row_block<T, D, D, Epilogue, q_in_registers, false, 1>;
  using sums = long_sums<block_of_rows, std::is_same_v<T, float>>;
  static_assert(!Epilogue::is_dual || sizeof(T) == 2, "long_sums does not keep dual rows");
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const int first_row = warp_number() * mma_rows;  // first row of this warp in the task

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) shared.task.locate(c, task, memory::rows);
    __syncthreads();
    const attention_task<T>& at = shared.task;
    if (at.row_count == 0) continue;
    const attention_steps steps(c, at, Tile.kv_tile);
    shared.load_rows(c, epilogue);

    const int count = at.row_count - first_row < mma_rows ? at.row_count - first_row : mma_rows;  // rows of this warp
    const bool works = count > 0;
    block_of_rows rows;
    sums before;
    if (works) {
      load_row_factors(rows, c, epilogue, at.entry + first_row);
      if constexpr (Epilogue::is_backward) rows.dot_operand.load(shared.dot_operand + first_row * memory::stride);
    }

#pragma unroll 1
    for (int round = 0; round < steps.steps + Tile.stages; ++round) {  // step < 0: rounds that only load
      const int step = round - Tile.stages;
      if (step >= 0) {
        wait_for_copies<Tile.stages - 1>();
        __syncthreads();
        if (step == 0 && works) rows.q.load(shared.q + first_row * memory::stride);
        const int from = steps.tile_of(step) * Tile.kv_tile;
        if (works) {
          rows.template add_keys<false>(c, epilogue, shared.stages[step % Tile.stages], (at.from_key + first_row - from) / mma_rows,
                                        at.keys - from);
          if ((step + 1) % (sums::keys / Tile.kv_tile) == 0) before.add(rows);
        }
        __syncthreads();
      }
      if (round < steps.steps) shared.load_keys(c, epilogue, steps, round);
      close_copies();
    }
    if (works) {
      before.finish(rows);
      rows.store(epilogue, at.place_of(first_row, count), 0, dots_of(epilogue, 0));
      if constexpr (Epilogue::is_dual) rows.store_dual(epilogue, at.place_of(first_row, count));
    }
    __syncthreads();
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
