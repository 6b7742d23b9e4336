// SPDX-License-Identifier: Apache-2.0
// Misuses of views and masks that would dangle or guess.
#include <bila/bila.hpp>

#include <Eigen/Core>

namespace {

[[maybe_unused]] void misuse(const Eigen::MatrixXf& x, const bila::tensor_view<const float>& gates) {
  static_cast<void>(bila::matrix(x));
  static_cast<void>(bila::mask::selective_decay{gates, bila::gate::later});
#if BILA_CASE == 1
  // expect: bila::matrix does not own memory: a temporary matrix would dangle, give it a name first
  static_cast<void>(bila::matrix(Eigen::MatrixXf(x)));
#elif BILA_CASE == 2
  // expect: bila::matrix needs an expression with memory of its own: evaluate it into a matrix first
  static_cast<void>(bila::matrix(2 * x));
#elif BILA_CASE == 3
  // expect: no matching
  static_cast<void>(bila::mask::selective_decay<float>{gates});
#endif
}

}  // namespace
