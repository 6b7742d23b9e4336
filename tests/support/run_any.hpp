// SPDX-License-Identifier: Apache-2.0
// The definitions behind run.hpp, for the two files that instantiate them.
#pragma once

#include "support/run.hpp"

#include <bila/bila.hpp>

namespace test {

template <class T>
void attend(const bila::cpu& backend, const any_form& form, const any_mask& mask, const any_norm& norm, const bila::inputs<T>& in,
            const bila::tensor_view<T>& y) {
  std::visit([&](const auto& f, const auto& m, const auto& n) { bila::attend(spread(backend), f, m, n, in, y); }, form, mask, norm);
}

template <class T>
std::size_t workspace_bytes(const bila::cpu& backend, const any_form& form, const any_mask& mask, const any_norm& norm,
                            const bila::inputs<T>& in, const bila::tensor_view<T>& y) {
  return std::visit(
      [&](const auto& f, const auto& m, const auto& n) { return bila::workspace_bytes(spread(backend), f, m, n, in, y); }, form,
      mask, norm);
}

}  // namespace test
