// SPDX-License-Identifier: Apache-2.0
// Names that well-known headers define as macros. A bila header that uses one of them as a name does not compile after this.
#pragma once

#define BILA_POISON(name) the_macro_##name##_of_another_header is in the way

// <windows.h> without NOMINMAX
#undef min
#undef max
#define min(a, b) BILA_POISON(min)
#define max(a, b) BILA_POISON(max)
#define small BILA_POISON(small)
#define near BILA_POISON(near)
#define far BILA_POISON(far)
#define interface BILA_POISON(interface)
#define IN BILA_POISON(IN)
#define OUT BILA_POISON(OUT)
#define ERROR BILA_POISON(ERROR)

// <complex.h>
#undef I
#define I BILA_POISON(I)

// <termios.h>
#undef B0
#define B0 BILA_POISON(B0)

// <sys/sysmacros.h>
#undef major
#undef minor
#define major BILA_POISON(major)
#define minor BILA_POISON(minor)

// Qt
#define emit BILA_POISON(emit)
#define signals BILA_POISON(signals)
#define slots BILA_POISON(slots)

// Unreal Engine and Apple's AssertMacros.h, both with an argument
#define check(expression) BILA_POISON(check)
#define verify(expression) BILA_POISON(verify)
#define require(expression, label) BILA_POISON(require)
#define ensure(expression) BILA_POISON(ensure)

// X11
#undef None
#undef Bool
#undef Status
#undef Success
#define None BILA_POISON(None)
#define Bool BILA_POISON(Bool)
#define Status BILA_POISON(Status)
#define Success BILA_POISON(Success)
