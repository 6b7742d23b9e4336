// SPDX-License-Identifier: Apache-2.0
// attend with form, mask and norm chosen at run time. The library is instantiated once, in run_float.cpp and run_double.cpp,
// and not again in every test program. Gates are double.
#pragma once

#include <bila/backend/cpu/threads.hpp>
#include <bila/call/inputs.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/full.hpp>
#include <bila/form/recurrent.hpp>
#include <bila/mask/all_ones.hpp>
#include <bila/mask/fixed_decay.hpp>
#include <bila/mask/selective_decay.hpp>
#include <bila/mask/two_sided.hpp>
#include <bila/norm/max_one.hpp>
#include <bila/norm/none.hpp>
#include <bila/norm/row_sum.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <variant>

namespace test {

using any_form = std::variant<bila::form::full, bila::form::recurrent, bila::form::chunkwise, bila::form::automatic>;
using any_mask = std::variant<bila::mask::all_ones, bila::mask::fixed_decay<double>, bila::mask::selective_decay<double>,
                              bila::mask::two_sided<double>>;
using any_norm = std::variant<bila::norm::none, bila::norm::row_sum, bila::norm::max_one>;

/// One of each form; chunkwise with a chunk that divides few lengths.
inline const std::array<any_form, 4> all_forms{bila::form::full{}, bila::form::recurrent{}, bila::form::chunkwise{.size = 24},
                                               bila::form::automatic{}};

inline const std::array<any_norm, 3> all_norms{bila::norm::none{}, bila::norm::row_sum{1e-6}, bila::norm::max_one{}};

std::string name_of(const any_form& form);
std::string name_of(const any_norm& norm);

/// bila leaves small calls on one thread of its own accord; tests want them spread all the same.
inline bila::cpu spread(bila::cpu backend) {
  struct whole_pool : bila::executor {
    void run(bila::index_t n, void (*task)(void*, bila::index_t), void* context) override {
      bila::detail::run_on_pool(n, task, context);
    }
  };
  static whole_pool pool;
  if (backend.threads != 1 && backend.executor == nullptr) backend.executor = &pool;
  return backend;
}

/// bila::attend on the default kernel layer; T is float or double.
template <class T>
void attend(const bila::cpu& backend, const any_form& form, const any_mask& mask, const any_norm& norm, const bila::inputs<T>& in,
            const bila::tensor_view<T>& y);

template <class T>
std::size_t workspace_bytes(const bila::cpu& backend, const any_form& form, const any_mask& mask, const any_norm& norm,
                            const bila::inputs<T>& in, const bila::tensor_view<T>& y);

extern template void attend<float>(const bila::cpu&, const any_form&, const any_mask&, const any_norm&, const bila::inputs<float>&,
                                   const bila::tensor_view<float>&);
extern template void attend<double>(const bila::cpu&, const any_form&, const any_mask&, const any_norm&,
                                    const bila::inputs<double>&, const bila::tensor_view<double>&);
extern template std::size_t workspace_bytes<float>(const bila::cpu&, const any_form&, const any_mask&, const any_norm&,
                                                   const bila::inputs<float>&, const bila::tensor_view<float>&);
extern template std::size_t workspace_bytes<double>(const bila::cpu&, const any_form&, const any_mask&, const any_norm&,
                                                    const bila::inputs<double>&, const bila::tensor_view<double>&);

}  // namespace test
