// SPDX-License-Identifier: Apache-2.0
// Training steps in double on the plain-loop kernel layer.
#include "support/gradient_any.hpp"

namespace test {

template void forward_with<bila::kernel::reference, double>(const bila::cpu&, const any_form&, const any_mask&, const any_norm&,
                                                            const bila::inputs<double>&, const bila::outputs<double>&);
template void backward_with<bila::kernel::reference, double>(const bila::cpu&, const any_form&, const any_mask&, const any_norm&,
                                                             const bila::inputs<double>&, const bila::saved<double>&,
                                                             const bila::output_gradients<double>&, const bila::gradients<double>&);

}  // namespace test
