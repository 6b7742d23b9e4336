// SPDX-License-Identifier: Apache-2.0
// Catch2, whichever version the build found: 2 is one header (Debian 12), 3 is a library of many.
#pragma once

#ifndef BILA_TESTS_CATCH2_MAJOR
#error "define BILA_TESTS_CATCH2_MAJOR as 2 or 3; tests/CMakeLists.txt does"
#endif

#if BILA_TESTS_CATCH2_MAJOR == 2
#include <catch2/catch.hpp>
#else
#include <catch2/catch_message.hpp>
#include <catch2/catch_session.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#endif
