// SPDX-License-Identifier: Apache-2.0
// States: every chunk's own sum of keys and values, then a scan that turns them into the states that enter the chunks.
//
//     forward:   H_n+1 = total H_n + sum_j write_j k_j [v_j, c_j],   backward: the same from the other end (math 2.4)
//
// A state is stored in the tensors' type, because it is an operand of a product, and divided by a power of two >= the sum of its
// weights: it is an average of k v, which f16 can hold whenever it holds k and v. Its row sums z stay float. The scan runs in
// float.
#pragma once

#include <bila/backend/cuda/fragment.hpp>
#include <bila/backend/cuda/gaps.hpp>
#include <bila/backend/cuda/tuning.hpp>

namespace bila::inline v0_1::cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// The states of all chunks, chunks numbered as in `sequences`; way 0 is forward, 1 backward. (..., 2, D, D) (..., 2, D) (..., 2).
template <class T>
struct state_table {
  T* S;           // divided by unit
  float* z;       // sums of c_j k_j
  float* unit;    // the power of two, known once the scan is done
  float* weight;  // of a chunk alone: the sum of its weights
  double* total;  // how the chunk decays what enters it
};

template <class T>
struct summary_call {
  sequences s;
  index_t H, chunk;
  operand<T> k, v;
  gap_table<exponent<T>> gaps;
  const float* c;  // per entry; null: ones
  state_table<T> to;
};

/// What a block of threads sums up, worked out once by one of them.
template <class T>
struct summary_task {
  index_t number, entry;  // of the chunk, of its first token
  const T *k, *v;         // first token, and feature of k
  int count, first_feature;

  __device__ void locate(const summary_call<T>& c, index_t task, int slices, int slice) {
    number = slices == 1 ? task : divide(task, slices);
    first_feature = static_cast<int>(task - number * slices) * slice;
    const place at = c.s.find(number, c.H, c.chunk);
    const index_t first = at.unit * c.chunk, left = c.s.tokens(at.n) - first;
    count = left <= 0 ? 0 : static_cast<int>(left < c.chunk ? left : c.chunk);
    if (count == 0) return;
    const index_t row = c.s.row(at.n), token = c.s.first(at.n) + first;
    entry = c.s.first_entry(at.n, at.h, c.H) + first;
    k = c.k.tokens(row, at.h, token, count).data + first_feature * c.k.x.strides[3];
    v = c.v.tokens(row, at.h, token, count).data;
  }
};

/// The least power of two >= x, for finite x >= 1; 1 below.
__device__ inline float power_of_two_from(float x) {
  return x <= 1 ? 1 : __uint_as_float((__float_as_uint(x) + 0x7fffffu) & 0x7f800000u);
}

/// 1 / x of a power of two.
__device__ inline float inverse_of_power(float x) { return __uint_as_float(0x7f000000u - __float_as_uint(x)); }

/// The two halves of a number that is stored in T, for a product that shall see all of it.
template <class T>
__device__ float high_part(float x) {
  return wide(narrow<T>(x));
}

template <class T, int D, class Tiles>
struct summary_memory {
  static constexpr summary_tile Tile = Tiles::summary(static_cast<int>(sizeof(T)), D);
  static constexpr int slice = D < 64 ? D : 64;  // features of k that one block of threads sums up
  static constexpr int pad = 16 / static_cast<int>(sizeof(T));
  static constexpr int k_stride = slice + pad, v_stride = D + pad;
  static constexpr int stage = Tile.panel * (k_stride + v_stride);  // numbers
  static constexpr std::size_t bytes(index_t chunk) {
    return sizeof(T) * static_cast<std::size_t>(stage * Tile.stages) +
           (2 * sizeof(float) + 4 * sizeof(T)) * static_cast<std::size_t>(chunk);
  }
};

/// Sums up one chunk, both ways at once: four warps each. S = sum_j w_j k_j v_j^T, z = sum_j w_j c_j k_j.
template <class T, int D, class Tiles>
BILA_KERNEL void __launch_bounds__(256, summary_memory<T, D, Tiles>::Tile.per_sm)
    sum_chunks(const __grid_constant__ summary_call<T> c, const index_t tasks) {
  using memory = summary_memory<T, D, Tiles>;
  constexpr summary_tile Tile = memory::Tile;
  using F = fragments<T>;
  constexpr int slices = D / memory::slice, panel = Tile.panel;
  extern __shared__ __align__(16) unsigned char bila_shared[];
  T* const stages = reinterpret_cast<T*>(bila_shared);
  float* const w_forward = reinterpret_cast<float*>(stages + memory::stage * Tile.stages);  // (chunk)
  float* const w_backward = w_forward + c.chunk;                                            // (chunk)
  T* const columns = reinterpret_cast<T*>(w_backward + c.chunk);  // (4, chunk) w_j c_j in two parts, forward and backward
  __shared__ summary_task<T> here;
  const int warp = static_cast<int>(threadIdx.x) / 32, way = warp / 4, m = warp % 4 * block;
  const lane_place lane;

  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) here.locate(c, task, slices, memory::slice);
    __syncthreads();
    if (here.count == 0) continue;
    const int count = here.count, first_feature = here.first_feature;
    const index_t number = here.number, entry = here.entry;
    const auto load = [&](int step) {
      T* const to = stages + step % Tile.stages * memory::stage;
      const int from = step * panel, left = here.count - from;
      const auto rows_of = [&](const operand<T>& x, const T* data, index_t width) {
        return rows<const T>{data + from * x.x.strides[2], left, width, x.x.strides[2], x.x.strides[3]};
      };
      load_tokens<panel, memory::slice, memory::k_stride, 256>(to, rows_of(c.k, here.k, c.k.x.features() - here.first_feature),
                                                               c.k.fast);
      load_tokens<panel, D, memory::v_stride, 256>(to + panel * memory::k_stride, rows_of(c.v, here.v, c.v.x.features()), c.v.fast);
    };
    const int steps = (count + panel - 1) / panel;
    for (int step = 0; step < Tile.stages - 1 || step < 1; ++step) {
      if (step < steps) load(step);
      close_copies();
    }

    // The weights of the chunk's tokens: of the block, times what lies between it and the chunk's end. Half of the threads for
    // either way, each with its own sum, so that no thread waits for another.
    const int blocks = (count + block - 1) / block;
    float* const w_here = way == 0 ? w_forward : w_backward;
    T* const columns_here = columns + 2 * way * c.chunk;
    for (int j = static_cast<int>(threadIdx.x) % 128; j < static_cast<int>(c.chunk); j += 128) {
      float weight = j < count ? 1.0f : 0.0f;
      if (c.gaps.weights != nullptr) {
        const auto* const sums = c.gaps.block_sums + entry / block;
        exponent<T> between = 0, all = 0;
#pragma unroll 4
        for (int h = 0; h < blocks; ++h) {
          const exponent<T> one = way == 0 ? sums[h].forward : sums[h].backward;
          all += one;
          if (way == 0 ? h > j / block : h < j / block) between += one;
        }
        if (j == 0 && first_feature == 0) c.to.total[2 * number + way] = static_cast<double>(exp(all));
        if (j < count) {
          const token_weights& w = c.gaps.weights[entry + j];
          weight = static_cast<float>(exp(between)) * (way == 0 ? w.write_forward : w.write_backward);
        }
      } else if (j == 0 && first_feature == 0) {
        c.to.total[2 * number + way] = 1;
      }
      const float x = j < count && c.c != nullptr ? weight * c.c[entry + j] : weight;
      w_here[j] = weight;
      columns_here[j] = narrow<T>(x);
      columns_here[c.chunk + j] = narrow<T>(x - wide(columns_here[j]));
    }
    __syncthreads();

    float S[D / 8][4] = {}, z[4] = {};  // (16, D) of this warp's features and way; (16, 8)
    for (int step = 0; step < steps; ++step) {
      if (step + Tile.stages - 1 < steps && Tile.stages > 1) load(step + Tile.stages - 1);
      if (Tile.stages > 1) close_copies();
      wait_for_copies<(Tile.stages > 1 ? Tile.stages - 1 : 0)>();
      __syncthreads();
      const T* const ks = stages + step % Tile.stages * memory::stage;
      const T* const vs = ks + panel * memory::k_stride;
      if (m < memory::slice) {
        for (int j = 0; j < panel && step * panel + j < count; j += block) {
          const int t = step * panel + j + 2 * lane.t;
          const typename F::a_type a = F::template load_a_transposed<memory::k_stride>(ks + j * memory::k_stride + m);
          if (way == 0) {  // the row sums of both ways, of k as it is: columns 0 and 1 forward, 2 and 3 backward
            typename F::b_type b{};
            if (lane.g < 4) b = F::read_b(columns + lane.g * c.chunk + t);
            F::add_product(z, a, b);
          }
          const float* const w = way == 0 ? w_forward : w_backward;
          float x[8];
          F::read_a(x, a);
#pragma unroll
          for (int e = 0; e < 8; e += 2) {
            const float2 two = *reinterpret_cast<const float2*>(w + t + e / 4 * 8);
            x[e] *= two.x;
            x[e + 1] *= two.y;
          }
          const typename F::a_type weighted = F::make_a(x);
#pragma unroll
          for (int n = 0; n < D / 16; ++n) {
            typename F::b_type b[2];
            F::template load_b<memory::v_stride>(b, vs + j * memory::v_stride + n * 16);
            F::add_product(S[2 * n], weighted, b[0]);
            F::add_product(S[2 * n + 1], weighted, b[1]);
          }
        }
      }
      __syncthreads();
      if (Tile.stages == 1 && step + 1 < steps) {
        load(step + 1);
        close_copies();
      }
    }

    float weights = 0;  // their sum, the same in all lanes
    for (int j = static_cast<int>(threadIdx.x) % 32; j < count; j += 32) weights += way == 0 ? w_forward[j] : w_backward[j];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) weights += __shfl_xor_sync(0xffffffffu, weights, step);
    if (m < memory::slice) {
      const float per_unit = inverse_of_power(power_of_two_from(weights));
      const int feature = first_feature + m + lane.g;
      T* const to = c.to.S + ((2 * number + way) * D + feature) * D + 2 * lane.t;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_pair(to + half * 8 * D + n * 8, S[n][2 * half] * per_unit, S[n][2 * half + 1] * per_unit);
      if (way == 0 && lane.t < 2) {
        float* const sums = c.to.z + (2 * number + lane.t) * D + feature;
        sums[0] = z[0] + z[1];
        sums[8] = z[2] + z[3];
      }
      if (m == 0 && first_feature == 0 && lane.g == 0 && lane.t == 0) c.to.weight[2 * number + way] = weights;
    }
    __syncthreads();
  }
}

/// A state at a sequence's end, [n, H, Dk, Dv] and [n, H, Dk, 1]; without data it is not given.
template <class Real>
struct end_state {
  tensor_view<Real> S, z;
};

template <class T>
struct scan_call {
  sequences s;
  index_t H, chunk;
  state_table<T> states;
  end_state<const float> initial[2];  // forward, backward
  end_state<float> final[2];
  bool one_state;  // without gaps: the sum over all chunks, left in the first one's forward state
};

template <class T>
struct eight {
  uint4 x[sizeof(T) / 2];

  __device__ void read(float (&y)[8]) const {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
        for (int e = 0; e < 4; ++e) y[4 * i + e] = __uint_as_float(words[e]);
      }
    } else {
      const std::uint32_t words[4] = {x[0].x, x[0].y, x[0].z, x[0].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 two = unpack<T>(words[e]);
        y[2 * e] = two.x;
        y[2 * e + 1] = two.y;
      }
    }
  }

  __device__ void write(const float (&y)[8]) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        x[i] = {__float_as_uint(y[4 * i]), __float_as_uint(y[4 * i + 1]), __float_as_uint(y[4 * i + 2]),
                __float_as_uint(y[4 * i + 3])};
    } else {
      x[0] = {pack<T>(y[0], y[1]), pack<T>(y[2], y[3]), pack<T>(y[4], y[5]), pack<T>(y[6], y[7])};
    }
  }
};

/// How a running sum decays from chunk to chunk. In float the rounding error of each factor is owed to the next: 1 - 1e-7 rounds to
/// 1 - 1.2e-7, and a long product of such factors drifts.
template <class T>
class chunk_decay {
 public:
  __device__ float operator()(double total) {
    if constexpr (!std::is_same_v<T, float>) return static_cast<float>(total);
    const double wanted = total * owed_;
    const float applied = fminf(static_cast<float>(wanted), 1);
    owed_ = applied < 1e-37f ? 1 : wanted / static_cast<double>(applied);
    return applied;
  }

 private:
  double owed_ = 1;
};

/// Each thread scans 8 numbers of S or z over the chunks of one head, one way; a chunk's sum gives its place to what enters it.
template <class T, int D>
BILA_KERNEL void __launch_bounds__(128) scan_chunks(const __grid_constant__ scan_call<T> c, const index_t tasks) {
  constexpr int of_S = D * D / 8, per_way = of_S + D / 8, ahead = 4;
  const int ways = c.one_state ? 1 : 2;
  const auto scan = [&](auto* const numbers, const index_t per_state, const index_t n, const index_t h, const int way,
                        const int first, const auto& initial, const auto& final) {
    using P = std::remove_pointer_t<std::remove_const_t<decltype(numbers)>>;
    const bool is_S = per_state == D * D;
    const index_t first_chunk = c.s.number({n, h, 0}, c.H, c.chunk), chunks = divide(c.s.tokens(n) + c.chunk - 1, c.chunk);
    float run[8] = {}, weight = 0;
    if (initial.data != nullptr) {
      weight = 1;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int row = is_S ? (first + e) / D : first + e, column = is_S ? (first + e) % D : 0;
        if (row < initial.extents[2] && column < initial.extents[3]) run[e] = initial(n, h, row, column);
      }
    }
    const auto at = [&](index_t m) { return 2 * (first_chunk + (way == 0 ? m : chunks - 1 - m)) + way; };
    chunk_decay<T> decays;
    for (index_t m = 0; m < chunks; m += ahead) {
      eight<P> sums[ahead];
      float weights[ahead];
      double totals[ahead];
#pragma unroll
      for (int a = 0; a < ahead; ++a)
        if (m + a < chunks) {
          sums[a] = *reinterpret_cast<const eight<P>*>(numbers + at(m + a) * per_state + first);
          weights[a] = c.states.weight[at(m + a)];
          totals[a] = c.states.total[at(m + a)];
        }
#pragma unroll
      for (int a = 0; a < ahead; ++a)
        if (m + a < chunks) {
          const float unit = power_of_two_from(weight), per_unit = inverse_of_power(unit);
          if (!c.one_state) {
            float entering[8];
#pragma unroll
            for (int e = 0; e < 8; ++e) entering[e] = is_S ? run[e] * per_unit : run[e];
            reinterpret_cast<eight<P>*>(numbers + at(m + a) * per_state + first)->write(entering);
            if (is_S && first == 0) c.states.unit[at(m + a)] = unit;
          }
          float x[8];
          sums[a].read(x);
          const float decay = decays(totals[a]), back = is_S ? power_of_two_from(weights[a]) : 1.0f;
#pragma unroll
          for (int e = 0; e < 8; ++e) run[e] = decay * run[e] + back * x[e];
          weight = decay * weight + weights[a];
        }
    }
    if (c.one_state && chunks > 0) {
      const float unit = power_of_two_from(weight);
      float whole[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) whole[e] = is_S ? run[e] * inverse_of_power(unit) : run[e];
      reinterpret_cast<eight<P>*>(numbers + at(0) * per_state + first)->write(whole);
      if (is_S && first == 0) c.states.unit[at(0)] = unit;
    }
    if (final.data != nullptr)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int row = is_S ? (first + e) / D : first + e, column = is_S ? (first + e) % D : 0;
        if (row < final.extents[2] && column < final.extents[3]) final(n, h, row, column) = run[e];
      }
  };
  for (index_t task = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; task < tasks;
       task += static_cast<index_t>(gridDim.x) * blockDim.x) {
    const index_t both = divide(task, per_way), head = ways == 1 ? both : both / 2, n = divide(head, c.H), h = head - n * c.H;
    const int item = static_cast<int>(task - both * per_way), way = ways == 1 ? 0 : static_cast<int>(both % 2);
    if (item < of_S)
      scan(c.states.S, index_t{D} * D, n, h, way, item * 8, c.initial[way].S, c.final[way].S);
    else
      scan(c.states.z, index_t{D}, n, h, way, (item - of_S) * 8, c.initial[way].z, c.final[way].z);
  }
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace bila::inline v0_1::cuda::detail
