// SPDX-License-Identifier: Apache-2.0
// A state in the registers of a block of threads, which carries it from panel to panel.
//
//     forward:   S <- total S + sum_j write_j k_j v_j^T,   z <- total z + sum_j write_j c_j k_j,   backward: the same from the
//     other end (MATH.md 2.4)
//
// It lies there transposed, E columns of S of D features each: so the sums of one product are the operand of the next one, and no
// number changes its lane. As an operand it is rounded to the tensors' type; f16 needs it divided by a power of two >= the sum of
// its weights: an average of k v, which f16 can hold whenever it holds k and v.
#pragma once

#include <bila/backend/cuda/row_block.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// What of a state goes along as a vector z.
enum class extra { none, of_keys, of_values };  // sum_j write_j c_j k_j, sum_j write_j c_j v_j

/// What goes along for rows that leave in this way.
template <class Finish>
inline constexpr extra extra_of = Finish::learns      ? extra::of_values
                                  : Finish::sums_rows ? extra::of_keys
                                                      : extra::none;

/// A state as the operand of a product, E columns of it, in blocks of 16 x 16 that are four of 8 x 8, column by column (see
/// fragments::load_block). z of the keys is in two halves.
template <class T, int D, int E, extra Extra>
struct alignas(16) stored_state {
  T S[D / block][E / block][block * block];                                                     // divided by unit
  std::conditional_t<Extra == extra::of_keys, T, float> z[Extra == extra::of_keys ? 2 : 1][D];  // of keys: divided by unit
  float unit, unused[3];

  /// The unit, known to the compiler where there is but one.
  __device__ float scale() const { return std::is_same_v<T, f16> ? unit : 1; }
};

/// The states that enter chunks, row by row, numbered as in `sequences`; way 0 is forward, 1 backward. (..., 2, D, D) (..., 2, D)
/// (..., 2).
template <class T>
struct state_table {
  T* S;           // divided by unit
  float* z;       // sums of c_j k_j
  float* unit;    // the power of two
  float* weight;  // of a chunk alone: the sum of its weights
  float2* total;  // how the chunk decays what enters it: x + y, since x alone would be off by the same for every chunk
};

/// What a state is divided by whose weights' sum is `weight`: the least power of two from there on, for T that need it.
template <class T>
__device__ float unit_of(float weight) {
  if constexpr (!std::is_same_v<T, f16>) return 1;
  return weight <= 0x1p-60f ? 0x1p-60f : __uint_as_float((__float_as_uint(weight) + 0x7fffffu) & 0x7f800000u);
}

/// 1 / x of a power of two.
__device__ inline float inverse_of_power(float x) { return __uint_as_float(0x7f000000u - __float_as_uint(x)); }

/// How a running sum decays from piece to piece. The rounding error of each factor is owed to the next: 1 - 1e-7 rounds to
/// 1 - 1.2e-7, and a long product of such factors drifts.
class piece_decay {
 public:
  __device__ float operator()(double total) {
    const double wanted = total * owed_;
    const float applied = fminf(static_cast<float>(wanted), 1);
    owed_ = applied < 1e-37f ? 1 : wanted / static_cast<double>(applied);
    return applied;
  }

 private:
  double owed_ = 1;
};

/// e^x for x from -2^-6 to 0, to its last bit: what is multiplied by it from panel to panel would drift by what fast_exp is off.
__device__ inline float exp_near_one(float x) { return fmaf(x, fmaf(x, fmaf(x, 1.0f / 6, 0.5f), 1), 1); }

/// The chunk, and the columns of v, that a block of threads has: worked out once by one of them, divisions of 64 bits are long.
template <class T>
struct chunk_task {
  place at;
  index_t number, row, h, token, entry, count;  // of the chunk, of its first token
  const T *k, *v;                               // of the first token, v's first column
  int first_column;

  __device__ void locate(const sequences& s, index_t H, index_t chunk, const operand<T>& of_k, const operand<T>& of_v, index_t task,
                         int slices, int slice) {
    number = slices == 1 ? task : divide(task, slices);
    first_column = static_cast<int>(task - number * slices) * slice;
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

/// Which way a state goes, and whether panels come from before it or from behind. `against` the way, the panels' own sums are what
/// decays, by all that lies before them.
enum class passage { forward, backward, backward_against };

/// `Warps` warps carry it: each has 16 columns, or, where there are more warps than that, a share of their features.
template <class T, int D, int E, int Warps, extra Extra, passage Way>
class carried_state {
  using F = fragments<T>;
  using sum = exponent<T>;
  static constexpr int column_blocks = E / block, ranges = Warps / column_blocks, features = D / ranges;
  static constexpr int pairs = features / 16, own_pairs = (pairs + column_blocks - 1) / column_blocks;
  static constexpr bool limited = std::is_same_v<T, f16>;
  static constexpr bool backward = Way != passage::forward, against = Way == passage::backward_against;
  static_assert(Warps % column_blocks == 0 && features % 16 == 0, "every warp has whole blocks of the state");

 public:
  __device__ __forceinline__ explicit carried_state(int warp)
      : column_(warp % column_blocks * block), first_(warp / column_blocks * features) {}

  /// The state is zero.
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

  /// The state is what the table has under `number`, columns from first_column on; transposed: columns are the table's rows.
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
    if constexpr (Extra == extra::of_values) {
      if (lane_.t == 0) {
        z_[0][0][0] = z[first_column + column_ + lane_.g];
        z_[0][0][2] = z[first_column + column_ + lane_.g + 8];
      }
    } else if constexpr (Extra == extra::of_keys) {
#pragma unroll
      for (int n = 0; n < own_pairs; ++n)
        if (lane_.g == 0)
#pragma unroll
          for (int e = 0; e < 4; ++e) z_[n][e / 2][e % 2] = z[own_feature(n) + e / 2 * 8 + 2 * lane_.t + e % 2];
    }
  }

  /// Before a panel is added: what it lets through.
  template <class Panel>
  __device__ __forceinline__ void enter(const Panel& here) {
    static_assert(Panel::blocks <= 8);
    sum total = against ? all_ : 0;
#pragma unroll
    for (int i = 0; i < Panel::blocks; ++i) {
      const int j = backward ? i : Panel::blocks - 1 - i;
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
      if constexpr (Extra != extra::none)
#pragma unroll
        for (int n = 0; n < own_pairs; ++n)
#pragma unroll
          for (int e = 0; e < 8; ++e) z_[n][e / 4][e % 4] *= decay;
      weight_ *= decay;
    }
  }

  /// Weighs block j of a panel's values.
  template <bool Weighted, class Panel>
  __device__ __forceinline__ void weigh(const Panel& here, int j, const typename F::a_type& values, bool biased) {
    const int t = j * block + 2 * lane_.t;
    const auto four = [&](const float* from) {  // of tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9
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
    if constexpr (Extra == extra::none) return;
    if (biased) {
      const float4 c = four(here.bias);
      w[0] *= c.x, w[1] *= c.y, w[2] *= c.z, w[3] *= c.w;
    }
    if constexpr (limited) {  // of what is all small, f16 would keep nothing
      float most = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) most = fmaxf(most, fabsf(w[e]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      z_unit_ = unit_of<T>(most);
#pragma unroll
      for (int e = 0; e < 4; ++e) w[e] *= inverse_of_power(z_unit_);
    }
    if constexpr (Extra == extra::of_values) add_to_vector(z_[0][0], values, F::two_columns(w));
    if constexpr (Extra == extra::of_keys) sums_ = F::two_rows(w);
  }

  __device__ __forceinline__ void multiply(int n, const typename F::b_type (&keys)[2]) {
    F::add_product(S_[2 * n], values_, keys[0]);
    F::add_product(S_[2 * n + 1], values_, keys[1]);
  }
  __device__ __forceinline__ void multiply_own(int n, const typename F::b_type (&keys)[2]) {
    add_to_vector(z_[n][0], sums_, keys[0]);
    add_to_vector(z_[n][1], sums_, keys[1]);
  }
  __device__ __forceinline__ void leave() {
    if constexpr (limited) {
      weight_ += sum_of_row(weights_);
      weights_ = 0;
    }
  }

  /// Adds a panel to states that go through it at once; without weights the way does not matter. biased: c_j is the panel's bias.
  template <bool Weighted, class Panel, class... States>
  __device__ __forceinline__ static void add(const Panel& here, bool biased, States&... states) {
    const auto& first = first_of(states...);  // all of a warp's have the same columns and features
    if constexpr (Weighted) (states.enter(here), ...);
#pragma unroll
    for (int j = 0; j < Panel::blocks; ++j) {
      const typename F::a_type values =
          F::template load_a_transposed<Panel::v_stride>(here.v + j * block * Panel::v_stride + first.column_);
      (states.template weigh<Weighted>(here, j, values, biased), ...);
      const T* const keys = here.k + j * block * Panel::k_stride;
#pragma unroll
      for (int n = 0; n < pairs; ++n) {
        typename F::b_type b[2];
        F::template load_b<Panel::k_stride>(b, keys + first.first_ + n * 16);
        (states.multiply(n, b), ...);
      }
      if constexpr (Extra == extra::of_keys)
#pragma unroll
        for (int n = 0; n < own_pairs; ++n) {
          typename F::b_type b[2];
          F::template load_b<Panel::k_stride>(b, keys + first.own_feature(n));
          (states.multiply_own(n, b), ...);
        }
    }
    (states.leave(), ...);
  }

  /// As an operand, for all warps once they have met.
  __device__ __forceinline__ void store(stored_state<T, D, E, Extra>& to) const {
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
      F::store_block(to.S[first_ / block + n][column_ / block], b);
    }
    each_of_vector([&](int i, float x) {
      if constexpr (Extra == extra::of_keys) {
        to.z[0][i] = narrow<T>(scaled(x));
        to.z[1][i] = narrow<T>(scaled(x) - wide(to.z[0][i]));
      } else {
        to.z[0][i] = x;
      }
    });
    if (threadIdx.x == 0) to.unit = unit, to.unused[0] = to.unused[1] = to.unused[2] = 0;
  }

  /// Into the table under `number`, columns from first_column on; with what the scan asks about a chunk.
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

  /// Warps with the same features share the vector: each has own_pairs times 16 of them, some of which may be another's too.
  __device__ __forceinline__ int own_feature(int n) const { return first_ + (n * column_blocks + column_ / block) % pairs * 16; }

 private:
  template <class First, class... Rest>
  static __device__ __forceinline__ const First& first_of(const First& first, const Rest&...) {
    return first;
  }

  template <class, int, int, int, extra, passage>
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

  /// write(i, z_i) for this warp's part of z.
  template <class Write>
  __device__ __forceinline__ void each_of_vector(const Write& write) const {
    if constexpr (Extra == extra::of_values) {
      if (first_ == 0 && lane_.t == 0) {
        write(column_ + lane_.g, z_[0][0][0] + z_[0][0][1]);
        write(column_ + lane_.g + 8, z_[0][0][2] + z_[0][0][3]);
      }
    } else if constexpr (Extra == extra::of_keys) {
#pragma unroll
      for (int n = 0; n < own_pairs; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float x = z_[n][e / 2][e % 2], both = x + __shfl_down_sync(0xffffffffu, x, 4);
          if (lane_.g == 0 && n * column_blocks + column_ / block < pairs)
            write(own_feature(n) + e / 2 * 8 + 2 * lane_.t + e % 2, both);
        }
    }
  }

  lane_place lane_;
  int column_, first_;        // of this warp
  float S_[features / 8][4];  // (16 columns, features)
  float z_[own_pairs][2][4];  // two halves of it in two rows (of_keys) or columns
  float weight_ = 0;          // the sum of all weights, decayed alike
  sum all_ = 0;               // of all gaps passed
  piece_decay decay_;

  // Of the panel that is being added: what lies between a block and the panel's end, and block by block the weighted values, their
  // weights in two rows, the sum of those, and what they were divided by.
  float factor_[8];
  typename F::a_type values_, sums_;
  float weights_ = 0, z_unit_ = 1;
};

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
