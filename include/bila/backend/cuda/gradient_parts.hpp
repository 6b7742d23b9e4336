// SPDX-License-Identifier: Apache-2.0
// The small kernels of the gradient: dN and dZ from dy, the gradients of gaps from dot products, sums over heads that share an
// input's head, and decays of the gradients of initial states.
#pragma once

#include <bila/backend/cuda/gaps.hpp>
#include <bila/backend/cuda/padding.hpp>
#include <bila/backend/cuda/states.hpp>

namespace bila {
inline namespace v0_1 {
namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

inline constexpr int lanes_per_token = 8, tokens_per_group = 4;

/// Sum over the eight lanes that share a token.
__device__ inline float sum_of_token(float x) {
#pragma unroll
  for (int reach = lanes_per_token / 2; reach > 0; reach /= 2) x += __shfl_xor_sync(0xffffffffu, x, reach, lanes_per_token);
  return x;
}

/// The token of an entry. Entries are padded to whole blocks, so some have no token: `there` is false.
struct token_place {
  index_t n, h, t, entry;
  bool there;

  __device__ token_place(const sequences& s, index_t H, index_t number) : entry(number) {
    const place at = s.find(number / mma_rows, H, mma_rows);
    n = at.n;
    h = at.h;
    t = at.unit * mma_rows + number % mma_rows;
    there = t < s.tokens(n);
  }
};

template <class T>
struct norm_call {
  sequences s;
  index_t H;
  tensor_view<const T> y, dy;
  bool fast;
  tensor_view<const float> row_sum;
  float scale;
  tensor_view<T> dN;  // [batch row, H, L, Dv]
  float* dZ;          // per entry
  float* scales;      // per entry: the token's term of the scale's gradient; null: not wanted
  float* numerators;  // per entry: dN_i / dy_i; null: not wanted
};

/// x, clamped to the range of T. Where a row sum is almost zero the slope exceeds the range of f16. If dN were infinite, its
/// product with a zero weight would be NaN.
template <class T>
__device__ float clamp_to(float x) {
  if constexpr (std::is_same_v<T, f16>) return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
  return x;
}

/// Writes dN_i = numerator_i dy_i and dZ_i (MATH.md 4.1). Eight lanes process four tokens of a block. If a lane has at most 8
/// features of a token, it loads all four tokens before it uses the first.
template <class T, class Norm>
BILA_KERNEL void pass_norm(const __grid_constant__ norm_call<T> c, const __grid_constant__ Norm norm, const index_t tokens) {
  const int lane = static_cast<int>(threadIdx.x) % lanes_per_token, width = static_cast<int>(c.dy.features());
  const index_t step = threads_in_grid() / lanes_per_token * tokens_per_group;
  for (index_t first = thread_number() / lanes_per_token * tokens_per_group; first < tokens; first += step) {
    const token_place start(c.s, c.H, first);
    const index_t row = c.s.row(start.n), token = c.s.first(start.n) + start.t, left = c.s.tokens(start.n) - start.t;
    const int count = static_cast<int>(left < 0 ? 0 : left < tokens_per_group ? left : tokens_per_group);
    const auto epilogue = [&](int i, float product, auto&& write) {
      product = sum_of_token(product);
      const bool there = i < count;
      const float Z = there && c.row_sum.data != nullptr ? c.row_sum(row, start.h, token + i, 0) : 1.0f;
      const auto slope = norm.slope(Z, c.scale, product);
      if (there) write(slope.numerator);
      if (lane != 0) return;
      c.dZ[first + i] = there ? slope.row_sum : 0.0f;
      if (c.scales != nullptr) c.scales[first + i] = there ? slope.scale : 0.0f;
      if (c.numerators != nullptr) c.numerators[first + i] = there ? slope.numerator : 0.0f;
    };
    if (c.fast && width <= 8 * lanes_per_token) {
      const int d = lane * 8;
      eight<T> y[tokens_per_group] = {}, dy[tokens_per_group] = {};
#pragma unroll
      for (int i = 0; i < tokens_per_group; ++i)
        if (i < count && d < width) {
          y[i] = *reinterpret_cast<const eight<T>*>(&c.y(row, start.h, token + i, d));
          dy[i] = *reinterpret_cast<const eight<T>*>(&c.dy(row, start.h, token + i, d));
        }
#pragma unroll
      for (int i = 0; i < tokens_per_group; ++i) {
        float a[8], b[8], product = 0;
        y[i].read(a);
        dy[i].read(b);
#pragma unroll
        for (int e = 0; e < 8; ++e) product += a[e] * b[e];
        epilogue(i, product, [&](float numerator) {
#pragma unroll
          for (int e = 0; e < 8; ++e) b[e] = clamp_to<T>(b[e] * numerator);
          if (d < width) reinterpret_cast<eight<T>*>(&c.dN(row, start.h, token + i, d))->write(b);
        });
      }
    } else {
      for (int i = 0; i < tokens_per_group; ++i) {
        float product = 0;
        for (int d = lane; i < count && d < width; d += lanes_per_token)
          product += wide(c.y(row, start.h, token + i, d)) * wide(c.dy(row, start.h, token + i, d));
        epilogue(i, product, [&](float numerator) {
          for (int d = lane; d < width; d += lanes_per_token)
            c.dN(row, start.h, token + i, d) = narrow<T>(clamp_to<T>(numerator * wide(c.dy(row, start.h, token + i, d))));
        });
      }
    }
  }
}

/// Writes each token's term of the diagonal's gradient: (dN_i . v_i + dZ_i) (q_i . k_i), with dN before its rounding to T.
template <class T>
BILA_KERNEL void weigh_own(const sequences s, const index_t H, const operand<T> q, const operand<T> k, const operand<T> v,
                           const tensor_view<const T> dy, const float* const numerators, const float* const dZ, float* const parts,
                           const index_t tokens) {
  const int lane = static_cast<int>(threadIdx.x) % lanes_per_token;
  for (index_t number = thread_number() / lanes_per_token; number < tokens; number += threads_in_grid() / lanes_per_token) {
    const token_place at(s, H, number);
    const index_t row = s.row(at.n), token = s.first(at.n) + at.t;
    const rows<const T> a = q.tokens(row, at.h, token, 1), b = k.tokens(row, at.h, token, 1), c = v.tokens(row, at.h, token, 1);
    float scores = 0, slopes = 0;
    for (int d = lane; at.there && d < a.width; d += lanes_per_token) scores += wide(a(0, d)) * wide(b(0, d));
    for (int d = lane; at.there && d < c.width; d += lanes_per_token) slopes += wide(c(0, d)) * wide(dy(row, at.h, token, d));
    scores = sum_of_token(scores);
    slopes = sum_of_token(slopes);
    if (lane == 0) parts[number] = at.there ? scores * (numerators[number] * slopes + dZ[number]) : 0.0f;
  }
}

/// The sum over a block of threads, always in the same order. Only thread 0 receives the sum.
__device__ inline double sum_of_block(double x) {
  __shared__ double parts[32];
#pragma unroll
  for (int reach = 16; reach > 0; reach /= 2) x += __shfl_xor_sync(0xffffffffu, x, reach);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  if (threadIdx.x == 0)
    for (unsigned w = 0; w < blockDim.x / 32; ++w) x += parts[w];
  return x;
}

/// Writes the sum of n numbers to *to. The grid must be one block of threads.
template <int = 0>  // a template, so that several .cu files may define it
BILA_KERNEL void add_up(const float* const x, const index_t n, double* const to) {
  double sum = 0;
  for (index_t i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *to = sum;
}

/// The part of a gap's gradient from pairs of tokens on different sides of a whole tile: the first term of MATH.md 4.4.
template <class Exponent>
struct cross_tile_terms {
  const float* parts;  // null: the part is zero
  index_t each;        // parts per tile and direction
  gap_table<Exponent> gaps, swapped;

  /// The decay over a tile: its gaps and the gaps on both sides of it. A pair on different sides of the tile crosses all of them,
  /// and neither the states nor the adjoints in `parts` contain their decays.
  __device__ double decay(int way, index_t entry, index_t count, bool more_after) const {
    if (gaps.weights == nullptr) return 1;
    double log = 0;
    for (index_t i = 0; i < count; i += mma_rows)
      log += static_cast<double>(way == 0 ? gaps.block_sums[(entry + i) / mma_rows].forward
                                          : gaps.block_sums[(entry + i) / mma_rows].backward);
    const double total = exp(log);
    if (way == 1) return total * *swapped.weight(read_forward, entry);
    return more_after ? total * *gaps.weight(read_forward, entry + count) : total;
  }

  __device__ double operator()(index_t tile, int way, index_t entry, index_t count, bool more_after) const {
    if (parts == nullptr) return 0;
    double sum = 0;
    for (index_t i = 0; i < each; ++i) sum += parts[(tile * 2 + way) * each + i];
    const double by = decay(way, entry, count, more_after);
    return by == 0 ? 0 : by * sum;
  }
};

struct gap_gradients {
  float *forward, *backward;  // per entry: gradient of the gap before the token
  float* borders;             // per sequence and head: of the gap before the first token (forward), after the last one (backward)
};

/// A token's terms of the gradients of its tile's gaps (MATH.md 4.4), by direction. `upto` is added to the gap before the token and
/// to all earlier gaps of the tile, `after` to all later gaps.
struct token_terms {
  double upto[2] = {}, after[2] = {};

  __device__ void add(const float* q, const float* k) {
    upto[0] += static_cast<double>(q[0]) - static_cast<double>(k[1]), after[0] += static_cast<double>(k[2]);
    upto[1] += static_cast<double>(k[0]) - static_cast<double>(q[1]), after[1] += static_cast<double>(q[2]);
  }
};

/// The dot products of rows that chunk_output and full_attention wrote. A token's dot product is a sum over value tiles.
struct row_dots {
  const float *q, *k;  // parts of q_i . dq_i and of k_i . dk_i, 3 per entry
  index_t value_tiles, entries;

  __device__ void add_to(token_terms& to, index_t entry) const {
    const float *of_q = q + 3 * entry, *of_k = k + 3 * entry;
    for (index_t tile = 0; tile < value_tiles; ++tile, of_q += 3 * entries, of_k += 3 * entries) to.add(of_q, of_k);
  }
};

/// Sums over the lanes of a warp: `upto` from this lane to the last, `after` from lane 0 to this one.
__device__ inline void scan_lanes(double& upto, double& after, int lane) {
#pragma unroll
  for (int reach = 1; reach < 32; reach *= 2) {
    const double a = __shfl_down_sync(0xffffffffu, upto, reach), b = __shfl_up_sync(0xffffffffu, after, reach);
    if (lane + reach < 32) upto += a;
    if (lane >= reach) after += b;
  }
}

/// Computes the gradients of gaps from the parts of q_i . dq_i and k_i . dk_i (MATH.md 4.4). All sums are local to a tile of `size`
/// tokens. A warp processes a tile, and each lane a range of the tile's tokens.
template <class Exponent>
BILA_KERNEL void gate_gradient_scan(const sequences s, const index_t H, const index_t size, const row_dots dots,
                                    const cross_tile_terms<Exponent> cross, const bool forward, const bool backward,
                                    const gap_gradients to, const index_t tiles) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (index_t number = thread_number() / 32; number < tiles; number += threads_in_grid() / 32) {
    const place at = s.find(number, H, size);
    const index_t first = at.unit * size, count = s.tokens(at.n);
    if (first >= count) continue;
    const index_t entry = s.first_entry(at.n, at.h, H) + first, n = count - first < size ? count - first : size;
    const int tokens = static_cast<int>(n), each = (tokens + 31) / 32;
    const int from = lane * each < tokens ? lane * each : tokens, end = from + each < tokens ? from + each : tokens;
    token_terms mine;
    for (int i = from; i < end; ++i) dots.add_to(mine, entry + i);
#pragma unroll
    for (int way = 0; way < 2; ++way) {
      double upto = mine.upto[way], after = mine.after[way];
      scan_lanes(upto, after, lane);
      const double all_after = __shfl_sync(0xffffffffu, after, 31);
      after -= mine.after[way];
      const bool looks = way == 0 ? forward : backward;
      const double crossing = looks ? cross(number, way, entry, n, first + n < count) : 0;
      float* const out = (way == 0 ? to.forward : to.backward) + entry;
      double rest = crossing + upto + after;  // gradient of the gap before this lane's next token
      for (int i = from; i < end; ++i) {
        out[i] = static_cast<float>(looks ? rest : 0);
        token_terms own;
        dots.add_to(own, entry + i);
        rest += own.after[way] - own.upto[way];
      }
      if (way == 0 && first == 0 && lane == 0) to.borders[2 * (at.n * H + at.h)] = out[0];
      if (way == 1 && first + n == count && lane == 0)
        to.borders[2 * (at.n * H + at.h) + 1] = static_cast<float>(looks ? crossing + all_after : 0);
    }
  }
}

/// Masks whose parameter's gradient a kernel can compute: per token, or per head.
template <class Mask>
concept pulls_back_tokens = requires(const Mask& mask, index_t t, double (*f)(index_t)) {
  mask.gradient_of(t, t, f, f);
};
template <class Mask>
concept pulls_back_heads = requires(const Mask& mask, double sum) {
  mask.gradient_of(sum, sum);
};

/// The gradient of gap u of a sequence, and 0 at the sequence's ends or where the decay is exactly 0. `h` is a head of the mask.
template <class Mask>
__device__ double live_gap(const sequences& s, const Mask& mask, const float* gaps, bool forward, index_t n, index_t h, index_t u) {
  if (u <= 0 || u >= s.tokens(n) || exp(gap_of(s, mask, forward, n, h, u)) == 0) return 0;
  return gaps[u];
}

template <class Mask>
BILA_KERNEL void write_gap_gradients(const sequences s, const index_t H, const __grid_constant__ Mask mask,
                                     const gap_gradients from, const border_gaps borders, const tensor_view<float> log_forward,
                                     const tensor_view<float> log_backward, const tensor_view<float> log_decay,
                                     const tensor_view<float> before, const tensor_view<float> after, const index_t tokens) {
  for (index_t number = thread_number(); number < tokens; number += threads_in_grid()) {
    const token_place at(s, H, number);
    if (!at.there) continue;
    const index_t row = s.row(at.n), token = s.first(at.n) + at.t;
    const index_t sharing = sharing_of(mask, H), own = head_of_mask(mask, at.h, H), entry = number - at.t;
    const auto forward = [&](index_t u) { return live_gap(s, mask, from.forward + entry, true, at.n, own, u); };
    const auto backward = [&](index_t u) { return live_gap(s, mask, from.backward + entry, false, at.n, own, u); };
    if (log_forward.data != nullptr) log_forward(row, at.h, token, 0) = static_cast<float>(forward(at.t));
    if (log_backward.data != nullptr) log_backward(row, at.h, token, 0) = static_cast<float>(backward(at.t));
    if constexpr (pulls_back_tokens<Mask>)
      if (log_decay.data != nullptr && at.h == own * sharing) {  // a group's first head adds up the group
        double sum = 0;
        for (index_t h = at.h; h < at.h + sharing; ++h) {
          const index_t start = s.first_entry(at.n, h, H);
          const auto f = [&](index_t u) { return live_gap(s, mask, from.forward + start, true, at.n, own, u); };
          const auto g = [&](index_t u) { return live_gap(s, mask, from.backward + start, false, at.n, own, u); };
          sum += mask.gradient_of(at.t, s.tokens(at.n), f, g);
        }
        log_decay(row, own, token, 0) = static_cast<float>(sum);
      }
    if (at.t > 0) continue;
    const float* const ends = from.borders + 2 * (at.n * H + at.h);
    if (before.data != nullptr) before(at.n, at.h, 0, 0) = exp(border_gaps::at(borders.before, at.n, at.h)) == 0 ? 0 : ends[0];
    if (after.data != nullptr) after(at.n, at.h, 0, 0) = exp(border_gaps::at(borders.after, at.n, at.h)) == 0 ? 0 : ends[1];
  }
}

inline constexpr index_t gaps_per_part = 2048;

/// Sums the gradients of a head's gaps, in each direction. A block of threads sums gaps_per_part gaps of a sequence.
template <class Mask>
BILA_KERNEL void sum_gap_gradients(const sequences s, const index_t H, const __grid_constant__ Mask mask, const gap_gradients from,
                                   double* const sums, const index_t parts) {
  for (index_t part = blockIdx.x; part < parts; part += gridDim.x) {
    const place at = s.find(part, H, gaps_per_part);
    const index_t entry = s.first_entry(at.n, at.h, H), first = at.unit * gaps_per_part, count = s.tokens(at.n);
    double f = 0, g = 0;
    for (index_t t = first + threadIdx.x; t < first + gaps_per_part && t < count; t += blockDim.x) {
      f += live_gap(s, mask, from.forward + entry, true, at.n, head_of_mask(mask, at.h, H), t);
      g += live_gap(s, mask, from.backward + entry, false, at.n, head_of_mask(mask, at.h, H), t);
    }
    f = sum_of_block(f);
    g = sum_of_block(g);
    if (threadIdx.x == 0) sums[2 * part] = f, sums[2 * part + 1] = g;
  }
}

/// Adds up the parts of a mask's head over all sequences, and writes the gradient of the head's parameter. There is one block of
/// threads per head.
template <class Mask>
BILA_KERNEL void write_head_gradients(const sequences s, const index_t H, const __grid_constant__ Mask mask,
                                      const double* const sums, const tensor_view<float> log_decay) {
  const index_t sharing = sharing_of(mask, H);
  for (index_t own = blockIdx.x; own < log_decay.heads(); own += gridDim.x) {
    double f = 0, g = 0;
    for (index_t n = threadIdx.x; n < s.count; n += blockDim.x)
      for (index_t h = own * sharing; h < (own + 1) * sharing; ++h)
        for (index_t unit = 0; unit * gaps_per_part < s.tokens(n); ++unit) {
          const index_t part = s.number({n, h, unit}, H, gaps_per_part);
          f += sums[2 * part];
          g += sums[2 * part + 1];
        }
    f = sum_of_block(f);
    g = sum_of_block(g);
    if constexpr (pulls_back_heads<Mask>)
      if (threadIdx.x == 0) log_decay(0, own, 0, 0) = static_cast<float>(mask.gradient_of(f, g));
  }
}

/// Multiplies the gradient of an initial state by the decay of the gap that the state crosses.
template <int = 0>  // a template, so that several .cu files may define it
BILA_KERNEL void decay_state(const sequences s, const tensor_view<float> x, const tensor_view<const float> log_decay) {
  const index_t per_head = x.length() * x.features(), tasks = x.batches() * x.heads() * per_head;
  for (index_t i = thread_number(); i < tasks; i += threads_in_grid()) {
    const index_t n = i / per_head / x.heads(), h = i / per_head % x.heads();
    if (s.tokens(n) == 0) continue;  // the state crossed no gap
    float& value = x(n, h, i % per_head / x.features(), i % x.features());
    const float factor = static_cast<float>(exp(fmin(0.0, border_gaps::at(log_decay, n, h))));
    value = factor == 0 ? 0 : value * factor;
  }
}

/// Adds up the heads of y that share a head of an input, and writes zeros at padding.
template <class T>
BILA_KERNEL void add_heads(const sequences s, const tensor_view<const float> x, const tensor_view<T> to, const bool ragged) {
  const index_t share = x.heads() / to.heads(), per_row = to.heads() * to.length() * to.features(), tasks = to.batches() * per_row;
  for (index_t i = thread_number(); i < tasks; i += threads_in_grid()) {
    const index_t b = i / per_row, h = i / (to.length() * to.features()) % to.heads(), l = i / to.features() % to.length(),
                  d = i % to.features();
    float sum = 0;
    if (!ragged || l < s.tokens(b))
      for (index_t j = 0; j < share; ++j) sum += x(b, h * share + j, l, d);
    to(b, h, l, d) = narrow<T>(sum);
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail
}  // namespace v0_1
}  // namespace bila
