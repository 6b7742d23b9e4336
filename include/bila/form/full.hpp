// SPDX-License-Identifier: Apache-2.0
// The full form: the masked matrix product, tile by tile. Time is quadratic in L, but no L x L matrix is ever held.
#pragma once

#include <bila/config.hpp>
#include <bila/form/block_walk.hpp>
#include <bila/form/compensation.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/full_gradient.hpp>
#include <bila/form/head.hpp>

#include <algorithm>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Computes A = (Q K^T) o M,  N = A V,  Z_i = sum_j A_ij,  y_i = s N_i / n(s Z_i), row block by row block.
///
/// Time O(L^2 (Dk + Dv)), for a banded mask O(L (reach + block) (Dk + Dv)); memory O(block (block + Dk + Dv)). The form accepts
/// every mask, pairwise or gapped. Source: LION (arXiv 2502.16249), full masked attention.
struct full {
  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : q(memory.padded<Kernel, Real>(block, size.Dk)),
          k(memory.padded<Kernel, Real>(block, size.Dk)),
          qt(memory.padded<Kernel, Real>(size.Dk, block)),
          v(memory.padded<Kernel, Real>(block, size.Dv)),
          N(memory.padded<Kernel, Real>(block, size.Dv)),
          A(memory.padded<Kernel, Real>(block, block)),
          z(memory.numbers<Kernel, Real>(block)),
          out(memory.numbers<Kernel, Real>(block)),
          sums(memory.numbers<Kernel, double>(block)),
          rest(memory, block, size.Dv, 0, std::type_identity<Kernel>()),
          walk(memory) {}

    kernel::tile<Real> q, k, qt, v, N, A;  // (block, Dk) (block, Dk) (Dk, block) (block, Dv) (block, Dv) (block, block)
    Real *z, *out;                         // (block) row sums over one block of keys; factors of the rows
    double* sums;                          // (block) row sums over all keys
    compensation<Real> rest;               // (block, Dv) rounding error of N
    walk_scratch<Kernel, Real> walk;
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    scratch<Kernel, real_of<T>>(memory, size);
  }

  index_t splits(head_size size, index_t wanted) const {
    return std::clamp<index_t>(wanted, 1, std::max<index_t>(1, blocks_in(size.L)));
  }

  template <class Kernel, class T, class Real>
  void run(const head<T>& x, const norm_view<Real>& norm, split part, kernel::arena memory) const {
    scratch<Kernel, Real> w(memory, {x.q.count, x.q.width, x.v.width});
    Real* const z = norm.uses_row_sum ? w.z : nullptr;
    for (index_t ib = part.index; ib < blocks_in(x.q.count); ib += part.count) {
      const index_t first = ib * block, n = (std::min)(block, x.q.count - first);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(first, n), w.q);  // (n, Dk)
      const auto N = w.N.top(n);                                               // (n, Dv)
      const kernel::tile<Real> qt{w.qt.data, q.columns, n, w.qt.stride};       // (Dk, n)
      Kernel::transpose(qt, q);
      kernel::clear(N);
      std::fill_n(w.sums, block, 0.0);
      w.rest.start();
      const kernel::state<Real> sum{N};
      for_each_key_block<Kernel>(x, ib, x.diagonal, w.walk, [&](index_t jb, const auto& M) {
        const index_t from = jb * block, m = (std::min)(block, x.k.count - from);
        const auto k = kernel::whole_packets<Kernel>(x.k.slice(from, m), w.k);  // (m, Dk)
        const auto v = kernel::whole_packets<Kernel>(x.v.slice(from, m), w.v);  // (m, Dv)
        const kernel::tile<Real> A{w.A.data, m, n, w.A.stride};                 // (m, n)
        std::fill_n(w.z, block, Real(0));
        Kernel::score(A, k, qt, M, z);
        for (index_t i = 0; i < n; ++i) w.sums[i] += static_cast<double>(w.z[i]);
        Kernel::accumulate(sum, {.from = sum, .k = A, .v = v, .rest = w.rest.after(1, 1)});  // N += A^T v
      });
      for (index_t i = 0; i < n; ++i) w.z[i] = static_cast<Real>(w.sums[i]);
      const auto y = kernel::results<Kernel>(x.y.slice(first, n), w.N);  // (n, Dv)
      finish<Kernel>(x, first, y, w.z, w.out, norm, [&] { Kernel::scale(y, w.out, N); });
    }
  }

  full_gradient gradient() const { return {}; }
};

template <>
struct engine_of<full, memory::pairs> {
  static constexpr bool carries_states = false;
  static full of(const full& form) { return form; }
};

template <>
struct engine_of<full, memory::gaps> : engine_of<full, memory::pairs> {};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
