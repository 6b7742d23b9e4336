// SPDX-License-Identifier: Apache-2.0
// Masks and tiles as a user writes them. A mask is any trivially copyable type with gaps and with log_forward and
// log_backward that a device can call.
#include "cuda/support/foreign.hpp"

#include <bila/cuda.hpp>

#include <variant>

namespace test::device {

namespace {

struct own_per_token {
  static constexpr bila::gap gaps = bila::gap::per_token;
  __host__ __device__ double log_forward(bila::index_t b, bila::index_t h, bila::index_t t) const {
    return formula_forward(b, h, t);
  }
  __host__ __device__ double log_backward(bila::index_t b, bila::index_t h, bila::index_t t) const {
    return formula_backward(b, h, t);
  }
};

/// Nothing for the host: the door reads no gate.
struct own_per_head {
  static constexpr bila::gap gaps = bila::gap::per_head;
  __device__ double log_forward(bila::index_t, bila::index_t h, bila::index_t) const { return formula_of_head(h); }
  __device__ double log_backward(bila::index_t, bila::index_t h, bila::index_t) const { return formula_of_head(h); }
};

/// One head size, so that nvcc compiles each kernel once.
struct for_64 : bila::cuda::tuned {
  static constexpr int narrowest = 64, widest = 64;
};

struct impossible_tiles : for_64 {
  static constexpr bila::cuda::attention_tile full_attention(int, int, bila::cuda::result) { return {8, 128, 8, 1}; }
};

constexpr bila::norm::row_sum norm{1e-6};

template <class Function>
auto with(foreign_mask mask, const any_form& form, const Function& f) {
  return std::visit(
      [&](const auto& chosen) { return mask == foreign_mask::per_token ? f(chosen, own_per_token{}) : f(chosen, own_per_head{}); },
      form);
}

bila::cuda::on place(const on& at) { return {at.where, at.workspace}; }

}  // namespace

void attend(const on& at, foreign_mask mask, const any_form& form, const bila::inputs<float>& in, const bila::outputs<float>& out) {
  with(mask, form, [&](const auto& f, const auto& m) { bila::attend<for_64>(place(at), f, m, norm, in, out); });
}

std::size_t workspace_bytes(foreign_mask mask, const any_form& form, const bila::inputs<float>& in,
                            const bila::outputs<float>& out) {
  return with(mask, form,
              [&](const auto& f, const auto& m) { return bila::workspace_bytes<for_64>(bila::cuda::on{}, f, m, norm, in, out); });
}

void gradient(const on& at, foreign_mask mask, const any_form& form, const bila::inputs<float>& in, const bila::saved<float>& kept,
              const bila::output_gradients<float>& dy, const bila::gradients<float>& to) {
  with(mask, form, [&](const auto& f, const auto& m) { bila::gradient<for_64>(place(at), f, m, norm, in, kept, dy, to); });
}

std::size_t gradient_workspace_bytes(foreign_mask mask, const any_form& form, const bila::inputs<float>& in,
                                     const bila::saved<float>& kept, const bila::output_gradients<float>& dy,
                                     const bila::gradients<float>& to) {
  return with(mask, form, [&](const auto& f, const auto& m) {
    return bila::gradient_workspace_bytes<for_64>(bila::cuda::on{}, f, m, norm, in, kept, dy, to);
  });
}

void attend_with_float_gates(const on& at, const bila::tensor_view<const float>& gates, const bila::inputs<float>& in,
                             const bila::outputs<float>& out) {
  const bila::form::chunkwise form;
  if (gates.length() == 1)
    bila::attend<for_64>(place(at), form, bila::mask::fixed_decay<float>{gates}, bila::norm::none{}, in, out);
  else
    bila::attend<for_64>(place(at), form, bila::mask::selective_decay<float>{gates, bila::gate::later}, bila::norm::none{}, in,
                         out);
}

std::size_t workspace_bytes_with_float_gates(const bila::tensor_view<const float>& gates, const bila::inputs<float>& in,
                                             const bila::outputs<float>& out) {
  const bila::form::chunkwise form;
  if (gates.length() == 1)
    return bila::workspace_bytes<for_64>(bila::cuda::on{}, form, bila::mask::fixed_decay<float>{gates}, bila::norm::none{}, in,
                                         out);
  return bila::workspace_bytes<for_64>(bila::cuda::on{}, form, bila::mask::selective_decay<float>{gates, bila::gate::later},
                                       bila::norm::none{}, in, out);
}

void attend_with_impossible_tiles(const bila::inputs<float>& in, const bila::outputs<float>& out) {
  bila::attend<impossible_tiles>(bila::cuda::on{}, bila::form::full{}, bila::mask::all_ones{}, bila::norm::none{}, in, out);
}

}  // namespace test::device
