// SPDX-License-Identifier: Apache-2.0
// The definitions behind gradient.hpp, for the files that instantiate them.
#pragma once

#include "support/gradient.hpp"

#include <bila/kernel/reference.hpp>

namespace test {

template <class Kernel, class T>
void forward_with(const bila::cpu& backend, const any_form& form, const any_mask& mask, const any_norm& norm,
                  const bila::inputs<T>& in, const bila::outputs<T>& out) {
  std::visit([&](const auto& f, const auto& m, const auto& n) { bila::attend<Kernel>(spread(backend), f, m, n, in, out); }, form,
             mask, norm);
}

template <class Kernel, class T>
void backward_with(const bila::cpu& backend, const any_form& form, const any_mask& mask, const any_norm& norm,
                   const bila::inputs<T>& in, const bila::saved<T>& kept, const bila::output_gradients<T>& dy,
                   const bila::gradients<T>& to) {
  std::visit(
      [&](const auto& f, const auto& m, const auto& n) { bila::gradient<Kernel>(spread(backend), f, m, n, in, kept, dy, to); },
      form, mask, norm);
}

// In gradient_reference.cpp.
extern template void forward_with<bila::kernel::reference, double>(const bila::cpu&, const any_form&, const any_mask&,
                                                                   const any_norm&, const bila::inputs<double>&,
                                                                   const bila::outputs<double>&);
extern template void backward_with<bila::kernel::reference, double>(const bila::cpu&, const any_form&, const any_mask&,
                                                                    const any_norm&, const bila::inputs<double>&,
                                                                    const bila::saved<double>&,
                                                                    const bila::output_gradients<double>&,
                                                                    const bila::gradients<double>&);

template <class T>
void forward_pass(layer kernel, const bila::cpu& backend, const any_form& form, const any_mask& mask, const any_norm& norm,
                  const bila::inputs<T>& in, const bila::outputs<T>& out) {
  if constexpr (std::is_same_v<T, double>)
    if (kernel == layer::reference) return forward_with<bila::kernel::reference>(backend, form, mask, norm, in, out);
  forward_with<bila::kernel::eigen>(backend, form, mask, norm, in, out);
}

template <class T>
void backward_pass(layer kernel, const bila::cpu& backend, const any_form& form, const any_mask& mask, const any_norm& norm,
                   const bila::inputs<T>& in, const bila::saved<T>& kept, const bila::output_gradients<T>& dy,
                   const bila::gradients<T>& to) {
  if constexpr (std::is_same_v<T, double>)
    if (kernel == layer::reference) return backward_with<bila::kernel::reference>(backend, form, mask, norm, in, kept, dy, to);
  backward_with<bila::kernel::eigen>(backend, form, mask, norm, in, kept, dy, to);
}

template <class T>
std::size_t backward_bytes(const bila::cpu& backend, const any_form& form, const bila::inputs<T>& in,
                           const bila::tensor_view<const T>& y) {
  return std::visit([&](const auto& f) { return bila::gradient_workspace_bytes(spread(backend), f, in, y); }, form);
}

}  // namespace test
