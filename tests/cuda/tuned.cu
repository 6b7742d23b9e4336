// SPDX-License-Identifier: Apache-2.0
// The kernels whose tiles were measured, compiled so that a register that is spilled to memory is an error.
#include <bila/cuda.hpp>

namespace {

using bila::bf16;

template <int D>
struct only : bila::cuda::tuned {
  static constexpr int narrowest = D, widest = D;
};

}  // namespace

template <int D>
void step(const bila::mask::selective_decay<float>& mask, const bila::inputs<bf16>& in, const bila::outputs<bf16>& out,
          const bila::saved<bf16>& kept, const bila::output_gradients<bf16>& dy, const bila::gradients<bf16>& to) {
  const bila::form::automatic form;
  const bila::norm::row_sum norm;
  bila::attend<only<D>>(bila::cuda::on{}, form, mask, norm, in, out);
  bila::gradient<only<D>>(bila::cuda::on{}, form, mask, norm, in, kept, dy, to);
}

#define BILA_STEP(D)                                                                                                           \
  template void step<D>(const bila::mask::selective_decay<float>&, const bila::inputs<bf16>&, const bila::outputs<bf16>&,     \
                        const bila::saved<bf16>&, const bila::output_gradients<bf16>&, const bila::gradients<bf16>&);
BILA_STEP(32)
BILA_STEP(64)
BILA_STEP(128)
