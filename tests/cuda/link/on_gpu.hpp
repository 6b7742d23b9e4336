// SPDX-License-Identifier: Apache-2.0
// The same call for both .cu units, so that both instantiate the same kernels; for heads of 32 features, so that it is one of each.
#pragma once

#include "units.hpp"

#include <bila/cuda.hpp>

#include <stdexcept>

struct link_tiles : bila::cuda::tuned {
  static constexpr int narrowest = 32, widest = 32;
};

class on_device {
 public:
  explicit on_device(const std::vector<float>& x) : on_device(x.size() * sizeof(float)) {
    check(cudaMemcpy(data_, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  explicit on_device(std::size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, bytes)); }
  ~on_device() { cudaFree(data_); }
  on_device(const on_device&) = delete;
  on_device& operator=(const on_device&) = delete;

  float* numbers() const { return static_cast<float*>(data_); }
  std::span<std::byte> memory() const { return {static_cast<std::byte*>(data_), bytes_}; }
  void read(std::vector<float>& to) const {
    check(cudaMemcpy(to.data(), data_, to.size() * sizeof(float), cudaMemcpyDeviceToHost));
  }

 private:
  static void check(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
  }
  std::size_t bytes_;
  void* data_ = nullptr;
};

/// Without a device the library says so itself: nothing is allocated before it is asked.
inline std::vector<float> attend_on_gpu(const head& x) {
  std::vector<float> y(x.v.size());
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    cudaGetLastError();
    const auto view = bila::bhld(x.q.data(), 1, 1, x.L, x.D);  // never read
    const bila::inputs<float> in{view, view, view};
    bila::attend<link_tiles>(bila::cuda::on{}, bila::form::full{}, bila::mask::all_ones{}, bila::norm::none{}, in,
                             bila::bhld(y.data(), 1, 1, x.L, x.D));
    return y;
  }
  const on_device q(x.q), k(x.k), v(x.v), log_decay(x.log_decay), to(y.size() * sizeof(float));
  const auto view = [&](const on_device& t) { return bila::bhld(t.numbers(), 1, 1, x.L, x.D); };
  const bila::inputs<float> in{view(q), view(k), view(v)};
  const bila::form::chunkwise form;
  const bila::mask::selective_decay<float> mask{bila::bhl<const float>(log_decay.numbers(), 1, 1, x.L), bila::gate::later};
  const bila::norm::row_sum norm{1e-6};
  const on_device workspace(bila::workspace_bytes<link_tiles>(bila::cuda::on{}, form, mask, norm, in, view(to)));
  bila::attend<link_tiles>(bila::cuda::on{nullptr, workspace.memory()}, form, mask, norm, in, view(to));
  to.read(y);
  return y;
}
