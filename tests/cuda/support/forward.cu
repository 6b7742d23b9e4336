// SPDX-License-Identifier: Apache-2.0
// bila::attend for one type, BILA_TEST_TYPE.
#include "cuda/support/door.hpp"

#include <bila/cuda.hpp>

#include <variant>

namespace test::device {

template <class T>
void attend(const on& at, const any_form& form, const any_mask& mask, const any_norm& norm, const bila::inputs<T>& in,
            const bila::outputs<T>& out) {
  std::visit(
      [&](const auto& f, const auto& m, const auto& n) {
        bila::attend(bila::cuda::on{at.where, at.workspace}, f, m, n, in, out);
      },
      form, mask, norm);
}

template <class T>
std::size_t workspace_bytes(const any_form& form, const any_mask& mask, const any_norm& norm, const bila::inputs<T>& in,
                            const bila::outputs<T>& out) {
  return std::visit(
      [&](const auto& f, const auto& m, const auto& n) { return bila::workspace_bytes(bila::cuda::on{}, f, m, n, in, out); }, form,
      mask, norm);
}

template void attend(const on&, const any_form&, const any_mask&, const any_norm&, const bila::inputs<BILA_TEST_TYPE>&,
                     const bila::outputs<BILA_TEST_TYPE>&);
template std::size_t workspace_bytes(const any_form&, const any_mask&, const any_norm&, const bila::inputs<BILA_TEST_TYPE>&,
                                     const bila::outputs<BILA_TEST_TYPE>&);

}  // namespace test::device
