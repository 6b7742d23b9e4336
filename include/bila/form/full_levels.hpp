// SPDX-License-Identifier: Apache-2.0
// Log-linear attention in the full form. Between two different blocks of tokens all pairs have one level.
#pragma once

#include <bila/config.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/full.hpp>
#include <bila/form/level_weights.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

static_assert(std::has_single_bit(static_cast<std::uint64_t>(block)));

/// The weights of levels for a walk over blocks: see gaps_alone.
template <class Kernel, class T, class Real>
class level_walk {
 public:
  static constexpr bool changes = true;

  level_walk(const head<T>& x, const level_weights<Kernel, Real>& weights) : x_(x), weights_(weights) {}

  void weigh_own(index_t ib, const kernel::tile<Real>& M) const {
    fetch(ib, M.rows);
    weights_.weigh(x_, M);
  }

  void weigh_queries(direction way, index_t ib, index_t jb, index_t n, Real* r) const {
    const Real* const weight = weights_.of(way, level_between(ib, jb));
    for (index_t i = 0; i < n; ++i) r[i] *= weight[i];
  }

  void weigh_gradient(index_t, index_t, kernel::tile<Real>, kernel::tile<Real>, kernel::tile<Real>) const {}

 protected:
  void fetch(index_t ib, index_t n) const {
    for (const direction way : {direction::forward, direction::backward})
      if (x_.direction != other(way)) weights_.fetch(x_, way, ib * block, n, levels_in(x_.q.count));
  }

  static index_t level_between(index_t ib, index_t jb) { return levels_in(block) - 1 + bits_in(ib ^ jb); }

  const head<T>& x_;
  const level_weights<Kernel, Real>& weights_;
};

/// The same for a gradient: the weights enter after a block's products.
template <class Kernel, class T, class Real>
class level_gradient_walk : public level_walk<Kernel, T, Real> {
 public:
  level_gradient_walk(const head<T>& x, const head_gradient<T>& g, const level_weights<Kernel, Real>& weights, double* rows,
                      double* columns)
      : level_walk<Kernel, T, Real>(x, weights), g_(g), rows_(rows), columns_(columns) {}

  void weigh_own(index_t ib, const kernel::tile<Real>& M) const { this->fetch(ib, M.rows); }
  void weigh_queries(direction, index_t, index_t, index_t, Real*) const {}

  void weigh_gradient(index_t ib, index_t jb, kernel::tile<Real> A, kernel::tile<Real> G, kernel::tile<Real> E) const {
    if (ib == jb) return this->weights_.weigh_gradient(this->x_, g_, ib * block, A, G, E);
    const direction way = ib > jb ? direction::forward : direction::backward;
    const index_t level = this->level_between(ib, jb);
    if (const auto& to = g_.own(way); to.data != nullptr) {
      std::fill_n(rows_, block, 0.0);
      Kernel::sums(rows_, columns_, E);
      for (index_t i = 0; i < E.columns; ++i) to(ib * block + i, level) += static_cast<Real>(rows_[i]);
    }
    const Real* const weight = this->weights_.of(way, level);
    for (const kernel::tile<Real>& X : {A, G, E})
      for (index_t j = 0; j < X.rows; ++j)
        for (index_t i = 0; i < X.columns; ++i) X.row(j)[i] *= weight[i];
  }

 private:
  const head_gradient<T>& g_;
  double *rows_, *columns_;  // (block) sums over one block of pairs
};

/// The full form with weights of levels, w_i[l(i, j)] M_ij.
struct full_levels : full {
  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size size) const {
    full::plan<Kernel, T>(memory, size);
    level_weights<Kernel, real_of<T>>(memory, block, levels_in(size.L));
  }

  template <class Kernel, class T, class Real>
  void run(const head<T>& x, const norm_view<Real>& norm, split part, kernel::arena memory) const {
    const level_weights<Kernel, Real> weights(memory, block, levels_in(x.q.count));
    run_blocks<Kernel>(x, norm, part, memory, level_walk<Kernel, T, Real>(x, weights));
  }

  struct weighed_gradient : full_gradient {
    template <class Kernel, class T>
    void plan(kernel::arena& memory, head_size size) const {
      full_gradient::plan<Kernel, T>(memory, size);
      level_weights<Kernel, real_of<T>>(memory, block, levels_in(size.L));
      memory.numbers<Kernel, double>(2 * block);
    }

    template <class Kernel, class T, class Real>
    void run(const head<T>& x, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory) const {
      const level_weights<Kernel, Real> weights(memory, block, levels_in(x.q.count));
      double* const sums = memory.numbers<Kernel, double>(2 * block);
      run_blocks<Kernel>(x, g, norm, memory, level_gradient_walk<Kernel, T, Real>(x, g, weights, sums, sums + block));
    }
  };

  weighed_gradient gradient() const { return {}; }
};

template <>
struct engine_of<full, memory::levels> {
  static constexpr bool carries_states = false;
  static full_levels of(const full&) { return {}; }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
