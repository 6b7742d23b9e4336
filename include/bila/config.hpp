// SPDX-License-Identifier: Apache-2.0
// The only file that defines macros (version.hpp aside). Each is always defined; those with a value are 0 or 1 and are tested
// with #if. None of them changes what a type or a function means.
#pragma once

// 1 when errors are thrown, 0 when they go to the error handler (-fno-exceptions), and the name of the inline namespace of what
// raises them: units built either way can be linked, and each keeps its own way. Only door.hpp asks.
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define BILA_EXCEPTIONS 1
#define BILA_RAISING throwing
#else
#define BILA_EXCEPTIONS 0
#define BILA_RAISING handling
#endif

// g++ keeps a micro-kernel's accumulators in registers only if each function and lambda inside it is inlined: 2.7x otherwise.
#if defined(_MSC_VER) && !defined(__clang__)
#define BILA_ALWAYS_INLINE __forceinline
#define BILA_LAMBDA_INLINE
#else
#define BILA_ALWAYS_INLINE inline __attribute__((always_inline))
#define BILA_LAMBDA_INLINE __attribute__((always_inline))
#endif

// A register tile in all its sizes is 10 KB of code: once per verb and type, not once per caller, nor once more for a caller's
// constants.
#if defined(_MSC_VER) && !defined(__clang__)
#define BILA_NOINLINE __declspec(noinline)
#elif defined(__clang__)
#define BILA_NOINLINE __attribute__((noinline))
#else
#define BILA_NOINLINE __attribute__((noinline, noclone))
#endif

// What a GPU kernel calls too: views, masks, norms.
#if defined(__CUDACC__)
#define BILA_HD __host__ __device__
#else
#define BILA_HD
#endif

// Unrolls the loop that follows; its bound is a constant of at most 16.
#if defined(__clang__)
#define BILA_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define BILA_UNROLL _Pragma("GCC unroll 16")
#else
#define BILA_UNROLL
#endif

// Kernels are hidden, and their namespace carries the architectures they are compiled for: two libraries in one process may hold
// the same kernel for different ones, and the runtime would take either. CUDA 13 hides them itself, and takes the attribute amiss
// where a kernel is made of a type in an unnamed namespace.
#if defined(__CUDACC__)
#if __CUDACC_VER_MAJOR__ < 13
#define BILA_KERNEL __attribute__((visibility("hidden"))) __global__
#else
#define BILA_KERNEL __global__
#endif
#define BILA_ARCHITECTURES_OF(a, b, c, d, e, f, g, h, ...) sm_##a##x##b##x##c##x##d##x##e##x##f##x##g##x##h
#define BILA_ARCHITECTURES_IN(...) BILA_ARCHITECTURES_OF(__VA_ARGS__, , , , , , , , )
#define BILA_CUDA_ARCHITECTURES BILA_ARCHITECTURES_IN(__CUDA_ARCH_LIST__)
#endif
