// SPDX-License-Identifier: Apache-2.0
// Every form, mask and norm for float.
#include "support/run_any.hpp"

namespace test {

template void attend<float>(const bila::cpu&, const any_form&, const any_mask&, const any_norm&, const bila::inputs<float>&,
                            const bila::tensor_view<float>&);
template std::size_t workspace_bytes<float>(const bila::cpu&, const any_form&, const any_mask&, const any_norm&,
                                            const bila::inputs<float>&, const bila::tensor_view<float>&);

}  // namespace test
