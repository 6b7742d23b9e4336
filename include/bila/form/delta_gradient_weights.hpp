// SPDX-License-Identifier: Apache-2.0
// What the gradient of the delta rule computes with the decays of gaps, besides delta_weights.hpp: the gradients of rows that read
// or write a state, those of the pairs inside a chunk, and those of the gaps.
#pragma once

#include <bila/config.hpp>
#include <bila/form/channel_gaps.hpp>
#include <bila/form/delta_weights.hpp>
#include <bila/form/head_gradient.hpp>

#include <algorithm>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// A chunk of the gradient. Tiles of 2 n rows hold two kinds of readers one below the other: queries q' and keys.
template <class Real>
struct delta_tokens {
  kernel::tile<Real> QK, dQK;  // (2 n, Dk) q' and k, and their gradients as readers
  kernel::tile<Real> dk;       // (n, Dk) the gradients of keys as writers
  kernel::tile<Real> YP;       // (2 n, Dv) dN of the queries, then P of the keys
  kernel::tile<Real> AT;       // (2 n, n) scores of readers with writers
  kernel::tile<Real> U;        // (n, Dv)

  index_t count() const { return dk.rows; }
  kernel::tile<Real> k() const { return {QK.row(count()), count(), QK.columns, QK.stride}; }
};

/// The state before a chunk, the adjoint of the state after it, and what they have not been multiplied by.
template <class Real>
struct state_pair {
  kernel::tile<const Real> H, R;  // (Dk, Dv)
  const double *H_pending, *R_pending;
};

template <class Kernel, class Real>
class delta_gap_gradients : public delta_gaps<Kernel, Real> {
 public:
  delta_gap_gradients(kernel::arena& memory, head_size head, index_t C)
      : delta_gaps<Kernel, Real>(memory, head, C),
        signed_(memory.padded<Kernel, Real>(2 * C, C)),
        ut_(memory.padded<Kernel, Real>(head.Dv, C)),
        G_(memory.padded<Kernel, Real>(2 * C, C)),
        crossed_(memory.padded<Kernel, Real>(2 * C, C)),
        ones_(memory.numbers<Kernel, Real>(C)),
        zeros_(memory.zeros<Kernel, Real>(C)),
        running_(memory.numbers<Kernel, Real>(C)),
        rows_(memory.numbers<Kernel, double>(2 * C)),
        columns_(memory.numbers<Kernel, double>(C)),
        padded_(kernel::round_up(C, Kernel::template lanes<Real>)) {}

  void start() {
    delta_gaps<Kernel, Real>::start();
    std::fill_n(ones_, padded_, Real(1));
  }

  template <class T>
  static bool wanted(const head_gradient<T>& g, direction way) {
    return g.gaps(way) != nullptr;
  }

  template <class T>
  void weigh(const head<T>& x, direction way, const gap_decays& decays, index_t at, kernel::operand<Real> k) {
    if (!delta_gaps<Kernel, Real>::weigh(x, way, decays, at, k)) return;
    const kernel::tile<Real> M = this->triangle(k.rows);
    for (index_t i = 0; i < k.rows; ++i)
      for (index_t j = 0; j < M.stride; ++j) {
        signed_.row(i)[j] = M.row(i)[j];
        signed_.row(k.rows + i)[j] = -M.row(i)[j];
      }
  }

  /// The rows of reads(), of queries and then of keys.
  weighed_rows<Real> both_reads(kernel::operand<Real> QK, const double* pending, bool inverse) {
    const index_t n = QK.rows / 2;
    this->reads(reader::query, QK.top(n), pending, inverse);
    this->reads(reader::key, kernel::tile<const Real>{QK.row(n), n, QK.columns, QK.stride}, pending, inverse);
    return {QK, this->reads_, false};
  }

  /// Writes the gradients of readers that come from the state before the chunk, and those of writers from the adjoint of the state
  /// after it.
  void come_back(const delta_tokens<Real>& t, const state_pair<Real>& by, kernel::operand<Real> Ht, kernel::operand<Real> Rt,
                 kernel::prefetch_queue& next) {
    Kernel::read(t.dQK, {.q = t.YP, .S = Ht, .weights = both_reads(t.QK, by.H_pending, false).weights}, &next);
    Kernel::read(t.dk, {.q = t.U, .S = Rt, .weights = this->writes(t.k(), by.R_pending, false).weights}, &next);
  }

  /// Adds the pairs that cross a border of the chunk to the gradients of its gaps. Follows come_back().
  template <class T>
  void add_crossing(const head<T>&, head_gradient<T>& g, direction way, index_t at, const delta_tokens<Real>& t,
                    const state_pair<Real>& by) {
    const index_t n = t.count();
    Kernel::template dots<Real>(rows_, t.dQK, t.QK);
    for (index_t i = 0; i < n; ++i) rows_[i] += rows_[n + i];
    Kernel::template dots<Real>(columns_, t.dk, t.k());
    const double pass = this->border_.total * *by.H_pending * *by.R_pending * Kernel::template inner<Real>(by.H, by.R);
    gate_gradient_scan(way, pass, rows_, columns_, n, g.gaps(way) + at);
  }

  /// Adds what the pairs inside the chunk give to the gradients of readers, writers and gaps.
  template <class T>
  BILA_NOINLINE void add_pairs(const head<T>&, head_gradient<T>& g, direction way, index_t at, const delta_tokens<Real>& t) {
    const index_t n = t.count();
    const kernel::tile<Real> G{G_.data, 2 * n, n, G_.stride}, crossed{crossed_.data, 2 * n, n, crossed_.stride},
        ut{ut_.data, t.U.columns, n, ut_.stride}, M{signed_.data, 2 * n, n, signed_.stride};  // (2 n, n) (2 n, n) (Dv, n) (2 n, n)
    Kernel::transpose(ut, t.U);
    Kernel::score_gradient(t.AT, {G, crossed}, t.YP, ut, {ones_, zeros_}, M);
    if (double* const gaps = g.gaps(way); gaps != nullptr) {
      for (index_t i = 0; i < n; ++i)
        for (index_t j = 0; j < crossed.stride; ++j) crossed.row(i)[j] -= crossed.row(n + i)[j];
      const bool forwards = way == direction::forward;  // in `crossings` the rows are the keys
      const kernel::tile<Real> square{crossed.data, n, n, crossed.stride};
      Kernel::crossings(forwards ? nullptr : gaps + at, forwards ? gaps + at : nullptr, square, running_);
    }
    Kernel::multiply(t.dQK, G, t.k());
    Kernel::apply(t.dk, G, t.QK);
  }

 private:
  kernel::tile<Real> signed_, ut_, G_, crossed_;  // (2 C, C) M, then -M; (Dv, C) (2 C, C) (2 C, C) rows are readers
  Real *ones_, *zeros_, *running_;                // (C)
  double *rows_, *columns_;                       // (2 C) (C) for gate_gradient_scan
  index_t padded_;
};

/// With alpha_i the decays of the channels from where the direction enters the chunk to token i, and omega_j those from token j to
/// where it leaves the chunk, as channel_gradient (MATH.md 6.4): gradients are read without weights and then multiplied by alpha or
/// omega.
template <class Kernel, class Real>
class delta_channel_gradients : public delta_channels<Kernel, Real> {
 public:
  delta_channel_gradients(kernel::arena& memory, head_size head, index_t C)
      : delta_channels<Kernel, Real>(memory, head, C),
        unit_(memory.padded<Kernel, Real>(C, head.Dk)),
        ut_(memory.padded<Kernel, Real>(head.Dv, C)),
        G_(memory.padded<Kernel, Real>(2 * C, C)),
        part_(memory.padded<Kernel, Real>(C, head.Dk)),
        back_(memory.padded<Kernel, Real>(2 * C, head.Dk)),
        signs_(memory.numbers<Kernel, Real>(2 * C)),
        sums_(memory, C, head.Dk) {}

  void start() {
    delta_channels<Kernel, Real>::start();
    std::fill_n(unit_.data, unit_.rows * unit_.stride, Real(1));
  }

  template <class T>
  static bool wanted(const head_gradient<T>& g, direction way) {
    return g.channels(way).wanted();
  }

  weighed_rows<Real> both_reads(kernel::operand<Real> QK, const double* pending, bool inverse) {
    const index_t n = QK.rows / 2;
    this->reads(reader::query, QK.top(n), pending, inverse);
    this->reads(reader::key, kernel::tile<const Real>{QK.row(n), n, QK.columns, QK.stride}, pending, inverse);
    return {this->reads_.top(2 * n), this->ones_, true};
  }

  void come_back(const delta_tokens<Real>& t, const state_pair<Real>& by, kernel::operand<Real> Ht, kernel::operand<Real> Rt,
                 kernel::prefetch_queue& next) {
    const index_t n = t.count();
    fill_signs(n);
    Kernel::read(back_.top(2 * n), {.q = t.YP, .S = Ht, .weights = signs_}, &next);
    Kernel::read(part_.top(n), {.q = t.U, .S = Rt, .weights = this->ones_}, &next);
    const kernel::tile<const Real> alpha = this->reads(reader::query, unit_.top(n), by.H_pending).x,
                                   omega = this->writes(unit_.top(n), by.R_pending, false).x;  // (n, Dk)
    const kernel::tile<Real> to_end = sums_.to_end.top(n), to_start = sums_.to_start.top(n);   // (n, Dk)
    sums_.clear();
    kernel::clear(t.dQK);
    kernel::clear(t.dk);
    Kernel::add_products(t.dQK.top(n), to_end, back_.top(n), alpha, t.QK.top(n));
    Kernel::add_products(below(t.dQK, n), to_end, below(back_, n), alpha, t.k());
    Kernel::add_products(t.dk, to_start, part_.top(n), omega, t.k());
  }

  template <class T>
  void add_crossing(const head<T>& x, head_gradient<T>& g, direction way, index_t at, const delta_tokens<Real>& t,
                    const state_pair<Real>& by) {
    const index_t n = t.count();
    Kernel::template dots<Real>(sums_.pass, by.H, by.R);
    for (index_t c = 0; c < by.H.rows; ++c) sums_.pass[c] *= this->weights_.total()[c] * by.H_pending[c] * by.R_pending[c];
    sums_.add_crossing(g.channels(way), x, way, at, this->weights_.decays(way, n));
  }

  template <class T>
  BILA_NOINLINE void add_pairs(const head<T>& x, head_gradient<T>& g, direction way, index_t at, const delta_tokens<Real>& t) {
    const index_t n = t.count();
    const kernel::tile<Real> G{G_.data, 2 * n, n, G_.stride}, ut{ut_.data, t.U.columns, n, ut_.stride};  // (2 n, n) (Dv, n)
    const kernel::tile<Real> of_keys{G.row(n), n, n, G.stride};                                          // (n, n)
    fill_signs(n);
    Kernel::transpose(ut, t.U);
    Kernel::score(G, t.YP, ut, kernel::rank_one<Real>{signs_, this->ones_});
    const auto gaps = this->weights_.decays(way, n);  // (n + 1, Dk)
    sums_.clear();
    // In the verb the rows of G are keys. Here they are the tokens that read, which come later, so the verb gets the other
    // direction.
    const auto collect = [&](bool of_rows, kernel::tile<Real> scores, kernel::tile<const Real> from, kernel::tile<Real> to,
                             kernel::tile<const Real> products_with, const kernel::tile<Real>& products) {
      const kernel::tile<Real> part = part_.top(n);  // (n, Dk)
      kernel::clear(part);
      Kernel::collect_channels(part, scores, from, gaps, other(way), of_rows, false);
      Kernel::add_products(to, products, part, kernel::tile<const Real>{}, products_with);
    };
    const kernel::tile<Real> q = t.QK.top(n), k = t.k(), dk_reading{t.dQK.row(n), n, t.dQK.columns, t.dQK.stride};  // (n, Dk)
    const kernel::tile<Real> G_of_queries{G.data, n, n, G.stride};                                                  // (n, n)
    collect(true, G_of_queries, k, t.dQK.top(n), q, sums_.to_end);
    collect(true, of_keys, k, dk_reading, k, sums_.to_end);
    collect(false, G_of_queries, q, t.dk, k, sums_.to_start);
    collect(false, of_keys, k, t.dk, k, sums_.to_start);
    if (wanted(g, way)) sums_.add_inner(g.channels(way), x, way, at, gaps);
  }

 private:
  void fill_signs(index_t n) {
    std::fill_n(signs_, n, Real(1));
    std::fill_n(signs_ + n, n, Real(-1));
  }

  static kernel::tile<Real> below(kernel::tile<Real> x, index_t n) { return {x.row(n), n, x.columns, x.stride}; }

  kernel::tile<Real> unit_, ut_, G_, part_, back_;  // (C, Dk) ones; (Dv, C) (2 C, C) (C, Dk) (2 C, Dk)
  Real* signs_;                                     // (2 C) ones, then minus ones
  channel_gap_sums<Kernel, Real> sums_;
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
