// SPDX-License-Identifier: Apache-2.0
// Sixteen rows of a masked product in the registers of one warp.
//
//     N_i = sum_j M_ij (q_i . k_j + r_i c_j) v_j,   Z_i = sum_j M_ij (q_i . k_j)    (MATH.md 2.4, 4.3)
//
// Only the gradient has r and c. Keys are added in blocks of 16. For a block off the diagonal the mask is (row factor) x (decay
// between the two blocks) x (column factor). Each factor is at most one and the exponential of a running sum, so no exponent is a
// difference. In the block on the diagonal each element is the exponential of a difference (see exponent in gaps.hpp).
#pragma once

#include <bila/backend/cuda/epilogue.hpp>
#include <bila/backend/cuda/kv_tile.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// The smaller of x and y, or NaN if one of them is NaN.
__device__ inline float lesser(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ inline double lesser(double x, double y) { return y < x || y != y ? y : x; }

/// The sum of x over the four lanes that share a row.
__device__ inline float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// The place of a warp's sixteen rows in tensors.
struct row_place {
  index_t row, h, token, entry;  // batch row, head, token and entry (of arrays per token) of the first row
  int count;                     // rows that exist, at most 16
};

/// Sixteen rows of the result, (16, E). AtOnce: how many blocks of keys are multiplied independently of each other.
template <class T, int D, int E, class Epilogue, bool QInRegisters, bool DotOperandInRegisters, int AtOnce>
struct row_block {
  using F = fragments<T>;
  using sum = exponent<T>;
  static constexpr bool is_backward = Epilogue::is_backward, is_dual = Epilogue::is_dual, sums_rows = Epilogue::sums_rows;

  lane_place lane;
  row_operand<T, D, QInRegisters> q;
  row_operand<T, E, DotOperandInRegisters> dot_operand;
  float read_forward[2] = {1, 1}, read_backward[2] = {1, 1};  // gap weights of rows g and g + 8
  float row_bias[2] = {1, 1};
  float N[E / 8][4] = {}, Z[4] = {};             // (16, E); (16, 8), each column is the row sum
  float dual_rows[is_dual ? D / 8 : 1][4] = {};  // (16, D)
  sum left = 0, right = 0;                       // log decays between the rows and the next block of keys on each side
  float dots[2][3] = {};  // [half] of row i = g + 8 half: dot_operand_i . N_i from left keys and state, right keys, right state

  /// Adds the first `count` keys of a tile. `own` is the index of the rows' block in the tile. A negative index means that the tile
  /// is to the right of the rows, an index >= blocks that it is to the left. On each side, the caller adds the tiles nearest to
  /// the diagonal first.
  template <bool Weighted, class Tile>
  __device__ __forceinline__ void add_keys(const product_call<T>& c, const Epilogue& epilogue, const Tile& here, int own,
                                           int count) {
    constexpr int blocks = Tile::blocks, at_once = AtOnce < blocks ? AtOnce : blocks;
    const bool weighted = Weighted || c.gaps.weights != nullptr;
    float between[blocks];
#pragma unroll
    for (int j = 0; j < blocks; ++j) between[j] = 1;
    if (weighted) decay_between(here, own, between);
#pragma unroll
    for (int first = 0; first < blocks; first += at_once) {
      if (first * mma_rows >= count || (!c.left && first + at_once <= own) || (!c.right && first > own)) continue;
      float A[at_once][8];
      multiply_keys<Tile::k_stride, D>(q, here.k + first * mma_rows * Tile::k_stride, A);
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if constexpr (is_backward) add_bias(epilogue.terms, here, first + i, A[i]);
        mask(c, here, own, first + i, between, weighted, A[i]);
      }
      if constexpr (is_backward)
        if (needs_dot_operand(epilogue)) {  // dot_operand_i . (sum_j A_ij v_j) = sum_j A_ij (dot_operand_i . v_j)
          float P[at_once][8];
          multiply_keys<Tile::v_stride, E>(dot_operand, here.v + first * mma_rows * Tile::v_stride, P);
          if (wants_dots(epilogue)) add_dots(own, first, A, P);
          if constexpr (is_dual)
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
              mask(c, here, own, first + i, between, weighted, P[i]);
              add_product<Tile::k_stride, D>(dual_rows, F::make_a(P[i]), here.k + (first + i) * mma_rows * Tile::k_stride);
            }
        }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const typename F::a_type a = F::make_a(A[i]);
        if constexpr (sums_rows) {
          const float one[4] = {1, 1, 1, 1};
          F::add_product(Z, a, F::make_b(one));
        }
        add_product<Tile::v_stride, E>(N, a, here.v + (first + i) * mma_rows * Tile::v_stride);
      }
    }
  }

  /// Writes the rows, columns from first_column on, and the rows' dot products where to_dots is not null.
  __device__ __forceinline__ void store(const Epilogue& epilogue, const row_place& at, int first_column, float* to_dots) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (is_backward) {
        if (to_dots != nullptr) store_dots(at, half, to_dots);
      } else {
        normalise_row(epilogue, at, half, first_column);
      }
    }
    write(epilogue.rows, N, at, first_column);
  }

  /// Writes the rows of the dual product.
  __device__ __forceinline__ void store_dual(const Epilogue& epilogue, const row_place& at) const {
    write(epilogue.dual_rows, dual_rows, at, 0);
  }

  /// The factors of q_i S and of z in N_i: read_i times the divisor of S, and read_i r_i (0 if not biased). Indices: half of the
  /// rows, side of the state (left, right).
  __device__ __forceinline__ void weigh_states(float (&of_S)[2][2], float (&of_z)[2][2], bool biased, float left_scale,
                                               float right_scale) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float read[2] = {fast_exp(left) * read_forward[half], fast_exp(right) * read_backward[half]};
#pragma unroll
      for (int way = 0; way < 2; ++way) {
        of_S[half][way] = read[way] * (way == 0 ? left_scale : right_scale);
        of_z[half][way] = biased ? read[way] * row_bias[half] : 0;
      }
    }
  }

 private:
  /// The decay between the rows' block and each block of a tile. `left` and `right` become the log decays past the tile.
  template <class Tile>
  __device__ __forceinline__ void decay_between(const Tile& here, int own, float (&between)[Tile::blocks]) {
#pragma unroll
    for (int j = Tile::blocks - 1; j >= 0; --j)
      if (j < own) {
        between[j] = fast_exp(left);
        left += here.block_sums[j].forward;
      }
#pragma unroll
    for (int j = 0; j < Tile::blocks; ++j)
      if (j > own) {
        between[j] = fast_exp(right);
        right += here.block_sums[j].backward;
      }
  }

  /// A (16, 16 Count) = a k^T for Count blocks of keys, whose products are independent of each other.
  template <int Stride, int Depth, int Count, class Left>
  __device__ __forceinline__ static void multiply_keys(const Left& a, const T* k, float (&A)[Count][8]) {
    float s[Count][2][4];
#pragma unroll
    for (int d = 0; d < Depth / mma_rows; ++d) {
      const typename F::a_type part = a(d);
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        typename F::b_type b[2];
        F::template load_b_transposed<Stride>(b, k + i * mma_rows * Stride + d * mma_rows);
        if (d == 0) {
          F::multiply_first(s[i][0], part, b[0]);
          F::multiply_first(s[i][1], part, b[1]);
        } else {
          F::multiply(s[i][0], part, b[0]);
          F::multiply(s[i][1], part, b[1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Count; ++i)
#pragma unroll
      for (int e = 0; e < 8; ++e) A[i][e] = s[i][e / 4][e % 4];
  }

  /// A_ij += r_i c_j for block j of a tile.
  template <class Tile>
  __device__ __forceinline__ void add_bias(const backward_terms<T>& terms, const Tile& here, int j, float (&A)[8]) const {
    if (!terms.biased) return;
#pragma unroll
    for (int e = 0; e < 8; e += 4) {  // two neighbouring keys: elements e, e + 1 of row g, e + 2, e + 3 of row g + 8
      float2 of_key{1, 1};
      if (terms.column_bias != nullptr)
        of_key = *reinterpret_cast<const float2*>(here.bias + j * mma_rows + 2 * lane.t + e / 4 * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        A[e + 2 * half] += row_bias[half] * of_key.x;
        A[e + 2 * half + 1] += row_bias[half] * of_key.y;
      }
    }
  }

  /// Multiplies the scores of block j of a tile by the mask. own: the index of the block on the diagonal (see add_keys). between:
  /// the decays of decay_between.
  template <class Tile>
  __device__ __forceinline__ void mask(const product_call<T>& c, const Tile& here, int own, int j,
                                       const float (&between)[Tile::blocks], bool weighted, float (&A)[8]) const {
    if (j == own) {
      mask_diagonal(c, here, j, weighted, A);
    } else if (weighted) {
      const float r[2] = {between[j] * (j < own ? read_forward[0] : read_backward[0]),
                          between[j] * (j < own ? read_forward[1] : read_backward[1])};
      const float* const w = here.weights[j < own ? write_forward : write_backward] + j * mma_rows + 2 * lane.t;
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const float2 two = *reinterpret_cast<const float2*>(w + e / 4 * 8);
        A[e] *= r[e / 2 % 2] * two.x;
        A[e + 1] *= r[e / 2 % 2] * two.y;
      }
    }
    if ((j < own && !c.left) || (j > own && !c.right))
#pragma unroll
      for (int e = 0; e < 8; ++e) A[e] = 0;
  }

  /// A_ij *= M_ij for the block on the diagonal.
  template <class Tile>
  __device__ __forceinline__ void mask_diagonal(const product_call<T>& c, const Tile& here, int j, bool weighted,
                                                float (&A)[8]) const {
    if (weighted) {
      both_ways<sum> of_rows[2], of_keys[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) of_rows[i] = here.sums[j * mma_rows + lane.g + i * 8];
#pragma unroll
      for (int i = 0; i < 4; ++i) of_keys[i] = here.sums[j * mma_rows + 2 * lane.t + i % 2 + i / 2 * 8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {  // the direction from key to row has the exponent <= 0, the other one has >= 0
        const both_ways<sum>&u = of_rows[e / 2 % 2], &w = of_keys[e / 4 * 2 + e % 2];
        A[e] *= fast_exp(lesser(u.forward - w.forward, w.backward - u.backward));
      }
    }
    if (c.diagonal != 1 || !c.left || !c.right)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int x = lane.g + e / 2 % 2 * 8, y = 2 * lane.t + e % 2 + e / 4 * 8;  // index of the row, of the key
        if (x == y)
          A[e] *= c.diagonal;
        else if (!(x > y ? c.left : c.right))
          A[e] = 0;
      }
  }

  /// dots_i += sum_j A_ij P_ij for blocks of keys from block `first` on, separately for keys to the left and to the right.
  template <int Count>
  __device__ __forceinline__ void add_dots(int own, int first, const float (&A)[Count][8], const float (&P)[Count][8]) {
#pragma unroll
    for (int i = 0; i < Count; ++i)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int row = lane.g + e / 2 % 2 * 8 + own * mma_rows, key = 2 * lane.t + e % 2 + e / 4 * 8 + (first + i) * mma_rows;
        if (key < row) dots[e / 2 % 2][0] += A[i][e] * P[i][e];
        if (key > row) dots[e / 2 % 2][1] += A[i][e] * P[i][e];
      }
  }

  /// to += A v, with A (16, 16) and v (16, Width).
  template <int Stride, int Width>
  __device__ __forceinline__ static void add_product(float (&to)[Width / 8][4], const typename F::a_type& A, const T* v) {
#pragma unroll
    for (int n = 0; n < Width / 16; ++n) {
      typename F::b_type b[2];
      F::template load_b<Stride>(b, v + n * 16);
      F::add_product(to[2 * n], A, b[0]);
      F::add_product(to[2 * n + 1], A, b[1]);
    }
  }

  /// Turns N_i into y_i for the rows i = g + 8 half, and writes their row sums.
  __device__ __forceinline__ void normalise_row(const Epilogue& epilogue, const row_place& at, int half, int first_column) {
    const auto r = epilogue.norm(Z[2 * half], epilogue.scale);
    const float size = fabsf(r.divisor), step = size < 1e-30f ? 0x1p64f : size > 1e30f ? 0x1p-64f : 1.0f;
    const float out = r.divisor == 0 ? 0 : r.factor / (r.divisor * step);
    const auto scale_row = [&](float by) {
#pragma unroll
      for (int n = 0; n < E / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) N[n][2 * half + e] *= by;
    };
    scale_row(out);
    if (step != 1) scale_row(step);  // in two steps, because factor / divisor may overflow or underflow
    if (const int i = lane.g + 8 * half; epilogue.row_sum.data != nullptr && first_column == 0 && lane.t == 0 && i < at.count)
      epilogue.row_sum(at.row, at.h, at.token + i, 0) = Z[2 * half];
  }

  __device__ __forceinline__ void store_dots(const row_place& at, int half, float* to_dots) const {
    const int i = lane.g + 8 * half;
    const float from_left = sum_of_row(dots[half][0]), from_right = sum_of_row(dots[half][1]), of_state = sum_of_row(dots[half][2]);
    if (lane.t != 0 || i >= at.count) return;
    float* const to = to_dots + 3 * (at.entry + i);
    to[0] = from_left;
    to[1] = from_right;
    to[2] = of_state;
  }

  template <int Width>
  __device__ __forceinline__ static void write(const row_output<T>& to, const float (&x)[Width][4], const row_place& at,
                                               int first_column) {
    if (is_backward && to.scratch.data != nullptr) {
      const rows<float> all = head_rows(to.scratch, at.row, at.h, at.token, static_cast<index_t>(at.count));
      store_rows<Width * 8>(all.columns(first_column, all.width - first_column), x, false);
    } else if (to.out.data != nullptr) {
      const rows<T> all = head_rows(to.out, at.row, at.h, at.token, static_cast<index_t>(at.count));
      store_rows<Width * 8>(all.columns(first_column, all.width - first_column), x, to.fast);
    }
  }
};

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
