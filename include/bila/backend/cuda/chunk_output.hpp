// SPDX-License-Identifier: Apache-2.0
// The rows of the chunkwise form (MATH.md 2.4). A block of threads processes a chunk tile by tile, in two passes, and each of its
// warps processes 16 rows of every tile. The first pass runs from the last tile to the first: it carries the right state, the sum
// over all later keys, and stores the right state of every tile. The second pass runs from the first tile to the last: it carries
// the left state, the sum over all earlier keys, and writes the rows. Pairs of tokens in the same tile are computed as in the full
// form.
#pragma once

#include <bila/backend/cuda/read_states.hpp>
#include <bila/backend/cuda/state_product.hpp>
#include <bila/backend/cuda/states.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// The arguments of chunk_output.
template <class T>
struct chunk_output_call {
  product_call<T> product;
  state_table<T> entering;  // the states that enter chunks; no S: nothing enters a chunk
  bool transposed;          // whether `entering` holds states transposed, with one row per feature of v
  std::byte* right_states;  // a stored_state for each tile and value tile
};

/// The arguments of chunk_output in a gradient. The kernel runs for dq, then for dk, and for dv if no kernel computes dk and dv
/// together. If gradients of gates are wanted, the run for dq keeps its right states and also stores its left states. The states of
/// the run for dk are adjoints. For each tile this run computes two inner products: of its right state and the left state of the
/// run for dq, for the forward direction; of its left state and the right state of the run for dq, for the backward direction. They
/// are the cross-tile terms of the gates, <state that enters the tile, adjoint of the state that leaves it> (MATH.md 4.4). The run
/// for dv computes no such terms.
template <class T>
struct chunk_gradient_call : chunk_output_call<T> {
  std::byte* left_states;                         // null: not stored
  const std::byte *forward_right, *forward_left;  // the right and left states that the run for dq stored
  float* cross_tile_terms;                        // per tile and direction: a part for each value tile and warp; null: not wanted
};

template <class T, class Epilogue>
using chunk_call_of = std::conditional_t<Epilogue::is_backward, chunk_gradient_call<T>, chunk_output_call<T>>;

template <class T>
struct chunk_output_task : chunk_task<T> {
  index_t state;  // number of the first tile's stored state
  const T* q;     // the first token's query
  int tiles;

  __device__ void locate(const product_call<T>& c, index_t task, int value_tiles, int value_tile, int kv_tile) {
    chunk_task<T>::locate(c.s, c.H, c.chunk, c.k, c.v, task, value_tiles, value_tile);
    if (this->count == 0) return;
    const auto& [n, h, unit] = this->at;
    state = c.s.number({n, h, unit * c.chunk / kv_tile}, c.H, kv_tile) * value_tiles + this->first_column / value_tile;
    q = c.q.tokens(this->row, h, this->token, this->count).data;
    tiles = static_cast<int>((this->count + kv_tile - 1) / kv_tile);
  }
};

template <class T, int D, class Tiles, class Epilogue>
struct chunk_output_memory {
  static constexpr state_tile Tile = Tiles::chunk_output(static_cast<int>(sizeof(T)), D);
  static constexpr int value_tile = D < Tile.value_tile ? D : Tile.value_tile, value_tiles = D / value_tile;
  static constexpr int warps = Tile.kv_tile / mma_rows, threads = warps * 32;
  static constexpr int stride = D + 16 / static_cast<int>(sizeof(T));
  static constexpr state_sum Sum = state_sum_of<Epilogue>;
  using state = stored_state<T, D, value_tile, Sum>;
  static_assert(!Epilogue::is_dual || value_tiles == 1, "a row of the dual product is a sum over all columns");
  static_assert(128 % Tile.kv_tile == 0, "chunks are whole tiles");
  struct stage {
    alignas(16) T q[Tile.kv_tile * stride];
    key_tile<T, D, value_tile, Tile.kv_tile> keys;
    state right;
  };
  alignas(16) stage stages[Tile.stages];
  state left[2];
  chunk_output_task<T> task;
};

/// The two passes of a block of threads through its chunk.
template <class T, int D, class Tiles, class Epilogue>
class chunk_pass {
  using memory = chunk_output_memory<T, D, Tiles, Epilogue>;
  using state = typename memory::state;
  using stage = typename memory::stage;
  static constexpr state_tile Tile = memory::Tile;
  static constexpr int kv_tile = Tile.kv_tile, threads = memory::threads, stride = memory::stride, value_tile = memory::value_tile;
  static constexpr bool is_backward = Epilogue::is_backward;
  static constexpr bool q_in_registers = D <= 64 && sizeof(T) == 2 && !Epilogue::is_dual;
  static constexpr int at_once = D <= 64 && !Epilogue::is_dual ? 4 : 2;
  using block_of_rows = row_block<T, D, value_tile, Epilogue, q_in_registers, true, at_once>;
  template <passage Way>
  using carried = carried_state<T, D, value_tile, memory::warps, memory::Sum, Way>;

 public:
  __device__ __forceinline__ chunk_pass(const chunk_call_of<T, Epilogue>& call, const Epilogue& epilogue, memory& shared, int warp)
      : call_(call), c_(call.product), epilogue_(epilogue), shared_(shared), at_(shared.task), warp_(warp) {}

  /// Stores the right state of each tile, from the last tile to the first.
  __device__ __forceinline__ void store_right_states() const {
    if (!c_.right) {
      for (stage& to : shared_.stages) clear_struct<threads>(to.right);
      return;
    }
    carried<passage::backward> right(warp_);
    load_initial_state(right, 1);
    for_each_tile(
        true, [&](stage& to, int p) { load_keys(to, p, write_backward, write_backward); },
        [&](const stage& here, int p) {
          right.store(stored(call_.right_states, p));
          right.template add<true>(here.keys, column_bias_of(epilogue_) != nullptr, right);
        });
    __threadfence_block();
  }

  /// Writes the rows of each tile, from the first tile to the last.
  __device__ __forceinline__ void write_rows() const {
    carried<passage::forward> left(warp_);
    if (c_.left) {
      load_initial_state(left, 0);
      left.store(shared_.left[0]);
    } else {
      for (state& to : shared_.left) clear_struct<threads>(to);
    }
    for_each_tile(
        false,
        [&](stage& to, int p) {
          load_rows(to, p);
          load_keys(to, p, write_forward, read_backward);
          if (c_.right) copy_struct<threads>(to.right, stored(call_.right_states, p));
        },
        [&](stage& here, int p) { step(left, here, p); });
  }

 private:
  /// Processes tile p: writes the tile's rows and gate terms, and computes the left state of the next tile.
  __device__ __forceinline__ void step(carried<passage::forward>& carried_left, stage& here, int p) const {
    // `next` is scratch memory for gate terms until the next tile's left state is stored there. If rows see no keys before them, no
    // left state is stored.
    state &left = shared_.left[c_.left ? p % 2 : 0], &next = shared_.left[c_.left ? (p + 1) % 2 : 1];
    state_product<memory::warps, T, D, value_tile> product(warp_);
    const bool crosses = wants_cross_tile_terms();
    if constexpr (is_backward)
      if (crosses && c_.right) product.start(next, stored(call_.forward_left, p));
    if (const int count = up_to(tokens_of(p) - first_row(), mma_rows); count > 0) write_rows_of(here, p, count, left);
    if constexpr (is_backward)
      if (crosses) {
        if (c_.right) write_cross_tile_term(p, 0, product.end(next, here.right, epilogue_.terms.biased));  // forward
        if (c_.left) product.start(next, stored(call_.forward_right, p));
      }
    if (!c_.left) return;
    if constexpr (is_backward)
      if (call_.left_states != nullptr) write_struct<threads>(stored(call_.left_states, p), left);
    carried_left.template add<true>(here.keys, column_bias_of(epilogue_) != nullptr, carried_left);
    if constexpr (is_backward)
      if (crosses) write_cross_tile_term(p, 1, product.end(next, left, epilogue_.terms.biased));
    carried_left.store(next);
  }

  /// Adds the tile's own keys to the rows of a warp, then the states on the left and on the right, and writes the rows.
  __device__ __forceinline__ void write_rows_of(const stage& here, int p, int count, const state& left) const {
    const index_t from = static_cast<index_t>(p) * kv_tile + first_row();
    block_of_rows rows;
    if constexpr (is_backward)
      if (needs_dot_operand(epilogue_)) {
        const operand<T>& x = epilogue_.terms.dot_operand;
        const bila::rows<const T> own = x.tokens(at_.row, at_.h, at_.token + from, count);
        rows.dot_operand.load(own.columns(at_.first_column, own.width - at_.first_column), x.fast);
      }
    rows.q.load(here.q + first_row() * stride);
    load_row_factors(rows, here);
    rows.template add_keys<true>(c_, epilogue_, here.keys, warp_, tokens_of(p));
    read_states<2>(epilogue_, rows, left, here.right);
    rows.store(epilogue_, place_of(from, count), at_.first_column, dots_of(epilogue_, at_.first_column / value_tile));
    if constexpr (Epilogue::is_dual) {  // last, because store() frees the registers of N
      read_states_transposed<2>(rows, left, here.right);
      rows.store_dual(epilogue_, place_of(from, count));
    }
  }

  __device__ __forceinline__ void load_row_factors(block_of_rows& rows, const stage& here) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first_row() + rows.lane.g + 8 * half;
      rows.read_forward[half] = here.keys.weights[read_forward][i];
      rows.read_backward[half] = here.keys.weights[read_backward][i];
      if constexpr (is_backward && !Epilogue::is_dual)
        if (epilogue_.terms.row_bias != nullptr) rows.row_bias[half] = here.keys.bias[i];
    }
  }

  __device__ __forceinline__ bool wants_cross_tile_terms() const {
    if constexpr (is_backward)
      return call_.cross_tile_terms != nullptr;
    else
      return false;
  }

  __device__ __forceinline__ void write_cross_tile_term(int p, int way, float part) const {
    const index_t number = at_.first_column / value_tile, first = at_.state + p * memory::value_tiles - number;
    if (threadIdx.x % 32 == 0)
      call_.cross_tile_terms[(2 * first + way * memory::value_tiles + number) * memory::warps + warp_] = part;
  }

  /// Sets `carried` to the state that enters the chunk in direction `way`.
  template <class Carried>
  __device__ __forceinline__ void load_initial_state(Carried& carried, int way) const {
    if (call_.entering.S == nullptr)
      carried.clear();
    else
      carried.read(call_.entering, 2 * at_.number + way, at_.first_column, call_.transposed);
  }

  __device__ __forceinline__ void load_rows(stage& to, int p) const {
    const index_t from = static_cast<index_t>(p) * kv_tile;
    const tensor_view<const T>& q = c_.q.x;
    load_tokens<kv_tile, D, stride, threads>(
        to.q, rows<const T>{at_.q + from * q.strides[2], tokens_of(p), q.features(), q.strides[2], q.strides[3]}, c_.q.fast);
  }

  __device__ __forceinline__ void load_keys(stage& to, int p, weight_kind first, weight_kind last) const {
    const index_t from = static_cast<index_t>(p) * kv_tile;
    to.keys.template load<threads>(c_.k, at_.k + from * c_.k.x.strides[2], c_.v, at_.v + from * c_.v.x.strides[2], tokens_of(p),
                                   c_.gaps, at_.entry + from, first, last, last > write_backward, bias(), at_.first_column);
  }

  __device__ __forceinline__ const float* bias() const {
    if constexpr (is_backward)
      return epilogue_.terms.row_bias != nullptr ? epilogue_.terms.row_bias : epilogue_.terms.column_bias;
    else
      return nullptr;
  }

  /// Calls step(stage, p) for each tile p, while the next tile is being copied.
  template <class Load, class Step>
  __device__ __forceinline__ void for_each_tile(bool backwards, const Load& load, const Step& step) const {
    const int tiles = at_.tiles;
    const auto tile_of = [&](int i) { return backwards ? tiles - 1 - i : i; };
#pragma unroll 1
    for (int i = 1 - Tile.stages; i < tiles; ++i) {  // i < 0: rounds that only load, so that the code of load is inlined once
      wait_for_copies<0>();
      __syncthreads();
      const int next = i + Tile.stages - 1;
      if (next < tiles) load(shared_.stages[next % Tile.stages], tile_of(next));
      close_copies();
      if (Tile.stages == 1) {
        wait_for_copies<0>();
        __syncthreads();
      }
      if (i >= 0) step(shared_.stages[i % Tile.stages], tile_of(i));
    }
  }

  template <class Byte>
  __device__ __forceinline__ auto& stored(Byte* states, int p) const {
    using X = std::conditional_t<std::is_const_v<Byte>, const state, state>;
    return reinterpret_cast<X*>(states)[at_.state + p * memory::value_tiles];
  }

  __device__ __forceinline__ int tokens_of(int p) const { return up_to(at_.count - static_cast<index_t>(p) * kv_tile, kv_tile); }
  __device__ __forceinline__ int first_row() const { return warp_ * mma_rows; }
  __device__ __forceinline__ row_place place_of(index_t from, int count) const {
    return {at_.row, at_.h, at_.token + from, at_.entry + from, count};
  }

  const chunk_call_of<T, Epilogue>& call_;
  const product_call<T>& c_;
  const Epilogue& epilogue_;
  memory& shared_;
  const chunk_output_task<T>& at_;
  const int warp_;
};

template <class T, int D, class Tiles, class Epilogue>
BILA_KERNEL void __launch_bounds__(chunk_output_memory<T, D, Tiles, Epilogue>::threads,
                                   chunk_output_memory<T, D, Tiles, Epilogue>::Tile.per_sm)
    chunk_output(const __grid_constant__ chunk_call_of<T, Epilogue> call, const __grid_constant__ Epilogue epilogue,
                 const index_t tasks) {
  using memory = chunk_output_memory<T, D, Tiles, Epilogue>;
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const int warp = warp_number();

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) shared.task.locate(call.product, task, memory::value_tiles, memory::value_tile, memory::Tile.kv_tile);
    __syncthreads();
    if (shared.task.count == 0) continue;
    const chunk_pass<T, D, Tiles, Epilogue> pass(call, epilogue, shared, warp);
    pass.store_right_states();
    pass.write_rows();
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
