// SPDX-License-Identifier: Apache-2.0
// A state in registers. The warps of a block of threads update the state tile by tile (MATH.md 2.4):
//
//     forward:   S <- total S + sum_j write_j k_j v_j^T,   z <- total z + sum_j write_j c_j k_j
//     backward:  the same, from the last tile to the first
//
// In a gradient c_j is the bias of key j (row_block.hpp), else it is 1.
//
// Registers hold S transposed: E columns of S, each of D features. So the C fragments of one product are an operand of the next
// product, and no lane sends a number to another. As an operand a state is rounded to the tensors' type. In f16 a state is divided
// by a power of two >= the sum of its weights: the quotient is at most a weighted average of k_j v_j^T, and does not grow with the
// number of tokens.
#pragma once

#include <bila/backend/cuda/row_block.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// Which sum z a state has in addition to S.
enum class state_sum { none, of_keys, of_values };  // of_keys: z = sum_j write_j c_j k_j, of_values: z = sum_j write_j c_j v_j

/// The sum z that an epilogue needs: a gradient adds z to rows, a norm that uses the row sum divides by q_i z.
template <class Epilogue>
inline constexpr state_sum state_sum_of = Epilogue::is_backward ? state_sum::of_values
                                          : Epilogue::sums_rows ? state_sum::of_keys
                                                                : state_sum::none;

/// E columns of a state as the operand of a product. S consists of blocks of 16 x 16, each of four blocks of 8 x 8 stored column by
/// column (see fragments::load_block). For of_keys, z is the sum of its two rows.
template <class T, int D, int E, state_sum Kind>
struct alignas(16) stored_state {
  T S[D / mma_rows][E / mma_rows][mma_rows * mma_rows];                                               // divided by unit
  std::conditional_t<Kind == state_sum::of_keys, T, float> z[Kind == state_sum::of_keys ? 2 : 1][D];  // of_keys: divided by unit
  float unit, unused[3];

  /// The divisor of S. For all types but f16 it is 1 at compile time.
  __device__ float scale() const { return std::is_same_v<T, f16> ? unit : 1; }
};

/// The states that enter chunks, numbered as in `sequences`, row-major: S (..., 2, D, D), z (..., 2, D), all other arrays (..., 2).
/// Direction 0 is forward, direction 1 backward.
template <class T>
struct state_table {
  T* S;           // divided by unit
  float* z;       // sum_j write_j c_j k_j
  float* unit;    // divisor of S, a power of two
  float* weight;  // sum of the weights of the chunk's own tokens
  float2* total;  // decay over the chunk, x + y; with x alone, rounding errors would add up over the chunks
};

/// The divisor of a state whose weights sum to `weight`: in f16 the least power of two >= weight (at least 2^-60), else 1.
template <class T>
__device__ float unit_of(float weight) {
  if constexpr (!std::is_same_v<T, f16>) return 1;
  return weight <= 0x1p-60f ? 0x1p-60f : __uint_as_float((__float_as_uint(weight) + 0x7fffffu) & 0x7f800000u);
}

/// 1 / x, where x is a power of two.
__device__ inline float inverse_of_power(float x) { return __uint_as_float(0x7f000000u - __float_as_uint(x)); }

/// The decay of a running sum at each tile. A long product of rounded factors drifts, because 1 - 1e-7 rounds to 1 - 1.2e-7. So the
/// rounding error of each factor is multiplied into the next factor.
class pending_decay {
 public:
  __device__ float operator()(double total) {
    const double wanted = total * pending_;
    const float applied = fminf(static_cast<float>(wanted), 1);
    pending_ = applied < 1e-37f ? 1 : wanted / static_cast<double>(applied);
    return applied;
  }

 private:
  double pending_ = 1;
};

/// e^x for x from -2^-6 to 0, correct up to the last bit. The error of fast_exp, repeated at every tile, would make a state drift.
__device__ inline float exp_near_one(float x) { return fmaf(x, fmaf(x, fmaf(x, 1.0f / 6, 0.5f), 1), 1); }

/// The chunk and the columns of v that a block of threads works on. One thread computes them, because 64-bit divisions are slow.
template <class T>
struct chunk_task {
  place at;
  index_t number, row, h, token, entry, count;  // chunk number; row, h, token, entry of its first token; tokens in it
  const T *k, *v;                               // the first token's key, and its value from first_column on
  int first_column;

  __device__ void locate(const sequences& s, index_t H, index_t chunk, const operand<T>& of_k, const operand<T>& of_v, index_t task,
                         int value_tiles, int value_tile) {
    number = value_tiles == 1 ? task : divide(task, value_tiles);
    first_column = static_cast<int>(task - number * value_tiles) * value_tile;
    at = s.find(number, H, chunk);
    const index_t first = at.unit * chunk, left = s.tokens(at.n) - first;
    count = left <= 0 ? 0 : left < chunk ? left : chunk;
    if (count == 0) return;
    row = s.row(at.n);
    h = at.h;
    token = s.first(at.n) + first;
    entry = s.first_entry(at.n, at.h, H) + first;
    k = of_k.tokens(row, h, token, count).data;
    v = of_v.tokens(row, h, token, count).data + first_column * of_v.x.strides[3];
  }
};

/// The direction of a state. `backward_against` is a backward state whose tiles come in forward order. Such a state never decays.
/// Instead, the sum over each tile is multiplied by the decay over all tiles before it.
enum class passage { forward, backward, backward_against };

/// A state in the registers of `Warps` warps. A warp holds 16 columns. Where there are more warps than blocks of 16 columns,
/// several warps share 16 columns and each of them holds a part of the features.
template <class T, int D, int E, int Warps, state_sum Kind, passage Way>
class carried_state {
  using F = fragments<T>;
  using sum = exponent<T>;
  static constexpr int column_blocks = E / mma_rows, ranges = Warps / column_blocks, features = D / ranges;
  static constexpr int pairs = features / 16, own_pairs = (pairs + column_blocks - 1) / column_blocks;
  static constexpr bool limited = std::is_same_v<T, f16>;
  static constexpr bool backward = Way != passage::forward, against = Way == passage::backward_against;
  static_assert(Warps % column_blocks == 0 && features % 16 == 0, "every warp has whole blocks of the state");

 public:
  __device__ __forceinline__ explicit carried_state(int warp)
      : column_(warp % column_blocks * mma_rows), first_(warp / column_blocks * features) {}

  /// Sets the state to zero.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < features / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) S_[n][e] = 0;
#pragma unroll
    for (int n = 0; n < own_pairs; ++n)
#pragma unroll
      for (int e = 0; e < 8; ++e) z_[n][e / 4][e % 4] = 0;
    weight_ = 0;
    decay_ = {};
  }

  /// Reads state `number` of the table, columns from first_column on. transposed: the columns are the table's rows.
  __device__ __forceinline__ void read(const state_table<T>& from, index_t number, int first_column, bool transposed) {
    const T* const S = from.S + number * D * D;
    const float* const z = from.z + number * D;
    const float unit = from.unit[number];
    clear();
    weight_ = unit;
#pragma unroll
    for (int n = 0; n < features / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = first_column + column_ + lane_.g + e / 2 * 8, feature = first_ + n * 8 + 2 * lane_.t + e % 2;
        S_[n][e] = unit * wide(transposed ? S[column * D + feature] : S[feature * D + column]);
      }
    if constexpr (Kind == state_sum::of_values) {
      if (lane_.t == 0) {
        z_[0][0][0] = z[first_column + column_ + lane_.g];
        z_[0][0][2] = z[first_column + column_ + lane_.g + 8];
      }
    } else if constexpr (Kind == state_sum::of_keys) {
#pragma unroll
      for (int n = 0; n < own_pairs; ++n)
        if (lane_.g == 0)
#pragma unroll
          for (int e = 0; e < 4; ++e) z_[n][e / 2][e % 2] = z[own_feature(n) + e / 2 * 8 + 2 * lane_.t + e % 2];
    }
  }

  /// Computes factor_ for a tile that is to be added. Multiplies the state by the decay over the tile, unless backward_against.
  template <class Tile>
  __device__ __forceinline__ void decay_by_tile(const Tile& here) {
    static_assert(Tile::blocks <= 8);
    sum total = against ? all_ : 0;
#pragma unroll
    for (int i = 0; i < Tile::blocks; ++i) {
      const int j = backward ? i : Tile::blocks - 1 - i;
      factor_[j] = fast_exp(total);
      total += backward ? here.block_sums[j].backward : here.block_sums[j].forward;
    }
    all_ = against ? total : all_ + total;
    if constexpr (!against) {
      float decay;
      if constexpr (std::is_same_v<T, float>)
        decay = decay_(exp(total));
      else
        decay = total > -0x1p-6f ? exp_near_one(total) : fast_exp(total);
#pragma unroll
      for (int n = 0; n < features / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) S_[n][e] *= decay;
      if constexpr (Kind != state_sum::none)
#pragma unroll
        for (int n = 0; n < own_pairs; ++n)
#pragma unroll
          for (int e = 0; e < 8; ++e) z_[n][e / 4][e % 4] *= decay;
      weight_ *= decay;
    }
  }

  /// Multiplies the values of block j of a tile by their weights.
  template <bool Weighted, class Tile>
  __device__ __forceinline__ void weigh_block(const Tile& here, int j, const typename F::a_type& values, bool biased) {
    const int t = j * mma_rows + 2 * lane_.t;
    const auto four = [&](const float* from) {  // of the block's tokens 2 lane_.t + 0, 1, 8 and 9
      const float2 low = *reinterpret_cast<const float2*>(from + t), high = *reinterpret_cast<const float2*>(from + t + 8);
      return float4{low.x, low.y, high.x, high.y};
    };
    values_ = values;
    float w[4] = {1, 1, 1, 1};
    if constexpr (Weighted) {
      const float4 own = four(here.weights[backward ? write_backward : write_forward]);
      w[0] = factor_[j] * own.x, w[1] = factor_[j] * own.y, w[2] = factor_[j] * own.z, w[3] = factor_[j] * own.w;
      float x[8];
      F::read_a(x, values);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] *= w[e / 4 * 2 + e % 2];
      values_ = F::make_a(x);
    }
    if constexpr (limited)
#pragma unroll
      for (int e = 0; e < 4; ++e) weights_ += w[e];
    if constexpr (Kind == state_sum::none) return;
    if (biased) {
      const float4 c = four(here.bias);
      w[0] *= c.x, w[1] *= c.y, w[2] *= c.z, w[3] *= c.w;
    }
    if constexpr (limited) {  // f16 would round small weights to zero, so the weights are divided by a power of two
      float most = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) most = fmaxf(most, fabsf(w[e]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      z_unit_ = unit_of<T>(most);
#pragma unroll
      for (int e = 0; e < 4; ++e) w[e] *= inverse_of_power(z_unit_);
    }
    if constexpr (Kind == state_sum::of_values) add_to_vector(z_[0][0], values, F::two_columns(w));
    if constexpr (Kind == state_sum::of_keys) sums_ = F::two_rows(w);
  }

  __device__ __forceinline__ void add_keys(int n, const typename F::b_type (&keys)[2]) {
    F::add_product(S_[2 * n], values_, keys[0]);
    F::add_product(S_[2 * n + 1], values_, keys[1]);
  }
  __device__ __forceinline__ void add_key_sums(int n, const typename F::b_type (&keys)[2]) {
    add_to_vector(z_[n][0], sums_, keys[0]);
    add_to_vector(z_[n][1], sums_, keys[1]);
  }
  __device__ __forceinline__ void finish_tile() {
    if constexpr (limited) {
      weight_ += sum_of_row(weights_);
      weights_ = 0;
    }
  }

  /// Adds a tile to one or two states. Without weights, the direction does not matter. biased: c_j is the tile's bias, else 1.
  template <bool Weighted, class Tile, class... States>
  __device__ __forceinline__ static void add(const Tile& here, bool biased, States&... states) {
    const auto& first = first_of(states...);  // all states of a warp hold the same columns and features
    if constexpr (Weighted) (states.decay_by_tile(here), ...);
#pragma unroll
    for (int j = 0; j < Tile::blocks; ++j) {
      const typename F::a_type values =
          F::template load_a_transposed<Tile::v_stride>(here.v + j * mma_rows * Tile::v_stride + first.column_);
      (states.template weigh_block<Weighted>(here, j, values, biased), ...);
      const T* const keys = here.k + j * mma_rows * Tile::k_stride;
#pragma unroll
      for (int n = 0; n < pairs; ++n) {
        typename F::b_type b[2];
        F::template load_b<Tile::k_stride>(b, keys + first.first_ + n * 16);
        (states.add_keys(n, b), ...);
      }
      if constexpr (Kind == state_sum::of_keys)
#pragma unroll
        for (int n = 0; n < own_pairs; ++n) {
          typename F::b_type b[2];
          F::template load_b<Tile::k_stride>(b, keys + first.own_feature(n));
          (states.add_key_sums(n, b), ...);
        }
    }
    (states.finish_tile(), ...);
  }

  /// Stores the state as an operand in shared or device memory. All warps may read it after a barrier.
  __device__ __forceinline__ void store(stored_state<T, D, E, Kind>& to) const {
    const float unit = unit_of<T>(weight_), per_unit = inverse_of_power(unit);
    const auto scaled = [&](float x) { return limited ? x * per_unit : x; };
#pragma unroll
    for (int n = 0; n < pairs; ++n) {
      typename F::b_type b[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float x[4] = {scaled(S_[2 * n][2 * i]), scaled(S_[2 * n][2 * i + 1]), scaled(S_[2 * n + 1][2 * i]),
                            scaled(S_[2 * n + 1][2 * i + 1])};
        b[i] = F::make_b(x);
      }
      F::store_block(to.S[first_ / mma_rows + n][column_ / mma_rows], b);
    }
    each_of_vector([&](int i, float x) {
      if constexpr (Kind == state_sum::of_keys) {
        to.z[0][i] = narrow<T>(scaled(x));
        to.z[1][i] = narrow<T>(scaled(x) - wide(to.z[0][i]));
      } else {
        to.z[0][i] = x;
      }
    });
    if (threadIdx.x == 0) to.unit = unit, to.unused[0] = to.unused[1] = to.unused[2] = 0;
  }

  /// Writes state `number` of the table: the columns of S from first_column on. If first_column is 0, also writes z, the weight,
  /// the unit and the total decay.
  __device__ __forceinline__ void write(const state_table<T>& to, index_t number, int first_column) const {
    const float unit = unit_of<T>(weight_), per_unit = inverse_of_power(unit);
    T* const S = to.S + number * D * D;
#pragma unroll
    for (int n = 0; n < features / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = first_column + column_ + lane_.g + e / 2 * 8, feature = first_ + n * 8 + 2 * lane_.t + e % 2;
        S[feature * D + column] = narrow<T>(S_[n][e] * per_unit);
      }
    if (first_column > 0) return;
    each_of_vector([&](int i, float x) { to.z[number * D + i] = x; });
    if (column_ + first_ > 0 || threadIdx.x % 32 > 0) return;
    to.weight[number] = weight_;
    to.unit[number] = unit;
    const double total = exp(static_cast<double>(all_));
    const float rounded = static_cast<float>(total);
    to.total[number] = {rounded, static_cast<float>(total - static_cast<double>(rounded))};
  }

  /// The first of the 16 numbers of z that this warp sums in its n-th round. Warps with the same features divide z among
  /// themselves. If this leaves a remainder, two warps sum the same numbers, and one of them writes the sums.
  __device__ __forceinline__ int own_feature(int n) const { return first_ + (n * column_blocks + column_ / mma_rows) % pairs * 16; }

 private:
  template <class First, class... Rest>
  static __device__ __forceinline__ const First& first_of(const First& first, const Rest&...) {
    return first;
  }

  template <class, int, int, int, state_sum, passage>
  friend class carried_state;

  __device__ __forceinline__ void add_to_vector(float (&z)[4], const typename F::a_type& a, const typename F::b_type& b) const {
    if constexpr (limited) {
      float scaled[4];
      F::multiply_first(scaled, a, b);
#pragma unroll
      for (int e = 0; e < 4; ++e) z[e] += z_unit_ * scaled[e];
    } else {
      F::add_product(z, a, b);
    }
  }

  /// Calls write(i, z_i) for each number of z that this warp writes: of those that two warps sum, only one warp writes each.
  template <class Write>
  __device__ __forceinline__ void each_of_vector(const Write& write) const {
    if constexpr (Kind == state_sum::of_values) {
      if (first_ == 0 && lane_.t == 0) {
        write(column_ + lane_.g, z_[0][0][0] + z_[0][0][1]);
        write(column_ + lane_.g + 8, z_[0][0][2] + z_[0][0][3]);
      }
    } else if constexpr (Kind == state_sum::of_keys) {
#pragma unroll
      for (int n = 0; n < own_pairs; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float x = z_[n][e / 2][e % 2], both = x + __shfl_down_sync(0xffffffffu, x, 4);
          if (lane_.g == 0 && n * column_blocks + column_ / mma_rows < pairs)
            write(own_feature(n) + e / 2 * 8 + 2 * lane_.t + e % 2, both);
        }
    }
  }

  lane_place lane_;
  int column_, first_;        // first column and first feature of this warp
  float S_[features / 8][4];  // (16 columns, features), transposed
  float z_[own_pairs][2][4];  // z is the sum of two rows (of_keys) or of two columns (of_values)
  float weight_ = 0;          // sum of all weights, decayed as S is
  sum all_ = 0;               // sum of the log decays of all tiles added so far
  pending_decay decay_;

  // For the tile that is being added. factor_: decay from each block to the tile's last block (backward: to its first block,
  // backward_against: to the chunk's first block). values_: weighted values of a block. sums_: the block's weights times c_j,
  // divided by z_unit_, in two rows. weights_: this lane's sum of weights.
  float factor_[8];
  typename F::a_type values_, sums_;
  float weights_ = 0, z_unit_ = 1;
};

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
