// SPDX-License-Identifier: Apache-2.0
// What this machine can do, measured in the process that reports it: multiply-adds in registers and a triad over memory.
// Both are upper limits, so the best of several runs counts. Needs g++ or clang++ on a POSIX system.
#pragma once

#include <Eigen/Core>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#ifndef BILA_BENCH_FLAGS
#define BILA_BENCH_FLAGS "unknown"
#endif

namespace bench {

inline std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

inline std::string flags() { return BILA_BENCH_FLAGS; }

inline std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// Runs measure() on every thread at the same moment and adds up the rates that the threads saw.
template <class Measure>
double summed_rate(int threads, Measure measure) {
  std::vector<double> rates(static_cast<std::size_t>(threads));
  std::barrier start(threads);
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < rates.size(); ++i) {
    others.emplace_back([&, i] {
      start.arrive_and_wait();
      rates[i] = measure();
    });
  }
  start.arrive_and_wait();
  rates[0] = measure();
  others.clear();
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

// Processor time of this thread: what a busy neighbour takes does not count.
inline double thread_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Work per second of `work`, which does `amount` of it per call: calls for at least `seconds`, then divides.
template <class Work>
double rate_of(double amount, double seconds, Work work) {
  const double start = thread_seconds();
  double elapsed = 0, done = 0;
  do {
    work();
    done += amount;
    elapsed = thread_seconds() - start;
  } while (elapsed < seconds);
  return done / elapsed;
}

// FLOP/s of independent multiply-adds that never leave the registers, in the widest vectors that Eigen was compiled for.
template <class T>
double fma_peak(int threads, int runs = 10) {
  using packet = typename Eigen::internal::packet_traits<T>::type;
  constexpr int chains = 12;  // latency times units is 8 to 10 on the machines of today; 12 and the two operands fit 16 registers
  constexpr int rounds = 20000;

  const auto measure = [runs] {
    volatile T one = 1, zero = 0;  // unknown to the compiler, so that it cannot work the loop out
    const T a = one, b = zero;
    const packet factor = Eigen::internal::pset1<packet>(a), term = Eigen::internal::pset1<packet>(b);
    const auto work = [&] {
      packet sum[chains];
      for (int i = 0; i < chains; ++i)
        sum[i] = Eigen::internal::pset1<packet>(a + static_cast<T>(i));  // equal chains would be merged
      for (int round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < chains; ++i) sum[i] = sum[i] * factor + term;
      }
      packet total = sum[0];
      for (int i = 1; i < chains; ++i) total = Eigen::internal::padd(total, sum[i]);
      asm volatile("" : : "m"(total));  // every lane is wanted
    };
    const double flop = 2.0 * chains * rounds * static_cast<double>(Eigen::internal::packet_traits<T>::size);
    double best = 0;
    for (int i = 0; i < runs; ++i) best = std::max(best, rate_of(flop, 0.01, work));
    return best;
  };
  return summed_rate(threads, measure);
}

// Bytes per second of a[i] = b[i] + s * c[i] over three arrays that together take `bytes`, divided among the threads.
// A working set that fits a cache is served by that cache, as it is in a benchmark that calls again and again.
inline double triad_bandwidth(int threads, double bytes, double seconds = 0.005) {
  const auto n = std::max<std::size_t>(static_cast<std::size_t>(bytes / 3 / sizeof(float) / threads), 64);
  const auto measure = [n, seconds] {
    std::vector<float> a(n, 0.0F), b(n, 1.0F), c(n, 2.0F);
    volatile float factor = 3;
    const auto work = [&] {
      const float s = factor;
      for (std::size_t i = 0; i < n; ++i) a[i] = b[i] + s * c[i];
      asm volatile("" : : "r"(a.data()) : "memory");
    };
    double best = 0;
    for (int i = 0; i < 5; ++i) best = std::max(best, rate_of(3.0 * sizeof(float) * static_cast<double>(n), seconds, work));
    return best;
  };
  return summed_rate(threads, measure);
}

}  // namespace bench
