// SPDX-License-Identifier: Apache-2.0
// All ones: every row reads the one state that all keys are in.
//
//     N_i = q_i S + r_i z,   Z_i = q_i z
//
// The state of a short sequence is summed up by those who read it, in registers; that of a long one by `sum_chunks` beforehand.
#pragma once

#include <bila/backend/cuda/read_states.hpp>
#include <bila/backend/cuda/states.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct read_call {
  product_call<T> product;
  state_table<T> states;  // where the scan left it: in the first chunk's place; null: it is yet to be summed up
  sequences of_keys;
  index_t states_chunk;
  bool transposed;  // its rows are features of what is read
};

template <class T>
struct read_task {
  index_t row, h, token, entry, count, state;
  index_t key_entry, keys;  // yet to be summed up
  const T *k, *v;           // of the first key, v's first column
  int first_column;

  __device__ void locate(const read_call<T>& r, index_t task, int slices, int slice, index_t size) {
    const product_call<T>& c = r.product;
    const index_t number = slices == 1 ? task : divide(task, slices);
    first_column = static_cast<int>(task - number * slices) * slice;
    const place at = c.s.find(number, c.H, size);
    const index_t first = at.unit * size, left = c.s.tokens(at.n) - first;
    count = left <= 0 ? 0 : left < size ? left : size;
    if (count == 0) return;
    row = c.s.row(at.n);
    h = at.h;
    token = c.s.first(at.n) + first;
    entry = c.s.first_entry(at.n, at.h, c.H) + first;
    if (r.states.S != nullptr) {
      state = 2 * r.of_keys.number({at.n, at.h, 0}, c.H, r.states_chunk);
      keys = 0;
      return;
    }
    const index_t first_key = r.of_keys.first(at.n);
    key_entry = entry - first;
    keys = r.of_keys.tokens(at.n);
    k = c.k.tokens(row, h, first_key, keys).data;
    v = c.v.tokens(row, h, first_key, keys).data + first_column * c.v.x.strides[3];
  }
};

template <class T, int D, class Tiles, class Finish>
struct read_memory {
  static constexpr walk_tile Tile = Tiles::one_state(static_cast<int>(sizeof(T)), D);
  static constexpr int slice = D < Tile.slice ? D : Tile.slice, slices = D / slice;
  static constexpr int warps = Tile.panel / block, threads = warps * 32;
  static constexpr index_t rows_per_task = 512;  // so that reading the state is little beside them
  static constexpr extra Extra = extra_of<Finish>;
  static_assert(!Finish::mirrors || slices == 1, "a mirrored row is a sum over all columns");
  alignas(16) token_panel<T, D, slice, Tile.panel> stages[Tile.stages];  // k and v, then q and its partner
  stored_state<T, D, slice, Extra> state;
  read_task<T> task;
};

template <class T, int D, class Tiles, class Finish>
BILA_KERNEL void __launch_bounds__(read_memory<T, D, Tiles, Finish>::threads, read_memory<T, D, Tiles, Finish>::Tile.per_sm)
    read_state(const __grid_constant__ read_call<T> r, const __grid_constant__ Finish finish, const index_t tasks) {
  using memory = read_memory<T, D, Tiles, Finish>;
  constexpr walk_tile Tile = memory::Tile;
  constexpr int panel = Tile.panel, slice = memory::slice, threads = memory::threads;
  constexpr bool learns = Finish::learns, hold_q = D <= 64 && sizeof(T) == 2;
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const product_call<T>& c = r.product;
  const int warp = warp_number(), mine = warp * block;

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) shared.task.locate(r, task, memory::slices, slice, memory::rows_per_task);
    __syncthreads();
    const read_task<T>& at = shared.task;
    if (at.count == 0) continue;
    const auto panels_of = [](index_t count) { return static_cast<int>((count + panel - 1) / panel); };
    const int sums = panels_of(at.keys), steps = sums + panels_of(at.count);
    const auto load = [&](auto& to, int step) {
      if (step < sums) {
        const index_t from = static_cast<index_t>(step) * panel;
        to.template load<threads>(c.k, at.k + from * c.k.x.strides[2], c.v, at.v + from * c.v.x.strides[2],
                                  up_to(at.keys - from, panel), learns ? c.column_bias : nullptr, at.key_entry + from,
                                  at.first_column);
      } else {
        const index_t from = static_cast<index_t>(step - sums) * panel, there = at.count - from;
        to.template load_k<threads>(c.q, c.q.tokens(at.row, at.h, at.token + from, there));
        if constexpr (Finish::mirrors)
          to.template load_v<threads>(c.partner, c.partner.tokens(at.row, at.h, at.token + from, there));
      }
    };
    carried_state<T, D, slice, memory::warps, memory::Extra, passage::forward> carried(warp);
    if (r.states.S == nullptr)
      carried.clear();
    else
      carried.read(r.states, at.state, at.first_column, r.transposed);
    // What is loaded for step i, while the copies for the next one are on their way.
    const auto arrive_at = [&](int i) -> const auto& {
      wait_for_copies<(Tile.stages > 1 ? Tile.stages - 2 : 0)>();
      __syncthreads();
      const int next = i + Tile.stages - 1;
      if (next < steps) load(shared.stages[next % Tile.stages], next);
      close_copies();
      if (Tile.stages == 1) {
        wait_for_copies<0>();
        __syncthreads();
      }
      return shared.stages[(i + Tile.stages) % Tile.stages];
    };
#pragma unroll 1
    for (int i = 1 - Tile.stages; i < sums; ++i) {
      const auto& here = arrive_at(i);
      if (i >= 0) carried.template add<false>(here, learns && c.column_bias != nullptr, carried);
    }
    carried.store(shared.state);
#pragma unroll 1
    for (int i = sums; i < steps; ++i) {
      const auto& here = arrive_at(i);
      const index_t from = static_cast<index_t>(i - sums) * panel + mine;
      const int there = up_to(at.count - from, block);
      if (there <= 0) continue;
      row_block<T, D, slice, Finish, hold_q, false, 1> rows;
      rows.q.take(here.k + mine * here.k_stride);
      if constexpr (Finish::mirrors) rows.partner.take(here.v + mine * here.v_stride);
      if (learns && !Finish::mirrors && c.row_bias != nullptr)
#pragma unroll
        for (int half = 0; half < 2; ++half) rows.row_bias[half] = c.row_bias[at.entry + from + rows.lane.g + 8 * half];
      if constexpr (Finish::mirrors) {  // first: it leaves registers to the rest
        read_mirrored_states<1>(rows, shared.state, shared.state);
        rows.leave_mirror(finish, at.row, at.h, at.token + from, there);
      }
      read_states<1>(c, rows, shared.state, shared.state);
      rows.leave(c, finish, at.row, at.h, at.token + from, at.entry + from, there, at.first_column, nullptr);
    }
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
