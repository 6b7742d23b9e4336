// SPDX-License-Identifier: Apache-2.0
// Built with -fno-exceptions -fno-rtti: a good call works, a bad one reaches the error handler with the sentence that names the
// argument. Exits with 0 only from inside the handler.
#include <bila/bila.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main() {
  constexpr bila::index_t L = 5, D = 3;
  const std::vector<float> x(L * D, 0.5f);
  std::vector<float> y(L * D);
  const auto view = bila::bhld(x.data(), 1, 1, L, D);
  const auto out = bila::bhld(y.data(), 1, 1, L, D);

  bila::attend(bila::form::chunkwise{.size = 2}, bila::mask::all_ones{}, bila::norm::row_sum{},
               bila::inputs<float>{view, view, view}, out);
  for (const float value : y)
    if (!(std::fabs(value - 0.5f) < 1e-6f)) return 1;  // the mean of equal rows

  bila::set_error_handler([](const char* what) {
    std::printf("refused: %s\n", what);
    std::exit(std::strstr(what, "k has length") != nullptr || std::strstr(what, "v has length") != nullptr ? 0 : 2);
  });
  const bila::inputs<float> bad{view, bila::bhld(x.data(), 1, 1, L - 1, D), view};
  bila::attend(bila::form::full{}, bila::mask::all_ones{}, bila::norm::none{}, bad, out);
  return 3;
}
