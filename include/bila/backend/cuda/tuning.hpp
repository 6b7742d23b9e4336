// SPDX-License-Identifier: Apache-2.0
// Tile choices, as data. Those of 16-bit tensors at D = 64 were measured on an H200 (bench/cuda/NOTES.md), the others are chosen to
// fit shared memory. Another type with the same members can be given to attend and gradient in its place.
#pragma once

#include <bila/backend/cuda/launch.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda {

/// What a kernel gives: y, a gradient, or that by k and that by v at once.
enum class result { forward, gradient, two_gradients };

/// Of full attention. Each warp has 16 rows. kv_tile: keys in shared memory at a time, a multiple of the rows; stages: tiles in
/// flight; per_sm: blocks of threads that have to fit a multiprocessor.
struct attention_tile {
  int warps, kv_tile, stages, per_sm;
};

/// Tile sizes of the kernels with a state. kv_tile: tokens in shared memory at a time, a warp for 16 of them; value_tile: columns
/// of the state that a block of threads holds.
struct state_tile {
  int kv_tile, stages, per_sm, value_tile;
};

struct tuned {
  /// Kernels are compiled for head sizes rounded up to 32, 64, 128 and 256, those of them that lie between these.
  static constexpr int narrowest = 32, widest = 256;

  /// For head sizes rounded up to D, of numbers of so many bytes.
  static constexpr attention_tile full_attention(int bytes, int D, result what) {
    if (bytes == 4)
      return D <= 64 ? attention_tile{4, 64, 1, 1} : D == 128 ? attention_tile{2, 32, 1, 1} : attention_tile{1, 16, 1, 1};
    if (D <= 64 && what == result::two_gradients) return {4, 64, 1, 3};
    return D <= 64    ? attention_tile{8, 128, what == result::forward ? 2 : 1, 2}
           : D == 128 ? attention_tile{4, 64, 1, 2}
                      : attention_tile{2, 32, 1, 2};
  }

  static constexpr state_tile chunk_output(int bytes, int D) {
    if (bytes == 4) return D <= 64 ? state_tile{64, 1, 2, 32} : D == 128 ? state_tile{32, 1, 2, 32} : state_tile{16, 1, 2, 16};
    return D <= 64 ? state_tile{64, 2, 2, 64} : D == 128 ? state_tile{64, 1, 2, 32} : state_tile{32, 1, 2, 16};
  }

  static constexpr state_tile global_state(int bytes, int D) {
    if (bytes == 4) return D <= 64 ? state_tile{64, 1, 2, 64} : D == 128 ? state_tile{64, 1, 2, 32} : state_tile{32, 1, 2, 16};
    return D <= 64 ? state_tile{64, 2, 4, 64} : D == 128 ? state_tile{64, 2, 2, 64} : state_tile{64, 2, 1, 64};
  }

  static constexpr state_tile chunk_states(int bytes, int D) {
    if (bytes == 4) return D <= 64 ? state_tile{64, 2, 1, 64} : D == 128 ? state_tile{64, 1, 1, 32} : state_tile{64, 1, 1, 16};
    return D <= 32    ? state_tile{64, 3, 2, 32}
           : D == 64  ? state_tile{64, 3, 3, 64}
           : D == 128 ? state_tile{64, 2, 2, 32}
                      : state_tile{64, 1, 1, 32};
  }

  /// `automatic` takes the full form for fewer tokens than shortest_linear, or, where the global state serves,
  /// shortest_global_state. It takes chunks of `chunk` tokens, and so does `chunkwise{}`.
  static constexpr index_t shortest_linear = 320, shortest_global_state = 128, chunk = 2048;
};

}  // namespace cuda
}  // namespace v0_1
}  // namespace bila
