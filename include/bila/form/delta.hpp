// SPDX-License-Identifier: Apache-2.0
// The delta rule in chunks, for the chunkwise, the recurrent and the automatic form.
#pragma once

#include <bila/config.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/delta_chunk.hpp>
#include <bila/form/delta_gradient.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/recurrent.hpp>
#include <bila/form/two_sided_sweep.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The final states of the delta rule and nothing else, as only_states computes them for masks.
template <template <class Kernel, class Real> class Weights>
struct delta_states {
  static constexpr index_t block = 16;  // tokens per block

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : chunk(memory, size, block), state(memory, size, Weights<Kernel, Real>::pending(size)) {}

    delta_chunk<Kernel, Real, Weights<Kernel, Real>> chunk;
    carried_state<Kernel, Real> state;  // (Dk, Dv)
  };

  template <class Kernel, class T>
  static void plan(kernel::arena& memory, head_size size) {
    scratch<Kernel, real_of<T>>(memory, size);
  }

  template <class Kernel, class T>
  static BILA_NOINLINE void run(const head<T>& x, bool, kernel::arena memory) {
    scratch<Kernel, real_of<T>> w(memory, {x.k.count, x.k.width, x.v.width});
    const index_t L = x.k.count, blocks = (L + block - 1) / block;
    for (const direction way : {direction::forward, direction::backward}) {
      if (!x.final(way).given()) continue;
      auto& tokens = w.chunk;
      w.state.load(x.initial(way));
      tokens.weights.start();
      auto gaps = tokens.weights.ahead(way, block, 0, L);
      for (index_t step = 0; step < blocks; ++step) {
        const index_t at = (way == direction::forward ? step : blocks - 1 - step) * block, n = (std::min)(block, L - at);
        const auto k = kernel::whole_packets<Kernel>(x.k.slice(at, n), tokens.k);  // (n, Dk)
        const auto v = kernel::whole_packets<Kernel>(x.v.slice(at, n), tokens.v);  // (n, Dv)
        tokens.weights.weigh(x, way, gaps.of(x, at, n), at, k);
        x.mask.strengths(way, at, n, tokens.beta);
        tokens.write_values(way, k, v, w.state);
        tokens.update_state(w.state, k);
      }
      Weights<Kernel, real_of<T>>::store(x.final(way), w.state.S, w.state.pending);
    }
  }
};

/// Each direction carries a state S. A token first removes a part of what S holds for the token's key, then adds its own value:
///
///     S_i = (I - beta_i k_i^T k_i) decay_i S_{i-1} + beta_i k_i^T v_i
///     N_i = q'_i decay_i S_{i-1} from both directions + diagonal beta_i (q_i . k_i) v_i,   q'_i = q_i - beta_i (q_i . k_i) k_i
///
/// From the state before token i, q'_i reads what q_i reads from the state after it, except the token's own value. So no half of
/// the diagonal is subtracted. A chunk computes what its tokens write, U, from one triangular system, as delta_chunk does. Then
///
///     N_i += read_i q'_i S + sum_j M_ij (q'_i . k_j) u_j      over the j before i
///
/// The form is a two-sided sweep as form::chunkwise. Time O(L C (Dk + Dv) + L Dk Dv).
/// Source: DeltaNet, chunkwise (arXiv 2406.06484), Gated DeltaNet (arXiv 2412.06464); in both directions as MATH.md 6.5.
template <template <class Kernel, class Real> class Weights>
struct delta_chunkwise {
  index_t size;         // tokens per chunk; negative if the caller gave a negative number, which validate() reports
  index_t of_gradient;  // tokens per chunk of the gradient
  bool recompute;       // for the gradient, as chunkwise::recompute

  error_message validate() const { return chunkwise{(std::min<index_t>)(size, 0)}.validate(); }

  using states = delta_states<Weights>;

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size head, index_t C)
        : chunk(memory, head, C),
          q(memory.padded<Kernel, Real>(C, head.Dk)),
          read(memory.padded<Kernel, Real>(C, head.Dk)),
          N(memory.padded<Kernel, Real>(C, head.Dv)),
          A(memory.padded<Kernel, Real>(C, C)),
          own(memory.numbers<Kernel, Real>(C)),
          out(memory.numbers<Kernel, Real>(C)),
          erased(memory.numbers<Kernel, Real>(C)),
          dots(memory.numbers<Kernel, double>(C)) {}

    delta_chunk<Kernel, Real, Weights<Kernel, Real>> chunk;
    kernel::tile<Real> q, read, N;  // (C, Dk) (C, Dk) (C, Dv); read: q'
    kernel::tile<Real> A;           // (C, C) rows are queries, columns are keys
    Real *own, *out, *erased;       // (C) weights of a token's own value; factors of the rows; -beta_i (q_i . k_i)
    double* dots;                   // (C) q_i . k_i
  };

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    scratch<Kernel, real_of<T>>(memory, largest, (std::min)(size, std::max<index_t>(largest.L, 1)));
  }

  template <class Kernel, class T>
  void plan_two_sided_sweep(kernel::arena& memory, head_size largest) const {
    two_sided_sweep<Kernel, real_of<T>>(memory, largest, is_narrow<T>, Weights<Kernel, real_of<T>>::pending(largest));
  }

  index_t halves(head_size largest) const { return largest.L / 2 >= size ? 2 : 1; }
  index_t splits(head_size largest, index_t wanted) const { return splits_by_column(largest.Dv, wanted); }

  template <class Kernel, class T, class Real>
  void run(const head<T>& whole, const norm_view<Real>& norm, split part, kernel::arena memory, kernel::arena between) const {
    if (is_idle(whole.v.width, part)) return;
    const head<T> x = columns_of(whole, part);
    const head_size now{x.q.count, x.q.width, x.v.width};
    const index_t C = (std::min)(size, now.L);
    two_sided_sweep<Kernel, Real> m(between, now, is_narrow<T>, Weights<Kernel, Real>::pending(now));
    scratch<Kernel, Real> w(memory, now, C);
    run_two_sided_sweep(x, part, now.L / C / 2 * C, [&](direction way, index_t first, index_t last, sweep_flags flags) {
      sweep(x, norm, w, m, way, first, last, flags);
    });
  }

 private:
  template <class Kernel, class T, class Real>
  static BILA_NOINLINE void sweep(const head<T>& x, const norm_view<Real>& norm, scratch<Kernel, Real>& w,
                                  two_sided_sweep<Kernel, Real>& m, direction way, index_t first, index_t last, sweep_flags flags) {
    const bool forwards = way == direction::forward;
    const index_t L = x.q.count, C = w.q.rows, chunks = (last - first + C - 1) / C;
    auto& passed = m.way(way);
    auto& tokens = w.chunk;
    if (forwards ? first == 0 : last == L) passed.load(x.initial(way));
    tokens.weights.start();
    auto gaps = tokens.weights.ahead(way, C, first, last);
    for (index_t step = 0; step < chunks; ++step) {
      const index_t at = first + (forwards ? step : chunks - 1 - step) * C, n = (std::min)(C, last - at);
      const auto q = kernel::whole_packets<Kernel>(x.q.slice(at, n), w.q);       // (n, Dk)
      const auto k = kernel::whole_packets<Kernel>(x.k.slice(at, n), tokens.k);  // (n, Dk)
      const auto v = kernel::whole_packets<Kernel>(x.v.slice(at, n), tokens.v);  // (n, Dv)
      kernel::prefetch_queue next;
      if (step + 1 < chunks) {
        const index_t then = first + (forwards ? step + 1 : chunks - 2 - step) * C;
        prefetch_tokens(next, x, way, then, (std::min)(C, last - then));
      }
      tokens.weights.weigh(x, way, gaps.of(x, at, n), at, k);
      x.mask.strengths(way, at, n, tokens.beta);
      tokens.write_values(way, k, v, passed);

      const kernel::tile<Real> read = w.read.top(n), A{w.A.data, n, n, w.A.stride};  // (n, Dk) (n, n)
      Kernel::template dots<Real>(w.dots, q, k);
      for (index_t i = 0; i < n; ++i) w.erased[i] = -tokens.beta[i] * static_cast<Real>(w.dots[i]);
      copy(q, read);
      Kernel::add(read, k, w.erased);
      tokens.weights.score(A, read);
      const weighed_rows<Real> reads = tokens.weights.reads(reader::query, read, passed.pending);
      if (flags.finish) {
        const auto y = kernel::results<Kernel>(x.y.slice(at, n), w.N);  // (n, Dv)
        const kernel::tile<const Real> partial = flags.has_partial ? partial_rows(x, m, at, n, w.N) : kernel::tile<const Real>{};
        own_betas(x, at, n, w.own, w.out);
        for (index_t i = 0; i < n; ++i) w.own[i] *= static_cast<Real>(x.diagonal * w.dots[i]);
        finish<Kernel>(x, at, y, static_cast<const Real*>(nullptr), w.out, norm, [&] {
          Kernel::read(y, {.q = reads.x, .S = passed.S, .weights = reads.weights, .partial = partial}, &next);
          Kernel::multiply(y, A, tokens.U.top(n));
          Kernel::add(y, v, w.own);
          Kernel::scale(y, w.out, y);
        });
      } else {
        store_partial(x, m, at, n, w.N, [&](kernel::tile<Real> N) {
          Kernel::read(N, {.q = reads.x, .S = passed.S, .weights = reads.weights}, &next);
          Kernel::multiply(N, A, tokens.U.top(n));
        });
      }
      tokens.update_state(passed, k, &next);
    }
    if (forwards ? last == L : first == 0) Weights<Kernel, Real>::store(x.final(way), passed.S, passed.pending);
  }

  template <class Real>
  static void copy(kernel::tile<const Real> from, kernel::tile<Real> to) {
    for (index_t i = 0; i < from.rows; ++i) {
      std::copy_n(from.row(i), from.columns, to.row(i));
      std::fill(to.row(i) + from.columns, to.row(i) + to.stride, Real(0));
    }
  }
};

/// The engines for gaps with one decay and for gaps with a decay for each channel.
struct delta_of_gaps : delta_chunkwise<delta_gaps> {
  static delta_of_gaps of(const chunkwise& form) {
    return {{form.size < 0 ? form.size : form.tokens(), form.size > 0 ? form.tokens() : 16, form.recompute}};
  }

  delta_gradient<delta_gap_gradients> gradient() const { return {of_gradient, recompute}; }
};

struct delta_of_channels : delta_chunkwise<delta_channels> {
  static delta_of_channels of(const chunkwise& form) {
    constexpr index_t most = kernel::most_channel_tokens;
    return {{form.size < 0 ? form.size : (std::min)(form.tokens(), most), most, form.recompute}};
  }

  delta_gradient<delta_channel_gradients> gradient() const { return {of_gradient, recompute}; }
};

template <>
struct engine_of<chunkwise, memory::delta> {
  static constexpr bool carries_states = true;
  static delta_of_gaps of(const chunkwise& form) { return delta_of_gaps::of(form); }
};

template <>
struct engine_of<chunkwise, memory::channel_delta> {
  static constexpr bool carries_states = true;
  static delta_of_channels of(const chunkwise& form) { return delta_of_channels::of(form); }
};

template <>
struct engine_of<automatic, memory::delta> {
  static constexpr bool carries_states = true;
  static delta_of_gaps of(const automatic&) { return delta_of_gaps::of(automatic::linear); }
};

template <>
struct engine_of<automatic, memory::channel_delta> {
  static constexpr bool carries_states = true;
  static delta_of_channels of(const automatic&) { return delta_of_channels::of(automatic::linear); }
};

/// The recurrent form is the chunkwise form with chunks of four tokens.
template <>
struct engine_of<recurrent, memory::delta> {
  static constexpr bool carries_states = true;
  static delta_of_gaps of(const recurrent&) { return {{4, 4, true}}; }
};

template <>
struct engine_of<recurrent, memory::channel_delta> {
  static constexpr bool carries_states = true;
  static delta_of_channels of(const recurrent&) { return {{4, 4, true}}; }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
