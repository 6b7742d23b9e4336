// SPDX-License-Identifier: Apache-2.0
// The main of every test program: Catch2's, after one line with the seed that repeats the run.
#define CATCH_CONFIG_RUNNER  // version 2 compiles itself here; version 3 does not look at it
#include "support/catch.hpp"
#include "support/random.hpp"

#include <cstdio>

int main(int argc, char** argv) {
  std::fprintf(stderr, "BILA_TEST_SEED=%llu\n", static_cast<unsigned long long>(test::seed()));
  return Catch::Session().run(argc, argv);
}
