// SPDX-License-Identifier: Apache-2.0
// The forms for masks with decays per channel.
#pragma once

#include <bila/config.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/channel_weights.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/recurrent.hpp>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// The chunkwise form in chunks of at most 16 tokens. It has no gradient.
struct chunks_of_channels : chunkwise::engine<channel_weights, kernel::most_channel_tokens> {
  void gradient() const = delete;
};

template <>
struct engine_of<chunkwise, memory::channels> {
  static constexpr bool carries_states = true;
  static chunks_of_channels of(const chunkwise& form) { return {{form}}; }
};

/// Token by token, a state would be read and written as often as with chunks of 4, for the same sums.
template <>
struct engine_of<recurrent, memory::channels> {
  static constexpr bool carries_states = true;
  static chunks_of_channels of(const recurrent&) { return {{chunkwise{.size = 4}}}; }
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
