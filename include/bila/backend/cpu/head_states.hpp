// SPDX-License-Identifier: Apache-2.0
// The part of initial and final states that belongs to one head, in the user's memory or as copies of states in 16 bits.
#pragma once

#include <bila/call/state.hpp>
#include <bila/config.hpp>
#include <bila/form/head.hpp>
#include <bila/kernel/arena.hpp>
#include <bila/view/number.hpp>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace bila {
inline namespace v0_1 {

namespace detail {
inline namespace BILA_UNIT {

/// Reads the decay of the gap between an initial state and the sequence, and the state's scale.
template <class Real>
void read_decay(const state<Real>& x, index_t sequence, index_t h, form::head_state<Real>& part) {
  if (x.log_scale.data != nullptr) part.log_scale = static_cast<double>(x.log_scale(sequence, h, 0, 0));
  if (x.log_decay.data == nullptr) return;
  part.log_decay = (std::min)(0.0, static_cast<double>(x.log_decay(sequence, h, 0, 0)));
  part.decay = std::exp(part.log_decay);
}

/// Where the scale of a final state is written.
template <class Real>
void place_scale(const state<Real>& x, index_t sequence, index_t h, form::head_state<Real>& part) {
  if (x.log_scale.data != nullptr) part.scale_to = &x.log_scale(sequence, h, 0, 0);
}

/// The part of a state that belongs to one head.
template <class Real>
BILA_NOINLINE form::head_state<Real> head_state_of(const state<Real>& x, index_t sequence, index_t h) {
  form::head_state<Real> part;
  if (x.S.data != nullptr) part.S = head_rows(x.S, sequence, h, 0, x.S.length());
  if (x.z.data != nullptr) part.z = head_rows(x.z, sequence, h, 0, x.z.length());
  if constexpr (std::is_const_v<Real>)  // only an initial state has a decay
    read_decay(x, sequence, h, part);
  else
    place_scale(x, sequence, h, part);
  return part;
}

/// Calls use(a, b) for S and for z of head h of a state in 16 bits: a is the view of the 16-bit numbers, b that of their copy.
template <class Real, class Copy, class Use>
void with_16_bits(const state<Real>& x, index_t sequence, index_t h, const form::head_state<Copy>& copy, const Use& use) {
  const auto pass = [&](auto number) {
    using T = std::conditional_t<std::is_const_v<Real>, const decltype(number), decltype(number)>;
    const auto part = [&](const tensor_view<Real>& from, const rows<Copy>& to) {
      if (from.data != nullptr)
        use(head_rows(tensor_view<T>{reinterpret_cast<T*>(from.data), from.extents, from.strides}, sequence, h, 0, from.length()),
            to);
    };
    part(x.S, copy.S);
    part(x.z, copy.z);
  };
  x.stored == state_storage::bf16 ? pass(bf16{}) : pass(f16{});
}

/// A form's copy of a state in 16 bits. An initial state is widened into the copy. A final state is rounded from the copy
/// afterwards.
template <class Kernel, class Real>
[[gnu::cold]] BILA_NOINLINE form::head_state<Real> copied_state_of(kernel::arena& memory, const state<Real>& x, index_t sequence,
                                                                   index_t h) {
  using Number = std::remove_const_t<Real>;
  form::head_state<Number> copy;
  const auto make_room = [&](const tensor_view<Real>& from, rows<Number>& to) {
    if (from.data == nullptr) return;
    const kernel::tile<Number> room = memory.padded<Kernel, Number>(from.length(), from.features());
    to = {room.data, room.rows, room.columns, room.stride, 1};
  };
  make_room(x.S, copy.S);
  make_room(x.z, copy.z);
  form::head_state<Real> part{copy.S, copy.z};
  if constexpr (std::is_const_v<Real>) {
    if constexpr (std::is_same_v<Number, float>)
      with_16_bits(x, sequence, h, copy, [](const auto& from, const auto& to) {
        for (index_t c = 0; c < to.count; ++c)
          for (index_t d = 0; d < to.width; ++d) to(c, d) = static_cast<float>(from(c, d));
      });
    read_decay(x, sequence, h, part);
  } else {
    place_scale(x, sequence, h, part);
  }
  return part;
}

/// The part of a state that a form reads or writes: the user's memory, or a copy if the state has 16 bits.
template <class Kernel, class Real>
form::head_state<Real> head_state_in(kernel::arena& memory, const state<Real>& x, index_t sequence, index_t h) {
  if (x.stored == state_storage::computed) return head_state_of(x, sequence, h);
  return copied_state_of<Kernel>(memory, x, sequence, h);
}

/// Rounds a final state from the copy that copied_state_of made. Both functions are cold, that is compiled for size: 2 KB of code
/// instead of 18.
template <class Real>
[[gnu::cold]] BILA_NOINLINE void round_to_16_bits(const state<Real>& x, index_t sequence, index_t h,
                                                  const form::head_state<Real>& copy, bool row_sums) {
  if (x.stored == state_storage::computed) return;
  if constexpr (std::is_same_v<Real, float>)
    with_16_bits(x, sequence, h, copy, [&](const auto& to, const auto& from) {
      if (!row_sums && from.data == copy.z.data) return;
      for (index_t c = 0; c < from.count; ++c)
        for (index_t d = 0; d < from.width; ++d) to(c, d) = std::remove_cvref_t<decltype(to(0, 0))>(from(c, d));
    });
}

/// The final state of an empty sequence is the initial state. z is copied only if the norm uses row sums. A final state without a
/// log scale is the true one.
template <class Real>
BILA_NOINLINE void pass_on(const form::head_state<const Real>& from, const form::head_state<Real>& to, bool row_sums) {
  const Real factor = to.scale_to == nullptr ? static_cast<Real>(std::exp(from.log_scale)) : Real(1);
  if (to.scale_to != nullptr) *to.scale_to = static_cast<Real>(from.log_scale);
  const auto copy = [factor](const rows<const Real>& source, const rows<Real>& target) {
    if (target.data == nullptr) return;
    for (index_t c = 0; c < target.count; ++c)
      for (index_t d = 0; d < target.width; ++d) target(c, d) = source.data == nullptr ? Real(0) : factor * source(c, d);
  };
  copy(from.S, to.S);
  if (row_sums) copy(from.z, to.z);
}

}  // namespace BILA_UNIT
}  // namespace detail

}  // namespace v0_1
}  // namespace bila
