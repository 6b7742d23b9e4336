// SPDX-License-Identifier: Apache-2.0
// For tests that count allocations. They link with count.cpp, which replaces the allocation functions of the whole program.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif

#if defined(__GLIBC__) && !defined(TEST_SANITIZED)
#define TEST_COUNTS_MALLOC 1
#else
#define TEST_COUNTS_MALLOC 0
#endif

namespace test {

/// Allocations since the program started, on every thread: from malloc and its relatives, which nobody gets around, with the GNU C
/// library; from operator new where a sanitizer has taken malloc.
long allocations();

}  // namespace test
