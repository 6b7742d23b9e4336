// SPDX-License-Identifier: Apache-2.0
// The CUDA door with form, mask and norm chosen at run time. nvcc instantiates it once per type, in forward.cu and gradient.cu;
// test programs are host code. T is float, bila::bf16 or bila::f16, every view one of device memory.
#pragma once

#include "cuda/support/device.hpp"
#include "support/run.hpp"

#include <bila/call/gradients.hpp>

namespace test::device {

/// bila::cuda::on, for those who cannot include it.
struct on {
  stream where = nullptr;
  std::span<std::byte> workspace = {};
};

template <class T>
void attend(const on& at, const any_form& form, const any_mask& mask, const any_norm& norm, const bila::inputs<T>& in,
            const bila::outputs<T>& out);

template <class T>
std::size_t workspace_bytes(const any_form& form, const any_mask& mask, const any_norm& norm, const bila::inputs<T>& in,
                            const bila::outputs<T>& out);

template <class T>
void gradient(const on& at, const any_form& form, const any_mask& mask, const any_norm& norm, const bila::inputs<T>& in,
              const bila::saved<T>& kept, const bila::output_gradients<T>& dy, const bila::gradients<T>& to);

template <class T>
std::size_t gradient_workspace_bytes(const any_form& form, const any_mask& mask, const any_norm& norm, const bila::inputs<T>& in,
                                     const bila::saved<T>& kept, const bila::output_gradients<T>& dy, const bila::gradients<T>& to);

}  // namespace test::device
