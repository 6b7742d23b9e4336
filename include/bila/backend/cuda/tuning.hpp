// SPDX-License-Identifier: Apache-2.0
// Tile sizes, as data. The sizes for 16-bit tensors at D = 64 were measured on an H200 (bench/cuda/NOTES.md). The other sizes are
// chosen to fit shared memory. Callers of attend and gradient may give another type with the same members in place of `tuned`.
#pragma once

#include <bila/backend/cuda/launch.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda {

/// The result of a kernel: y, one gradient, or the gradients of k and v at once.
enum class result { forward, gradient, two_gradients };

/// Tile sizes of full_attention, where each warp has 16 rows. kv_tile: keys per tile in shared memory, a multiple of the block's
/// rows. stages: tiles in shared memory at once. per_sm: blocks of threads that must fit on a multiprocessor.
struct attention_tile {
  int warps, kv_tile, stages, per_sm;
};

/// Tile sizes of the kernels that use states. kv_tile: tokens per tile in shared memory, 16 for each warp. value_tile: columns of
/// the state per block of threads.
struct state_tile {
  int kv_tile, stages, per_sm, value_tile;
};

struct tuned {
  /// Kernels are compiled for the powers of two from `narrowest` to `widest`. A head size is rounded up to one of these.
  static constexpr int narrowest = 32, widest = 256;

  /// D: the rounded head size. bytes: the size of a number.
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

  /// In calls without states, `automatic` uses the full form for sequences of fewer than shortest_linear tokens
  /// (shortest_global_state where one state can serve all rows). `automatic` and `chunkwise{}` use chunks of `chunk` tokens.
  static constexpr index_t shortest_linear = 320, shortest_global_state = 128, chunk = 2048;
};

}  // namespace cuda
}  // namespace v0_1
}  // namespace bila
