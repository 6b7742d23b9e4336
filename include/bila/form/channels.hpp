// SPDX-License-Identifier: Apache-2.0
// The forms for masks with decays per channel.
#pragma once

#include <bila/config.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/channel_gradient.hpp>
#include <bila/form/channel_weights.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/full_channels.hpp>
#include <bila/form/recurrent.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Computes the final states of a call without y.
struct channel_states {
  static constexpr index_t block = kernel::most_channel_tokens;  // tokens per block

  template <class Kernel, class Real>
  struct scratch {
    scratch(kernel::arena& memory, head_size size)
        : k(memory.padded<Kernel, Real>(block, size.Dk)),
          v(memory.padded<Kernel, Real>(block, size.Dv)),
          weights(memory, size, block),
          state(memory, size, size.Dk) {}

    kernel::tile<Real> k, v;  // (block, Dk) (block, Dv)
    channel_weights<Kernel, Real> weights;
    carried_state<Kernel, Real> state;
  };

  template <class Kernel, class T>
  static void plan(kernel::arena& memory, head_size size) {
    scratch<Kernel, real_of<T>>(memory, size);
  }

  template <class Kernel, class T>
  static BILA_NOINLINE void run(const head<T>& x, bool row_sums, kernel::arena memory) {
    using Real = real_of<T>;
    const index_t L = x.k.count, blocks = (L + block - 1) / block;
    scratch<Kernel, Real> w(memory, {L, x.k.width, x.v.width});
    for (const direction way : {direction::forward, direction::backward}) {
      if (!x.final(way).given()) continue;
      const kernel::state<Real> S{w.state.S, row_sums ? w.state.s : nullptr};
      w.state.load(x.initial(way));
      typename channel_weights<Kernel, Real>::sweep weights(w.weights, w.state, way, block, 0, L, false, false);
      for (index_t step = 0; step < blocks; ++step) {
        const index_t at = (way == direction::forward ? step : blocks - 1 - step) * block, n = (std::min)(block, L - at);
        const auto k = kernel::whole_packets<Kernel>(x.k.slice(at, n), w.k);  // (n, Dk)
        const auto v = kernel::whole_packets<Kernel>(x.v.slice(at, n), w.v);  // (n, Dv)
        weights.weigh(x, at, k, k);  // k also stands in for the queries, which are not needed
        Kernel::accumulate(S, {.from = S, .decay = weights.decay(), .k = weights.k(), .v = v, .rest = weights.rest()});
      }
      weights.finish(true, x.final(way), S.s);
    }
  }
};

/// The chunkwise form in chunks of at most 16 tokens.
struct chunks_of_channels : chunkwise::engine<channel_weights, kernel::most_channel_tokens> {
  using states = channel_states;

  channel_gradient gradient() const { return {recompute}; }
};

template <>
struct engine_of<chunkwise, memory::channels> {
  static constexpr bool carries_states = true;
  static chunks_of_channels of(const chunkwise& form) { return {{form}}; }
};

/// The recurrent form is the chunkwise form in chunks of 4 tokens: the verb `steps`, token by token, also passes over a state once
/// for up to 4 tokens.
template <>
struct engine_of<recurrent, memory::channels> {
  static constexpr bool carries_states = true;
  static chunks_of_channels of(const recurrent&) { return {{chunkwise{.size = 4, .recompute = true}}}; }
};

template <>
struct engine_of<automatic, memory::channels> {
  static constexpr bool carries_states = true;
  static chunks_of_channels of(const automatic&) { return {}; }
};

template <>
struct engine_of<chunkwise, memory::exclusive_channels> : engine_of<chunkwise, memory::channels> {};
template <>
struct engine_of<recurrent, memory::exclusive_channels> : engine_of<recurrent, memory::channels> {};
template <>
struct engine_of<automatic, memory::exclusive_channels> : engine_of<automatic, memory::channels> {};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
