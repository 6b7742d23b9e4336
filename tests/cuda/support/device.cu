// SPDX-License-Identifier: Apache-2.0
// The runtime calls behind device.hpp.
#include "cuda/support/device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

namespace test::device {

namespace {

constexpr std::size_t guard = 1024;
constexpr unsigned char guard_byte = 0x5a;

void check(cudaError_t status, const char* doing) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(doing) + ": " + cudaGetErrorString(status));
}

/// Memory that is kept until the program ends, and then left to the driver: CUDA may be gone before it.
struct block {
  std::byte* data = nullptr;
  std::size_t size = 0;

  void at_least(std::size_t bytes) {
    if (bytes <= size) return;
    check(cudaFree(data), "cudaFree");
    data = nullptr, size = 0;
    void* fresh = nullptr;
    check(cudaMalloc(&fresh, bytes), "cudaMalloc");
    data = static_cast<std::byte*>(fresh), size = bytes;
  }
};

block for_tensors, for_workspace;
void* large = nullptr;
std::size_t last_first = 0, last_bytes = 0;  // where the last workspace lies in its block

__global__ void spin(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

}  // namespace

std::string why_none() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return count > 0 ? std::string() : "none was found";
}

std::size_t memory_size() { return std::size_t{1} << 30; }

std::byte* memory() {
  for_tensors.at_least(memory_size());
  return for_tensors.data;
}

std::byte* large_memory(std::size_t bytes) {
  if (cudaMalloc(&large, bytes) == cudaSuccess) return static_cast<std::byte*>(large);
  cudaGetLastError();  // said once, and no error of the next call
  return nullptr;
}

void release_large_memory() { check(cudaFree(std::exchange(large, nullptr)), "cudaFree"); }

void write(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void read(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

std::span<std::byte> workspace(std::size_t bytes, unsigned char junk, bool misaligned) {
  last_first = guard + (misaligned ? 1 : 0), last_bytes = bytes;
  const std::size_t all = bytes + 2 * guard + 1;
  for_workspace.at_least(all);
  check(cudaMemset(for_workspace.data, guard_byte, all), "cudaMemset");
  check(cudaMemset(for_workspace.data + last_first, junk, bytes), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaMemset");  // which a stream of one's own does not wait for
  return {for_workspace.data + last_first, bytes};
}

bool workspace_intact() {
  if (for_workspace.data == nullptr) return true;
  std::vector<unsigned char> before(last_first), after(guard);
  read(before.data(), for_workspace.data, before.size());
  read(after.data(), for_workspace.data + last_first + last_bytes, after.size());
  const auto untouched = [](unsigned char x) { return x == guard_byte; };
  return std::all_of(before.begin(), before.end(), untouched) && std::all_of(after.begin(), after.end(), untouched);
}

void finish() {
  check(cudaGetLastError(), "a launch");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void forget_refusal() { cudaGetLastError(); }

own_stream::own_stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }

own_stream::~own_stream() { cudaStreamDestroy(stream_); }

bool own_stream::busy() const {
  const cudaError_t status = cudaStreamQuery(stream_);
  if (status != cudaErrorNotReady) check(status, "cudaStreamQuery");
  return status == cudaErrorNotReady;
}

void capture(stream on, const std::function<void()>& f, int times) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  check(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  try {
    f();
  } catch (...) {
    cudaStreamEndCapture(on, &graph);
    throw;
  }
  check(cudaStreamEndCapture(on, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  for (int n = 0; n < times; ++n) check(cudaGraphLaunch(ready, on), "cudaGraphLaunch");
  check(cudaStreamSynchronize(on), "the graph");
  check(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
}

void delay(stream on, int milliseconds) {
  int device = 0, kilohertz = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device), "cudaDeviceGetAttribute");
  spin<<<1, 1, 0, on>>>(static_cast<long long>(kilohertz) * milliseconds);
  check(cudaGetLastError(), "spin");
}

}  // namespace test::device
