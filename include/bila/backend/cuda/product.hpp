// SPDX-License-Identifier: Apache-2.0
// The masked product, which every form and the gradient are made of: rows against the keys of their chunk, scores in registers
// only, then the states that enter the chunk.
//
//     out_i = sum_j M_ij (q_i . k_j + r_i c_j) v_j + read_i (q_i H + r_i h) + the same with G    (math 2.4, 4.3)
//
// with r and c in the gradient only.
//
// A warp has 16 rows, one block, and walks over the blocks of keys: to the left from the diagonal on, then to the right. Off the
// diagonal the mask is (row factor) x (column factor), both at most one, and what lies between the two blocks is a running sum:
// no exponent is a difference, and none is positive. On the diagonal each element has its own exponential.
#pragma once

#include <bila/backend/cuda/product_call.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T, int D, class Tiles, class Finish>
BILA_KERNEL void __launch_bounds__(product_memory<T, D, Tiles, Finish::learns>::threads,
                                   product_memory<T, D, Tiles, Finish::learns>::Tile.per_sm)
    multiply(const __grid_constant__ product_call<T> c, const __grid_constant__ Finish finish, const index_t tasks) {
  using memory = product_memory<T, D, Tiles, Finish::learns>;
  constexpr product_tile Tile = memory::Tile;
  using F = fragments<T>;
  using sum = exponent<T>;
  constexpr int panel = Tile.panel, stride = memory::stride, threads = memory::threads;
  constexpr bool learns = Finish::learns;
  constexpr int pieces = (D + panel - 1) / panel;                                      // of a state
  constexpr bool hold_q = D <= 64 && D <= panel && sizeof(T) == 2 && Tile.per_sm < 3;  // q's fragments stay in registers
  constexpr bool paired = hold_q && !learns;                                           // two blocks of keys at a time
  extern __shared__ __align__(16) unsigned char bila_shared[];
  memory& shared = *reinterpret_cast<memory*>(bila_shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const lane_place lane;
  T* const q_rows = shared.q + warp * block * stride;  // this warp's, and the result's on its way out

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) shared.task.locate(c, task, memory::rows);
    __syncthreads();
    const product_task<T>& at = shared.task;
    if (at.rows_left == 0) continue;
    const bool weighted = c.gaps.weights != nullptr;
    const bool ordered = weighted || learns || !c.left || !c.right || c.diagonal != 1;  // else every key is like another
    const product_steps walked(c, at, panel, D, ordered, learns);
    load_tokens<memory::rows, D, stride, threads>(shared.q, c.q.tokens(at.row, at.h, at.token, at.rows_left), c.q.fast);
    if constexpr (memory::keeps_partner)
      if (c.dots != nullptr)
        load_tokens<memory::rows, D, stride, threads>(shared.partner, c.partner.tokens(at.row, at.h, at.token, at.rows_left),
                                                      c.partner.fast);

    const int mine = warp * block, there = at.rows_left - mine < block ? at.rows_left - mine : block;  // this warp's rows
    const bool works = there > 0;
    const int block_row = (at.from_key + mine) / block;  // which block of the chunk they are
    const int blocks = (at.keys + block - 1) / block;
    token_weights weights[2] = {{1, 1, 1, 1}, {1, 1, 1, 1}};  // of rows g and g + 8
    float row_bias[2] = {1, 1};
    if (works) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (weighted) weights[half] = c.gaps.weights[at.entry + mine + lane.g + 8 * half];
        if constexpr (learns)
          if (c.row_bias != nullptr) row_bias[half] = c.row_bias[at.entry + mine + lane.g + 8 * half];
      }
    }

    float N[D / 8][4] = {}, Z[4] = {};  // (16, D) (16, 8), whose columns are all the row sum
    typename F::a_type q[hold_q ? D / block : 1];
    float dots[2][2] = {};
    float before[2] = {};         // partner . out, the diagonal included
    float from_state[2][2] = {};  // of row g + 8 half, by way
    sum left = 0, right = 0;      // what lies between this block and the next one to be met

    // Two neighbouring features of the partner of row g + 8 half.
    const auto partner = [&](int half, int d) {
      const int i = lane.g + half * 8;
      if constexpr (memory::keeps_partner) {
        return load_pair(shared.partner + (mine + i) * stride + d);
      } else {
        const rows<const T> x = c.partner.tokens(at.row, at.h, at.token + mine, there);
        return float2{i < x.count && d < x.width ? wide(x(i, d)) : 0.0f, i < x.count && d + 1 < x.width ? wide(x(i, d + 1)) : 0.0f};
      }
    };
    // partner . N for the lane's two rows.
    const auto dot = [&](float(&result)[2]) {
      if constexpr (learns) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          result[half] = 0;
#pragma unroll
          for (int n = 0; n < D / 8; ++n) {
            const float2 x = partner(half, n * 8 + 2 * lane.t);
            result[half] += x.x * N[n][2 * half] + x.y * N[n][2 * half + 1];
          }
          result[half] = sum_of_row(result[half]);
        }
      }
    };

    // Scores of `Count` blocks of keys; their products do not wait for each other.
    const auto scores = [&]<int Count>(const typename memory::stage& here, const int(&j)[Count], float(&A)[Count][8]) {
      float s[Count][2][4] = {};
#pragma unroll
      for (int k = 0; k < D / block; ++k) {
        typename F::a_type a;
        if constexpr (hold_q)
          a = q[k];
        else
          a = F::template load_a<stride>(q_rows + k * block);
#pragma unroll
        for (int i = 0; i < Count; ++i) {
          typename F::b_type b[2];
          F::template load_b_transposed<stride>(b, here.k + j[i] * stride + k * block);
          F::multiply(s[i][0], a, b[0]);
          F::multiply(s[i][1], a, b[1]);
        }
      }
#pragma unroll
      for (int i = 0; i < Count; ++i)
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          A[i][e] = s[i][e / 4][e % 4];
          if constexpr (learns)
            if (c.biased)
              A[i][e] += row_bias[e / 2 % 2] * (c.column_bias != nullptr ? here.bias[j[i] + 2 * lane.t + e % 2 + e / 4 * 8] : 1.0f);
        }
    };
    const auto apply = [&](const typename memory::stage& here, int j, const float(&A)[8]) {
      const typename F::a_type a = F::make_a(A);
      if constexpr (Finish::sums_rows) {
        const float one[4] = {1, 1, 1, 1};
        F::add_product(Z, a, F::make_b(one));
      }
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        typename F::b_type b[2];
        F::template load_b<stride>(b, here.v + j * stride + n * 16);
        F::add_product(N[2 * n], a, b[0]);
        F::add_product(N[2 * n + 1], a, b[1]);
      }
    };
    // Blocks off the diagonal, in the order in which they are met.
    const auto beside = [&]<int Count>(const typename memory::stage& here, const int(&j)[Count], bool from_left) {
      float A[Count][8];
      scores(here, j, A);
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        if (weighted) {
          const float between = fast_exp(from_left ? left : right);
          const float r[2] = {between * (from_left ? weights[0].read_forward : weights[0].read_backward),
                              between * (from_left ? weights[1].read_forward : weights[1].read_backward)};
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const token_weights& w = here.weights[j[i] + 2 * lane.t + e % 2 + e / 4 * 8];
            A[i][e] *= r[e / 2 % 2] * (from_left ? w.write_forward : w.write_backward);
          }
          if (from_left)
            left += here.block_sums[j[i] / block].forward;
          else
            right += here.block_sums[j[i] / block].backward;
        }
      }
#pragma unroll
      for (int i = 0; i < Count; ++i) apply(here, j[i], A[i]);
    };
    // From block `from` on, `count` of them, towards lower numbers or higher.
    const auto walk = [&](const typename memory::stage& here, int from, int count, bool from_left) {
      const int way = from_left ? -block : block;
      int j = from * block;
      for (; paired && count >= 2; count -= 2, j += 2 * way) {
        const int two[2] = {j, j + way};
        beside(here, two, from_left);
      }
      for (; count > 0; --count, j += way) {
        const int one[1] = {j};
        beside(here, one, from_left);
      }
    };
    const auto on_diagonal = [&](const typename memory::stage& here, int j) {
      const int only[1] = {j};
      float all[1][8];
      scores(here, only, all);
      float(&A)[8] = all[0];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int x = lane.g + e / 2 % 2 * 8, y = 2 * lane.t + e % 2 + e / 4 * 8;  // row and key
        float M = 1;
        if (weighted) {
          const both_ways<sum> u = here.sums[j + x], w = here.sums[j + y];
          M = fast_exp(x > y ? u.forward - w.forward : w.backward - u.backward);
        }
        A[e] *= x == y ? c.diagonal : (x > y ? c.left : c.right) ? M : 0.0f;
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
        if (c.partner.x.data == nullptr) {
          apply(here, j, A);
          return;
        }
        // In three parts even where nobody asks for the sums between: the bits do not depend on what else is wanted.
        add(-1);
        if (c.dots != nullptr) {
          float now[2];
          dot(now);
          dots[0][0] = now[0];
          dots[1][0] = now[1];
        }
        add(0);
        if (c.dots != nullptr) dot(before);
        add(1);
      } else {
        apply(here, j, A);
      }
    };

    // The first rounds only load: one place in the code, and a body less.
#pragma unroll 1
    for (int round = 0; round < walked.steps + Tile.stages; ++round) {
      const int step = round - Tile.stages;
      if (step >= 0) {
        wait_for_copies<Tile.stages - 1>();
        __syncthreads();
        const typename memory::stage& here = shared.stages[step % Tile.stages];
        if constexpr (hold_q) {
          if (step == 0 && works) {
#pragma unroll
            for (int k = 0; k < D / block; ++k) q[k] = F::template load_a<stride>(q_rows + k * block);
          }
        }
        if (works && step < walked.key_steps) {
          const int first_block = walked.panel_of(step) * (panel / block);
          const int end_block = first_block + panel / block < blocks ? first_block + panel / block : blocks;
          const int own = block_row - first_block, last = (block_row < end_block ? block_row : end_block) - first_block;
          if (!ordered) {
            walk(here, 0, end_block - first_block, false);
          } else {
            if (c.left && step <= walked.to_left) walk(here, last - 1, last, true);
            if (step == (walked.twice ? walked.to_left + 1 : 0)) on_diagonal(here, own * block);
            if (c.right && (step > walked.to_left || (step == 0 && !walked.twice))) {
              const int from = own >= 0 ? own + 1 : 0;
              walk(here, from, end_block - first_block - from, false);
            }
          }
        }
        if constexpr (learns)
          if (works && c.dots != nullptr && step == walked.key_steps - 1) {
            float now[2];
            dot(now);
            dots[0][1] = now[0] - before[0];
            dots[1][1] = now[1] - before[1];
          }
        if (works && step >= walked.key_steps) {
          const int piece = step - walked.key_steps;
          const float unit[2] = {shared.unit[0], shared.unit[1]};
          float read[2][2], read_unit[2][2];  // of row g + 8 half, by way
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            read[half][0] = c.left ? weights[half].read_forward * fast_exp(left) : 0;
            read[half][1] = c.right && !c.only_state ? weights[half].read_backward * fast_exp(right) : 0;
            read_unit[half][0] = read[half][0] * unit[0];
            read_unit[half][1] = read[half][1] * unit[1];
          }
          const float* const z = shared.z;
          const auto q_of = [&](int k) {
            if constexpr (hold_q)
              return q[k];
            else
              return F::template load_a<stride>(q_rows + k * block);
          };
          // Adds what is read of the states, 16 features from 16 n on.
          const auto take = [&](int n, const float(&H)[2][4], const float(&G)[2][4], float(&low)[4], float(&high)[4]) {
#pragma unroll
            for (int e = 0; e < 8; ++e) {
              const int half = e / 2 % 2, d = n * 16 + e / 4 * 8 + 2 * lane.t + e % 2;
              float from_left = read_unit[half][0] * H[e / 4][e % 4], from_right = read_unit[half][1] * G[e / 4][e % 4];
              if constexpr (learns) {
                if (c.biased) {
                  from_left += read[half][0] * row_bias[half] * z[d];
                  from_right += read[half][1] * row_bias[half] * z[D + d];
                }
                if (c.dots != nullptr) {
                  const float2 x = partner(half, d - e % 2);
                  from_state[half][0] += (e % 2 == 0 ? x.x : x.y) * from_left;
                  from_state[half][1] += (e % 2 == 0 ? x.x : x.y) * from_right;
                }
              }
              (e < 4 ? low : high)[e % 4] += from_left + from_right;
            }
          };
          constexpr int state_rows = D < panel ? D : panel;
          if (c.transposed) {  // the piece's rows are features of the result
#pragma unroll
            for (int p = 0; p < pieces; ++p) {
              if (p == piece) {
#pragma unroll
                for (int n = 0; n < state_rows / 16; ++n) {
                  float H[2][4] = {}, G[2][4] = {};
#pragma unroll
                  for (int k = 0; k < D / block; ++k) {
                    typename F::b_type b[2];
                    const typename F::a_type a = q_of(k);
                    F::template load_b_transposed<stride>(b, here.k + n * 16 * stride + k * block);
                    F::multiply(H[0], a, b[0]);
                    F::multiply(H[1], a, b[1]);
                    if (c.only_state) continue;
                    F::template load_b_transposed<stride>(b, here.v + n * 16 * stride + k * block);
                    F::multiply(G[0], a, b[0]);
                    F::multiply(G[1], a, b[1]);
                  }
                  take(p * state_rows / 16 + n, H, G, N[2 * (p * state_rows / 16 + n)], N[2 * (p * state_rows / 16 + n) + 1]);
                }
              }
            }
          } else {  // they are features of q
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
              float H[2][4] = {}, G[2][4] = {};
#pragma unroll
              for (int k = 0; k < state_rows / block; ++k) {
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
                                      : z[way * D + k * block + 2 * lane.t + e % 2 + e / 2 * 8] *
                                            inverse_of_power(way == 0 ? unit[0] : unit[1]);
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
                Z[2 * half] += read_unit[half][0] * H + read_unit[half][1] * G;
              }
            }
        }
        __syncthreads();
      }
      if (round < walked.steps) shared.load(c, walked, round);
      close_copies();
    }

    if (works) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = lane.g + 8 * half;
        if constexpr (!learns) {
          const auto r = finish.norm(Z[2 * half], finish.scale);
          // In two steps where the quotient of factor and divisor is no normal number.
          const float size = fabsf(r.divisor), step = size < 1e-30f ? 0x1p64f : size > 1e30f ? 0x1p-64f : 1.0f;
          const float out = r.divisor == 0 ? 0 : r.factor / (r.divisor * step);
#pragma unroll
          for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) N[n][2 * half + e] = N[n][2 * half + e] * out * step;
          if (c.row_sum.data != nullptr && lane.t == 0 && i < there) c.row_sum(at.row, at.h, at.token + mine + i, 0) = Z[2 * half];
        } else if (c.dots != nullptr) {
#pragma unroll
          for (int way = 0; way < 2; ++way) from_state[half][way] = sum_of_row(from_state[half][way]);
          if (lane.t == 0 && i < there) {
            float* const to = c.dots + 3 * (at.entry + mine + i);
            to[0] = dots[half][0] + from_state[half][0];
            to[1] = dots[half][1];
            to[2] = from_state[half][1];
          }
        }
      }
      if (learns && c.sum.data != nullptr) {
        const rows<float> to = head_rows(c.sum, at.row, at.h, at.token + mine, there);
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = lane.g + e / 2 * 8, d = n * 8 + 2 * lane.t + e % 2;
            if (i < there && d < to.width) to(i, d) = N[n][e];
          }
      } else if (c.out.data != nullptr) {
        const rows<T> to = head_rows(c.out, at.row, at.h, at.token + mine, there);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            store_pair(q_rows + (lane.g + half * 8) * stride + n * 8 + 2 * lane.t, N[n][2 * half], N[n][2 * half + 1]);
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
