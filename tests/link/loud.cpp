// SPDX-License-Identifier: Apache-2.0
// Built as usual: an error here still is an exception, although the unit linked before it was built without them.
#include <bila/bila.hpp>

#include <array>
#include <cstdio>
#include <stdexcept>

float mean_of_one_and_three();

int main() {
  const std::array<float, 2> ones{1, 1};
  std::array<float, 2> y{};
  const auto x = bila::bhld(ones.data(), 1, 1, 2, 1), too_short = bila::bhld(ones.data(), 1, 1, 1, 1);
  try {
    bila::attend(bila::form::full{}, bila::mask::all_ones{}, bila::norm::row_sum{}, bila::inputs<float>{x, x, too_short},
                 bila::bhld(y.data(), 1, 1, 2, 1));
  } catch (const std::invalid_argument& error) {
    std::printf("refused: %s\n", error.what());
    return mean_of_one_and_three() == 2 ? 0 : 1;
  }
  return 1;
}
