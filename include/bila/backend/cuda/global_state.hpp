// SPDX-License-Identifier: Apache-2.0
// The mask of all ones: every row reads the same state, a sum over all keys (MATH.md 2.5).
//
//     N_i = q_i S + r_i z,   Z_i = q_i z
//
// The blocks of threads that write rows sum up the state of a short sequence themselves, in registers. For a long sequence
// chunk_states and scan_states run first.
#pragma once

#include <bila/backend/cuda/read_states.hpp>
#include <bila/backend/cuda/states.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct global_state_call {
  product_call<T> product;
  state_table<T> states;  // holds the state at the first chunk's number; no S: this kernel sums up the state
  sequences of_keys;
  index_t states_chunk;
  bool transposed;  // whether `states` holds the state transposed, with one row per feature of v
};

template <class T>
struct global_state_task {
  index_t row, h, token, entry, count, state;
  index_t key_entry, keys;  // entry of the first key, number of keys to sum up
  const T *k, *v;           // the first key, and its value from first_column on
  int first_column;

  __device__ void locate(const global_state_call<T>& call, index_t task, int value_tiles, int value_tile, index_t size) {
    const product_call<T>& c = call.product;
    const index_t number = value_tiles == 1 ? task : divide(task, value_tiles);
    first_column = static_cast<int>(task - number * value_tiles) * value_tile;
    const place at = c.s.find(number, c.H, size);
    const index_t first = at.unit * size, left = c.s.tokens(at.n) - first;
    count = left <= 0 ? 0 : left < size ? left : size;
    if (count == 0) return;
    row = c.s.row(at.n);
    h = at.h;
    token = c.s.first(at.n) + first;
    entry = c.s.first_entry(at.n, at.h, c.H) + first;
    if (call.states.S != nullptr) {
      state = 2 * call.of_keys.number({at.n, at.h, 0}, c.H, call.states_chunk);
      keys = 0;
      return;
    }
    const index_t first_key = call.of_keys.first(at.n);
    key_entry = entry - first;
    keys = call.of_keys.tokens(at.n);
    k = c.k.tokens(row, h, first_key, keys).data;
    v = c.v.tokens(row, h, first_key, keys).data + first_column * c.v.x.strides[3];
  }
};

template <class T, int D, class Tiles, class Epilogue>
struct global_state_memory {
  static constexpr state_tile Tile = Tiles::global_state(static_cast<int>(sizeof(T)), D);
  static constexpr int value_tile = D < Tile.value_tile ? D : Tile.value_tile, value_tiles = D / value_tile;
  static constexpr int warps = Tile.kv_tile / mma_rows, threads = warps * 32;
  static constexpr index_t rows_per_task = 512;  // so many that reading the state takes little time
  static constexpr state_sum Sum = state_sum_of<Epilogue>;
  static_assert(!Epilogue::is_dual || value_tiles == 1, "a row of the dual product is a sum over all columns");
  alignas(16) token_tile<T, D, value_tile, Tile.kv_tile> stages[Tile.stages];  // k and v, then q and dot_operand
  stored_state<T, D, value_tile, Sum> state;
  global_state_task<T> task;
};

/// A block of threads first sums up or reads the state, then writes its rows. Tiles of keys and tiles of rows form one sequence of
/// steps. During each step the next step's tile is copied to shared memory.
template <class T, int D, class Tiles, class Epilogue>
class global_state_pass {
  using memory = global_state_memory<T, D, Tiles, Epilogue>;
  static constexpr state_tile Tile = memory::Tile;
  static constexpr int kv_tile = Tile.kv_tile, threads = memory::threads, value_tile = memory::value_tile;
  static constexpr bool is_backward = Epilogue::is_backward, q_in_registers = D <= 64 && sizeof(T) == 2;
  using tile = token_tile<T, D, value_tile, kv_tile>;
  using block_of_rows = row_block<T, D, value_tile, Epilogue, q_in_registers, false, 1>;

 public:
  __device__ __forceinline__ global_state_pass(const global_state_call<T>& call, const Epilogue& epilogue, memory& shared, int warp)
      : call_(call),
        c_(call.product),
        epilogue_(epilogue),
        shared_(shared),
        at_(shared.task),
        warp_(warp),
        key_steps_(steps_of(shared.task.keys)),
        steps_(key_steps_ + steps_of(shared.task.count)) {}

  /// Sums up or reads the state, and stores it as an operand in shared memory.
  __device__ __forceinline__ void store_state() const {
    carried_state<T, D, value_tile, memory::warps, memory::Sum, passage::forward> carried(warp_);
    if (call_.states.S == nullptr)
      carried.clear();
    else
      carried.read(call_.states, at_.state, at_.first_column, call_.transposed);
#pragma unroll 1
    for (int i = 1 - Tile.stages; i < key_steps_; ++i) {
      const tile& here = arrive_at(i);
      if (i >= 0) carried.template add<false>(here, column_bias_of(epilogue_) != nullptr, carried);
    }
    carried.store(shared_.state);
  }

  __device__ __forceinline__ void write_rows() const {
#pragma unroll 1
    for (int i = key_steps_; i < steps_; ++i) {
      const tile& here = arrive_at(i);
      const index_t from = static_cast<index_t>(i - key_steps_) * kv_tile + warp_ * mma_rows;
      if (const int count = up_to(at_.count - from, mma_rows); count > 0) write_rows_of(here, from, count);
    }
  }

 private:
  /// Writes `count` rows, from row `from` of the task on.
  __device__ __forceinline__ void write_rows_of(const tile& here, index_t from, int count) const {
    const int first_row = warp_ * mma_rows;
    block_of_rows rows;
    rows.q.load(here.k + first_row * here.k_stride);
    if constexpr (Epilogue::is_dual) {  // first, because store_dual() frees registers
      rows.dot_operand.load(here.v + first_row * here.v_stride);
      read_states_transposed<1>(rows, shared_.state, shared_.state);
      rows.store_dual(epilogue_, place_of(from, count));
    } else if constexpr (is_backward) {
      if (epilogue_.terms.row_bias != nullptr)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          rows.row_bias[half] = epilogue_.terms.row_bias[at_.entry + from + rows.lane.g + 8 * half];
    }
    read_states<1>(epilogue_, rows, shared_.state, shared_.state);
    rows.store(epilogue_, place_of(from, count), at_.first_column, nullptr);
  }

  __device__ __forceinline__ row_place place_of(index_t from, int count) const {
    return {at_.row, at_.h, at_.token + from, at_.entry + from, count};
  }

  /// Waits for the tile of step i, and starts to copy the next one.
  __device__ __forceinline__ const tile& arrive_at(int i) const {
    wait_for_copies<(Tile.stages > 1 ? Tile.stages - 2 : 0)>();
    __syncthreads();
    const int next = i + Tile.stages - 1;
    if (next < steps_) load(shared_.stages[next % Tile.stages], next);
    close_copies();
    if (Tile.stages == 1) {
      wait_for_copies<0>();
      __syncthreads();
    }
    return shared_.stages[(i + Tile.stages) % Tile.stages];
  }

  __device__ __forceinline__ void load(tile& to, int step) const {
    if (step < key_steps_) {
      const index_t from = static_cast<index_t>(step) * kv_tile;
      to.template load<threads>(c_.k, at_.k + from * c_.k.x.strides[2], c_.v, at_.v + from * c_.v.x.strides[2],
                                up_to(at_.keys - from, kv_tile), column_bias_of(epilogue_), at_.key_entry + from, at_.first_column);
    } else {
      const index_t from = static_cast<index_t>(step - key_steps_) * kv_tile, left = at_.count - from;
      to.template load_k<threads>(c_.q, c_.q.tokens(at_.row, at_.h, at_.token + from, left));
      if constexpr (Epilogue::is_dual) {
        const operand<T>& x = epilogue_.terms.dot_operand;
        to.template load_v<threads>(x, x.tokens(at_.row, at_.h, at_.token + from, left));
      }
    }
  }

  __device__ __forceinline__ static int steps_of(index_t count) { return static_cast<int>((count + kv_tile - 1) / kv_tile); }

  const global_state_call<T>& call_;
  const product_call<T>& c_;
  const Epilogue& epilogue_;
  memory& shared_;
  const global_state_task<T>& at_;
  const int warp_, key_steps_, steps_;
};

template <class T, int D, class Tiles, class Epilogue>
BILA_KERNEL void __launch_bounds__(global_state_memory<T, D, Tiles, Epilogue>::threads,
                                   global_state_memory<T, D, Tiles, Epilogue>::Tile.per_sm)
    read_global_state(const __grid_constant__ global_state_call<T> call, const __grid_constant__ Epilogue epilogue,
                      const index_t tasks) {
  using memory = global_state_memory<T, D, Tiles, Epilogue>;
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const int warp = warp_number();

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) shared.task.locate(call, task, memory::value_tiles, memory::value_tile, memory::rows_per_task);
    __syncthreads();
    if (shared.task.count == 0) continue;
    const global_state_pass<T, D, Tiles, Epilogue> pass(call, epilogue, shared, warp);
    pass.store_state();
    pass.write_rows();
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
