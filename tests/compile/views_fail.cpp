// SPDX-License-Identifier: Apache-2.0
// Misuses of views and masks that would dangle or guess.
#include <bila/bila.hpp>

#include <Eigen/Core>

#include <array>
#include <span>
#include <vector>

namespace {

std::vector<bila::index_t> offsets() { return {0, 3}; }

[[maybe_unused]] void misuse(const Eigen::MatrixXf& x, const bila::tensor_view<const float>& gates) {
  static_cast<void>(bila::matrix(x));
  static_cast<void>(bila::mask::selective_decay{gates, bila::gate::later});
  const std::vector<bila::index_t> named = offsets();
  bila::inputs<float> in{.lengths = std::span(named)};
  in.offsets = named, in.offsets = std::span(named), in.offsets = bila::index_list(named), in.offsets = {};
#if BILA_CASE == 1
  // expect: bila::matrix does not own memory: a temporary matrix would dangle, give it a name first
  static_cast<void>(bila::matrix(Eigen::MatrixXf(x)));
#elif BILA_CASE == 2
  // expect: bila::matrix needs an expression with memory of its own: evaluate it into a matrix first
  static_cast<void>(bila::matrix(2 * x));
#elif BILA_CASE == 3
  // expect: no matching
  static_cast<void>(bila::mask::selective_decay<float>{gates});
#elif BILA_CASE == 4
  // expect: bila::index_list does not own memory: a temporary container would dangle, give it a name first
  in.offsets = offsets();
#elif BILA_CASE == 5
  // expect: bila::index_list does not own memory: a temporary container would dangle, give it a name first
  in.lengths = std::vector<bila::index_t>{32, 5};
#elif BILA_CASE == 6
  // expect: bila::index_list does not own memory: a temporary container would dangle, give it a name first
  const bila::inputs<float> packed{.offsets = std::array<std::int32_t, 2>{0, 3}};
#elif BILA_CASE == 7
  // expect: bila::mask: log decays are float or double
  static_cast<void>(bila::mask::selective_decay{bila::tensor_view<bila::bf16>{}, bila::gate::later});
#elif BILA_CASE == 8
  // expect: bila::mask: log decays are float or double
  static_cast<void>(bila::mask::fixed_decay{bila::tensor_view<const int>{}});
#elif BILA_CASE == 9
  // expect: bila::mask: log decays are float or double
  static_cast<void>(bila::mask::two_sided{bila::tensor_view<bila::f16>{}, bila::tensor_view<bila::f16>{}});
#endif
}

}  // namespace
