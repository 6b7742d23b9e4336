// SPDX-License-Identifier: Apache-2.0
// Device memory, numbers to fill it with, and times: CUDA events around calls that the host has queued in advance.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace bench {

inline void must(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

template <class T>
class device_array {
 public:
  device_array() = default;
  explicit device_array(std::size_t count) : size_(count) {
    if (count > 0) must(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMalloc");
  }
  device_array(device_array&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  device_array& operator=(device_array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~device_array() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }

  /// All bits one: NaN in every type that is stored here, so what is not written shows.
  void poison() const {
    if (size_ > 0) must(cudaMemset(data_, 0xff, size_ * sizeof(T)), "cudaMemset");
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Uniform in [0, 1), a function of seed and index alone.
__device__ inline float uniform(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = (index + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1b54a32d192ed03ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-24f;
}

/// Uniform in [low, high), as bf16.
static __global__ void fill_numbers(__nv_bfloat16* x, std::size_t count, std::uint64_t seed, float low, float high) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    x[i] = __float2bfloat16(low + (high - low) * uniform(seed, i));
}

/// From heads that forget within two tokens to heads that remember thousands.
__host__ __device__ inline float decay_rate(std::size_t h) {
  constexpr float rates[] = {1, 0.1F, 0.03F, 0.01F, 0.001F};
  return rates[h % 5];
}

/// Log decays [B, H, L]: uniform in (-2 rate, 0].
static __global__ void fill_gates(float* a, std::size_t count, std::size_t heads, std::size_t length, std::uint64_t seed) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    a[i] = -2 * decay_rate(i / length % heads) * uniform(seed, i);
}

/// Counts what is NaN or infinite in x, read as words whose exponent is `mask`.
template <class Word>
__global__ void count_not_finite(const Word* x, std::size_t count, Word mask, unsigned long long* found) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  unsigned long long own = 0;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    own += (x[i] & mask) == mask;
  if (own > 0) atomicAdd(found, own);
}

/// Keeps the stream busy while the host fills it: without it a call whose kernels take 5 us each is timed at the host's pace.
static __global__ void hold(std::uint64_t nanoseconds) {
  std::uint64_t start = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    __nanosleep(500);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

class event {
 public:
  event() { must(cudaEventCreate(&event_), "cudaEventCreate"); }
  event(event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  ~event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  void record(cudaStream_t stream) const { must(cudaEventRecord(event_, stream), "cudaEventRecord"); }

  /// Milliseconds from `start` to here.
  double since(const event& start) const {
    float ms = 0;
    must(cudaEventElapsedTime(&ms, start.event_, event_), "cudaEventElapsedTime");
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

inline double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

struct timing {
  double ms = 0;            // median of single calls, each between its own two events
  double back_to_back = 0;  // ms per call with no event between the calls
  double host_ms = 0;       // the host's time to queue one call
};

/// call(n) queues the nth call on the stream. Three calls to warm up; then `repetitions` of each kind.
template <class Call>
timing time_of(cudaStream_t stream, int repetitions, const Call& call) {
  const auto now = [] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  call(0);
  must(cudaStreamSynchronize(stream), "the first call");
  const double from = now();
  for (int n = 0; n < 2; ++n) call(n + 1);
  timing t;
  t.host_ms = (now() - from) / 2;
  must(cudaStreamSynchronize(stream), "a warm-up call");

  const auto wait = [&] {
    const double ms = std::min(0.2 + 1.5 * t.host_ms * repetitions, 50.0);
    hold<<<1, 1, 0, stream>>>(static_cast<std::uint64_t>(1e6 * ms));
    must(cudaGetLastError(), "hold");
  };
  std::vector<event> starts(static_cast<std::size_t>(repetitions)), stops(static_cast<std::size_t>(repetitions));
  wait();
  for (std::size_t n = 0; n < starts.size(); ++n) {
    starts[n].record(stream);
    call(static_cast<int>(n));
    stops[n].record(stream);
  }
  must(cudaStreamSynchronize(stream), "a timed call");
  std::vector<double> ms;
  for (std::size_t n = 0; n < starts.size(); ++n) ms.push_back(stops[n].since(starts[n]));
  t.ms = median(ms);

  wait();
  starts.front().record(stream);
  for (int n = 0; n < repetitions; ++n) call(n);
  stops.front().record(stream);
  must(cudaStreamSynchronize(stream), "a timed call");
  t.back_to_back = stops.front().since(starts.front()) / repetitions;
  return t;
}

/// Bytes read and written per second by a device-to-device copy that no cache holds: 2 GiB, or a quarter of what is free.
inline double copy_bandwidth(cudaStream_t stream) {
  std::size_t free_bytes = 0, all = 0;
  must(cudaMemGetInfo(&free_bytes, &all), "cudaMemGetInfo");
  const std::size_t bytes = std::min(std::size_t{1} << 31, free_bytes / 4);
  const device_array<std::byte> from(bytes), to(bytes);
  must(cudaMemset(from.data(), 0x5a, bytes), "cudaMemset");
  const timing t = time_of(stream, 11, [&](int) {
    must(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  });
  return 2e3 * static_cast<double>(bytes) / t.ms;
}

}  // namespace bench
