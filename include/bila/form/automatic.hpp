// SPDX-License-Identifier: Apache-2.0
// The form for those who do not want to choose: the one with the fewer floating point operations, head by head and segment by
// segment.
#pragma once

#include <bila/form/chunkwise.hpp>
#include <bila/form/full.hpp>

namespace bila::inline v0_1::form {

/// full while its cost is below the linear form's, chunkwise from there on, forward and gradient each by its own cost:
///
///     forward, gaps:            full  iff  L < C + 4 Dk Dv / (Dk + Dv)     (C + 2 D at Dk = Dv = D)
///     forward, none, both ways: full  iff  L <     2 Dk Dv / (Dk + Dv)     (D; with diagonal weight 1)
///     gradient:                 full  iff  L < C + 10 Dk Dv / (3 Dk + 2 Dv)
///     pairwise only:            full;      states given: chunkwise
///
/// The choice depends on a segment's own shape only, so a sequence gives the same bits alone, packed, or in a batch.
/// Source: the cost model of form/README.md.
struct automatic {
  static constexpr chunkwise linear{};

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    plan_larger<Kernel, T>(memory, size, full{}, linear);
  }

  template <class Kernel, class T>
  void plan_meeting(kernel::arena& memory, head_size size) const {
    linear.plan_meeting<Kernel, T>(memory, size);
  }

  index_t shares(head_size size, index_t wanted) const {
    return (std::max)(full{}.shares(size, wanted), linear.shares(size, wanted));
  }

  /// Whether a segment of this size is cheaper in the full form.
  template <class Mask>
  static bool prefers_full(head_size size, direction way, double diagonal) {
    if constexpr (!gapped<Mask>) {
      return true;
    } else {
      const double Dk = static_cast<double>(size.Dk), Dv = static_cast<double>(size.Dv);
      const bool one_state = Mask::gaps == gap::none && global_state::serves(way, diagonal);
      const double C = one_state ? 0 : static_cast<double>(linear.size);
      return (static_cast<double>(size.L) - C) * (Dk + Dv) < (one_state ? 2 : 4) * Dk * Dv;
    }
  }

  template <class Kernel, class T, class Mask, class Norm>
  void run(const head<T, Mask>& x, const Norm& norm, share part, kernel::arena memory, kernel::arena between) const {
    if (!x.has_states() && prefers_full<Mask>({x.k.count, x.q.width, x.v.width}, x.direction, x.diagonal)) {
      if (part.at == stage::leaving) return;
      const index_t halves = part.at == stage::whole ? 1 : 2;
      return full{}.run<Kernel>(x, norm, {part.index * halves + part.half, part.count * halves}, memory);
    }
    if constexpr (gapped<Mask>) linear.run<Kernel>(x, norm, part, memory, between);
  }

  struct cheaper_gradient {
    template <class Kernel, class T>
    void plan(kernel::arena& memory, head_size size) const {
      plan_larger<Kernel, T>(memory, size, full_gradient{}, linear.gradient());
    }

    template <class Kernel, class T, class Mask, class Norm>
    void run(const head<T, Mask>& x, head_gradient<T>& g, const Norm& norm, kernel::arena memory) const {
      if constexpr (gapped<Mask>) {
        const double L = static_cast<double>(x.k.count), Dk = static_cast<double>(x.q.width), Dv = static_cast<double>(x.v.width);
        if (x.has_states() || g.has_states() || (L - static_cast<double>(linear.size)) * (3 * Dk + 2 * Dv) >= 10 * Dk * Dv)
          return linear.gradient().run<Kernel>(x, g, norm, memory);
      }
      full_gradient{}.run<Kernel>(x, g, norm, memory);
    }
  };

  cheaper_gradient gradient() const { return {}; }

 private:
  template <class Kernel, class T, class One, class Other>
  static void plan_larger(kernel::arena& memory, head_size size, const One& one, const Other& other) {
    kernel::arena first;
    one.template plan<Kernel, T>(first, size);
    other.template plan<Kernel, T>(memory, size);
    if (first.used() > memory.used()) memory = first;
  }
};

}  // namespace bila::inline v0_1::form
