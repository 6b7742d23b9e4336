// SPDX-License-Identifier: Apache-2.0
// bila_peer_times L THREADS: milliseconds of one call, one line per form, for the scripts that time other libraries on the same
// shapes. float, B = 1, H = 12, D = 64, row sums; the median of nine rounds of at least 20 ms.
#include "../cases.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

template <class Call>
void print(const char* name, const Call& call) {
  const auto now = [] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  call();
  const double start = now();
  call();
  const int calls = static_cast<int>(std::clamp(20 / (now() - start), 1.0, 1e5));
  std::vector<double> rounds;
  for (int round = 0; round < 9; ++round) {
    const double from = now();
    for (int n = 0; n < calls; ++n) call();
    rounds.push_back((now() - from) / calls);
  }
  std::nth_element(rounds.begin(), rounds.begin() + 4, rounds.end());
  std::printf("%s %.6f\n", name, rounds[4]);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::index_t L = argc == 3 ? std::atoll(argv[1]) : 0;
  const int threads = argc == 3 ? std::atoi(argv[2]) : 0;
  if (L < 1 || threads < 1) {
    std::fprintf(stderr, "bila_peer_times L THREADS\n");
    return 2;
  }
  bench::setting<float> on(12, L, 64);
  const bila::inputs<float> in{on.p.q.prefix(L), on.p.k.prefix(L), on.p.v.prefix(L)};
  const auto y = bila::bhld(on.y.data(), 1, 12, L, 64);
  const auto attend = [&](const auto& form, const auto& mask) {
    bila::attend(bila::cpu{.threads = threads}, form, mask, bila::norm::row_sum{1e-6}, in, y);
  };
  const auto fixed = on.fixed_decay().second;
  const auto selective = on.selective_decay().second;
  if (L <= 4096) print("full", [&] { attend(bila::form::full{}, fixed); });
  if (L <= 4096) print("full_selective", [&] { attend(bila::form::full{}, selective); });
  for (const bench::index_t C : {16, 32, 64}) print("chunkwise", [&] { attend(bila::form::chunkwise{.size = C}, fixed); });
  for (const bench::index_t C : {16, 32, 64})
    print("chunkwise_selective", [&] { attend(bila::form::chunkwise{.size = C}, selective); });
  print("recurrent", [&] { attend(bila::form::recurrent{}, fixed); });
  print("all_ones", [&] { attend(bila::form::automatic{}, bila::mask::all_ones{}); });
}
