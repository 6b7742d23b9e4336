// SPDX-License-Identifier: Apache-2.0
// The form that chooses the faster of full and chunkwise, for each head and segment.
#pragma once

#include <bila/config.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/full.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The form that `automatic` takes for a head.
enum class choice { full, chunkwise };

/// Chooses full while it is faster than chunkwise. The rule counts the operations of both forms, and the overhead of a chunk:
///
///     result, gaps:                      full  iff  L < C + (4 Dk Dv + 450) / (Dk + Dv), C = 16
///     result, one global state:          full  iff  L <     2 Dk Dv / (Dk + Dv)
///                                        (chunkwise has one global state with gap::none, both directions, diagonal weight 1)
///     gradient, gaps:                    full  iff  L < C + 10 Dk Dv / (3 Dk + 2 Dv), C = 32
///     gradient, one global state:        full  iff  L Lk (3 Dk + 2 Dv) < (2 L + 3 Lk) Dk Dv
///     pairwise mask:                     full
///     initial or final states given:     chunkwise
///
/// The choice depends only on a segment's own shape, so a sequence gives the same bits alone, packed, or in a batch.
/// Source: the cost model of form/README.md, and measurements (bench/cpu).
struct automatic {
  static constexpr chunkwise::engine<scalar_weights, chunkwise::most> linear{};

  /// The choice for a head of this size with a gapped mask. A pairwise mask always takes full.
  static choice pick(head_size size, gap gaps, direction way, double diagonal, bool has_states = false) {
    const double L = static_cast<double>(size.L), Dk = static_cast<double>(size.Dk), Dv = static_cast<double>(size.Dv);
    const bool global = global_state::serves(gaps, way, diagonal);
    const double C = global ? 0 : static_cast<double>(linear.tokens());
    const double states = global ? 2 * Dk * Dv : 4 * Dk * Dv + 450;
    return !has_states && (L - C) * (Dk + Dv) < states ? choice::full : choice::chunkwise;
  }

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    plan_larger<Kernel, T>(memory, size, full{}, linear);
  }

  template <class Kernel, class T>
  void plan_two_sided_sweep(kernel::arena& memory, head_size size) const {
    linear.plan_two_sided_sweep<Kernel, T>(memory, size);
  }

  index_t halves(head_size size) const { return linear.halves(size); }
  index_t splits(head_size size, index_t wanted) const {
    return (std::max)(full{}.splits(size, wanted), linear.splits(size, wanted));
  }

  template <class Kernel, class T, class Real>
  void run(const head<T>& x, const norm_view<Real>& norm, split part, kernel::arena memory, kernel::arena between) const {
    const head_size size{x.k.count, x.q.width, x.v.width};
    if (x.mask.gapped && pick(size, x.mask.gaps, x.direction, x.diagonal, x.has_states()) == choice::chunkwise)
      return linear.run<Kernel>(x, norm, part, memory, between);
    if (part.at == sweep_pass::first) return;
    const index_t halves = part.at == sweep_pass::both ? 1 : 2;
    full{}.run<Kernel>(x, norm, {part.index * halves + part.half, part.count * halves}, memory);
  }

  struct cheaper_gradient {
    template <class Kernel, class T>
    void plan(kernel::arena& memory, head_size size) const {
      plan_larger<Kernel, T>(memory, size, full_gradient{}, linear.gradient());
    }

    template <class Kernel, class T, class Real>
    void run(const head<T>& x, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory) const {
      if (x.mask.gapped) {
        const double L = static_cast<double>(x.q.count), Lk = static_cast<double>(x.k.count);
        const double Dk = static_cast<double>(x.q.width), Dv = static_cast<double>(x.v.width);
        const bool costs_more = global_state_gradient::serves(x)
                                    ? L * Lk * (3 * Dk + 2 * Dv) >= (2 * L + 3 * Lk) * Dk * Dv
                                    : (L - static_cast<double>(linear.gradient().size)) * (3 * Dk + 2 * Dv) >= 10 * Dk * Dv;
        if (x.has_states() || g.has_states() || costs_more) return linear.gradient().run<Kernel>(x, g, norm, memory);
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

template <>
struct engine_of<automatic, memory::gaps> {
  static constexpr bool carries_states = true;
  static automatic of(const automatic& form) { return form; }
};

template <>
struct engine_of<automatic, memory::pairs> : engine_of<automatic, memory::gaps> {};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
