// SPDX-License-Identifier: Apache-2.0
// The full form: the masked matrix product itself, tile by tile; quadratic in L, but never an L x L matrix.
#pragma once

#include <bila/form/decays.hpp>
#include <bila/form/head.hpp>

namespace bila::inline v0_1::form {

/// A = scale (Q K^T) o M,  N = A V,  Z_i = sum_j A_ij,  y_i = N_i / n(Z_i), row block by row block.
///
/// Between two different blocks the mask of a gapped model has rank one: M_ij = read_i (product of the blocks between) write_j.
/// Time O(L^2 (Dk + Dv)), memory O(block (block + Dk + Dv)). Accepts every mask: pairwise and gapped.
/// Source: LION (arXiv 2502.16249), full masked attention.
struct full {
  static constexpr index_t block = 128;  // tokens of a tile's side

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : q(memory.padded<Kernel, Real>(block, size.Dk)),
          k(memory.padded<Kernel, Real>(block, size.Dk)),
          kt(memory.padded<Kernel, Real>(size.Dk, block)),
          v(memory.padded<Kernel, Real>(block, size.Dv)),
          N(memory.padded<Kernel, Real>(block, size.Dv)),
          A(memory.padded<Kernel, Real>(block, block)),
          M(memory.padded<Kernel, Real>(block, block)),
          mine{memory.numbers<Kernel, Real>(block), memory.numbers<Kernel, Real>(block)},
          theirs{memory.numbers<Kernel, Real>(block), memory.numbers<Kernel, Real>(block)},
          r(memory.numbers<Kernel, Real>(block)),
          z(memory.numbers<Kernel, Real>(block)),
          lambda(memory.numbers<Kernel, double>(block + 1)),
          row(memory.numbers<Kernel, double>(block)) {}

    kernel::tile<Real> q, k, kt, v, N, A, M;    // (block, Dk) (block, Dk) (Dk, block) (block, Dv) (block, Dv) (block, block) twice
    kernel::border_weights<Real> mine, theirs;  // (block): of the row block, of the column block
    Real *r, *z;                                // (block)
    double *lambda, *row;                       // (block + 1) (block)
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    scratch<Kernel, T>(memory, size);
  }

  index_t shares(head_size size, index_t wanted) const {
    return std::clamp<index_t>(wanted, 1, std::max<index_t>(1, (size.L + block - 1) / block));
  }

  template <class Kernel, class T, class Mask, class Norm>
  void run(const head<T, Mask>& x, const Norm& norm, share part, kernel::arena& memory) const {
    scratch<Kernel, T> w(memory, {x.q.count, x.q.width, x.v.width});
    T* const z = Norm::uses_row_sum ? w.z : nullptr;
    const index_t blocks = (x.q.count + block - 1) / block;
    for (index_t I = part.index; I < blocks; I += part.count) {
      const index_t first = I * block, n = std::min(block, x.q.count - first);
      const auto q = kernel::elements(x.q.slice(first, n), w.q);  // (n, Dk)
      const auto N = w.N.top(n);                                  // (n, Dv)
      kernel::clear(N);
      std::fill_n(w.z, n, T(0));
      row_block<Kernel>(x, I, q, N, z, w);
      finish<Kernel>(x.y.slice(first, n), N, z, x.scale, norm);
    }
  }

 private:
  /// Any mask: its weights, one by one.
  template <class Kernel, class T, class Mask, class Scratch>
  static void row_block(const head<T, Mask>& x, index_t I, kernel::tile<const T> q, kernel::tile<T> N, T* z, Scratch& w) {
    const index_t blocks = (x.k.count + block - 1) / block;
    const index_t J_first = x.direction == direction::backward ? I : 0, J_last = x.direction == direction::forward ? I : blocks - 1;
    for (index_t J = J_first; J <= J_last; ++J)
      column_block<Kernel>(x, J, q, N, w, [&](kernel::tile<T> A) {
        const kernel::tile<T> M{w.M.data, A.rows, A.columns, w.M.stride};
        kernel::clear(M);
        for (index_t i = 0; i < A.rows; ++i)
          for (index_t j = 0; j < A.columns; ++j) M.row(i)[j] = static_cast<T>(weight(x, I * block + i, J * block + j));
        Kernel::weigh(A, M, z);
      });
  }

  template <class T, class Mask>
  static double weight(const head<T, Mask>& x, index_t i, index_t j) {
    if ((x.direction == direction::forward && j > i) || (x.direction == direction::backward && j < i)) return 0;
    return x.mask.weight(i, j) * (i == j ? x.diagonal : 1);
  }

  /// A gapped mask: the block on the diagonal, then away from it in both directions until nothing passes.
  template <class Kernel, class T, gapped Mask, class Scratch>
  static void row_block(const head<T, Mask>& x, index_t I, kernel::tile<const T> q, kernel::tile<T> N, T* z, Scratch& w) {
    const index_t blocks = (x.k.count + block - 1) / block;
    if (Mask::gaps == gap::none && x.direction == direction::both && x.diagonal == 1) {
      std::fill_n(w.r, block, T(1));
      for (index_t J = 0; J < blocks; ++J)
        column_block<Kernel>(x, J, q, N, w, [&](kernel::tile<T> A) { Kernel::weigh(A, w.r, w.r, z); });
      return;
    }
    column_block<Kernel>(x, I, q, N, w, [&](kernel::tile<T> A) {
      scan_block(x, I * block, w.M.top(A.rows), w.lambda, w.row, true);
      Kernel::weigh(A, w.M, z);
    });
    if (x.direction != direction::backward) walk<Kernel, direction::forward>(x, I, q, N, z, w);
    if (x.direction != direction::forward) walk<Kernel, direction::backward>(x, I, q, N, z, w);
  }

  /// The column blocks whose tokens reach row block I by crossing gaps `Way`: nearest first.
  template <class Kernel, direction Way, class T, class Mask, class Scratch>
  static void walk(const head<T, Mask>& x, index_t I, kernel::tile<const T> q, kernel::tile<T> N, T* z, Scratch& w) {
    constexpr index_t away = Way == direction::forward ? -1 : 1;
    const index_t blocks = (x.k.count + block - 1) / block;
    scan_border<Way>(x, I * block, q.rows, w.lambda, w.mine);
    double between = 1;
    for (index_t J = I + away; J >= 0 && J < blocks && static_cast<T>(between) != 0; J += away) {
      const index_t n = std::min(block, x.k.count - J * block);
      scan_border<Way>(x, J * block, n, w.lambda, w.theirs);
      for (index_t i = 0; i < q.rows; ++i) w.r[i] = static_cast<T>(w.mine.read[i] * between);
      std::fill(w.theirs.write + n, w.theirs.write + kernel::round_up(n, Kernel::template lanes<T>), T(0));
      column_block<Kernel>(x, J, q, N, w, [&](kernel::tile<T> A) { Kernel::weigh(A, w.r, w.theirs.write, z); });
      between *= w.theirs.total;
    }
  }

  /// N += (Q K^T weighed) V for one block of keys.
  template <class Kernel, class T, class Mask, class Scratch, class Weigh>
  static void column_block(const head<T, Mask>& x, index_t J, kernel::tile<const T> q, kernel::tile<T> N, Scratch& w, const Weigh& weigh) {
    const index_t first = J * block, n = std::min(block, x.k.count - first);
    const auto k = kernel::elements(x.k.slice(first, n), w.k);               // (n, Dk)
    const auto v = kernel::whole_packets<Kernel>(x.v.slice(first, n), w.v);  // (n, Dv)
    const kernel::tile<T> kt{w.kt.data, k.columns, n, w.kt.stride};          // (Dk, n)
    const kernel::tile<T> A{w.A.data, q.rows, n, w.A.stride};                // (rows, n)
    Kernel::transpose(kt, k);
    Kernel::score(A, q, kt);
    weigh(A);
    Kernel::apply(N, A, v);
  }
};

}  // namespace bila::inline v0_1::form
