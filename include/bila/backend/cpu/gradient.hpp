// SPDX-License-Identifier: Apache-2.0
// gradient on a CPU: from the gradient of a loss by y to its gradient by everything that attend read.
#pragma once

#include <bila/backend/cpu/attend.hpp>
#include <bila/call/gradients.hpp>
#include <bila/form/head_gradient.hpp>

#include <numeric>
#include <utility>

namespace bila::inline v0_1 {

namespace detail::inline BILA_UNIT {

/// One head's share of what is summed over heads, batch rows or segments.
struct scalar_gradients {
  double forward, backward, scale, diagonal;  // forward and backward: over all gaps
};
static_assert(sizeof(scalar_gradients) == 4 * sizeof(double));

/// Heads that read or write one tensor together are one task's, so that sums have one order: this many tasks per batch row.
/// gate_heads: of the gradient by gates of tokens; 0 where none is wanted.
template <class T>
index_t head_groups(const inputs<T>& in, index_t gate_heads) {
  return std::gcd(std::gcd(std::gcd(in.q.heads(), in.k.heads()), in.v.heads()), gate_heads);
}

/// Room in which the heads of a group add up a gradient that is stored in 16 bits.
template <class Kernel, class T>
rows<real_of<T>> room_for_sum(kernel::arena& memory, index_t L, index_t width) {
  if constexpr (form::is_narrow<T>) {
    const kernel::tile<real_of<T>> room = memory.padded<Kernel, real_of<T>>(L, width);
    return {room.data, L, width, room.stride, 1};
  } else {
    return {};
  }
}

template <class Form, class T>
BILA_NOINLINE complaint check_gradient_call(const cpu& backend, const Form& form, bool carries_states, const views<T>& with,
                                            const inputs<T>& in, const saved<T>& kept, const output_gradients<T>& dy,
                                            const gradients<T>& to) {
  const state_rules rules{carries_states, with.mask.gapped, with.norm.uses_row_sum, in.direction};
  complaint wrong = validate(backend);
  if (wrong.empty()) wrong = check_itself(form);
  if (wrong.empty()) wrong = with.norm.ask_wrong(with.norm.norm);
  if (wrong.empty()) wrong = check_gradient_tensors(rules, in, kept, dy, to);
  if (wrong.empty()) wrong = check_state_decays(in);
  if (!wrong.empty()) return wrong;
  const geometry size = geometry_of(in, kept.y);
  wrong = check_cross(with.mask.orders_tokens, with.mask.gapped, in, size);
  if (wrong.empty()) wrong = with.mask.ask_wrong(with.mask.mask, size.B, size.H, size.L);
  if (wrong.empty()) {
    const bool pulls_back = with.mask.ask_parameter_shape != nullptr;
    const per_axis log_decay = pulls_back ? with.mask.ask_parameter_shape(with.mask.mask) : per_axis{};
    wrong = check_wanted(to, with.mask.gapped, pulls_back ? &log_decay : nullptr);
  }
  if (wrong.empty()) wrong = with.mask.ask_overlap(with.mask.mask, written_to(to));
  return wrong.empty() ? check_gaps(with.mask, in, size) : wrong;
}

template <class Kernel, class Form, class T>
BILA_NOINLINE schedule plan_gradient(const cpu& backend, const Form& form, const inputs<T>& in, const geometry& size,
                                     index_t gate_heads) {
  const form::head_size largest = largest_head(in, size);
  kernel::arena counter;
  const index_t keys = is_cross(in, size) ? size.Lk : largest.L;
  room_for_sum<Kernel, T>(counter, largest.L, size.Dk);
  for (const index_t width : {size.Dk, size.Dv}) room_for_sum<Kernel, T>(counter, keys, width);
  for (int n = 0; n < 4; ++n) counter.numbers<Kernel, double>(largest.L + 1);
  kernel::arena inside;
  form.gradient().template plan<Kernel, T>(inside, largest);

  const std::size_t copies = bytes_of_copies<Kernel>(size, in, outputs<T>{});
  schedule s{segments_of(in, size).count(), 1, 0, 0, counter.used() + inside.used() + copies, 0};
  s.tasks = size.B * size.H == 0 ? 0 : size.B * head_groups(in, gate_heads) * s.segments;
  s.workers = std::clamp<index_t>(s.tasks, 1, threads_for(backend, size));
  kernel::arena shared;
  shared.numbers<Kernel, double>(4 * size.B * size.H * s.segments);
  s.shared_bytes = shared.used();
  return s;
}

/// A decay of exactly zero passes nothing, however the sums around it are rounded; nor does a border.
template <class Real>
BILA_NOINLINE void clear_dead_gaps(const form::head_mask<Real>& mask, direction way, index_t count, double* gaps) {
  constexpr index_t at_once = 64;
  double logs[at_once];
  gaps[0] = gaps[count] = 0;
  for (index_t t = 1; t < count; t += at_once) {
    const index_t n = (std::min)(at_once, count - t);
    mask.log_decays(way, t, n, logs);
    for (index_t i = 0; i < n; ++i)
      if (logs[i] < -700 && is_exactly(std::exp(logs[i]), 0)) gaps[t + i] = 0;
  }
}

template <class Real>
void write_gaps(const tensor_view<Real>& to, index_t b, index_t h, const segment& piece, const double* gaps) {
  if (to.data == nullptr) return;
  for (index_t t = 0; t < piece.count; ++t) to(b, h, piece.first + t, 0) = static_cast<Real>(gaps[t]);
}

/// Zeros at tokens [first, last).
template <class T>
void clear_tokens(const tensor_view<T>& to, index_t b, index_t h, index_t first, index_t last) {
  if (to.data == nullptr) return;
  for (index_t l = first; l < last; ++l)
    for (index_t d = 0; d < to.features(); ++d) to(b, h, l, d) = T(0);
}

/// Zeros from token `first` on.
template <class T>
void clear_tokens(const tensor_view<T>& to, index_t b, index_t h, index_t first) {
  clear_tokens(to, b, h, first, to.length());
}

/// A call's arguments, as every task needs them.
template <class Kernel, class Form, class T>
struct gradient_call {
  const Form& form;
  const views<T>& with;
  const inputs<T>& in;
  const saved<T>& kept;
  const output_gradients<T>& dy;
  const gradients<T>& to;
  geometry size;
  index_t gate_heads;
};

/// One segment of the heads of one group, in order.
template <class Kernel, class Form, class T>
BILA_NOINLINE void run_gradient_task(index_t task, kernel::arena memory, scalar_gradients* parts, const schedule& s,
                                     const gradient_call<Kernel, Form, T>& c) {
  using Real = real_of<T>;
  const geometry& size = c.size;
  const index_t groups = head_groups(c.in, c.gate_heads), n = task % s.segments, group = task / s.segments % groups,
                b = task / s.segments / groups;
  const segment piece = segments_of(c.in, size)(b, n), keys = keys_of(c.in, size, b, piece);
  const index_t sequence = b * s.segments + n, per_group = size.H / groups;
  const rows<Real> sum_q = room_for_sum<Kernel, T>(memory, piece.count, size.Dk),
                   sum_k = room_for_sum<Kernel, T>(memory, keys.count, size.Dk),
                   sum_v = room_for_sum<Kernel, T>(memory, keys.count, size.Dv);
  double* const forward = memory.numbers<Kernel, double>(piece.count + 1);
  double* const backward = memory.numbers<Kernel, double>(piece.count + 1);
  double* const group_forward = memory.numbers<Kernel, double>(piece.count + 1);
  double* const group_backward = memory.numbers<Kernel, double>(piece.count + 1);

  for (index_t h = group * per_group; h < (group + 1) * per_group; ++h) {
    const auto sum_rows = [&](const tensor_view<T>& to, const segment& tokens, const rows<Real>& sum) {
      form::gradient_rows<T> result;
      if (to.data == nullptr) return result;
      const index_t sharing = size.H / to.heads();
      result.out = rows_of(to, size, b, h, tokens);
      if constexpr (form::is_narrow<T>)
        result.sum = sum;
      else
        result.sum = result.out;
      result.first = h % sharing == 0;
      result.last = (h + 1) % sharing == 0;
      if (result.first) clear_tokens(to, b, h / sharing, c.in.offsets.empty() ? tokens.count : to.length());
      return result;
    };
    kernel::arena inside = memory;  // each head starts over
    form::head<T> head = head_of<Kernel>(inside, b, h, n, c.with.mask, c.in, size);
    head.q = rows_of(c.in.q, size, b, h, piece);
    form::head_gradient<T> g;
    g.y = rows_of(c.kept.y, size, b, h, piece);
    if (c.kept.row_sum.data != nullptr) g.row_sum = rows_of(c.kept.row_sum, size, b, h, piece);
    g.dy = rows_of(c.dy.y, size, b, h, piece);
    g.final_forward = head_state_of(c.dy.final_forward, sequence, h);
    g.final_backward = head_state_of(c.dy.final_backward, sequence, h);
    g.initial_forward = head_state_of(c.to.initial_forward, sequence, h);
    g.initial_backward = head_state_of(c.to.initial_backward, sequence, h);
    g.q = sum_rows(c.to.q, piece, sum_q);
    g.k = sum_rows(c.to.k, keys, sum_k);
    g.v = sum_rows(c.to.v, keys, sum_v);
    clear_tokens(c.to.weights, b, h, piece.first, c.in.offsets.empty() ? size.L : piece.first + piece.count);
    if (c.to.weights.data != nullptr && piece.count > 0)
      g.weights = head_rows(c.to.weights, b, h, piece.first, piece.count).columns(piece.first, piece.count);
    g.of_pairs = head.mask.gaps != gap::none || c.to.log_forward.data != nullptr || c.to.log_backward.data != nullptr ||
                 c.to.diagonal != nullptr;
    if (head.mask.gapped && (head.mask.gaps != gap::none || wants_gaps(c.to) || head.has_states())) {
      g.forward = forward;
      g.backward = backward;
      std::fill_n(forward, piece.count + 1, 0.0);
      std::fill_n(backward, piece.count + 1, 0.0);
    }

    if (piece.count > 0 || keys.count > 0) {
      c.form.gradient().template run<Kernel>(head, g, c.with.norm, inside);
    } else {
      pass_on(g.final_forward, g.initial_forward, c.with.norm.uses_row_sum);
      pass_on(g.final_backward, g.initial_backward, c.with.norm.uses_row_sum);
    }

    scalar_gradients& part = parts[(b * size.H + h) * s.segments + n] = {0, 0, g.scale, g.diagonal};
    if (g.forward == nullptr) continue;
    const auto at_border = [&](const state<Real>& to, double decay, double gradient) {
      if (to.log_decay.data != nullptr) to.log_decay(sequence, h, 0, 0) = decay > 0 ? static_cast<Real>(gradient) : Real(0);
    };
    at_border(c.to.initial_forward, head.initial_forward.decay, forward[0]);
    at_border(c.to.initial_backward, head.initial_backward.decay, backward[piece.count]);
    clear_dead_gaps(head.mask, direction::forward, piece.count, forward);
    clear_dead_gaps(head.mask, direction::backward, piece.count, backward);
    part.forward = std::accumulate(forward, forward + piece.count, 0.0);
    part.backward = std::accumulate(backward, backward + piece.count, 0.0);
    write_gaps(c.to.log_forward, b, h, piece, forward);
    write_gaps(c.to.log_backward, b, h, piece, backward);
    if (c.gate_heads > 0) {
      const index_t sharing = size.H / c.gate_heads, gate = h / sharing;
      if (sharing > 1)
        for (const auto& [sums, gaps] : {std::pair(group_forward, forward), std::pair(group_backward, backward)})
          for (index_t t = 0; t < piece.count; ++t) sums[t] = h % sharing == 0 ? gaps[t] : sums[t] + gaps[t];
      if ((h + 1) % sharing == 0) {
        c.with.mask.ask_pull_back_tokens(c.with.mask.mask, b, gate, piece, sharing > 1 ? group_forward : forward,
                                         sharing > 1 ? group_backward : backward, c.to.log_decay);
        if (!c.in.lengths.empty()) clear_tokens(c.to.log_decay, b, gate, piece.count);
      }
    }
    if (c.in.lengths.empty()) continue;
    clear_tokens(c.to.log_forward, b, h, piece.count);
    clear_tokens(c.to.log_backward, b, h, piece.count);
  }
}

/// What is summed over batch rows, heads and segments, in that order.
template <class T>
BILA_NOINLINE void sum_scalars(const views<T>& with, const gradients<T>& to, const scalar_gradients* parts, const geometry& size,
                               index_t segments) {
  double scale = 0, diagonal = 0;
  for (index_t p = 0; p < size.B * size.H * segments; ++p) {
    scale += parts[p].scale;
    diagonal += parts[p].diagonal;
  }
  if (to.scale != nullptr) *to.scale = scale;
  if (to.diagonal != nullptr) *to.diagonal = diagonal;
  if (with.mask.ask_pull_back_head == nullptr || to.log_decay.data == nullptr) return;
  const index_t gates = gates_of(with.mask, size);
  for (index_t gate = 0; gate < gates; ++gate) {
    const index_t sharing = size.H / gates;
    double forward = 0, backward = 0;
    for (index_t h = gate * sharing; h < (gate + 1) * sharing; ++h)
      for (index_t b = 0; b < size.B; ++b)
        for (index_t n = 0; n < segments; ++n) {
          forward += parts[(b * size.H + h) * segments + n].forward;
          backward += parts[(b * size.H + h) * segments + n].backward;
        }
    with.mask.ask_pull_back_head(with.mask.mask, gate, forward, backward, to.log_decay);
  }
}

/// Checks a call, then runs it; or returns what is wrong with it.
template <class Kernel, class Form, class T>
BILA_NOINLINE complaint run_gradient_checked(const cpu& backend, const Form& form, bool carries_states, const views<T>& with,
                                             const inputs<T>& in, const saved<T>& kept, const output_gradients<T>& dy,
                                             const gradients<T>& to) {
  using Real = real_of<T>;
  if (kept.y.extents == per_axis{} && only_states(dy.y, dy.final_forward, dy.final_backward)) {
    // After a call for its states alone: the gradient is that of any y of which the loss does not depend.
    const T zero{};
    const Real no_sum{};
    const geometry size = geometry_of(in, dy.final_forward.given() ? dy.final_forward : dy.final_backward);
    const tensor_view<const T> y{&zero, {size.B, size.H, size.L, size.Dv}, {}};
    inputs<T> with_q = in;
    const index_t heads = in.q.heads() == 0 ? size.H : in.q.heads();  // what gradient_workspace_bytes counts by
    with_q.q = {&zero, {size.B, heads, size.L, size.Dk}, {}};
    return run_gradient_checked<Kernel>(backend, form, carries_states, with, with_q,
                                        saved<T>{y, {&no_sum, {size.B, size.H, size.L, 1}, {}}},
                                        output_gradients<T>{y, dy.final_forward, dy.final_backward}, to);
  }
  if (complaint wrong = check_gradient_call(backend, form, carries_states, with, in, kept, dy, to); !wrong.empty()) return wrong;
  const geometry size = geometry_of(in, kept.y);
  const index_t gate_heads =
      with.mask.ask_pull_back_tokens != nullptr && to.log_decay.data != nullptr ? gates_of(with.mask, size) : 0;
  const schedule s = plan_gradient<Kernel>(backend, form, in, size, gate_heads);
  if (complaint wrong = check_workspace(backend, s); !wrong.empty()) return wrong;
  const gradient_call<Kernel, Form, T> call{form, with, in, kept, dy, to, size, gate_heads};
  const auto parts_in = [](std::byte* shared) { return reinterpret_cast<scalar_gradients*>(shared); };
  const call_memory memory(backend.workspace, s.bytes());
  run_tasks(backend, s, memory, [&](index_t task, kernel::arena own, std::byte* shared) {
    run_gradient_task<Kernel>(task, own, parts_in(shared), s, call);
  });
  sum_scalars(with, to, parts_in(memory.aligned()), size, s.segments);
  if (size.H > 0) return {};
  for (const tensor_view<T>* unread : {&to.q, &to.k, &to.v})  // no head of y reads their heads
    for (index_t b = 0; b < unread->batches(); ++b)
      for (index_t h = 0; h < unread->heads(); ++h) clear_tokens(*unread, b, h, 0);
  return {};
}

}  // namespace detail::inline BILA_UNIT

}  // namespace bila::inline v0_1
