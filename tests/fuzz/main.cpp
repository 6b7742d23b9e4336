// SPDX-License-Identifier: Apache-2.0
// bila_fuzz [--seconds S] [--seed N] [--calls N] [--type float|double|bf16|f16]: random calls until time is up, each from a seed of
// its own. Exits with 1 at the first that is neither right nor refused as it should be, and says how to repeat it.
// bila_fuzz --digest COUNT [--seed N] [--type ...]: judges nothing and prints for each of COUNT seeds a hash of every bit that
// attend and gradient wrote. Two builds that print the same compute the same.
#include "call.hpp"

#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>

// Of the sanitizers, where they are linked.
extern "C" void __sanitizer_set_death_callback(void (*)()) __attribute__((weak));

namespace fuzz {

outcome execute(call& c, stage at) {
  switch (c.type) {
    case number::f32:
      return execute_as_kind<number::f32>(c, at);
    case number::f64:
      return execute_as_kind<number::f64>(c, at);
    case number::bf16:
      return execute_as_kind<number::bf16>(c, at);
    default:
      return execute_as_kind<number::f16>(c, at);
  }
}

namespace {

char replay[64];

void say_how_to_repeat() { [[maybe_unused]] const auto written = write(STDOUT_FILENO, replay, std::strlen(replay)); }

void on_signal(int number) {
  say_how_to_repeat();
  const char words[] = "killed by a signal: crashed, or took longer than a minute\n";
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, words, sizeof words - 1);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

/// Judges, runs and judges again; says what is wrong.
std::string run_stage(call& c, stage at) {
  const legality law = judge(c, at);
  const call before = c;
  const outcome got = execute(c, at);
  if (got.end == outcome::failed) return "threw " + got.words;
  if (got.end == outcome::refused) {
    const std::string changed = unchanged(before, c);
    if (!changed.empty()) return "refused (" + got.words + ") after it wrote: " + changed;
    const bool looks_like_overlap =
        got.words.find("overlap") != std::string::npos || got.words.find("share memory") != std::string::npos;
    if (law == legality::legal && (before.broken.empty() || !looks_like_overlap)) return "refused though it is right: " + got.words;
    return {};
  }
  if (law == legality::illegal) return "accepted though it is wrong";
  return compare(before, c, at);
}

bool all_finite(const call& c, const view& x) {
  bool finite = true;
  x.each([&](index_t cell, index_t, index_t, index_t, index_t) {
    finite = finite && std::isfinite(c.memories[static_cast<std::size_t>(x.memory)].x[static_cast<std::size_t>(cell)]);
  });
  return finite;
}

std::string run_call(std::uint64_t seed, const number* type, std::string& description) {
  random_source random(seed);
  const bool to_be_broken = random.chance(0.3);
  const stage breaking = random.chance(0.6) ? stage::forward : stage::gradient;
  call c = make_call(random, to_be_broken, type);
  if (to_be_broken && breaking == stage::forward) break_call(random, c, stage::forward);
  description = describe(c);
  std::string wrong = run_stage(c, stage::forward);
  if (!wrong.empty() || !c.has_gradient || !c.broken.empty() || !all_finite(c, c.y) || !all_finite(c, c.row_sum))
    return wrong.empty() ? wrong : "attend: " + wrong;
  if (to_be_broken) {
    c.workspace = room::library;  // how much the gradient needs is not asked of a call that is wrong
    break_call(random, c, stage::gradient);
  }
  description = describe(c);
  wrong = run_stage(c, stage::gradient);
  return wrong.empty() ? wrong : "gradient: " + wrong;
}

/// FNV-1a of the numbers that a call can have written.
std::uint64_t hash_of(const call& c, std::uint64_t hash) {
  const auto add = [&](double x) {
    unsigned char bytes[sizeof x];
    std::memcpy(bytes, &x, sizeof x);
    for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  };
  for (const memory& m : c.memories)
    for (const double x : m.x) add(x);
  add(c.scale_slope);
  add(c.diagonal_slope);
  return hash;
}

void print_digests(std::uint64_t first, std::uint64_t count, const number* type) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    random_source random(seed);
    call c = make_call(random, false, type);
    execute(c, stage::forward);
    std::uint64_t hash = hash_of(c, 0xcbf29ce484222325u);
    if (c.has_gradient && all_finite(c, c.y) && all_finite(c, c.row_sum)) {
      execute(c, stage::gradient);
      hash = hash_of(c, hash);
    }
    std::printf("%llu %016llx\n", static_cast<unsigned long long>(seed), static_cast<unsigned long long>(hash));
  }
}

int run(int argc, char** argv) {
  double seconds = 10;
  std::uint64_t seed = std::random_device()(), calls = 0, digests = 0;
  const number* type = nullptr;
  static constexpr number types[] = {number::f32, number::f64, number::bf16, number::f16};
  static constexpr const char* names[] = {"float", "double", "bf16", "f16"};
  for (int n = 1; n + 1 < argc; n += 2) {
    const std::string name = argv[n];
    if (name == "--seconds")
      seconds = std::stod(argv[n + 1]);
    else if (name == "--seed")
      seed = std::stoull(argv[n + 1]);
    else if (name == "--calls")
      calls = std::stoull(argv[n + 1]);
    else if (name == "--digest")
      digests = std::stoull(argv[n + 1]);
    else if (name == "--type") {
      for (std::size_t t = 0; t < 4; ++t)
        if (argv[n + 1] == std::string(names[t])) type = &types[t];
    } else
      throw std::invalid_argument(name);
  }
  if (argc % 2 == 0) throw std::invalid_argument(argv[argc - 1]);
  if (digests > 0) return print_digests(seed, digests, type), 0;
  std::printf("bila_fuzz --seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  std::signal(SIGALRM, on_signal);
  if (__sanitizer_set_death_callback != nullptr)
    __sanitizer_set_death_callback(say_how_to_repeat);
  else
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(number, on_signal);

  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::uint64_t done = 0;
  for (; calls > 0 ? done < calls : passed() < seconds; ++done) {
    const std::uint64_t own = seed + done;
    std::snprintf(replay, sizeof replay, "replay: bila_fuzz --seed %llu --calls 1%s%s\n", static_cast<unsigned long long>(own),
                  type == nullptr ? "" : " --type ", type == nullptr ? "" : names[type - types]);
    alarm(60);
    std::string description;
    const std::string wrong = run_call(own, type, description);
    if (wrong.empty()) continue;
    std::printf("%s\n%s\n%s", description.c_str(), wrong.c_str(), replay);
    return 1;
  }
  std::printf("%llu calls in %.0f s, all right or refused\n", static_cast<unsigned long long>(done), passed());
  return 0;
}

}  // namespace

}  // namespace fuzz

int main(int argc, char** argv) {
  try {
    return fuzz::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr,
                 "bila_fuzz [--seconds S | --calls N | --digest COUNT] [--seed N] [--type float|double|bf16|f16]: what is %s?\n",
                 error.what());
    return 2;
  }
}
