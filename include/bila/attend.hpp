// SPDX-License-Identifier: Apache-2.0
// The one door: every check, once; then the work, cut into heads, segments and shares of a head.
#pragma once

#include <bila/backend/cpu.hpp>
#include <bila/config.hpp>
#include <bila/error.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/full.hpp>
#include <bila/form/recurrent.hpp>
#include <bila/kernel/eigen.hpp>
#include <bila/mask/concepts.hpp>
#include <bila/norm/none.hpp>
#include <bila/view/inputs.hpp>

#include <atomic>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <tuple>
#include <type_traits>

namespace bila::inline v0_1 {

/// Where an error goes in a program built without exceptions. It is given the sentence and should not return.
using error_handler = void (*)(const char* sentence);

namespace detail {

inline void print_sentence(const char* words) { std::fprintf(stderr, "bila: %s\n", words); }

inline std::atomic<error_handler>& current_error_handler() {
  static std::atomic<error_handler> handler{print_sentence};
  return handler;
}

}  // namespace detail

/// Sets the error handler of a program built with -fno-exceptions; the default prints to stderr. If it returns, the program aborts.
inline void set_error_handler(error_handler handler) { detail::current_error_handler() = handler; }

namespace detail {

template <class Form, class Mask>
concept accepts = gapped<Mask> || (pairwise<Mask> && (std::same_as<Form, form::full> || std::same_as<Form, form::automatic>));

/// What the work is cut into. Nothing of the result depends on it.
struct schedule {
  index_t segments, shares, tasks, slots;
  std::size_t bytes_per_slot;
};

template <class Kernel, class Form, class T>
schedule plan(const cpu& backend, const Form& form, const inputs<T>& in, const tensor_view<T>& y) {
  const geometry size = geometry_of(in, y);
  const segments pieces = segments_of(in, size);
  form::head_size largest{0, size.Dk, size.Dv};
  for (index_t b = 0; b < size.B; ++b)
    for (index_t n = 0; n < pieces.count(); ++n) largest.L = std::max(largest.L, pieces(b, n).count);

  // One share a head unless some threads would be left idle: shares of a head repeat its scores.
  const index_t threads = threads_of(backend), heads = size.B * size.H * pieces.count();
  const bool enough = heads % threads == 0 || heads >= 4 * threads;
  schedule s{pieces.count(), enough ? 1 : form.shares(largest, threads), 0, 0, 0};
  s.tasks = heads * s.shares;
  s.slots = std::clamp<index_t>(s.tasks, 1, threads);
  kernel::arena counter;
  form.template plan<Kernel, T>(counter, largest);
  s.bytes_per_slot = counter.used();
  return s;
}

template <class Mask>
complaint check_gap(const Mask& mask, const char* way, double log, index_t b, index_t h, index_t t) {
  if (log <= 1e-6) return {};
  std::string place;
  if constexpr (names_parameters<Mask>)
    place = mask.parameter_of(*way == 'f' ? direction::forward : direction::backward, b, h, t);
  else
    place = sentence("mask.log_", way, "(b = ", b, ", h = ", h, ", t = ", t, ")");
  return sentence(place, " = ", log, ", a log decay must be <= 0");
}

/// Every gap that will be read.
template <class Mask, class T>
complaint check_gaps(const Mask& mask, const inputs<T>& in, const geometry& size) {
  if constexpr (gapped<Mask>) {
    if constexpr (Mask::gaps == gap::none) return {};
    const segments pieces = segments_of(in, size);
    for (index_t b = 0; b < size.B; ++b)
      for (index_t h = 0; h < size.H; ++h)
        for (index_t n = 0; n < pieces.count(); ++n) {
          const segment piece = pieces(b, n);
          const index_t last = Mask::gaps == gap::per_head ? std::min<index_t>(piece.count, 2) : piece.count;
          for (index_t t = piece.first + 1; t < piece.first + last; ++t) {
            const double f = mask.log_forward(b, h, t), g = mask.log_backward(b, h, t);
            if (f <= 1e-6 && g <= 1e-6) continue;
            complaint wrong = check_gap(mask, "forward", f, b, h, t);
            return wrong.empty() ? check_gap(mask, "backward", g, b, h, t) : wrong;
          }
        }
  }
  return {};
}

template <class Mask, class T>
complaint check_mask(const Mask& mask, const inputs<T>& in, const tensor_view<T>& y) {
  const geometry size = geometry_of(in, y);
  if (size.Lk != size.L) {
    const char* const why = !orders_tokens<Mask>                  ? nullptr
                            : gapped<Mask>                        ? "a mask with decay"
                                                                  : "a pairwise mask";
    if (why != nullptr) return sentence("k has length ", size.Lk, " but q has ", size.L, ": ", why, " needs them equal");
    if (in.direction != direction::both || in.diagonal != 1 || !in.offsets.empty() || !in.lengths.empty())
      return sentence("k has length ", size.Lk, " but q has ", size.L,
                      ": direction, diagonal, offsets and lengths need them equal");
  }
  if constexpr (checks_itself<Mask>)
    if (complaint wrong = mask.check(size.B, size.H, size.L); !wrong.empty()) return wrong;
  if constexpr (has_parameters<Mask>)
    if (std::apply([&y](const auto&... gates) { return (may_overlap(y, gates) || ...); }, mask.parameters()))
      return sentence("y overlaps the gates of the mask in memory");
  return check_gaps(mask, in, size);
}

/// All that can be wrong with a call.
template <class Kernel, class Form, class Mask, class Norm, class T>
complaint check_call(const cpu& backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const tensor_view<T>& y) {
  complaint wrong = check(backend);
  if constexpr (requires { form.check(); })
    if (wrong.empty()) wrong = form.check();
  if constexpr (requires { norm.check(); })
    if (wrong.empty()) wrong = norm.check();
  if (wrong.empty()) wrong = check(in, y);
  if (wrong.empty()) wrong = check_mask(mask, in, y);
  if (!wrong.empty() || backend.workspace.empty()) return wrong;
  const schedule s = plan<Kernel>(backend, form, in, y);
  if (const std::size_t bytes = bytes_for(s.slots, s.bytes_per_slot); backend.workspace.size() < bytes)
    return sentence("cpu.workspace has ", backend.workspace.size(), " bytes, this call needs ", bytes);
  return {};
}

/// One share of one segment of one head.
template <class Kernel, class Form, class Mask, class Norm, class T>
void run_task(index_t task, kernel::arena memory, const schedule& s, const Form& form, const Mask& mask, const Norm& norm,
              const inputs<T>& in, const tensor_view<T>& y) {
  const geometry size = geometry_of(in, y);
  const index_t share = task % s.shares, n = task / s.shares % s.segments;
  const index_t h = task / s.shares / s.segments % size.H, b = task / s.shares / s.segments / size.H;
  const segment piece = segments_of(in, size)(b, n);
  const auto rows_of = [&](const auto& x, index_t count) { return head_rows(x, b, h / (size.H / x.heads()), piece.first, count); };

  const index_t keys = size.Lk == size.L ? piece.count : size.Lk;
  const form::head<T, Mask> head{rows_of(in.q, piece.count), rows_of(in.k, keys), rows_of(in.v, keys), rows_of(y, piece.count),
                                 {&mask, b, h, piece.first}, in.scale, in.diagonal, in.direction};
  if (head.q.count > 0) form.template run<Kernel>(head, norm, {share, s.shares}, memory);
  if (in.lengths.empty() || share != 0) return;
  for (index_t l = piece.count; l < size.L; ++l)
    for (index_t d = 0; d < size.Dv; ++d) y(b, h, l, d) = T(0);
}

}  // namespace detail

// What raises an error depends on how the unit is built, and so does its name.
inline namespace BILA_RAISING {

[[noreturn]] inline void raise(const complaint& words) {
#if BILA_EXCEPTIONS
  throw std::invalid_argument("bila: " + words);
#else
  detail::current_error_handler().load()(words.c_str());
  std::abort();
#endif
}

/// Bidirectional linear attention: y = norm((q k^T) o M) v, computed in the given form.
///
///     [N_i, Z_i] = sum_j scale (q_i . k_j) M_ij [v_j, 1],   y_i = N_i / n(Z_i)
///
/// Shapes: see `inputs`; y [B, H, L, Dv]. All forms give the same numbers up to rounding; a form gives the same bits for every number
/// of threads, place in the batch, memory layout and repetition. Inputs are not changed; y must not overlap them. Nothing is
/// allocated once the workspace has grown to the largest call.
/// Throws std::invalid_argument naming the argument, the place and the value, before y is touched.
/// Source: LION (arXiv 2502.16249).
template <class Kernel = kernel::eigen, class Form, class Mask, class Norm, class T>
void attend(const cpu& backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const tensor_view<T>& y) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "bila::attend: q, k, v and y are float or double");
  static_assert(pairwise<Mask> || gapped<Mask>, "bila::attend: this type is no mask, it offers neither weight() nor gaps (see bila/mask/concepts.hpp)");
  static_assert(!(pairwise<Mask> || gapped<Mask>) || detail::accepts<Form, Mask>,
                "bila::attend: this mask offers weights of pairs but no gaps, so only form::full and form::automatic accept it");
  static_assert(normaliser<Norm>, "bila::attend: this type is no norm (see bila/norm/none.hpp)");
  if constexpr (detail::accepts<Form, Mask> && normaliser<Norm>) {
    if (const complaint wrong = detail::check_call<Kernel>(backend, form, mask, norm, in, y); !wrong.empty()) raise(wrong);
    if (y.empty()) return;
    const detail::schedule s = detail::plan<Kernel>(backend, form, in, y);
    detail::run_tasks(backend, s.tasks, s.slots, s.bytes_per_slot, [&](index_t task, kernel::arena memory) {
      detail::run_task<Kernel>(task, memory, s, form, mask, norm, in, y);
    });
  }
}

/// The same on one thread.
template <class Kernel = kernel::eigen, class Form, class Mask, class Norm, class T>
void attend(const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const tensor_view<T>& y) {
  attend<Kernel>(cpu{}, form, mask, norm, in, y);
}

/// Bytes of `cpu.workspace` that a call with these arguments needs. Throws what the call would throw.
template <class Kernel = kernel::eigen, class Form, class Mask, class Norm, class T>
std::size_t workspace_bytes(cpu backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const tensor_view<T>& y) {
  backend.workspace = {};
  if (const complaint wrong = detail::check_call<Kernel>(backend, form, mask, norm, in, y); !wrong.empty()) raise(wrong);
  const detail::schedule s = detail::plan<Kernel>(backend, form, in, y);
  return detail::bytes_for(s.slots, s.bytes_per_slot);
}

}  // namespace BILA_RAISING

}  // namespace bila::inline v0_1
