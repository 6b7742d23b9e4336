// SPDX-License-Identifier: Apache-2.0
// attend on a CPU: all checks of a call are made once, then the work is divided into heads, segments and parts of a head.
#pragma once

#include <bila/backend/cpu/head_states.hpp>
#include <bila/backend/cpu/threads.hpp>
#include <bila/call/checks.hpp>
#include <bila/call/inputs.hpp>
#include <bila/config.hpp>
#include <bila/error.hpp>
#include <bila/form/head.hpp>
#include <bila/form/only_states.hpp>
#include <bila/form/views.hpp>
#include <bila/mask/concepts.hpp>
#include <bila/norm/concepts.hpp>
#include <bila/view/number.hpp>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>

namespace bila {
inline namespace v0_1 {

namespace detail {
inline namespace BILA_UNIT {

/// The sizes of the call's longest segment.
template <class T>
BILA_NOINLINE form::head_size largest_head(const inputs<T>& in, const geometry& size) {
  const segments pieces = segments_of(in, size);
  form::head_size largest{0, size.Dk, size.Dv};
  for (index_t b = 0; b < size.B; ++b)
    for (index_t n = 0; n < pieces.count(); ++n) largest.L = (std::max)(largest.L, pieces(b, n).count);
  return largest;
}

/// Waking a second thread costs as much as this many floating point operations. The threads of an executor count as awake.
inline constexpr double worth_a_thread = 30e6;

inline index_t threads_for(const cpu& backend, const geometry& size) {
  const double operations = 8.0 * static_cast<double>(size.B * size.H * size.L) * static_cast<double>(size.Dk * size.Dv);
  return backend.executor == nullptr && operations < worth_a_thread ? 1 : threads_of(backend);
}

/// Whether a form sweeps a head from both ends. If so, the halves of the head can run at the same time.
template <class Kernel, class Form, class T>
inline constexpr bool has_two_sided_sweep = requires(const Form& form, kernel::arena& memory, form::head_size size) {
  form.template plan_two_sided_sweep<Kernel, T>(memory, size);
};

template <class Kernel, class Form, class T>
BILA_NOINLINE std::size_t two_sided_bytes(const Form& form, form::head_size largest) {
  kernel::arena counter;
  if constexpr (has_two_sided_sweep<Kernel, Form, T>) form.template plan_two_sided_sweep<Kernel, T>(counter, largest);
  return counter.used();
}

/// Bytes in which a task keeps copies of states that are stored in 16 bits.
template <class Kernel, class Real>
BILA_NOINLINE std::size_t bytes_of_copies(const geometry& size, std::initializer_list<state_storage> states) {
  kernel::arena counter;
  for (const state_storage stored : states)
    if (stored != state_storage::computed) {
      counter.padded<Kernel, Real>(size.Dk, size.Dv);
      counter.padded<Kernel, Real>(size.Dk, 1);
    }
  return counter.used();
}

template <class Kernel, class T>
std::size_t bytes_of_copies(const geometry& size, const inputs<T>& in, const outputs<T>& out) {
  return bytes_of_copies<Kernel, real_of<T>>(
      size, {in.initial_forward.stored, in.initial_backward.stored, out.final_forward.stored, out.final_backward.stored});
}

/// The plan of a call for final states only, without y.
template <class Kernel, class Form, class T>
BILA_NOINLINE schedule plan_states(const cpu& backend, const inputs<T>& in, const outputs<T>& out) {
  const geometry size = geometry_of(in, out);
  schedule s{segments_of(in, size).count(), 1, 0, 0, 0, 0};
  s.tasks = size.B * size.H * s.segments;
  s.workers = std::clamp<index_t>(s.tasks, 1, threads_for(backend, size));
  kernel::arena counter;
  form::states_of<Form>::template plan<Kernel, T>(counter, {size.L, size.Dk, size.Dv});
  s.bytes_per_slot = counter.used() + bytes_of_copies<Kernel>(size, in, out);
  return s;
}

template <class Kernel, class Form, class T>
BILA_NOINLINE schedule plan(const cpu& backend, const Form& form, const inputs<T>& in, const outputs<T>& out) {
  if (only_states(out)) return plan_states<Kernel, Form>(backend, in, out);
  const geometry size = geometry_of(in, out.y);
  const form::head_size largest = largest_head(in, size);
  const index_t heads = size.B * size.H * segments_of(in, size).count();
  const index_t threads = threads_for(backend, size);

  schedule s{segments_of(in, size).count(), 1, 0, 0, 0, 0};
  // Threads take whole heads first. A head is divided only if some threads would be idle: into two halves, then into splits, each
  // of which computes the scores again. A final state may overwrite the initial state, and with `add` y is read and written: then
  // no head is divided.
  const bool enough =
      heads % threads == 0 || heads >= 4 * threads || out.final_forward.given() || out.final_backward.given() || out.add;
  if (!enough) {
    if constexpr (has_two_sided_sweep<Kernel, Form, T>)
      if (in.direction == direction::both) s.halves = form.halves(largest);
    s.splits = form.splits(largest, (threads + s.halves - 1) / s.halves);
  }
  s.tasks = heads * s.splits * s.halves;
  s.workers = std::clamp<index_t>(s.tasks, 1, threads);
  kernel::arena counter;
  form.template plan<Kernel, T>(counter, largest);
  if (out.add) counter.padded<Kernel, T>(largest.L, largest.Dv);
  s.bytes_per_slot = counter.used() + bytes_of_copies<Kernel>(size, in, out);
  s.two_sided_bytes = two_sided_bytes<Kernel, Form, T>(form, largest);
  if (s.halves == 2)
    s.shared_bytes = static_cast<std::size_t>(heads * s.splits) * s.two_sided_bytes;
  else
    s.bytes_per_slot += s.two_sided_bytes;
  return s;
}

/// The number of heads of the mask's parameters.
template <class Real>
index_t gates_of(const form::mask_view<Real>& mask, const geometry& size) {
  return mask.heads == 0 ? size.H : mask.heads;
}

/// The number of heads of the parameter that a mask or rule has besides its gaps.
template <class Real>
index_t own_heads_of(const form::mask_view<Real>& mask, const geometry& size) {
  return mask.own_heads == 0 ? size.H : mask.own_heads;
}

/// Checks the log decays of all gaps inside segments, in both directions.
template <class Real, class T>
BILA_NOINLINE error_message check_gaps(const form::mask_view<Real>& mask, const inputs<T>& in, const geometry& size) {
  if (mask.ask_log_decays == nullptr || mask.gaps == gap::none) return {};
  constexpr index_t at_once = 64;
  double logs[2][at_once];
  const segments pieces = segments_of(in, size);
  for (index_t b = 0; b < size.B; ++b)
    for (index_t h = 0; h < gates_of(mask, size); ++h)
      for (index_t n = 0; n < pieces.count(); ++n) {
        const segment piece = pieces(b, n);
        const index_t last = piece.first + (mask.gaps == gap::per_head ? std::min<index_t>(piece.count, 2) : piece.count);
        for (index_t first = piece.first + 1; first < last; first += at_once) {
          const index_t count = (std::min)(at_once, last - first);
          for (const direction way : {direction::forward, direction::backward})
            mask.ask_log_decays(mask.mask, b, h, way, first, count, logs[way == direction::backward]);
          for (index_t t = 0; t < count; ++t)
            for (const direction way : {direction::forward, direction::backward})
              if (const double log = logs[way == direction::backward][t]; !is_log_decay(log))
                return message(mask.ask_place(mask.mask, way, b, h, first + t), " = ", log, ", a log decay must be <= 0");
        }
      }
  return {};
}

/// Checks the values of the parameter that a mask or rule has besides its gaps.
template <class Real, class T>
BILA_NOINLINE error_message check_own_parameter(const form::mask_view<Real>& mask, const inputs<T>& in, const geometry& size) {
  if (mask.own_heads != 0 && !makes_groups(mask.own_heads, size.H))
    return message("a parameter of the mask has ", mask.own_heads, " heads, which do not divide the ", size.H, " heads of y");
  const segments pieces = segments_of(in, size);
  for (index_t b = 0; b < size.B; ++b)
    for (index_t h = 0; h < own_heads_of(mask, size); ++h)
      for (index_t n = 0; n < pieces.count(); ++n)
        if (error_message wrong = mask.ask_wrong_values(mask.outer, b, h, pieces(b, n)); !wrong.empty()) return wrong;
  return {};
}

/// Checks the decays per channel of all gaps inside segments, in both directions.
template <class Real, class T>
BILA_NOINLINE error_message check_channels(const form::mask_view<Real>& mask, const inputs<T>& in, const geometry& size) {
  if (mask.channels != 0 && mask.channels != size.Dk)
    return message("the mask has ", mask.channels, " channels but k has ", size.Dk, " features");
  const segments pieces = segments_of(in, size);
  for (index_t b = 0; b < size.B; ++b)
    for (index_t h = 0; h < gates_of(mask, size); ++h)
      for (index_t n = 0; n < pieces.count(); ++n)
        if (error_message wrong = mask.ask_wrong_channels(mask.mask, b, h, pieces(b, n), size.Dk); !wrong.empty()) return wrong;
  if (mask.ask_wrong_bonus == nullptr) return {};
  if (mask.own_heads != 0 && !makes_groups(mask.own_heads, size.H))
    return message("the bonuses have ", mask.own_heads, " heads, which do not divide the ", size.H, " heads of y");
  for (index_t h = 0; h < own_heads_of(mask, size); ++h)
    if (error_message wrong = mask.ask_wrong_bonus(mask.outer, h, size.Dk); !wrong.empty()) return wrong;
  return {};
}

/// Checks the values of a mask's parameters.
template <class Real, class T>
error_message check_values(const form::mask_view<Real>& mask, const inputs<T>& in, const geometry& size) {
  error_message wrong = mask.per_channel ? check_channels(mask, in, size) : check_gaps(mask, in, size);
  return wrong.empty() && mask.ask_wrong_values != nullptr ? check_own_parameter(mask, in, size) : wrong;
}

template <class T>
BILA_NOINLINE error_message check_state_decay(const char* name, const state<T>& x) {
  if (x.log_decay.data != nullptr)
    for (index_t n = 0; n < x.log_decay.batches(); ++n)
      for (index_t h = 0; h < x.log_decay.heads(); ++h)
        for (index_t d = 0; d < x.log_decay.features(); ++d)
          if (!is_log_decay(static_cast<double>(x.log_decay(n, h, 0, d))))
            return message(name, ".log_decay[n = ", n, ", h = ", h, "] = ", x.log_decay(n, h, 0, d), ", a log decay must be <= 0");
  if (x.log_scale.data != nullptr)
    for (index_t n = 0; n < x.log_scale.batches(); ++n)
      for (index_t h = 0; h < x.log_scale.heads(); ++h)
        if (const double scale = static_cast<double>(x.log_scale(n, h, 0, 0)); !(scale <= (std::numeric_limits<double>::max)()))
          return message(name, ".log_scale[n = ", n, ", h = ", h, "] = ", scale, ", it must be a number or -inf");
  return {};
}

template <class T>
error_message check_state_decays(const inputs<T>& in) {
  error_message wrong = check_state_decay("initial_forward", in.initial_forward);
  return wrong.empty() ? check_state_decay("initial_backward", in.initial_backward) : wrong;
}

/// The mask and the norm of a call, as type-erased views.
template <class T>
struct views {
  form::mask_view<real_of<T>> mask;
  form::norm_view<real_of<T>> norm;
};

/// Checks the norm by itself, and that the rule of the call has the row sums that the norm uses.
template <class T>
BILA_NOINLINE error_message check_norm(const views<T>& with) {
  if (with.norm.uses_row_sum && with.mask.ask_strengths != nullptr)
    return "the norm uses the row sum, but the delta rule has no weights to sum: give norm::none";
  return with.norm.ask_wrong(with.norm.norm);
}

/// Checks a call, except for its workspace. `of_form` is the result of the form's own check.
template <class T>
BILA_NOINLINE error_message check_call(const cpu& backend, const error_message& of_form, const state_rules& rules,
                                       const views<T>& with, const inputs<T>& in, const outputs<T>& out) {
  error_message wrong = validate(backend);
  if (wrong.empty()) wrong = of_form;
  if (wrong.empty()) wrong = check_norm(with);
  if (wrong.empty()) wrong = validate(in, out);
  if (wrong.empty() && out.add && with.norm.uses_row_sum)
    wrong = "outputs.add is set, but the norm divides each row by its own sum";
  if (wrong.empty()) wrong = check_states(in, out, rules);
  if (wrong.empty()) wrong = check_state_decays(in);
  if (!wrong.empty()) return wrong;
  const geometry size = geometry_of(in, out);
  wrong = check_cross(with.mask.orders_tokens, with.mask.gapped, in, size);
  if (wrong.empty()) wrong = with.mask.ask_wrong(with.mask.outer, size.B, size.H, size.L);
  if (wrong.empty()) wrong = with.mask.ask_overlap(with.mask.outer, written_to(out));  // before gates are read
  return wrong.empty() ? check_values(with.mask, in, size) : wrong;
}

template <class Form, class T>
error_message check_call(const cpu& backend, const Form& form, bool carries_states, const views<T>& with, const inputs<T>& in,
                         const outputs<T>& out) {
  const index_t decays = with.mask.per_channel ? in.k.features() : 1;
  const state_rules rules{carries_states, with.mask.gapped, with.norm.uses_row_sum,
                          in.direction,   decays,           with.mask.ask_log_weights != nullptr};
  return check_call(backend, check_itself(form), rules, with, in, out);
}

/// The rows of x that head h of batch row b reads in one segment. Heads of y share the heads of x in contiguous groups.
template <class T>
rows<T> rows_of(const tensor_view<T>& x, const geometry& size, index_t b, index_t h, const segment& piece) {
  return head_rows(x, b, h / (size.H / x.heads()), piece.first, piece.count);
}

/// What a form reads of segment n of head h of batch row b, except q. The caller still sets q and the outputs.
template <class Kernel, class T>
BILA_NOINLINE form::head<T> head_of(kernel::arena& memory, index_t b, index_t h, index_t n, const form::mask_view<real_of<T>>& mask,
                                    const inputs<T>& in, const geometry& size) {
  const segments pieces = segments_of(in, size);
  const segment queries = pieces(b, n), keys = keys_of(in, size, b, queries);
  const index_t sequence = b * pieces.count() + n;
  form::head<T> head;
  head.k = rows_of(in.k, size, b, h, keys);
  head.v = rows_of(in.v, size, b, h, keys);
  head.mask = {mask, b, h / (size.H / gates_of(mask, size)), queries.first, h / (size.H / own_heads_of(mask, size))};
  head.scale = in.scale;
  head.diagonal = in.diagonal;
  head.direction = in.direction;
  head.initial_forward = head_state_in<Kernel>(memory, in.initial_forward, sequence, h);
  head.initial_backward = head_state_in<Kernel>(memory, in.initial_backward, sequence, h);
  if (mask.per_channel) {
    const auto read_log_decays = [&](form::head_state<const real_of<T>>& to, const state<const real_of<T>>& from) {
      to.decay = 1;
      if (from.log_decay.data != nullptr) to.log_decays = head_rows(from.log_decay, sequence, h, 0, 1);
    };
    read_log_decays(head.initial_forward, in.initial_forward);
    read_log_decays(head.initial_backward, in.initial_backward);
  }
  return head;
}

template <class T>
BILA_NOINLINE void add_rows(const rows<T>& x, const rows<T>& to) {
  for (index_t l = 0; l < x.count; ++l)
    for (index_t d = 0; d < x.width; ++d) to(l, d) = T(real_of<T>(to(l, d)) + real_of<T>(x(l, d)));
}

/// Runs one split of one segment of one head, or a half of the split. `between` is memory that the two halves share.
template <class Kernel, class Form, class T>
BILA_NOINLINE void run_task(index_t task, form::sweep_pass at, kernel::arena memory, std::byte* between, const schedule& s,
                            const Form& form, const views<T>& with, const inputs<T>& in, const outputs<T>& out) {
  const index_t half = task % s.halves, whole = task / s.halves;
  const index_t split = whole % s.splits, n = whole / s.splits % s.segments;
  const index_t h = whole / s.splits / s.segments % out.y.heads(), b = whole / s.splits / s.segments / out.y.heads();
  const geometry size = geometry_of(in, out.y);
  const segment piece = segments_of(in, size)(b, n);
  form::head<T> head = head_of<Kernel>(memory, b, h, n, with.mask, in, size);
  head.q = rows_of(in.q, size, b, h, piece);
  const rows<T> y = rows_of(out.y, size, b, h, piece);
  head.y = y;
  if (out.add) {
    const kernel::tile<T> sum = memory.padded<Kernel, T>(y.count, y.width);
    head.y = {sum.data, sum.rows, sum.columns, sum.stride, 1};
  }
  if (out.row_sum.data != nullptr) head.row_sum = rows_of(out.row_sum, size, b, h, piece);
  head.final_forward = head_state_in<Kernel>(memory, out.final_forward, b * s.segments + n, h);
  head.final_backward = head_state_in<Kernel>(memory, out.final_backward, b * s.segments + n, h);
  if (head.q.count > 0 || head.k.count > 0) {
    const form::split part{split, s.splits, at, half};
    if constexpr (has_two_sided_sweep<Kernel, Form, T>) {
      const kernel::arena both_halves(at == form::sweep_pass::both ? memory.take(s.two_sided_bytes)
                                                                   : between + static_cast<std::size_t>(whole) * s.two_sided_bytes);
      form.template run<Kernel>(head, with.norm, part, memory, both_halves);
    } else {
      form.template run<Kernel>(head, with.norm, part, memory);
    }
  } else if (split == 0 && half == 0) {
    pass_on(head.initial_forward, head.final_forward, with.norm.uses_row_sum);
    pass_on(head.initial_backward, head.final_backward, with.norm.uses_row_sum);
  }
  round_to_16_bits(out.final_forward, b * s.segments + n, h, head.final_forward, with.norm.uses_row_sum);
  round_to_16_bits(out.final_backward, b * s.segments + n, h, head.final_backward, with.norm.uses_row_sum);
  if (out.add) return add_rows(head.y, y);
  if (in.lengths.empty() || split != 0 || half != 0) return;
  for (index_t l = head.q.count; l < out.y.length(); ++l) {
    for (index_t d = 0; d < out.y.features(); ++d) out.y(b, h, l, d) = T(0);
    if (with.norm.uses_row_sum && out.row_sum.data != nullptr) out.row_sum(b, h, l, 0) = 0;
  }
}

/// Computes the final states of one segment of one head, in a call without y.
template <class Kernel, class Form, class T>
BILA_NOINLINE void run_states_task(index_t task, kernel::arena memory, const schedule& s, const views<T>& with, const inputs<T>& in,
                                   const outputs<T>& out) {
  const geometry size = geometry_of(in, out);
  const index_t n = task % s.segments, h = task / s.segments % size.H, b = task / s.segments / size.H;
  form::head<T> head = head_of<Kernel>(memory, b, h, n, with.mask, in, size);
  head.final_forward = head_state_in<Kernel>(memory, out.final_forward, b * s.segments + n, h);
  head.final_backward = head_state_in<Kernel>(memory, out.final_backward, b * s.segments + n, h);
  if (head.k.count > 0) {
    form::states_of<Form>::template run<Kernel>(head, with.norm.uses_row_sum, memory);
  } else {
    pass_on(head.initial_forward, head.final_forward, with.norm.uses_row_sum);
    pass_on(head.initial_backward, head.final_backward, with.norm.uses_row_sum);
  }
  round_to_16_bits(out.final_forward, b * s.segments + n, h, head.final_forward, with.norm.uses_row_sum);
  round_to_16_bits(out.final_backward, b * s.segments + n, h, head.final_backward, with.norm.uses_row_sum);
}

/// Checks a call and runs it. Returns what is wrong with the call; empty if nothing is.
template <class Kernel, class Form, class T>
BILA_NOINLINE error_message run_checked(const cpu& backend, const Form& form, bool carries_states, const views<T>& with,
                                        const inputs<T>& in, const outputs<T>& out) {
  if (error_message wrong = check_call(backend, form, carries_states, with, in, out); !wrong.empty()) return wrong;
  const schedule s = plan<Kernel>(backend, form, in, out);
  if (error_message wrong = check_workspace(backend, s); !wrong.empty()) return wrong;
  const call_memory memory(backend.workspace, s.bytes());  // shared by both passes: halves exchange data here
  const auto run = [&](form::sweep_pass at) {
    run_tasks(backend, s, memory, [&](index_t task, kernel::arena own, std::byte* between) {
      if (only_states(out)) return run_states_task<Kernel, Form>(task, own, s, with, in, out);
      run_task<Kernel>(task, at, own, between, s, form, with, in, out);
    });
  };
  run(s.halves == 1 ? form::sweep_pass::both : form::sweep_pass::first);
  if (s.halves == 2) run(form::sweep_pass::second);
  return {};
}

}  // namespace BILA_UNIT
}  // namespace detail

}  // namespace v0_1
}  // namespace bila
