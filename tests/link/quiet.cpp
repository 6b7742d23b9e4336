// SPDX-License-Identifier: Apache-2.0
// Built with -fno-exceptions and linked first: instantiates the same calls as loud.cpp.
#include <bila/bila.hpp>

#include <array>

float mean_of_one_and_three() {
  const std::array<float, 2> ones{1, 1}, v{1, 3};
  std::array<float, 2> y{};
  const auto x = bila::bhld(ones.data(), 1, 1, 2, 1);
  bila::attend(bila::form::full{}, bila::mask::all_ones{}, bila::norm::row_sum{},
               bila::inputs<float>{x, x, bila::bhld(v.data(), 1, 1, 2, 1)}, bila::bhld(y.data(), 1, 1, 2, 1));
  return y[0];
}
