// SPDX-License-Identifier: Apache-2.0
// Tile choices, as data. Those of 16-bit tensors at D = 64 were measured on an H200 (bench/cuda/NOTES.md), the others are chosen to
// fit shared memory. Another type with the same members can be given to attend and gradient in its place.
#pragma once

#include <bila/backend/cuda/launch.hpp>

namespace bila::inline v0_1::cuda {

/// What a kernel gives: y, a gradient, or that by k and that by v at once.
enum class result { forward, gradient, two_gradients };

/// Of the full form: each warp has 16 rows. panel: keys in shared memory at a time, a multiple of the rows; stages: panels in
/// flight; per_sm: blocks that shall fit a multiprocessor.
struct product_tile {
  int warps, panel, stages, per_sm;
};

/// Of the chunkwise form, and of the one state: panel: tokens between two states, or at once, a warp for 16 of them; slice: columns
/// of the state that a block of threads carries.
struct walk_tile {
  int panel, stages, per_sm, slice;
};

/// Of the kernel that sums up chunks, likewise.
using summary_tile = walk_tile;

struct tuned {
  /// Kernels are compiled for head sizes rounded up to 32, 64, 128 and 256, those of them that lie between these.
  static constexpr int narrowest = 32, widest = 256;

  /// For head sizes rounded up to D, of numbers of so many bytes.
  static constexpr product_tile product(int bytes, int D, result what) {
    if (bytes == 4) return D <= 64 ? product_tile{4, 64, 1, 1} : D == 128 ? product_tile{2, 32, 1, 1} : product_tile{1, 16, 1, 1};
    if (D <= 64 && what == result::two_gradients) return {4, 64, 1, 3};
    return D <= 64    ? product_tile{8, 128, what == result::forward ? 2 : 1, 2}
           : D == 128 ? product_tile{4, 64, 1, 2}
                      : product_tile{2, 32, 1, 2};
  }

  static constexpr walk_tile walk(int bytes, int D) {
    if (bytes == 4) return D <= 64 ? walk_tile{64, 1, 2, 32} : D == 128 ? walk_tile{32, 1, 2, 32} : walk_tile{16, 1, 2, 16};
    return D <= 64 ? walk_tile{64, 2, 2, 64} : D == 128 ? walk_tile{64, 1, 2, 32} : walk_tile{32, 1, 2, 16};
  }

  static constexpr walk_tile one_state(int bytes, int D) {
    if (bytes == 4) return D <= 64 ? walk_tile{64, 1, 2, 64} : D == 128 ? walk_tile{64, 1, 2, 32} : walk_tile{32, 1, 2, 16};
    return D <= 64 ? walk_tile{64, 2, 4, 64} : D == 128 ? walk_tile{64, 2, 2, 64} : walk_tile{64, 2, 1, 64};
  }

  static constexpr summary_tile summary(int bytes, int D) {
    if (bytes == 4)
      return D <= 64 ? summary_tile{64, 2, 1, 64} : D == 128 ? summary_tile{64, 1, 1, 32} : summary_tile{64, 1, 1, 16};
    return D <= 32    ? summary_tile{64, 3, 2, 32}
           : D == 64  ? summary_tile{64, 3, 3, 64}
           : D == 128 ? summary_tile{64, 2, 2, 32}
                      : summary_tile{64, 1, 1, 32};
  }

  /// What `automatic` takes: full below so many tokens, else chunks of so many, as `chunkwise{}` does, or, for all ones, the one
  /// state.
  static constexpr index_t shortest_linear = 320, shortest_one_state = 128, chunk = 2048;
};

}  // namespace bila::inline v0_1::cuda
