// SPDX-License-Identifier: Apache-2.0
// The chunkwise form: a block of threads walks through a chunk, panel by panel, and carries the state along; what is nearer than
// that is a full product.
//
// Twice: from the end to the beginning it stores the states that enter each panel from behind, then it walks forwards, reads both
// and writes the rows. A warp has one block of rows of the panel.
#pragma once

#include <bila/backend/cuda/read_states.hpp>
#include <bila/backend/cuda/states.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct walk_call {
  product_call<T> product;
  state_table<T> entering;  // null: nothing enters
  bool transposed;          // its rows are features of v
  std::byte* behind;        // stored_state of each panel and slice: what enters it from behind
  std::byte* before;        // and from before it; null: not wanted

  // For the gates: what jumps over each panel, <state that enters it, adjoint of the state that leaves it>, in parts: 2 ways, and
  // as many as there are slices and warps. The adjoint's walk multiplies its own with the states that are stored already.
  const std::byte *states_behind, *states_before;
  float* jumps;  // null: not wanted
};

template <class T>
struct walk_task : chunk_task<T> {
  index_t state;  // of the first panel
  const T* q;     // of the first token
  int panels;

  __device__ void locate(const product_call<T>& c, index_t task, int slices, int slice, int panel) {
    chunk_task<T>::locate(c.s, c.H, c.chunk, c.k, c.v, task, slices, slice);
    if (this->count == 0) return;
    const auto& [n, h, unit] = this->at;
    state = c.s.number({n, h, unit * c.chunk / panel}, c.H, panel) * slices + this->first_column / slice;
    q = c.q.tokens(this->row, h, this->token, this->count).data;
    panels = static_cast<int>((this->count + panel - 1) / panel);
  }
};

template <class T, int D, class Tiles, class Finish>
struct walk_memory {
  static constexpr walk_tile Tile = Tiles::walk(static_cast<int>(sizeof(T)), D);
  static constexpr int slice = D < Tile.slice ? D : Tile.slice, slices = D / slice;
  static constexpr int warps = Tile.panel / block, threads = warps * 32;
  static constexpr int stride = D + 16 / static_cast<int>(sizeof(T));
  static constexpr extra Extra = extra_of<Finish>;
  using state = stored_state<T, D, slice, Extra>;
  static_assert(!Finish::mirrors || slices == 1, "a mirrored row is a sum over all columns");
  static_assert(128 % Tile.panel == 0, "chunks are whole panels");
  struct stage {
    alignas(16) T q[Tile.panel * stride];
    key_panel<T, D, slice, Tile.panel> keys;
    state behind;
  };
  alignas(16) stage stages[Tile.stages];
  state before[2];
  walk_task<T> task;
};

/// <S, S'> + <z, z'> of a state in device memory and one at hand. A warp copies its share to shared memory, some work before it
/// reads it there: it alone, so that warps need not meet. Its share is what it stores of a carried state, whose room that may be.
template <int Warps, class T, int D, int E>
class state_product {
  using state = stored_state<T, D, E, extra::of_values>;
  static constexpr int column_blocks = E / block, ranges = Warps / column_blocks, blocks = D / block / ranges;
  static_assert(E <= Warps * 32);

 public:
  __device__ explicit state_product(int warp) : column_(warp % column_blocks), first_(warp / column_blocks * blocks) {}

  __device__ __forceinline__ void start(state& room, const state& from) {
    constexpr int vector = 16 / static_cast<int>(sizeof(T));
#pragma unroll
    for (int n = 0; n < blocks; ++n)
#pragma unroll
      for (int e = 0; e < 8; e += vector) copy_whole_async(numbers(room, n) + e, numbers(from, n) + e);
    close_copies();
    scale_ = from.scale();
    if (threadIdx.x < E) z_ = from.z[0][threadIdx.x];
  }

  /// The warp's part, in all lanes; biased: with z.
  __device__ __forceinline__ float end(const state& room, const state& with, bool biased) const {
    wait_for_copies<0>();
    float sum = 0;
#pragma unroll
    for (int n = 0; n < blocks; ++n) {
      float a[8], b[8];
      reinterpret_cast<const eight<T>*>(numbers(room, n))->read(a);
      reinterpret_cast<const eight<T>*>(numbers(with, n))->read(b);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += a[e] * b[e];
    }
    sum *= scale_ * with.scale();
    if (biased && threadIdx.x < E) sum += z_ * with.z[0][threadIdx.x];
#pragma unroll
    for (int reach = 16; reach > 0; reach /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, reach);
    __syncwarp();
    return sum;
  }

 private:
  template <class State>
  __device__ auto* numbers(State& x, int n) const {
    return x.S[first_ + n][column_] + threadIdx.x % 32 * 8;
  }

  int column_, first_;  // blocks of 16 columns, of 16 features
  float scale_, z_;
};

/// Copies whole structs to shared memory while the warps go on.
template <int Threads, class X>
__device__ void copy_struct(X& to, const X& from) {
  static_assert(sizeof(X) % 16 == 0);
  for (int i = static_cast<int>(threadIdx.x) * 16; i < static_cast<int>(sizeof(X)); i += Threads * 16)
    copy_whole_async(reinterpret_cast<std::byte*>(&to) + i, reinterpret_cast<const std::byte*>(&from) + i);
}

template <int Threads, class X>
__device__ void clear_struct(X& to) {
  for (int i = static_cast<int>(threadIdx.x) * 16; i < static_cast<int>(sizeof(X)); i += Threads * 16)
    *reinterpret_cast<uint4*>(reinterpret_cast<std::byte*>(&to) + i) = uint4{};
}

template <class T, int D, class Tiles, class Finish>
BILA_KERNEL void __launch_bounds__(walk_memory<T, D, Tiles, Finish>::threads, walk_memory<T, D, Tiles, Finish>::Tile.per_sm)
    walk(const __grid_constant__ walk_call<T> w, const __grid_constant__ Finish finish, const index_t tasks) {
  using memory = walk_memory<T, D, Tiles, Finish>;
  using state = typename memory::state;
  constexpr walk_tile Tile = memory::Tile;
  constexpr int panel = Tile.panel, threads = memory::threads, stride = memory::stride, slice = memory::slice;
  constexpr bool learns = Finish::learns, hold_q = D <= 64 && sizeof(T) == 2 && !Finish::mirrors;
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const product_call<T>& c = w.product;
  const int warp = warp_number(), mine = warp * block;
  const float* const bias = !learns ? nullptr : c.row_bias != nullptr ? c.row_bias : c.column_bias;

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) shared.task.locate(c, task, memory::slices, slice, panel);
    __syncthreads();
    const walk_task<T>& at = shared.task;
    if (at.count == 0) continue;
    const int panels = at.panels;
    const auto stored = [&](auto* states, int p) -> auto& {
      using X = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(states)>>, const state, state>;
      return reinterpret_cast<X*>(states)[at.state + p * memory::slices];
    };
    const auto tokens_of = [&](int p) { return up_to(at.count - static_cast<index_t>(p) * panel, panel); };
    const auto load_keys = [&](typename memory::stage& to, int p, weight_kind first, weight_kind last) {
      const index_t from = static_cast<index_t>(p) * panel;
      to.keys.template load<threads>(c.k, at.k + from * c.k.x.strides[2], c.v, at.v + from * c.v.x.strides[2], tokens_of(p), c.gaps,
                                     at.entry + from, first, last, last > write_backward, bias, at.first_column);
    };
    const auto start = [&](auto& carried, int way) {
      if (w.entering.S == nullptr)
        carried.clear();
      else
        carried.read(w.entering, 2 * at.number + way, at.first_column, w.transposed);
    };
    // step(stage, p) for each panel, while the copies for the next one are on their way.
    const auto for_each_panel = [&](bool backwards, const auto& load, const auto& step) {
      const auto panel_of = [&](int i) { return backwards ? panels - 1 - i : i; };
#pragma unroll 1
      for (int i = 1 - Tile.stages; i < panels; ++i) {  // one place in the code that loads
        wait_for_copies<0>();
        __syncthreads();
        const int next = i + Tile.stages - 1;
        if (next < panels) load(shared.stages[next % Tile.stages], panel_of(next));
        close_copies();
        if (Tile.stages == 1) {
          wait_for_copies<0>();
          __syncthreads();
        }
        if (i >= 0) step(shared.stages[i % Tile.stages], panel_of(i));
      }
    };

    if (c.right) {
      carried_state<T, D, slice, memory::warps, memory::Extra, passage::backward> carried(warp);
      start(carried, 1);
      for_each_panel(
          true, [&](typename memory::stage& to, int p) { load_keys(to, p, write_backward, write_backward); },
          [&](const typename memory::stage& here, int p) {
            carried.store(stored(w.behind, p));
            carried.template add<true>(here.keys, learns && c.column_bias != nullptr, carried);
          });
      __threadfence_block();
    } else {
      for (typename memory::stage& to : shared.stages) clear_struct<threads>(to.behind);
    }
    carried_state<T, D, slice, memory::warps, memory::Extra, passage::forward> carried(warp);
    if (c.left) {
      start(carried, 0);
      carried.store(shared.before[0]);
    } else {
      for (state& to : shared.before) clear_struct<threads>(to);
    }
    for_each_panel(
        false,
        [&](typename memory::stage& to, int p) {
          const index_t from = static_cast<index_t>(p) * panel;
          const tensor_view<const T>& q = c.q.x;
          load_tokens<panel, D, stride, threads>(
              to.q, rows<const T>{at.q + from * q.strides[2], tokens_of(p), q.features(), q.strides[2], q.strides[3]}, c.q.fast);
          load_keys(to, p, write_forward, read_backward);
          if (c.right) copy_struct<threads>(to.behind, stored(w.behind, p));
        },
        [&](typename memory::stage& here, int p) {
          const int there = up_to(tokens_of(p) - mine, block);
          const index_t from = static_cast<index_t>(p) * panel + mine;
          // The other one is room for the jumps until the state goes on; nothing goes on where rows do not look to the left.
          state &before = shared.before[c.left ? p % 2 : 0], &next = shared.before[c.left ? (p + 1) % 2 : 1];
          state_product<memory::warps, T, D, slice> jump(warp);
          const bool jumps = learns && w.jumps != nullptr;
          const auto write_jump = [&](int way, float part) {
            const index_t slice_number = at.first_column / slice, number = at.state + p * memory::slices - slice_number;
            if (threadIdx.x % 32 == 0) w.jumps[(2 * number + way * memory::slices + slice_number) * memory::warps + warp] = part;
          };
          if constexpr (learns)
            if (jumps && c.right) jump.start(next, stored(w.states_before, p));
          if (there > 0) {
            row_block<T, D, slice, Finish, hold_q, true, D <= 64 && !Finish::mirrors ? 4 : 2> rows;
            if (Finish::mirrors || (learns && c.dots != nullptr)) {
              const bila::rows<const T> partner = c.partner.tokens(at.row, at.h, at.token + from, there);
              rows.partner.take(partner.columns(at.first_column, partner.width - at.first_column), c.partner.fast);
            }
            rows.q.take(here.q + mine * stride);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int i = mine + rows.lane.g + 8 * half;
              rows.read_forward[half] = here.keys.weights[read_forward][i];
              rows.read_backward[half] = here.keys.weights[read_backward][i];
              if constexpr (learns)
                if (!Finish::mirrors && c.row_bias != nullptr) rows.row_bias[half] = here.keys.bias[i];
            }
            rows.template meet<true>(c, here.keys, warp, tokens_of(p));
            read_states<2>(c, rows, before, here.behind);
            rows.leave(c, finish, at.row, at.h, at.token + from, at.entry + from, there, at.first_column,
                       c.dots == nullptr ? nullptr : c.dots + 3 * (at.first_column / slice) * c.entries);
            if constexpr (Finish::mirrors) {  // last: what has left already frees registers
              read_mirrored_states<2>(rows, before, here.behind);
              rows.leave_mirror(finish, at.row, at.h, at.token + from, there);
            }
          }
          if constexpr (learns)
            if (jumps) {
              if (c.right) write_jump(0, jump.end(next, here.behind, c.biased));  // the states' forwards
              if (c.left) jump.start(next, stored(w.states_behind, p));
            }
          if (!c.left) return;
          if (w.before != nullptr) {
            std::byte* const to = reinterpret_cast<std::byte*>(&stored(w.before, p));
            for (int i = static_cast<int>(threadIdx.x) * 16; i < static_cast<int>(sizeof(state)); i += threads * 16)
              *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(reinterpret_cast<const std::byte*>(&before) + i);
          }
          carried.template add<true>(here.keys, learns && c.column_bias != nullptr, carried);
          if constexpr (learns)
            if (jumps) write_jump(1, jump.end(next, before, c.biased));
          carried.store(next);
        });
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
