// SPDX-License-Identifier: Apache-2.0
// Sixteen rows of a masked product in the registers of one warp, and the panels of keys that they meet in shared memory.
//
//     N_i = sum_j M_ij (q_i . k_j + r_i c_j) v_j,   Z_i = sum_j M_ij (q_i . k_j)    (MATH.md 2.4, 4.3)
//
// with r and c in the gradient only. Keys are met in blocks of 16. Off the diagonal the mask is (row factor) x (column factor),
// both at most one, and what lies between the two blocks is a running sum: no exponent is a difference, and none is positive. On
// the diagonal each element has its own exponential.
#pragma once

#include <bila/backend/cuda/gaps.hpp>
#include <bila/backend/cuda/tokens.hpp>
#include <bila/backend/cuda/tuning.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// What a masked product is asked for, whichever way it is computed.
template <class T>
struct product_call {
  sequences s;
  index_t H, chunk;  // tokens that a block of threads walks through; not used where all keys are one chunk
  index_t keys;      // cross attention: how many keys there are; else -1
  operand<T> q, k, v;
  gap_table<exponent<T>> gaps;
  bool left, right;  // where a row looks
  float diagonal;
  tensor_view<T> out;  // data null: not wanted
  bool fast_out;
  tensor_view<float> row_sum;  // data null: not wanted

  // The gradient's: score biases, per entry (null: ones), and, for the gates, the parts of partner_i . out_i.
  bool biased;
  const float *row_bias, *column_bias;
  operand<T> partner;      // without data: not the gradient of something that meets gates
  float* dots;             // 3 per entry: from the left, from the right inside the panel, from the right's state; null: not wanted
  index_t entries;         // of the call: dots of a slice of columns
  tensor_view<float> sum;  // takes the place of out where heads are yet to be added up; without data there is no need
};

/// Rows leave through the norm.
template <class Norm>
struct normalised {
  static constexpr bool learns = false, sums_rows = Norm::uses_row_sum, mirrors = false;
  Norm norm;
  float scale;
};

/// Rows leave as they are: a gradient.
struct as_it_is {
  static constexpr bool learns = true, sums_rows = false, mirrors = false;
};

/// And with them the mirrored product, of the same keys, values and states: sum_j M_ij (partner_i . v_j) k_j.
template <class T>
struct with_mirror {
  static constexpr bool learns = true, sums_rows = false, mirrors = true;
  tensor_view<T> out;
  bool fast_out;
  tensor_view<float> sum;  // as in product_call
};

template <class Finish>
inline constexpr result result_of = Finish::mirrors  ? result::two_gradients
                                    : Finish::learns ? result::gradient
                                                     : result::forward;

/// The smaller one; a NaN, if one is.
__device__ inline float lesser(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ inline double lesser(double x, double y) { return y < x || y != y ? y : x; }

/// sum_x of the four lanes that share a row.
__device__ inline float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// `Panel` tokens in shared memory: keys of D features, and as many values, E.
template <class T, int D, int E, int Panel>
struct token_panel {
  static constexpr int keys = Panel, blocks = Panel / block;
  static constexpr int pad = 16 / static_cast<int>(sizeof(T));  // so that 8 rows are in different banks
  static constexpr int k_stride = D + pad, v_stride = E + pad;
  alignas(16) T k[Panel * k_stride];
  alignas(16) T v[Panel * v_stride];
  alignas(16) float bias[Panel];

  template <int Threads>
  __device__ void load_k(const operand<T>& of, const rows<const T>& from) {
    load_tokens<Panel, D, k_stride, Threads>(k, from, of.fast);
  }
  template <int Threads>
  __device__ void load_v(const operand<T>& of, const rows<const T>& from) {
    load_tokens<Panel, E, v_stride, Threads>(v, from, of.fast);
  }

  /// Starts to copy `there` tokens, of which k and v are the first; what is not there becomes zero. `numbers`: bias, or null.
  template <int Threads>
  __device__ void load(const operand<T>& of_k, const T* first_k, const operand<T>& of_v, const T* first_v, int there,
                       const float* numbers, index_t entry, int first_v_feature = 0) {
    const auto rows_of = [&](const operand<T>& x, const T* data, int first) {
      return rows<const T>{data, there, x.x.features() - first, x.x.strides[2], x.x.strides[3]};
    };
    load_k<Threads>(of_k, rows_of(of_k, first_k, 0));
    load_v<Threads>(of_v, rows_of(of_v, first_v, first_v_feature));
    if (numbers != nullptr) load_numbers<Threads>(bias, numbers + entry, Panel, (there + block - 1) / block * block);
  }
};

/// And what is asked about each.
template <class T, int D, int E, int Panel>
struct key_panel : token_panel<T, D, E, Panel> {
  using token_panel<T, D, E, Panel>::blocks;
  alignas(16) float weights[weight_kinds][Panel];
  alignas(16) both_ways<exponent<T>> sums[Panel];
  both_ways<exponent<T>> block_sums[blocks];

  /// With weights from one kind to another.
  template <int Threads>
  __device__ void load(const operand<T>& of_k, const T* first_k, const operand<T>& of_v, const T* first_v, int there,
                       const gap_table<exponent<T>>& gaps, index_t entry, weight_kind first_kind, weight_kind last_kind,
                       bool with_sums, const float* numbers, int first_v_feature = 0) {
    token_panel<T, D, E, Panel>::template load<Threads>(of_k, first_k, of_v, first_v, there, numbers, entry, first_v_feature);
    if (gaps.weights == nullptr) return;
    const int entries = (there + block - 1) / block * block;
    constexpr int vectors = Panel / 4;
    for (int i = first_kind * vectors + static_cast<int>(threadIdx.x); i < (last_kind + 1) * vectors; i += Threads) {
      const int kind = i / vectors, n = i % vectors * 4;
      copy_async(&weights[kind][n], gaps.weight(static_cast<weight_kind>(kind), entry + n), n < entries);
    }
    if (with_sums) load_numbers<Threads>(sums, gaps.sums + entry, Panel, entries);
    if (const int i = static_cast<int>(threadIdx.x); i < blocks)  // too few, and not aligned, for copies of more than one
      copy_one_async(block_sums + i, gaps.block_sums + entry / block + i, i < entries / block);
  }
};

/// What a warp's sixteen rows are multiplied with, in shared memory or, where registers are left, in them.
template <class T, int D, bool Held>
class left_operand {
  using F = fragments<T>;
  static constexpr int stride = D + 16 / static_cast<int>(sizeof(T));

 public:
  /// Rows in shared memory.
  __device__ __forceinline__ void take(const T* here) {
    here_ = here;
    if constexpr (Held)
#pragma unroll
      for (int k = 0; k < D / block; ++k) held_[k] = F::template load_a<stride>(here + k * block);
  }

  /// Rows in device memory, some of which may not be there.
  __device__ __forceinline__ void take(const rows<const T>& from, bool fast) {
    static_assert(Held);
#pragma unroll
    for (int k = 0; k < D / block; ++k) held_[k] = F::load_a(from, k * block, fast);
  }

  __device__ __forceinline__ typename F::a_type operator()(int k) const {
    if constexpr (Held)
      return held_[k];
    else
      return F::template load_a<stride>(here_ + k * block);
  }

 private:
  const T* here_ = nullptr;
  typename F::a_type held_[Held ? D / block : 1];
};

/// Sixteen rows of the result, 16 x E, in the registers of a warp. AtOnce: blocks of keys whose products do not wait for each
/// other.
template <class T, int D, int E, class Finish, bool HoldQ, bool HoldPartner, int AtOnce>
struct row_block {
  using F = fragments<T>;
  using sum = exponent<T>;
  static constexpr bool learns = Finish::learns, sums_rows = Finish::sums_rows, mirrors = Finish::mirrors;
  static constexpr int stride = D + 16 / static_cast<int>(sizeof(T));

  lane_place lane;
  left_operand<T, D, HoldQ> q;
  left_operand<T, E, HoldPartner> partner;
  float read_forward[2] = {1, 1}, read_backward[2] = {1, 1};  // the weights of rows g and g + 8
  float row_bias[2] = {1, 1};
  float N[E / 8][4] = {}, Z[4] = {};          // (16, E) (16, 8), whose columns are all the row sum
  float mirror[mirrors ? D / 8 : 1][4] = {};  // (16, D)
  sum left = 0, right = 0;                    // what lies between this block and the next one to be met
  float dots[2][3] = {};  // of row g + 8 half: partner . N from the left, from the right, from the right's state

  /// A (16, 16 Count) = a k^T for blocks of keys; their products do not wait for each other.
  template <int Stride, int Depth, int Count, class Left>
  __device__ __forceinline__ static void multiply_keys(const Left& a, const T* k, float (&A)[Count][8]) {
    float s[Count][2][4];
#pragma unroll
    for (int d = 0; d < Depth / block; ++d) {
      const typename F::a_type part = a(d);
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        typename F::b_type b[2];
        F::template load_b_transposed<Stride>(b, k + i * block * Stride + d * block);
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

  /// to += A v, with A (16, 16) and v (16, Width).
  template <int Stride, int Width>
  __device__ __forceinline__ static void add_values(float (&to)[Width / 8][4], const typename F::a_type& A, const T* v) {
#pragma unroll
    for (int n = 0; n < Width / 16; ++n) {
      typename F::b_type b[2];
      F::template load_b<Stride>(b, v + n * 16);
      F::add_product(to[2 * n], A, b[0]);
      F::add_product(to[2 * n + 1], A, b[1]);
    }
  }

  /// Meets the first `count` keys of a panel, of whose blocks this one is number `own`: in it, to its right or its left. Panels on
  /// either side are to be met from the diagonal on.
  template <bool Weighted, class Panel>
  __device__ __forceinline__ void meet(const product_call<T>& c, const Panel& here, int own, int count) {
    constexpr int blocks = Panel::blocks, at_once = AtOnce < blocks ? AtOnce : blocks;
    const bool weighted = Weighted || c.gaps.weights != nullptr;
    float between[blocks];  // what lies between the two blocks
#pragma unroll
    for (int j = 0; j < blocks; ++j) between[j] = 1;
    if (weighted) {
#pragma unroll
      for (int j = blocks - 1; j >= 0; --j)
        if (j < own) {
          between[j] = fast_exp(left);
          left += here.block_sums[j].forward;
        }
#pragma unroll
      for (int j = 0; j < blocks; ++j)
        if (j > own) {
          between[j] = fast_exp(right);
          right += here.block_sums[j].backward;
        }
    }
    const auto weigh = [&](int j, float(&A)[8]) {
      if (j == own) {
        weigh_own(c, here, j, A, weighted);
      } else if (weighted) {
        const float r[2] = {between[j] * (j < own ? read_forward[0] : read_backward[0]),
                            between[j] * (j < own ? read_forward[1] : read_backward[1])};
        const float* const w = here.weights[j < own ? write_forward : write_backward] + j * block + 2 * lane.t;
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
    };
#pragma unroll
    for (int first = 0; first < blocks; first += at_once) {
      if (first * block >= count || (!c.left && first + at_once <= own) || (!c.right && first > own)) continue;
      float A[at_once][8];
      multiply_keys<Panel::k_stride, D>(q, here.k + first * block * Panel::k_stride, A);
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int j = first + i;
        if constexpr (learns)
          if (c.biased)
#pragma unroll
            for (int e = 0; e < 8; e += 4) {  // of two columns
              float2 of_key{1, 1};
              if (c.column_bias != nullptr)
                of_key = *reinterpret_cast<const float2*>(here.bias + j * block + 2 * lane.t + e / 4 * 8);
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                A[i][e + 2 * half] += row_bias[half] * of_key.x;
                A[i][e + 2 * half + 1] += row_bias[half] * of_key.y;
              }
            }
        weigh(j, A[i]);
      }
      if constexpr (learns)
        if (mirrors || c.dots != nullptr) {  // partner_i . (sum_j A_ij v_j) = sum_j A_ij (partner_i . v_j)
          float P[at_once][8];
          multiply_keys<Panel::v_stride, E>(partner, here.v + first * block * Panel::v_stride, P);
          if (c.dots != nullptr)
#pragma unroll
            for (int i = 0; i < at_once; ++i)
#pragma unroll
              for (int e = 0; e < 8; ++e) {
                const int row = lane.g + e / 2 % 2 * 8 + own * block, key = 2 * lane.t + e % 2 + e / 4 * 8 + (first + i) * block;
                if (key < row) dots[e / 2 % 2][0] += A[i][e] * P[i][e];
                if (key > row) dots[e / 2 % 2][1] += A[i][e] * P[i][e];
              }
          if constexpr (mirrors)
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
              weigh(first + i, P[i]);
              add_values<Panel::k_stride, D>(mirror, F::make_a(P[i]), here.k + (first + i) * block * Panel::k_stride);
            }
        }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const typename F::a_type a = F::make_a(A[i]);
        if constexpr (sums_rows) {
          const float one[4] = {1, 1, 1, 1};
          F::add_product(Z, a, F::make_b(one));
        }
        add_values<Panel::v_stride, E>(N, a, here.v + (first + i) * block * Panel::v_stride);
      }
    }
  }

  /// The mask on the diagonal, block j of a panel.
  template <class Panel>
  __device__ __forceinline__ void weigh_own(const product_call<T>& c, const Panel& here, int j, float (&A)[8],
                                            bool weighted) const {
    if (weighted) {
      both_ways<sum> of_rows[2], of_keys[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) of_rows[i] = here.sums[j * block + lane.g + i * 8];
#pragma unroll
      for (int i = 0; i < 4; ++i) of_keys[i] = here.sums[j * block + 2 * lane.t + i % 2 + i / 2 * 8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {  // of the two differences one is positive: that of the way that leads away
        const both_ways<sum>&u = of_rows[e / 2 % 2], &w = of_keys[e / 4 * 2 + e % 2];
        A[e] *= fast_exp(lesser(u.forward - w.forward, w.backward - u.backward));
      }
    }
    if (c.diagonal != 1 || !c.left || !c.right)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int x = lane.g + e / 2 % 2 * 8, y = 2 * lane.t + e % 2 + e / 4 * 8;  // row and key
        if (x == y)
          A[e] *= c.diagonal;
        else if (!(x > y ? c.left : c.right))
          A[e] = 0;
      }
  }

  /// Writes `there` rows, from token `token` and entry `entry` on, columns from first_column on.
  __device__ __forceinline__ void leave(const product_call<T>& c, const Finish& finish, index_t row, index_t h, index_t token,
                                        index_t entry, int there, int first_column, float* to_dots) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = lane.g + 8 * half;
      if constexpr (!learns) {
        const auto r = finish.norm(Z[2 * half], finish.scale);
        const float size = fabsf(r.divisor), step = size < 1e-30f ? 0x1p64f : size > 1e30f ? 0x1p-64f : 1.0f;
        const float out = r.divisor == 0 ? 0 : r.factor / (r.divisor * step);
        const auto scale_row = [&](float by) {
#pragma unroll
          for (int n = 0; n < E / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) N[n][2 * half + e] *= by;
        };
        scale_row(out);
        if (step != 1) scale_row(step);  // the quotient of factor and divisor is no normal number
        if (c.row_sum.data != nullptr && first_column == 0 && lane.t == 0 && i < there)
          c.row_sum(row, h, token + i, 0) = Z[2 * half];
      } else if (to_dots != nullptr) {
        const float from_left = sum_of_row(dots[half][0]), inside = sum_of_row(dots[half][1]), behind = sum_of_row(dots[half][2]);
        if (lane.t == 0 && i < there) {
          float* const to = to_dots + 3 * (entry + i);
          to[0] = from_left;
          to[1] = inside;
          to[2] = behind;
        }
      }
    }
    write(c, N, row, h, token, there, first_column);
  }

  /// The same of the mirrored product.
  __device__ __forceinline__ void leave_mirror(const Finish& finish, index_t row, index_t h, index_t token, int there) const {
    write(finish, mirror, row, h, token, there, 0);
  }

  /// How the rows weigh what they read of the states before and behind them, by half of the rows and way: S, and z with r_i.
  __device__ __forceinline__ void weigh_states(float (&of_S)[2][2], float (&of_z)[2][2], bool biased, float scale_before,
                                               float scale_behind) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float read[2] = {fast_exp(left) * read_forward[half], fast_exp(right) * read_backward[half]};
#pragma unroll
      for (int way = 0; way < 2; ++way) {
        of_S[half][way] = read[way] * (way == 0 ? scale_before : scale_behind);
        of_z[half][way] = biased ? read[way] * row_bias[half] : 0;
      }
    }
  }

 private:
  template <int Width, class Call>
  __device__ __forceinline__ static void write(const Call& to, const float (&x)[Width][4], index_t row, index_t h, index_t token,
                                               int there, int first_column) {
    if (learns && to.sum.data != nullptr) {
      const rows<float> all = head_rows(to.sum, row, h, token, there);
      store_rows<Width * 8>(all.columns(first_column, all.width - first_column), x, false);
    } else if (to.out.data != nullptr) {
      const rows<T> all = head_rows(to.out, row, h, token, there);
      store_rows<Width * 8>(all.columns(first_column, all.width - first_column), x, to.fast_out);
    }
  }
};

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
