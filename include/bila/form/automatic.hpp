// SPDX-License-Identifier: Apache-2.0
// The form for those who do not want to choose: the one with the fewer floating point operations, head by head and segment by segment.
#pragma once

#include <bila/form/chunkwise.hpp>
#include <bila/form/full.hpp>

namespace bila::inline v0_1::form {

/// full while its cost is below the linear form's, chunkwise from there on:
///
///     gaps:            full  iff  L < C + 4 Dk Dv / (Dk + Dv)     (C + 2 D at Dk = Dv = D)
///     none, both ways: full  iff  L <     2 Dk Dv / (Dk + Dv)     (D; with diagonal weight 1)
///     pairwise only:   full
///
/// The choice depends on a segment's own shape only, so a sequence gives the same bits alone, packed, or in a batch.
/// Source: the cost model of form/README.md.
struct automatic {
  static constexpr chunkwise linear{};

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    kernel::arena other;
    full{}.plan<Kernel, T>(other, size);
    linear.plan<Kernel, T>(memory, size);
    if (other.used() > memory.used()) memory = other;
  }

  index_t shares(head_size size, index_t wanted) const { return std::max(full{}.shares(size, wanted), linear.shares(size, wanted)); }

  /// Whether a segment of this size is cheaper in the full form.
  template <class Mask>
  static bool prefers_full(head_size size, direction way, double diagonal) {
    if constexpr (!gapped<Mask>) {
      return true;
    } else {
      const double product = static_cast<double>(size.Dk) * static_cast<double>(size.Dv), sum = static_cast<double>(size.Dk + size.Dv);
      const bool one_state = Mask::gaps == gap::none && global_state::serves(way, diagonal);
      return static_cast<double>(size.L) * sum < (one_state ? 2 * product : static_cast<double>(linear.size) * sum + 4 * product);
    }
  }

  template <class Kernel, class T, class Mask, class Norm>
  void run(const head<T, Mask>& x, const Norm& norm, share part, kernel::arena& memory) const {
    if (prefers_full<Mask>({x.k.count, x.q.width, x.v.width}, x.direction, x.diagonal)) return full{}.run<Kernel>(x, norm, part, memory);
    if constexpr (gapped<Mask>) linear.run<Kernel>(x, norm, part, memory);
  }
};

}  // namespace bila::inline v0_1::form
