// SPDX-License-Identifier: Apache-2.0
// The second convolution and its second gradient allocate nothing, on one thread or on several.
#include "allocation/count.hpp"
#include "support/catch.hpp"

#include <bila/backend/cpu/convolution.hpp>

#include <vector>

TEST_CASE("the second convolution allocates nothing") {
  constexpr bila::index_t B = 2, H = 3, L = 100, D = 40, width = 4;
  const std::vector<float> x(B * H * L * D, 0.5f), weights(H * width * D, 0.25f);
  std::vector<float> y(x.size()), dx(x.size()), dw(weights.size()), db(H * D);
  const bila::feature::convolution layer{bila::bhld(weights.data(), 1, H, width, D), bila::direction::forward};
  const auto tokens = [&](auto& numbers) { return bila::bhld(numbers.data(), B, H, L, D); };
  for (const int threads : {1, 2}) {
    long before = 0;
    for (int n = 0; n < 2; ++n) {
      before = test::allocations();
      bila::convolve(bila::cpu{.threads = threads}, layer, tokens(x), tokens(y));
      bila::convolve_gradient(bila::cpu{.threads = threads}, layer, tokens(x), tokens(x),
                              bila::feature::convolution_gradients<float>{tokens(dx), bila::bhld(dw.data(), 1, H, width, D),
                                                                          bila::bhld(db.data(), 1, H, 1, D)});
    }
    CHECK(test::allocations() - before == 0);
  }
}
