// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the stream and the workspace of a call, kernel launches, and the errors that CUDA reports.
#pragma once

#if !defined(__CUDACC__)
#error "bila: <bila/cuda.hpp> is for .cu files, which nvcc compiles; host code includes <bila/bila.hpp>"
#endif

#include <bila/config.hpp>
#include <bila/error.hpp>
#include <bila/view/tensor_view.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bila {
inline namespace v0_1 {
namespace cuda {

/// Runs a call on a GPU. The call puts its work on the stream and does not wait for it, so a CUDA graph may capture the call.
struct on {
  cudaStream_t stream = nullptr;
  std::span<std::byte> workspace = {};  // device memory, at least workspace_bytes(...); not shared by calls that overlap in time
};

namespace detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// The message of a CUDA error, or an empty one. The error is cleared, so the caller's next cudaGetLastError does not report it.
inline error_message message_of(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return message("cuda: ", doing, ": ", cudaGetErrorString(status));
}

/// Checks for sm_80 or later: the kernels use bf16 on tensor cores and asynchronous copies.
inline error_message check_device() {
  int device = 0, major_number = 0, minor_number = 0;
  error_message wrong = message_of(cudaGetDevice(&device), "looking for a device");
  if (wrong.empty())
    wrong = message_of(cudaDeviceGetAttribute(&major_number, cudaDevAttrComputeCapabilityMajor, device), "asking the device");
  if (wrong.empty())
    wrong = message_of(cudaDeviceGetAttribute(&minor_number, cudaDevAttrComputeCapabilityMinor, device), "asking the device");
  if (wrong.empty() && major_number < 8)
    return message("cuda: device ", device, " has compute capability ", major_number, ".", minor_number, ", 8.0 is needed");
  return wrong;
}

/// The grid of a kernel. Without blocks the kernel is not launched.
struct grid {
  index_t blocks = 0;  // blocks of threads, one per piece of work
  int threads = 0;     // threads per block
  std::size_t shared_bytes = 0;
};

/// A grid of blocks of 256 threads, one thread per task. Small kernels use it.
inline grid grid_of_tasks(index_t tasks) { return {(tasks + 255) / 256, 256}; }

/// Launches kernels one after the other on a stream. After the first error it launches nothing and keeps the error.
class launcher {
 public:
  explicit launcher(cudaStream_t stream) : stream_(stream) {}

  /// Launches a kernel. Its blocks stride over the work, because there may be more work than a grid can have blocks.
  template <class... Parameters, class... Arguments>
  void operator()(const char* name, void (*kernel)(Parameters...), const grid& size, const Arguments&... arguments) {
    if (size.blocks <= 0 || !wrong_.empty()) return;
    if (size.shared_bytes > 40 * 1024)  // CUDA requires this above 48 KB, of which up to 8 KB may be static
      wrong_ = message_of(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(size.shared_bytes)), name);
    if (!wrong_.empty()) return;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>((std::min)(size.blocks, largest_grid)));
    config.blockDim = dim3(static_cast<unsigned>(size.threads));
    config.dynamicSmemBytes = size.shared_bytes;
    config.stream = stream_;
    wrong_ = message_of(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), name);
  }

  const error_message& wrong() const { return wrong_; }

 private:
  static constexpr index_t largest_grid = index_t{1} << 30;
  cudaStream_t stream_;
  error_message wrong_;
};

/// Whether every row of a tensor can be copied 16 bytes at a time.
template <class T>
bool has_fast_rows(const tensor_view<T>& x) {
  constexpr index_t vector = 16 / static_cast<index_t>(sizeof(T));
  return x.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.features() % vector == 0 &&
         x.strides[0] % vector == 0 && x.strides[1] % vector == 0 && x.strides[2] % vector == 0;
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace detail

}  // namespace cuda
}  // namespace v0_1
}  // namespace bila
