// SPDX-License-Identifier: Apache-2.0
// Whose threads, whose memory: one thread, the library's pool, or your own executor on your own workspace. The same bits each time.
#include <bila/bila.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>
#include <vector>

// Any scheduler of yours fits behind `run`: it calls the task once for each i and returns when all are done.
struct own_threads : bila::executor {
  void run(bila::index_t n, void (*task)(void*, bila::index_t), void* context) override {
    std::vector<std::jthread> threads;  // a program would keep its threads; the end of this scope waits for them
    for (bila::index_t i = 0; i < n; ++i) threads.emplace_back(task, context, i);
  }
};

int main() {
  constexpr bila::index_t B = 2, H = 4, L = 1024, D = 32;
  std::vector<float> q(B * H * L * D), k(q), v(q), log_decay{-0.5f, -0.1f, -0.02f, 0.0f};
  for (std::size_t n = 0; n < q.size(); ++n) {
    q[n] = 1.1f + std::sin(0.7f * static_cast<float>(n % 9973));
    k[n] = 1.1f + std::cos(1.3f * static_cast<float>(n % 9967));
    v[n] = std::sin(0.01f * static_cast<float>(n % 9949));
  }
  const bila::inputs<float> in{bila::bhld(q.data(), B, H, L, D), bila::bhld(k.data(), B, H, L, D),
                               bila::bhld(v.data(), B, H, L, D)};
  const bila::form::chunkwise form{};
  const bila::mask::fixed_decay mask{bila::vec(log_decay.data(), H)};
  const bila::norm::row_sum norm{1e-6};

  const auto run = [&](const char* name, const bila::cpu& backend) {
    std::vector<float> y(q.size());
    const auto out = bila::bhld(y.data(), B, H, L, D);
    bila::attend(backend, form, mask, norm, in, out);  // the first call may start threads and grow memory
    const auto start = std::chrono::steady_clock::now();
    bila::attend(backend, form, mask, norm, in, out);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    std::printf("%-30s %6.2f ms\n", name, time.count());
    return y;
  };
  const auto one = run("one thread", {});  // the default: no thread is started
  const auto two = run("two threads of the pool", {.threads = 2});

  // Ask how much memory a call needs, then bring it: nothing is allocated inside, which suits real-time code and arenas.
  own_threads mine;
  bila::cpu own{.threads = 2, .executor = &mine};
  std::vector<float> y(q.size());
  std::vector<std::byte> memory(bila::workspace_bytes(own, form, mask, norm, in, bila::bhld(y.data(), B, H, L, D)));
  own.workspace = memory;
  const auto three = run("two of my threads, my memory", own);

  std::printf("workspace: %zu bytes; all %s\n", memory.size(), one == two && one == three ? "bit for bit equal" : "DIFFERENT");
  return one == two && one == three ? 0 : 1;
}
