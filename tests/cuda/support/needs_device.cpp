// SPDX-License-Identifier: Apache-2.0
// Without a device there is nothing to run: says so and leaves with 77, which ctest counts as skipped.
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // version 2; version 3 has headers of their own
#include "cuda/support/device.hpp"
#include "support/catch.hpp"

#if BILA_TESTS_CATCH2_MAJOR == 3
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#endif

#include <cstdio>
#include <cstdlib>

namespace {

#if BILA_TESTS_CATCH2_MAJOR == 2
using listener = Catch::TestEventListenerBase;
#else
using listener = Catch::EventListenerBase;
#endif

struct needs_device : listener {
  using listener::listener;

  void testRunStarting(const Catch::TestRunInfo&) override {
    const std::string why = test::device::why_none();
    if (why.empty()) return;
    std::printf("skipped: no CUDA device: %s\n", why.c_str());
    std::fflush(stdout);
    std::_Exit(77);
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(needs_device)
