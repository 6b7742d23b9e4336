// SPDX-License-Identifier: Apache-2.0
// The only file that defines macros, apart from version.hpp. Every macro that host code uses is always defined. BILA_EXCEPTIONS is
// 0 or 1 and is tested with #if; the others expand to a part of a name, an attribute or a pragma. No macro changes what a type or a
// function means.
#pragma once

// 1 if errors are thrown, 0 if errors go to the error handler (-fno-exceptions).
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define BILA_EXCEPTIONS 1
#define BILA_ERRORS throwing
#else
#define BILA_EXCEPTIONS 0
#define BILA_ERRORS handling
#endif

// BILA_UNIT, the inline namespace of bila's functions, names the instruction set for which a translation unit is compiled. Of
// several functions of the same name the linker keeps one, and a program must not run code for AVX2 on a processor without it.
// Views, inputs, outputs, states, masks and norms are the same types in every unit; their members are inlined instead, see
// BILA_SHARED.
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define BILA_VECTORS avx512
#elif defined(__AVX512F__)
#define BILA_VECTORS avx512f
#elif defined(__AVX2__)
#define BILA_VECTORS avx2
#elif defined(__AVX__)
#define BILA_VECTORS avx
#elif defined(__SSE4_2__)
#define BILA_VECTORS sse4_2
#elif defined(__SSE4_1__)
#define BILA_VECTORS sse4_1
#elif defined(__SSSE3__)
#define BILA_VECTORS ssse3
#elif defined(__SSE3__)
#define BILA_VECTORS sse3
#elif defined(__ARM_FEATURE_SVE2)
#define BILA_VECTORS sve2
#elif defined(__ARM_FEATURE_SVE)
#define BILA_VECTORS sve
#elif defined(__riscv_v)
#define BILA_VECTORS rvv
#else
#define BILA_VECTORS baseline
#endif

#if defined(__FMA__)
#define BILA_FMA _fma
#else
#define BILA_FMA
#endif

#if defined(__AVX512VNNI__) || defined(__AVX512VBMI__)
#define BILA_MORE_VECTORS _vnni
#else
#define BILA_MORE_VECTORS
#endif

#if defined(__BMI2__)
#define BILA_BITS _bmi2
#elif defined(__BMI__)
#define BILA_BITS _bmi
#else
#define BILA_BITS
#endif

#if defined(__LZCNT__)
#define BILA_LEADING_ZEROS _lzcnt
#else
#define BILA_LEADING_ZEROS
#endif

#if defined(__MOVBE__)
#define BILA_BYTE_SWAPS _movbe
#else
#define BILA_BYTE_SWAPS
#endif

#if defined(__ARM_FEATURE_ATOMICS)
#define BILA_ATOMICS _lse
#else
#define BILA_ATOMICS
#endif

#if defined(__FAST_MATH__)
#define BILA_ARITHMETIC _fast
#else
#define BILA_ARITHMETIC
#endif

#define BILA_PASTE(a, b, c, d, e, f, g, h, i) a##b##c##d##e##f##g##h##_##i
#define BILA_PASTE_VALUES(a, b, c, d, e, f, g, h, i) BILA_PASTE(a, b, c, d, e, f, g, h, i)
#define BILA_UNIT                                                                                                            \
  BILA_PASTE_VALUES(BILA_VECTORS, BILA_FMA, BILA_MORE_VECTORS, BILA_BITS, BILA_LEADING_ZEROS, BILA_BYTE_SWAPS, BILA_ATOMICS, \
                    BILA_ARITHMETIC, BILA_ERRORS)

// g++ keeps a micro-kernel's accumulators in registers only if every call in the kernel is inlined. The kernel is then 2.7 times as
// fast.
#if defined(_MSC_VER) && !defined(__clang__)
#define BILA_ALWAYS_INLINE __forceinline
#define BILA_LAMBDA_INLINE
#else
#define BILA_ALWAYS_INLINE inline __attribute__((always_inline))
#define BILA_LAMBDA_INLINE __attribute__((always_inline))
#endif

// A kernel function with register tiles is 10 KB of code. BILA_NOINLINE makes the compiler keep one copy of a function for each
// number type, not one for each caller or for each constant that a caller passes.
#if defined(_MSC_VER) && !defined(__clang__)
#define BILA_NOINLINE __declspec(noinline)
#elif defined(__clang__)
#define BILA_NOINLINE __attribute__((noinline))
#else
#define BILA_NOINLINE __attribute__((noinline, noclone))
#endif

// For functions that GPU kernels also call: views, masks, norms.
#if defined(__CUDACC__)
#define BILA_HD __host__ __device__
#else
#define BILA_HD
#endif

// For members of types that all units share: inlined at every call, so that no unit runs another unit's copy. A member that calls
// functions that a GPU kernel cannot call is BILA_ALWAYS_INLINE alone.
#define BILA_SHARED BILA_HD BILA_ALWAYS_INLINE

// Unrolls the loop that follows. The loop's bound is a constant of at most 16.
#if defined(__clang__)
#define BILA_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define BILA_UNROLL _Pragma("GCC unroll 16")
#else
#define BILA_UNROLL
#endif

// Kernels are hidden symbols, and their namespace names the architectures for which they are compiled. Two libraries in one process
// may hold the same kernel for different architectures, and the runtime could pick the wrong one. CUDA 13 hides kernels itself, and
// warns of the attribute on a kernel that is instantiated with a type in an unnamed namespace.
#if defined(__CUDACC__)
#if __CUDACC_VER_MAJOR__ < 13
#define BILA_KERNEL __attribute__((visibility("hidden"))) __global__
#else
#define BILA_KERNEL __global__
#endif
#define BILA_ARCHITECTURES_OF(a, b, c, d, e, f, g, h, ...) sm_##a##x##b##x##c##x##d##x##e##x##f##x##g##x##h
#define BILA_ARCHITECTURES_IN(...) BILA_ARCHITECTURES_OF(__VA_ARGS__, , , , , , , , )
#define BILA_CUDA_ARCHITECTURES BILA_ARCHITECTURES_IN(__CUDA_ARCH_LIST__)
#define BILA_DEVICES BILA_CUDA_ARCHITECTURES
#else
#define BILA_DEVICES host
#endif
