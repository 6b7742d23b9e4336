// SPDX-License-Identifier: Apache-2.0
// bila::gradient for one type, BILA_TEST_TYPE.
#include "cuda/support/door.hpp"

#include <bila/cuda.hpp>

#include <variant>

namespace test::device {

template <class T>
void gradient(const on& at, const any_form& form, const any_mask& mask, const any_norm& norm, const bila::inputs<T>& in,
              const bila::saved<T>& kept, const bila::output_gradients<T>& dy, const bila::gradients<T>& to) {
  std::visit(
      [&](const auto& f, const auto& m, const auto& n) {
        bila::gradient(bila::cuda::on{at.where, at.workspace}, f, m, n, in, kept, dy, to);
      },
      form, mask, norm);
}

template <class T>
std::size_t gradient_workspace_bytes(const any_form& form, const any_mask& mask, const any_norm& norm, const bila::inputs<T>& in,
                                     const bila::saved<T>& kept, const bila::output_gradients<T>& dy,
                                     const bila::gradients<T>& to) {
  return std::visit([&](const auto& f, const auto& m,
                        const auto& n) { return bila::gradient_workspace_bytes(bila::cuda::on{}, f, m, n, in, kept, dy, to); },
                    form, mask, norm);
}

using T = BILA_TEST_TYPE;
template void gradient(const on&, const any_form&, const any_mask&, const any_norm&, const bila::inputs<T>&, const bila::saved<T>&,
                       const bila::output_gradients<T>&, const bila::gradients<T>&);
template std::size_t gradient_workspace_bytes(const any_form&, const any_mask&, const any_norm&, const bila::inputs<T>&,
                                              const bila::saved<T>&, const bila::output_gradients<T>&, const bila::gradients<T>&);

}  // namespace test::device
