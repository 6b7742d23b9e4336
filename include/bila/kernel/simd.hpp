// SPDX-License-Identifier: Apache-2.0
// The SIMD operations in which the kernels are written. These are packet operations of Eigen, and private to Eigen. bila names them
// in this header only, so that an Eigen that changes one of them breaks this header only.
#pragma once

#if defined(__CUDACC__)
#error \
    "bila: nvcc must not compile Eigen (it would change the host's own products at link time); include <bila/cuda.hpp> in .cu files"
#endif

#include <bila/config.hpp>

#include <Eigen/Core>

static_assert(EIGEN_VERSION_AT_LEAST(3, 4, 0), "bila needs Eigen 3.4 or newer");

namespace bila {
inline namespace v0_1 {
namespace kernel {
inline namespace BILA_UNIT {
namespace simd {

using Eigen::internal::packet_traits;    // <Real>::type: the widest packet of Real
using Eigen::internal::PacketBlock;      // <Packet, n>: n packets that are transposed together
using Eigen::internal::unpacket_traits;  // <Packet>::size, ::type: how many numbers a packet holds, and their type

using Eigen::internal::ploadu;   // <Packet>(address): loads from any address
using Eigen::internal::plset;    // <Packet>(x) = x, x + 1, ...
using Eigen::internal::pset1;    // <Packet>(x) = x, x, ...
using Eigen::internal::pstoreu;  // (address, a): stores to any address

using Eigen::internal::padd;   // a + b
using Eigen::internal::pdiv;   // a / b
using Eigen::internal::pexp;   // exp(a); of doubles, never below exp(-709)
using Eigen::internal::pmadd;  // a b + c, rounded once if the processor has such an instruction
using Eigen::internal::pmul;   // a b
using Eigen::internal::psub;   // a - b

using Eigen::internal::pand;        // bits of a that are set in b too
using Eigen::internal::pandnot;     // bits of a that are not set in b
using Eigen::internal::pcmp_le;     // a <= b: all bits of the number are set, or none
using Eigen::internal::pcmp_lt;     // a < b: all bits of the number are set, or none
using Eigen::internal::predux;      // the sum of a's numbers
using Eigen::internal::ptranspose;  // (block): transposes a square block

/// How many registers of a packet's width the processor has.
inline constexpr int registers = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS;

}  // namespace simd
}  // namespace BILA_UNIT
}  // namespace kernel
}  // namespace v0_1
}  // namespace bila
