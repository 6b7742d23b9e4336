// SPDX-License-Identifier: Apache-2.0
// The final states without y, for forms that carry states. If a sequence is computed in pieces, a first call for each piece may
// need only these. Such a call reads no query and computes no score.
#pragma once

#include <bila/config.hpp>
#include <bila/form/decays.hpp>
#include <bila/form/two_sided_sweep.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Computes S <- total S + sum_j write_j k_j [v_j, 1] block by block, for each final state that is wanted, in time O(L Dk Dv).
struct only_states {
  static constexpr index_t block = 64;  // tokens per block

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : k(memory.padded<Kernel, Real>(block, size.Dk)),
          weighted(memory.padded<Kernel, Real>(block, size.Dk)),
          v(memory.padded<Kernel, Real>(block, size.Dv)),
          state(memory, size),
          border{memory.numbers<Kernel, Real>(block), memory.numbers<Kernel, Real>(block)},
          now{memory.numbers<Kernel, Real>(block), memory.numbers<Kernel, Real>(block)},
          decays(memory, block, std::type_identity<Kernel>()) {}

    kernel::tile<Real> k, weighted, v;         // (block, Dk) (block, Dk) (block, Dv)
    carried_state<Kernel, Real> state;         // (Dk, Dv)
    kernel::border_weights<Real> border, now;  // (block) weights at the block's borders; now: rescaled for the stored state
    gap_decays decays;
  };

  template <class Kernel, class T>
  static void plan(kernel::arena& memory, head_size size) {
    scratch<Kernel, real_of<T>>(memory, size);
  }

  template <class Kernel, class T>
  static BILA_NOINLINE void run(const head<T>& x, bool row_sums, kernel::arena memory) {
    scratch<Kernel, real_of<T>> w(memory, {x.k.count, x.k.width, x.v.width});
    for (const direction way : {direction::forward, direction::backward})
      if (x.final(way).given()) sweep(x, row_sums, w, way);
  }

 private:
  template <class Kernel, class T, class Real>
  static void sweep(const head<T>& x, bool row_sums, scratch<Kernel, Real>& w, direction way) {
    const index_t L = x.k.count, blocks = (L + block - 1) / block;
    const kernel::state<Real> S{w.state.S, row_sums ? w.state.s : nullptr};
    w.state.load(x.initial(way));
    kernel::pending_decay state;
    for (index_t step = 0; step < blocks; ++step) {
      const index_t at = (way == direction::forward ? step : blocks - 1 - step) * block, n = (std::min)(block, L - at);
      const auto k = kernel::whole_packets<Kernel>(x.k.slice(at, n), w.k);  // (n, Dk)
      const auto v = kernel::whole_packets<Kernel>(x.v.slice(at, n), w.v);  // (n, Dv)
      kernel::prefetch_queue next;
      if (step + 1 < blocks) {
        const index_t then = way == direction::forward ? at + block : at - block, m = (std::min)(block, L - then);
        next.add(x.k, then, m);
        next.add(x.v, then, m);
      }
      fill_decays<Kernel>(x, way, at, n, w.decays.way(way));
      scan_border(x, way, at, w.decays, n, w.border);
      const Real settle = static_cast<Real>(state.decay(w.border.total));
      kernel::weigh_borders(w.border, 1, state.factor(), n, w.now);
      Kernel::accumulate(S,
                         {.from = S,
                          .decay = settle,
                          .k = k,
                          .v = v,
                          .weights = w.now.write,
                          .weighted = w.weighted,
                          .rest = w.state.rest.after(w.border.total, 1)},
                         &next);
    }
    store_final_state(x.final(way), S.S, S.s, state.factor());
  }
};

/// What computes final states alone for a call of engine `Engine`: its own `states`, or only_states.
template <class Engine>
struct find_states {
  using type = only_states;
};

template <class Engine>
requires requires { typename Engine::states; }
struct find_states<Engine> {
  using type = typename Engine::states;
};

template <class Engine>
using states_of = typename find_states<Engine>::type;

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
