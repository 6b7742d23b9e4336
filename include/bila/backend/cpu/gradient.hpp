// SPDX-License-Identifier: Apache-2.0
// gradient on a CPU: from the gradients with respect to y and the final states, those with respect to all that attend read.
#pragma once

#include <bila/backend/cpu/attend.hpp>
#include <bila/call/gradients.hpp>
#include <bila/form/head_gradient.hpp>

#include <numeric>
#include <utility>

namespace bila {
inline namespace v0_1 {

namespace detail {
inline namespace BILA_UNIT {

/// What one segment of one head adds to the gradients that are sums over heads, batch rows and segments.
struct scalar_gradients {
  double forward, backward, scale, diagonal;  // forward and backward: sums of the gradients of all gaps
};
static_assert(sizeof(scalar_gradients) == 4 * sizeof(double));

/// The number of groups of heads per batch row. Heads that share a head of q, k, v or the mask's parameters belong to one task,
/// which fixes the order of the sums. gate_heads: greatest common divisor of the numbers of heads of the wanted gradients of
/// the mask's per-token parameters; 0 if there are none.
template <class T>
index_t head_groups(const inputs<T>& in, index_t gate_heads) {
  return std::gcd(std::gcd(std::gcd(in.q.heads(), in.k.heads()), in.v.heads()), gate_heads);
}

/// Memory in which the heads of a group add up a gradient that is stored in 16 bits.
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
BILA_NOINLINE error_message check_gradient_call(const cpu& backend, const Form& form, bool carries_states, const views<T>& with,
                                                const inputs<T>& in, const saved<T>& kept, const output_gradients<T>& dy,
                                                const gradients<T>& to) {
  const state_rules rules{carries_states,
                          with.mask.gapped,
                          with.norm.uses_row_sum,
                          in.direction,
                          with.mask.per_channel ? in.k.features() : 1,
                          with.mask.ask_log_weights != nullptr};
  error_message wrong = validate(backend);
  if (wrong.empty()) wrong = check_itself(form);
  if (wrong.empty()) wrong = check_norm(with);
  if (wrong.empty()) wrong = check_gradient_tensors(rules, in, kept, dy, to);
  if (wrong.empty()) wrong = check_state_decays(in);
  if (!wrong.empty()) return wrong;
  const geometry size = geometry_of(in, kept.y);
  wrong = check_cross(with.mask.orders_tokens, with.mask.gapped, in, size);
  if (wrong.empty()) wrong = with.mask.ask_wrong(with.mask.outer, size.B, size.H, size.L);
  if (wrong.empty()) {
    const bool pulls_back = with.mask.ask_parameter_shape != nullptr;
    const per_axis log_decay = pulls_back ? with.mask.ask_parameter_shape(with.mask.mask) : per_axis{};
    wrong = check_wanted(to, with.mask.gapped, pulls_back ? &log_decay : nullptr);
  }
  if (wrong.empty())
    wrong = check_own_gradients(to, with.mask.own,
                                with.mask.own == own_parameter::bonus
                                    ? per_axis{1, own_heads_of(with.mask, size), 1, size.Dk}
                                    : per_axis{size.B, own_heads_of(with.mask, size), size.L, with.mask.levels});
  if (wrong.empty()) wrong = with.mask.ask_overlap(with.mask.outer, written_to(to));
  return wrong.empty() ? check_values(with.mask, in, size) : wrong;
}

template <class Kernel, class Form, class T>
BILA_NOINLINE schedule plan_gradient(const cpu& backend, const Form& form, const inputs<T>& in, const geometry& size,
                                     index_t gate_heads, bool wants_bonus = false) {
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
  shared.numbers<Kernel, double>((wants_bonus ? 4 + size.Dk : 4) * size.B * size.H * s.segments);
  s.shared_bytes = shared.used();
  return s;
}

/// Sets the gradient to zero at decays of exactly zero and at borders, where rounding would give noise.
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

/// Sets tokens [first, last) to zero.
template <class T>
void clear_tokens(const tensor_view<T>& to, index_t b, index_t h, index_t first, index_t last) {
  if (to.data == nullptr) return;
  for (index_t l = first; l < last; ++l)
    for (index_t d = 0; d < to.features(); ++d) to(b, h, l, d) = T(0);
}

/// Sets all tokens from token `first` on to zero.
template <class T>
void clear_tokens(const tensor_view<T>& to, index_t b, index_t h, index_t first) {
  clear_tokens(to, b, h, first, to.length());
}

/// The call's arguments, shared by all tasks.
template <class Kernel, class Form, class T>
struct gradient_call {
  const Form& form;
  const views<T>& with;
  const inputs<T>& in;
  const saved<T>& kept;
  const output_gradients<T>& dy;
  const gradients<T>& to;
  geometry size;
  index_t gate_heads, shared_heads;  // heads of the gradient of per-token gates; gcd of it and the other parameters'; 0: none
};

/// Computes the heads of one group in one segment, one after the other. The heads of a group share heads of q, k, v or the gates.
template <class Kernel, class Form, class T>
class gradient_task {
 public:
  using Real = real_of<T>;

  gradient_task(index_t task, kernel::arena memory, const schedule& s, const gradient_call<Kernel, Form, T>& call)
      : c_(call), segments_(s.segments), n_(task % s.segments) {
    const index_t groups = head_groups(c_.in, c_.shared_heads), group = task / s.segments % groups;
    b_ = task / s.segments / groups;
    first_ = group * (c_.size.H / groups);
    last_ = first_ + c_.size.H / groups;
    piece_ = segments_of(c_.in, c_.size)(b_, n_);
    keys_ = keys_of(c_.in, c_.size, b_, piece_);
    sum_q_ = room_for_sum<Kernel, T>(memory, piece_.count, c_.size.Dk);
    sum_k_ = room_for_sum<Kernel, T>(memory, keys_.count, c_.size.Dk);
    sum_v_ = room_for_sum<Kernel, T>(memory, keys_.count, c_.size.Dv);
    for (double** const gaps : {&forward_, &backward_, &group_forward_, &group_backward_})
      *gaps = memory.numbers<Kernel, double>(piece_.count + 1);
    memory_ = memory;
  }

  /// bonuses: Dk numbers for each head of each segment; null: not wanted.
  void run(scalar_gradients* parts, double* bonuses) {
    for (index_t h = first_; h < last_; ++h) {
      const index_t part = (b_ * c_.size.H + h) * segments_ + n_;
      bonus_ = bonuses == nullptr ? nullptr : bonuses + part * c_.size.Dk;
      run_head(h, parts[part]);
    }
  }

 private:
  BILA_NOINLINE void run_head(index_t h, scalar_gradients& part) {
    kernel::arena memory = memory_;  // each head uses the arena from the same point
    form::head<T> head = head_of<Kernel>(memory, b_, h, n_, c_.with.mask, c_.in, c_.size);
    head.q = rows_of(c_.in.q, c_.size, b_, h, piece_);
    form::head_gradient<T> g = gradient_of(head, h);
    g.bonus = bonus_;
    if (bonus_ != nullptr) std::fill_n(bonus_, c_.size.Dk, 0.0);
    if (piece_.count > 0 || keys_.count > 0) {
      c_.form.gradient().template run<Kernel>(head, g, c_.with.norm, memory);
    } else {
      pass_on(relative_to(head.initial_forward, g.final_forward), g.initial_forward, c_.with.norm.uses_row_sum);
      pass_on(relative_to(head.initial_backward, g.final_backward), g.initial_backward, c_.with.norm.uses_row_sum);
    }
    part = {0, 0, g.scale, g.diagonal};
    if (g.forward != nullptr) finish_gaps(head, h, part);
  }

  /// The gradient with respect to the initial state `from` of an empty sequence: `final`, the gradient with respect to the final
  /// state, times the ratio of the states' scales.
  static form::head_state<const Real> relative_to(const form::head_state<const Real>& from, form::head_state<const Real> final) {
    final.log_scale = is_exactly(from.log_scale, final.log_scale) ? 0 : from.log_scale - final.log_scale;
    return final;
  }

  /// The inputs and outputs of the form's gradient for head h.
  BILA_NOINLINE form::head_gradient<T> gradient_of(const form::head<T>& head, index_t h) {
    form::head_gradient<T> g;
    g.y = rows_of(c_.kept.y, c_.size, b_, h, piece_);
    if (c_.kept.row_sum.data != nullptr) g.row_sum = rows_of(c_.kept.row_sum, c_.size, b_, h, piece_);
    g.dy = rows_of(c_.dy.y, c_.size, b_, h, piece_);
    g.final_forward = head_state_of(c_.dy.final_forward, sequence(), h);
    g.final_backward = head_state_of(c_.dy.final_backward, sequence(), h);
    g.final_forward.decay = g.final_backward.decay = 1;  // a final state has no gap to cross
    g.initial_forward = head_state_of(c_.to.initial_forward, sequence(), h);
    g.initial_backward = head_state_of(c_.to.initial_backward, sequence(), h);
    g.q = rows_for(c_.to.q, piece_, sum_q_, h);
    g.k = rows_for(c_.to.k, keys_, sum_k_, h);
    g.v = rows_for(c_.to.v, keys_, sum_v_, h);
    clear_tokens(c_.to.weights, b_, h, piece_.first, c_.in.offsets.empty() ? c_.size.L : piece_.first + piece_.count);
    if (c_.to.weights.data != nullptr && piece_.count > 0)
      g.weights = head_rows(c_.to.weights, b_, h, piece_.first, piece_.count).columns(piece_.first, piece_.count);
    g.of_pairs = head.mask.gaps != gap::none || c_.to.log_forward.data != nullptr || c_.to.log_backward.data != nullptr ||
                 c_.to.diagonal != nullptr;
    for (const auto& own : own_gradients(c_.to)) add_own_gradient(own, g, h);
    if (head.mask.per_channel) {
      add_channel_gaps(g.channels_forward, direction::forward, c_.to.log_forward, c_.to.initial_forward, h);
      add_channel_gaps(g.channels_backward, direction::backward, c_.to.log_backward, c_.to.initial_backward, h);
      return g;
    }
    if (head.mask.gapped && (head.mask.gaps != gap::none || wants_gaps(c_.to) || head.has_states())) {
      g.forward = forward_;
      g.backward = backward_;
      std::fill_n(forward_, piece_.count + 1, 0.0);
      std::fill_n(backward_, piece_.count + 1, 0.0);
    }
    return g;
  }

  /// Points g to the gradient of a parameter that the mask has besides gaps. The form adds to it. The first of the heads that share
  /// the parameter clears it.
  void add_own_gradient(const own_gradient<Real>& own, form::head_gradient<T>& g, index_t h) const {
    if (own.to.data == nullptr || own.of == own_parameter::bonus) return;
    const index_t sharing = c_.size.H / own.to.heads(), head = h / sharing;
    if (h % sharing == 0) {
      clear_tokens(own.to, b_, head, piece_.first, piece_.first + piece_.count);
      if (!c_.in.lengths.empty()) clear_tokens(own.to, b_, head, piece_.count);
    }
    (own.way == direction::forward ? g.own_forward : g.own_backward) = head_rows(own.to, b_, head, piece_.first, piece_.count);
  }

  /// Points g to the gradients of gaps with decays per channel. The form adds to them. The first of the heads that share a
  /// parameter clears its gradient.
  void add_channel_gaps(form::channel_gaps<Real>& g, direction way, const tensor_view<Real>& gaps, const state<Real>& initial,
                        index_t h) const {
    const auto part_of = [&](const tensor_view<Real>& to, index_t head, bool first) {
      if (to.data == nullptr) return rows<Real>{};
      if (first) clear_tokens(to, b_, head, piece_.first, c_.in.offsets.empty() ? c_.size.L : piece_.first + piece_.count);
      return head_rows(to, b_, head, piece_.first, piece_.count);
    };
    g.gaps = part_of(gaps, h, true);
    if (c_.to.log_decay.data != nullptr) {
      const index_t sharing = c_.size.H / c_.to.log_decay.heads();
      g.parameter = part_of(c_.to.log_decay, h / sharing, way == direction::forward && h % sharing == 0);
      g.before = 1 - c_.with.mask.ask_parameter_row(c_.with.mask.mask, way, 1);
    }
    if (initial.log_decay.data == nullptr) return;
    clear_tokens(initial.log_decay, sequence(), h, 0);
    g.entering = head_rows(initial.log_decay, sequence(), h, 0, 1);
  }

  /// Where head h adds its part of the gradient of `tokens`. Several heads may share a head of the tensor.
  form::gradient_rows<T> rows_for(const tensor_view<T>& to, const segment& tokens, const rows<Real>& sum, index_t h) const {
    form::gradient_rows<T> result;
    if (to.data == nullptr) return result;
    const index_t sharing = c_.size.H / to.heads();
    result.out = rows_of(to, c_.size, b_, h, tokens);
    if constexpr (form::is_narrow<T>)
      result.sum = sum;
    else
      result.sum = result.out;
    result.first = h % sharing == 0;
    result.last = (h + 1) % sharing == 0;
    if (result.first) clear_tokens(to, b_, h / sharing, c_.in.offsets.empty() ? tokens.count : to.length());
    return result;
  }

  /// Writes the gradients of a head's gaps, including the gaps of states, and sums them.
  BILA_NOINLINE void finish_gaps(const form::head<T>& head, index_t h, scalar_gradients& part) {
    const auto write_border = [&](const state<Real>& to, double decay, double gradient) {
      if (to.log_decay.data != nullptr) to.log_decay(sequence(), h, 0, 0) = decay > 0 ? static_cast<Real>(gradient) : Real(0);
    };
    write_border(c_.to.initial_forward, head.initial_forward.decay, forward_[0]);
    write_border(c_.to.initial_backward, head.initial_backward.decay, backward_[piece_.count]);
    clear_dead_gaps(head.mask, direction::forward, piece_.count, forward_);
    clear_dead_gaps(head.mask, direction::backward, piece_.count, backward_);
    part.forward = std::accumulate(forward_, forward_ + piece_.count, 0.0);
    part.backward = std::accumulate(backward_, backward_ + piece_.count, 0.0);
    write_gaps(c_.to.log_forward, b_, h, piece_, forward_);
    write_gaps(c_.to.log_backward, b_, h, piece_, backward_);
    if (c_.gate_heads > 0) pull_back(h);
    if (c_.in.lengths.empty()) return;
    clear_tokens(c_.to.log_forward, b_, h, piece_.count);
    clear_tokens(c_.to.log_backward, b_, h, piece_.count);
  }

  /// Pulls the gradients of gaps back to the mask's parameters, once the last head that shares the parameters is done.
  void pull_back(index_t h) {
    const index_t sharing = c_.size.H / c_.gate_heads, gate = h / sharing;
    if (sharing > 1)
      for (const auto& [sums, gaps] : {std::pair(group_forward_, forward_), std::pair(group_backward_, backward_)})
        for (index_t t = 0; t < piece_.count; ++t) sums[t] = h % sharing == 0 ? gaps[t] : sums[t] + gaps[t];
    if ((h + 1) % sharing != 0) return;
    c_.with.mask.ask_pull_back_tokens(c_.with.mask.mask, b_, gate, piece_, sharing > 1 ? group_forward_ : forward_,
                                      sharing > 1 ? group_backward_ : backward_, c_.to.log_decay);
    if (!c_.in.lengths.empty()) clear_tokens(c_.to.log_decay, b_, gate, piece_.count);
  }

  index_t sequence() const { return b_ * segments_ + n_; }

  const gradient_call<Kernel, Form, T>& c_;
  index_t segments_, b_, n_, first_, last_;  // heads [first, last) of segment n of batch row b
  segment piece_, keys_;                     // the segment's queries; the segment's keys
  rows<Real> sum_q_, sum_k_, sum_v_;         // sums over heads, in float, for gradients in 16 bits
  double *forward_, *backward_;              // (count + 1) gradients of a head's gaps
  double *group_forward_, *group_backward_;  // (count + 1) sums over the heads that share gates
  double* bonus_ = nullptr;                  // (Dk) a head's part of the gradient of the bonus
  kernel::arena memory_;                     // the arena that each head starts with
};

/// Sums the gradients of the bonus over batch rows, heads that share it and segments, in a fixed order.
template <class Real>
BILA_NOINLINE void sum_bonuses(const tensor_view<Real>& to, const double* parts, const geometry& size, index_t segments) {
  for (index_t h = 0; h < to.heads(); ++h)
    for (index_t c = 0; c < size.Dk; ++c) {
      const index_t sharing = size.H / to.heads();
      double sum = 0;
      for (index_t b = 0; b < size.B; ++b)
        for (index_t s = 0; s < segments; ++s)
          for (index_t m = h * sharing; m < (h + 1) * sharing; ++m) sum += parts[((b * size.H + m) * segments + s) * size.Dk + c];
      to(0, h, 0, c) = static_cast<Real>(sum);
    }
}

/// Sums the scalar gradients over batch rows, heads and segments, in a fixed order.
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

/// Checks and plans a call, then calls use(call, schedule). Returns what is wrong with the call; empty if nothing is.
template <class Kernel, class Form, class T, class Use>
error_message plan_checked(const cpu& backend, const Form& form, bool carries_states, const views<T>& with, const inputs<T>& in,
                           const saved<T>& kept, const output_gradients<T>& dy, const gradients<T>& to, const Use& use) {
  if (kept.y.extents == per_axis{} && only_states(dy.y, dy.final_forward, dy.final_backward)) {
    // The forward call computed final states only. The loss does not depend on y, so any y gives the right gradient.
    const T zero{};
    const real_of<T> no_sum{};
    const geometry size = geometry_of(in, dy.final_forward.given() ? dy.final_forward : dy.final_backward);
    const tensor_view<const T> y{&zero, {size.B, size.H, size.L, size.Dv}, {}};
    inputs<T> with_q = in;
    const index_t heads = in.q.heads() == 0 ? size.H : in.q.heads();  // head_groups is then that of `in`
    with_q.q = {&zero, {size.B, heads, size.L, size.Dk}, {}};
    const saved<T> any_y{y, {&no_sum, {size.B, size.H, size.L, 1}, {}}};
    const output_gradients<T> by_states{y, dy.final_forward, dy.final_backward};
    return plan_checked<Kernel>(backend, form, carries_states, with, with_q, any_y, by_states, to, use);
  }
  if (error_message wrong = check_gradient_call(backend, form, carries_states, with, in, kept, dy, to); !wrong.empty())
    return wrong;
  const geometry size = geometry_of(in, kept.y);
  const index_t gate_heads = (with.mask.ask_pull_back_tokens != nullptr || with.mask.per_channel) && to.log_decay.data != nullptr
                                 ? gates_of(with.mask, size)
                                 : 0;
  index_t shared_heads = gate_heads;
  for (const auto& own : own_gradients(to))
    if (own.to.data != nullptr && own.of != own_parameter::bonus) shared_heads = std::gcd(shared_heads, own.to.heads());
  const gradient_call<Kernel, Form, T> call{form, with, in, kept, dy, to, size, gate_heads, shared_heads};
  return use(call, plan_gradient<Kernel>(backend, form, in, size, shared_heads, to.bonus.data != nullptr));
}

/// Checks a call and runs it. Returns what is wrong with the call; empty if nothing is.
template <class Kernel, class Form, class T>
BILA_NOINLINE error_message run_gradient_checked(const cpu& backend, const Form& form, bool carries_states, const views<T>& with,
                                                 const inputs<T>& in, const saved<T>& kept, const output_gradients<T>& dy,
                                                 const gradients<T>& to) {
  return plan_checked<Kernel>(
      backend, form, carries_states, with, in, kept, dy, to,
      [&](const gradient_call<Kernel, Form, T>& call, const schedule& s) -> error_message {
        if (error_message wrong = check_workspace(backend, s); !wrong.empty()) return wrong;
        const auto parts_in = [](std::byte* shared) { return reinterpret_cast<scalar_gradients*>(shared); };
        const auto bonuses_in = [&](std::byte* shared) {
          return to.bonus.data == nullptr ? nullptr
                                          : reinterpret_cast<double*>(shared) + 4 * call.size.B * call.size.H * s.segments;
        };
        const call_memory memory(backend.workspace, s.bytes());
        run_tasks(backend, s, memory, [&](index_t task, kernel::arena own, std::byte* shared) {
          gradient_task(task, own, s, call).run(parts_in(shared), bonuses_in(shared));
        });
        if (to.bonus.data != nullptr) sum_bonuses(to.bonus, bonuses_in(memory.aligned()), call.size, s.segments);
        sum_scalars(with, to, parts_in(memory.aligned()), call.size, s.segments);
        if (call.size.H > 0) return {};
        for (const tensor_view<T>* unread : {&to.q, &to.k, &to.v})  // y has no heads, so q, k and v get zero gradients
          for (index_t b = 0; b < unread->batches(); ++b)
            for (index_t h = 0; h < unread->heads(); ++h) clear_tokens(*unread, b, h, 0);
        return {};
      });
}

}  // namespace BILA_UNIT
}  // namespace detail

}  // namespace v0_1
}  // namespace bila
