// SPDX-License-Identifier: Apache-2.0
// The masked product, which every form and the gradient are made of: rows against the keys of their chunk, scores in registers only,
// then the states that enter the chunk.
//
//     out_i = sum_j M_ij (q_i . k_j + r_i c_j) v_j + read_i (q_i H + r_i h) + the same with G    (math 2.4, 4.3; r and c: gradient only)
//
// A warp has 16 rows, one block, and walks over the blocks of keys: to the left from the diagonal on, then to the right. Off the
// diagonal the mask is (row factor) x (column factor), both at most one, and what lies between the two blocks is a running sum:
// no exponent is a difference, and none is positive. On the diagonal each element has its own exponential.
#pragma once

#include <bila/backend/cuda/states.hpp>
#include <bila/view/direction.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
struct product_call {
  sequences s;
  index_t H, chunk;   // chunk 0: all keys are one
  index_t keys;       // cross attention: how many keys there are; else -1
  operand<T> q, k, v;
  gap_table<exponent<T>> gaps;
  state_table<T> states;  // null: none
  sequences of_states;    // whose chunks they are: the keys'
  bool transposed;        // q is as wide as a state's columns: read H^T
  bool only_state;        // no scores: the keys are all in the one state
  bool left, right;       // where a row looks
  float diagonal;
  tensor_view<T> out;  // data null: not wanted
  bool fast_out;
  tensor_view<float> row_sum;  // data null: not wanted

  // The gradient's: score biases, per entry (null: ones), and, for the gates, the parts of partner_i . out_i.
  bool biased;
  const float *row_bias, *column_bias;
  operand<T> partner;
  float* dots;  // 3 per entry: from the left, from the right inside the chunk, from the right's state; null: not wanted
  tensor_view<float> sum;  // takes the place of out where heads are yet to be added up; without data there is no need
};

/// Rows leave through the norm.
template <class Norm>
struct normalised {
  static constexpr bool learns = false, sums_rows = Norm::uses_row_sum;
  Norm norm;
  float scale;
};

/// Rows leave as they are: a gradient.
struct as_it_is {
  static constexpr bool learns = true, sums_rows = false;
};

template <class T, int D, class Tiles>
struct product_memory {
  static constexpr product_tile Tile = Tiles::product(static_cast<int>(sizeof(T)), D);
  static constexpr int rows = Tile.warps * block, threads = Tile.warps * 32;
  static constexpr int stride = D + 16 / static_cast<int>(sizeof(T));  // so that 8 rows are in different banks
  struct stage {
    T k[Tile.panel * stride], v[Tile.panel * stride];
    token_weights weights[Tile.panel];
    both_ways<exponent<T>> sums[Tile.panel], block_sums[Tile.panel / block];
    float bias[Tile.panel];
  };
  alignas(16) T q[rows * stride];
  stage stages[Tile.stages];

  static_assert(Tile.panel % rows == 0 && 128 % Tile.panel == 0, "a panel holds whole blocks of rows, and divides every chunk");
};

template <class T>
__device__ float fast_exp(T x) {
  return __expf(static_cast<float>(x));
}

/// sum_x of the four lanes that share a row.
__device__ inline float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <class T, int D, class Tiles, class Finish>
BILA_KERNEL void __launch_bounds__(product_memory<T, D, Tiles>::threads, product_memory<T, D, Tiles>::Tile.per_sm)
    multiply(const __grid_constant__ product_call<T> c, const __grid_constant__ Finish finish, const index_t tasks) {
  using memory = product_memory<T, D, Tiles>;
  constexpr product_tile Tile = memory::Tile;
  using F = fragments<T>;
  using sum = exponent<T>;
  constexpr int panel = Tile.panel, stride = memory::stride, threads = memory::threads;
  constexpr bool learns = Finish::learns;
  constexpr bool hold_q = D <= 64 && sizeof(T) == 2;  // q's fragments stay in registers
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const lane_place lane;
  T* const q_rows = shared.q + warp * block * stride;  // this warp's, and the result's on its way out

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const place at = c.s.find(task, c.H, memory::rows);
    const index_t count = c.s.tokens(at.n), first_row = at.unit * memory::rows;
    if (first_row >= count) continue;
    const index_t row = c.s.row(at.n), token = c.s.first(at.n);
    const index_t all_keys = c.keys >= 0 ? c.keys : count;
    const index_t first_key = c.chunk > 0 ? first_row / c.chunk * c.chunk : 0;
    const int keys = static_cast<int>(c.only_state ? 0 : c.chunk > 0 && c.chunk < all_keys - first_key ? c.chunk : all_keys - first_key);
    const index_t entry = c.s.first_entry(at.n, at.h, c.H);  // of the sequence's first token
    const bool weighted = c.gaps.weights != nullptr;
    const bool ordered = weighted || learns || !c.left || !c.right || c.diagonal != 1;  // else every key is like another

    // The steps: panels of keys, the diagonal's first, then to the left, then to the right; then pieces of the states.
    const int panels = (keys + panel - 1) / panel, middle = ordered ? static_cast<int>(first_row - first_key) / panel : 0;
    const int to_left = !ordered || !c.left ? 0 : middle, to_right = !ordered ? panels - 1 : c.right ? panels - 1 - middle : 0;
    const bool twice = learns && to_left > 0;  // the left is to be complete before the diagonal is added
    const int key_steps = c.only_state || panels == 0 ? 0 : 1 + to_left + to_right + (twice ? 1 : 0);
    constexpr int pieces = (D + panel - 1) / panel;
    const int steps = key_steps + (c.states.S != nullptr ? pieces : 0);
    const auto panel_of = [&](int step) {
      if (step <= to_left) return middle - step;
      if (twice && step == to_left + 1) return middle;
      return ordered ? middle + step - to_left - (twice ? 1 : 0) : step;
    };
    const index_t state = c.states.S == nullptr ? 0 : c.of_states.number({at.n, at.h, c.only_state ? 0 : first_row / c.chunk}, c.H, c.chunk);
    const T* const first_k = c.k.tokens(row, at.h, token + first_key, keys).data;
    const T* const first_v = c.v.tokens(row, at.h, token + first_key, keys).data;
    const index_t first_entry = entry + first_key;
    const auto load = [&](int step) {
      typename memory::stage& to = shared.stages[step % Tile.stages];
      if (step >= key_steps) {
        const int piece = (step - key_steps) * panel;
        const T* const S = c.states.S + 2 * state * D * D + piece * D;
        constexpr int there = D < panel ? D : panel;
        load_tokens<there, D, stride, threads>(to.k, rows<const T>{S, there, D, D, 1}, true);
        if (!c.only_state) load_tokens<there, D, stride, threads>(to.v, rows<const T>{S + D * D, there, D, D, 1}, true);
        return;
      }
      const int from = panel_of(step) * panel, there = keys - from;
      const auto rows_of = [&](const operand<T>& x, const T* data) {
        return rows<const T>{data + from * x.x.strides[2], there, x.x.features(), x.x.strides[2], x.x.strides[3]};
      };
      load_tokens<panel, D, stride, threads>(to.k, rows_of(c.k, first_k), c.k.fast);
      load_tokens<panel, D, stride, threads>(to.v, rows_of(c.v, first_v), c.v.fast);
      const int entries = (there + block - 1) / block * block;
      if (weighted) {
        load_numbers<threads>(to.weights, c.gaps.weights + first_entry + from, panel, entries);
        load_numbers<threads>(to.sums, c.gaps.sums + first_entry + from, panel, entries);
        if (const int i = static_cast<int>(threadIdx.x); i < panel / block)  // too few, and not aligned, for copies of 16 bytes
          to.block_sums[i] = i < entries / block ? c.gaps.block_sums[(first_entry + from) / block + i] : both_ways<sum>{0, 0};
      }
      if constexpr (learns)
        if (c.column_bias != nullptr) load_numbers<threads>(to.bias, c.column_bias + first_entry + from, panel, entries);
    };
    load_tokens<memory::rows, D, stride, threads>(shared.q, c.q.tokens(row, at.h, token + first_row, count - first_row), c.q.fast);
    for (int step = 0; step < Tile.stages; ++step) {
      if (step < steps) load(step);
      close_copies();
    }

    const index_t mine = first_row + warp * block;  // this warp's first row
    const bool works = mine < count;
    const int block_row = static_cast<int>(mine - first_key) / block;  // which block of the chunk it is
    const int blocks = (keys + block - 1) / block;
    token_weights weights[2] = {{1, 1, 1, 1}, {1, 1, 1, 1}};  // of rows g and g + 8
    float row_bias[2] = {1, 1};
    if (works) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (weighted) weights[half] = c.gaps.weights[entry + mine + lane.g + 8 * half];
        if constexpr (learns)
          if (c.row_bias != nullptr) row_bias[half] = c.row_bias[entry + mine + lane.g + 8 * half];
      }
    }

    float N[D / 8][4] = {}, Z[4] = {};  // (16, D) (16, 8), whose columns are all the row sum
    typename F::a_type q[hold_q ? D / block : 1];
    float dots[2][3] = {};
    float before[2] = {};        // partner . out, the diagonal included
    float from_state[2][2] = {};  // of row g + 8 half, by way
    sum left = 0, right = 0;     // what lies between this block and the next one to be met

    // partner . x for the lane's two rows.
    const auto dot = [&](float (&result)[2]) {
      if constexpr (learns) {
        const rows<const T> x = c.partner.tokens(row, at.h, token + mine, count - mine);
        result[0] = result[1] = 0;
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = lane.g + e / 2 * 8, d = n * 8 + 2 * lane.t + e % 2;
            if (i < x.count && d < x.width) result[e / 2] += wide(x(i, d)) * N[n][e];
          }
        result[0] = sum_of_row(result[0]);
        result[1] = sum_of_row(result[1]);
      }
    };

    const auto scores = [&](const typename memory::stage& here, int j, float (&A)[8]) {
      float s[2][4] = {};
#pragma unroll
      for (int k = 0; k < D / block; ++k) {
        typename F::b_type b[2];
        F::template load_b_transposed<stride>(b, here.k + j * stride + k * block);
        if constexpr (hold_q) {
          F::multiply(s[0], q[k], b[0]);
          F::multiply(s[1], q[k], b[1]);
        } else {
          const typename F::a_type a = F::template load_a<stride>(q_rows + k * block);
          F::multiply(s[0], a, b[0]);
          F::multiply(s[1], a, b[1]);
        }
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) A[e] = s[e / 4][e % 4];
      if constexpr (learns) {
        if (c.biased) {
#pragma unroll
          for (int e = 0; e < 8; ++e)
            A[e] += row_bias[e / 2 % 2] * (c.column_bias != nullptr ? here.bias[j + 2 * lane.t + e % 2 + e / 4 * 8] : 1.0f);
        }
      }
    };
    const auto apply = [&](const typename memory::stage& here, int j, const float (&A)[8]) {
      const typename F::a_type a = F::make_a(A);
      if constexpr (Finish::sums_rows) {
        const float one[4] = {1, 1, 1, 1};
        F::multiply(Z, a, F::make_b(one));
      }
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        typename F::b_type b[2];
        F::template load_b<stride>(b, here.v + j * stride + n * 16);
        F::multiply(N[2 * n], a, b[0]);
        F::multiply(N[2 * n + 1], a, b[1]);
      }
    };
    // A block off the diagonal, whose keys are keys of the chunk from 16 (first_block + j / 16) on.
    const auto beside = [&](const typename memory::stage& here, int j, bool from_left) {
      float A[8];
      scores(here, j, A);
      if (weighted) {
        const float between = fast_exp(from_left ? left : right);
        const float r[2] = {between * (from_left ? weights[0].read_forward : weights[0].read_backward),
                            between * (from_left ? weights[1].read_forward : weights[1].read_backward)};
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const token_weights& w = here.weights[j + 2 * lane.t + e % 2 + e / 4 * 8];
          A[e] *= r[e / 2 % 2] * (from_left ? w.write_forward : w.write_backward);
        }
        if (from_left)
          left += here.block_sums[j / block].forward;
        else
          right += here.block_sums[j / block].backward;
      }
      apply(here, j, A);
    };
    const auto on_diagonal = [&](const typename memory::stage& here, int j) {
      float A[8];
      scores(here, j, A);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int x = lane.g + e / 2 % 2 * 8, y = 2 * lane.t + e % 2 + e / 4 * 8;  // row and key
        float M = x == y ? c.diagonal : (x > y ? c.left : c.right) ? 1.0f : 0.0f;
        if (weighted && x > y && c.left) M = fast_exp(here.sums[j + x].forward - here.sums[j + y].forward);
        if (weighted && x < y && c.right) M = fast_exp(here.sums[j + y].backward - here.sums[j + x].backward);
        A[e] *= M;
      }
      if constexpr (learns) {  // left, diagonal, right, for the gates' gradient each by itself
        float part[8];
        const auto add = [&](int side) {
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const int x = lane.g + e / 2 % 2 * 8, y = 2 * lane.t + e % 2 + e / 4 * 8;
            part[e] = (side < 0 ? x > y : side == 0 ? x == y : x < y) ? A[e] : 0.0f;
          }
          apply(here, j, part);
        };
        if (c.dots == nullptr) {
          apply(here, j, A);
          return;
        }
        add(-1);
        float now[2];
        dot(now);
        dots[0][0] = now[0];
        dots[1][0] = now[1];
        add(0);
        dot(before);
        add(1);
      } else {
        apply(here, j, A);
      }
    };

    for (int step = 0; step < steps; ++step) {
      wait_for_copies<Tile.stages - 1>();
      __syncthreads();
      const typename memory::stage& here = shared.stages[step % Tile.stages];
      if constexpr (hold_q) {
        if (step == 0 && works) {
#pragma unroll
          for (int k = 0; k < D / block; ++k) q[k] = F::template load_a<stride>(q_rows + k * block);
        }
      }
      if (works && step < key_steps) {
        const int first_block = panel_of(step) * (panel / block);
        const int end_block = first_block + panel / block < blocks ? first_block + panel / block : blocks;
        if (!ordered) {
          for (int J = first_block; J < end_block; ++J) beside(here, (J - first_block) * block, true);
        } else {
          if (c.left && step <= to_left)
            for (int J = (block_row < end_block ? block_row : end_block) - 1; J >= first_block; --J)
              beside(here, (J - first_block) * block, true);
          if (step == (twice ? to_left + 1 : 0)) on_diagonal(here, (block_row - first_block) * block);
          if (c.right && (step > to_left || (step == 0 && !twice)))
            for (int J = block_row >= first_block ? block_row + 1 : first_block; J < end_block; ++J)
              beside(here, (J - first_block) * block, false);
        }
      }
      if constexpr (learns)
        if (works && c.dots != nullptr && step == key_steps - 1) {
          float now[2];
          dot(now);
          dots[0][1] = now[0] - before[0];
          dots[1][1] = now[1] - before[1];
        }
      if (works && step >= key_steps) {
        const int piece = step - key_steps;
        const float unit[2] = {c.states.unit[2 * state], c.only_state ? 0 : c.states.unit[2 * state + 1]};
        float read[2][2];  // of row g + 8 half, by way
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          read[half][0] = c.left ? weights[half].read_forward * fast_exp(left) : 0;
          read[half][1] = c.right && !c.only_state ? weights[half].read_backward * fast_exp(right) : 0;
        }
        const float* const z = c.states.z + 2 * state * D;
        const auto q_of = [&](int k) {
          if constexpr (hold_q)
            return q[k];
          else
            return F::template load_a<stride>(q_rows + k * block);
        };
        // Adds what is read of the states, 16 features from 16 n on.
        const auto take = [&](int n, const float (&H)[2][4], const float (&G)[2][4], float (&low)[4], float (&high)[4]) {
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const int half = e / 2 % 2, d = n * 16 + e / 4 * 8 + 2 * lane.t + e % 2;
            float from_left = unit[0] * H[e / 4][e % 4], from_right = unit[1] * G[e / 4][e % 4];
            if constexpr (learns)
              if (c.biased) {
                from_left += row_bias[half] * z[d];
                from_right += row_bias[half] * z[D + d];
              }
            from_left = read[half][0] == 0 ? 0 : from_left * read[half][0];
            from_right = read[half][1] == 0 ? 0 : from_right * read[half][1];
            (e < 4 ? low : high)[e % 4] += from_left + from_right;
            if constexpr (learns)
              if (c.dots != nullptr) {
                const rows<const T> x = c.partner.tokens(row, at.h, token + mine, count - mine);
                const int i = lane.g + half * 8;
                if (i < x.count && d < x.width) {
                  const float partner = wide(x(i, d));
                  from_state[half][0] += partner * from_left;
                  from_state[half][1] += partner * from_right;
                }
              }
          }
        };
        constexpr int there = D < panel ? D : panel;
        if (c.transposed) {  // the piece's rows are features of the result
#pragma unroll
          for (int p = 0; p < pieces; ++p) {
            if (p == piece) {
#pragma unroll
              for (int n = 0; n < there / 16; ++n) {
                float H[2][4] = {}, G[2][4] = {};
#pragma unroll
                for (int k = 0; k < D / block; ++k) {
                  typename F::b_type b[2];
                  const typename F::a_type a = q_of(k);
                  F::template load_b_transposed<stride>(b, here.k + n * 16 * stride + k * block);
                  F::multiply(H[0], a, b[0]);
                  F::multiply(H[1], a, b[1]);
                  F::template load_b_transposed<stride>(b, here.v + n * 16 * stride + k * block);
                  F::multiply(G[0], a, b[0]);
                  F::multiply(G[1], a, b[1]);
                }
                take(p * there / 16 + n, H, G, N[2 * (p * there / 16 + n)], N[2 * (p * there / 16 + n) + 1]);
              }
            }
          }
        } else {  // they are features of q
#pragma unroll
          for (int n = 0; n < D / 16; ++n) {
            float H[2][4] = {}, G[2][4] = {};
#pragma unroll
            for (int k = 0; k < there / block; ++k) {
              typename F::b_type b[2];
              const typename F::a_type a = q_of(hold_q ? k : piece * (panel / block) + k);
              F::template load_b<stride>(b, here.k + k * block * stride + n * 16);
              F::multiply(H[0], a, b[0]);
              F::multiply(H[1], a, b[1]);
              if (c.only_state) continue;
              F::template load_b<stride>(b, here.v + k * block * stride + n * 16);
              F::multiply(G[0], a, b[0]);
              F::multiply(G[1], a, b[1]);
            }
            take(n, H, G, N[2 * n], N[2 * n + 1]);
          }
        }
        if constexpr (Finish::sums_rows)
          if (piece == 0) {  // q z, both ways in one product: columns 0 and 1 forward, 2 and 3 backward, z in two halves
            float sums[4] = {};
#pragma unroll
            for (int k = 0; k < D / block; ++k) {
              float b[4];
#pragma unroll
              for (int e = 0; e < 4; ++e) {
                const int way = lane.g / 2 % 2;
                const float x = lane.g > 3 || (way == 1 && c.only_state)
                                    ? 0
                                    : z[way * D + k * block + 2 * lane.t + e % 2 + e / 2 * 8] / (way == 0 ? unit[0] : unit[1]);
                const float high = high_part<T>(x);
                b[e] = lane.g % 2 == 0 ? high : x - high;
              }
              F::multiply(sums, q_of(k), F::make_b(b));
            }
            const int quad = static_cast<int>(threadIdx.x) % 32 / 4 * 4;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const float both = sums[2 * half] + sums[2 * half + 1];
              const float H = __shfl_sync(0xffffffffu, both, quad), G = __shfl_sync(0xffffffffu, both, quad + 1);
              Z[2 * half] += (read[half][0] == 0 ? 0 : read[half][0] * unit[0] * H) +
                             (read[half][1] == 0 ? 0 : read[half][1] * unit[1] * G);
            }
          }
      }
      __syncthreads();
      if (step + Tile.stages < steps) load(step + Tile.stages);
      close_copies();
    }

    if (works) {
      const int there = static_cast<int>(count - mine < block ? count - mine : block);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = lane.g + 8 * half;
        if constexpr (!learns) {
          const auto r = finish.norm(Z[2 * half], finish.scale);
#pragma unroll
          for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) N[n][2 * half + e] = r.divisor == 0 ? 0 : r.factor * N[n][2 * half + e] / r.divisor;
          if (c.row_sum.data != nullptr && lane.t == 0 && i < there) c.row_sum(row, at.h, token + mine + i, 0) = Z[2 * half];
        } else if (c.dots != nullptr) {
#pragma unroll
          for (int way = 0; way < 2; ++way) from_state[half][way] = sum_of_row(from_state[half][way]);
          if (lane.t == 0 && i < there) {
            float* const to = c.dots + 3 * (entry + mine + i);
            to[0] = dots[half][0] + from_state[half][0];
            to[1] = dots[half][1];
            to[2] = from_state[half][1];
          }
        }
      }
      if (learns && c.sum.data != nullptr) {
        const rows<float> to = head_rows(c.sum, row, at.h, token + mine, there);
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = lane.g + e / 2 * 8, d = n * 8 + 2 * lane.t + e % 2;
            if (i < there && d < to.width) to(i, d) = N[n][e];
          }
      } else if (c.out.data != nullptr) {
        const rows<T> to = head_rows(c.out, row, at.h, token + mine, there);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) q_rows[(lane.g + e / 2 * 8) * stride + n * 8 + 2 * lane.t + e % 2] = narrow<T>(N[n][e]);
        __syncwarp();
        const int me = static_cast<int>(threadIdx.x) % 32;
        if (c.fast_out) {
          constexpr int vector = 16 / static_cast<int>(sizeof(T)), per_row = D / vector;
          for (int i = me; i < there * per_row; i += 32) {
            const int d = i % per_row * vector;
            if (d < to.width)
              *reinterpret_cast<uint4*>(&to(i / per_row, d)) = *reinterpret_cast<const uint4*>(q_rows + i / per_row * stride + d);
          }
        } else {
          for (int i = me; i < there * D; i += 32)
            if (i % D < to.width) to(i / D, i % D) = q_rows[i / D * stride + i % D];
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
