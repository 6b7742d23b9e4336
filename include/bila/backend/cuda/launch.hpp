// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: which stream, whose memory; how a kernel is launched, and what is said when CUDA refuses.
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

namespace bila::inline v0_1::cuda {

/// Runs a call on a GPU: work is put on the stream and nothing waits for it, so that a CUDA graph may capture it.
struct on {
  cudaStream_t stream = nullptr;
  std::span<std::byte> workspace = {};  // device memory, at least workspace_bytes(...); not shared by calls that overlap in time
};

namespace detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// What CUDA has to say, or nothing. What is said here does not stay behind for the caller's next question.
inline complaint complaint_of(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return sentence("cuda: ", doing, ": ", cudaGetErrorString(status));
}

/// The tensor cores' bf16 and the asynchronous copies are there from sm_80 on.
inline complaint check_device() {
  int device = 0, major_number = 0, minor_number = 0;
  complaint wrong = complaint_of(cudaGetDevice(&device), "looking for a device");
  if (wrong.empty())
    wrong = complaint_of(cudaDeviceGetAttribute(&major_number, cudaDevAttrComputeCapabilityMajor, device), "asking the device");
  if (wrong.empty())
    wrong = complaint_of(cudaDeviceGetAttribute(&minor_number, cudaDevAttrComputeCapabilityMinor, device), "asking the device");
  if (wrong.empty() && major_number < 8)
    return sentence("cuda: device ", device, " has compute capability ", major_number, ".", minor_number, ", 8.0 is needed");
  return wrong;
}

/// Launches kernels one after the other on a stream, until one is refused: the first refusal is kept.
class launcher {
 public:
  explicit launcher(cudaStream_t stream) : stream_(stream) {}

  /// `blocks` is how many there is work for; a kernel walks on by the grid's size if that is more than a grid can have.
  template <class... Parameters, class... Arguments>
  void operator()(const char* name, void (*kernel)(Parameters...), index_t blocks, int threads, std::size_t shared_bytes,
                  const Arguments&... arguments) {
    if (blocks <= 0 || !wrong_.empty()) return;
    if (shared_bytes > 40 * 1024)  // 48 KB, with what a kernel names itself, need no leave
      wrong_ = complaint_of(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)), name);
    if (!wrong_.empty()) return;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>((std::min)(blocks, largest_grid)));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream_;
    wrong_ = complaint_of(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), name);
  }

  const complaint& wrong() const { return wrong_; }

 private:
  static constexpr index_t largest_grid = index_t{1} << 30;
  cudaStream_t stream_;
  complaint wrong_;
};

/// Rows that lie so that 16 bytes can be copied at once.
template <class T>
bool has_fast_rows(const tensor_view<T>& x) {
  constexpr index_t vector = 16 / static_cast<index_t>(sizeof(T));
  return x.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.features() % vector == 0 &&
         x.strides[0] % vector == 0 && x.strides[1] % vector == 0 && x.strides[2] % vector == 0;
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace detail

}  // namespace bila::inline v0_1::cuda
