// SPDX-License-Identifier: Apache-2.0
// Threads of somebody else: adaptors of a few lines for a serial loop, OpenMP, oneTBB and Eigen's pool. The same bits from each.
#include <bila/bila.hpp>

#include <unsupported/Eigen/CXX11/ThreadPool>

#if defined(EXAMPLE_HAS_TBB)
#include <tbb/parallel_for.h>
#endif

#include <cstdio>
#include <vector>

using bila::index_t;

struct serial : bila::executor {
  void run(index_t n, void (*task)(void*, index_t), void* context) override {
    for (index_t i = 0; i < n; ++i) task(context, i);
  }
};

#if defined(_OPENMP)
struct open_mp : bila::executor {
  void run(index_t n, void (*task)(void*, index_t), void* context) override {
#pragma omp parallel for schedule(static, 1)
    for (index_t i = 0; i < n; ++i) task(context, i);
  }
};
#endif

#if defined(EXAMPLE_HAS_TBB)
struct one_tbb : bila::executor {
  void run(index_t n, void (*task)(void*, index_t), void* context) override {
    tbb::parallel_for(index_t(0), n, [=](index_t i) { task(context, i); });
  }
};
#endif

struct eigen_pool : bila::executor {
  Eigen::ThreadPool pool{2};

  void run(index_t n, void (*task)(void*, index_t), void* context) override {
    Eigen::Barrier done(static_cast<unsigned>(n));
    for (index_t i = 0; i < n; ++i)
      pool.Schedule([&done, task, context, i] {
        task(context, i);
        done.Notify();
      });
    done.Wait();
  }
};

int main() {
  constexpr index_t H = 3, L = 500, D = 16;
  std::vector<float> q(H * L * D, 0.5f), v(q.size()), log_gates(H * L, -0.1f);
  for (std::size_t n = 0; n < v.size(); ++n) v[n] = static_cast<float>(n % 97) / 97.0f;
  const bila::inputs<float> in{bila::bhld(q.data(), 1, H, L, D), bila::bhld(q.data(), 1, H, L, D),
                               bila::bhld(v.data(), 1, H, L, D)};
  const bila::mask::selective_decay mask{bila::bhl(log_gates.data(), 1, H, L), bila::gate::later};

  const auto run = [&](const bila::cpu& backend) {
    std::vector<float> y(v.size());
    bila::attend(backend, bila::form::chunkwise{}, mask, bila::norm::row_sum{1e-6}, in, bila::bhld(y.data(), 1, H, L, D));
    return y;
  };
  const std::vector<float> expected = run({});
  bool all_equal = true;
  const auto try_out = [&](const char* name, bila::executor&& threads) {
    const bool equal = run({.threads = 2, .executor = &threads}) == expected;
    std::printf("%-13s %s\n", name, equal ? "bit for bit equal" : "DIFFERENT");
    all_equal = all_equal && equal;
  };
  try_out("serial", serial{});
#if defined(_OPENMP)
  try_out("OpenMP", open_mp{});
#endif
#if defined(EXAMPLE_HAS_TBB)
  try_out("oneTBB", one_tbb{});
#endif
  try_out("Eigen's pool", eigen_pool{});
  return all_equal ? 0 : 1;
}
