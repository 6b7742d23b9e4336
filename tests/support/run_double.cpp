// SPDX-License-Identifier: Apache-2.0
// Every form, mask and norm for double.
#include "support/run_any.hpp"

namespace test {

template void attend<double>(const bila::cpu&, const any_form&, const any_mask&, const any_norm&, const bila::inputs<double>&,
                             const bila::tensor_view<double>&);
template std::size_t workspace_bytes<double>(const bila::cpu&, const any_form&, const any_mask&, const any_norm&,
                                             const bila::inputs<double>&, const bila::tensor_view<double>&);

}  // namespace test
