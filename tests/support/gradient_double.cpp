// SPDX-License-Identifier: Apache-2.0
// Training steps in double.
#include "support/gradient_any.hpp"

namespace test {

using T = double;
template void forward_pass<T>(layer, const bila::cpu&, const any_form&, const any_mask&, const any_norm&, const bila::inputs<T>&,
                              const bila::outputs<T>&);
template void backward_pass<T>(layer, const bila::cpu&, const any_form&, const any_mask&, const any_norm&, const bila::inputs<T>&,
                               const bila::saved<T>&, const bila::output_gradients<T>&, const bila::gradients<T>&);
template std::size_t backward_bytes<T>(const bila::cpu&, const any_form&, const bila::inputs<T>&,
                                       const bila::tensor_view<const T>&);

}  // namespace test
