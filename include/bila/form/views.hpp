// SPDX-License-Identifier: Apache-2.0
// Type-erased views of a mask and of a norm. Checks, plans and forms reach a mask or a norm only through the function pointers
// here. So the code of a call serves every mask and every norm, and is compiled once for each number type.
#pragma once

#include <bila/call/checks.hpp>
#include <bila/call/gradients.hpp>
#include <bila/call/segments.hpp>
#include <bila/config.hpp>
#include <bila/form/ends.hpp>
#include <bila/kernel/tile.hpp>
#include <bila/mask/concepts.hpp>
#include <bila/norm/concepts.hpp>
#include <bila/norm/quotient.hpp>
#include <bila/view/number.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// A mask whose decays per channel lie in memory, a row for each gap.
template <class Mask>
concept has_gate_rows = requires(const Mask& mask, index_t n) {
  mask.gate_row(direction::forward, n, n, n).column_stride;
};

/// A view of any mask, for a call in Real. Checks use the pointers once a call. Forms use them for many tokens at a time.
template <class Real>
struct mask_view {
  const void* mask = nullptr;
  const void* outer = nullptr;  // the mask or rule of the call; `mask` is the part of it that has the gaps
  bool gapped = false;          // false: the mask is pairwise, and `gaps` has no meaning
  bila::gap gaps = gap::none;   // the granularity of the decay
  bool orders_tokens = true;
  bool per_channel = false;                                 // whether each channel has decays of its own
  bool exclusive = false;                                   // whether a query does not read through the gap next to it
  index_t channels = 0;                                     // channels of the gaps' parameters; 0: as many as q has
  index_t heads = 0;                                        // heads of the gaps' parameters; 0: as many as y has
  detail::own_parameter own = detail::own_parameter::none;  // what the mask or rule has besides gaps
  index_t own_heads = 0;                                    // heads of this parameter; 0: as many as y has
  index_t levels = 1;                                       // numbers per token of this parameter

  /// Writes the log decays of gaps [first, first + count) of a batch row, crossed in direction `way`. Null if the mask is pairwise.
  void (*ask_log_decays)(const void* mask, index_t b, index_t h, direction way, index_t first, index_t count, double* to) = nullptr;
  /// Writes the weights of queries [first, first + count) for key j. Null if the mask is gapped.
  void (*ask_weights)(const void* mask, index_t b, index_t h, index_t first, index_t count, index_t j, double* to) = nullptr;
  /// The farthest two tokens can be apart with a weight other than zero. Null if any distance can have one.
  index_t (*ask_reach)(const void* mask, index_t b, index_t h) = nullptr;

  /// Writes the log decays of gaps [first, first + count), Dk numbers for each gap, `stride` apart; positive ones become 0.
  void (*ask_channels)(const void* mask, index_t b, index_t h, direction way, index_t first, index_t count, index_t Dk, Real* to,
                       index_t stride) = nullptr;
  /// Writes the weights of the channels for a query's own token.
  void (*ask_bonus)(const void* outer, index_t h, index_t Dk, Real* to) = nullptr;
  /// Returns what is wrong with these weights.
  error_message (*ask_wrong_bonus)(const void* outer, index_t h, index_t Dk) = nullptr;
  /// Returns what is wrong with the values of the decays inside a segment. Null if gaps have one decay.
  error_message (*ask_wrong_channels)(const void* mask, index_t b, index_t h, const segment& piece, index_t Dk) = nullptr;
  /// Writes the log weights of keys [first, first + count).
  void (*ask_log_weights)(const void* outer, index_t b, index_t h, index_t first, index_t count, double* to) = nullptr;
  /// Writes how much of what the state holds for its key each of the tokens [first, first + count) replaces, in direction `way`.
  void (*ask_strengths)(const void* outer, direction way, index_t b, index_t h, index_t first, index_t count, Real* to) = nullptr;
  /// Writes the weights of levels [0, levels) of queries [first, first + count), `stride` numbers for each query.
  void (*ask_levels)(const void* outer, direction way, index_t b, index_t h, index_t first, index_t count, index_t levels, Real* to,
                     index_t stride) = nullptr;

  /// Returns what is wrong with the mask's parameters, for a y of B batch rows, H heads and L tokens.
  error_message (*ask_wrong)(const void* outer, index_t B, index_t H, index_t L) = nullptr;
  /// Returns what is wrong with the values of the parameter `own` inside segments. Null if there is none.
  error_message (*ask_wrong_values)(const void* outer, index_t b, index_t h, const segment& piece) = nullptr;
  /// Returns an error if one of these outputs overlaps the mask's parameters in memory.
  error_message (*ask_overlap)(const void* outer, detail::named_tensors outputs) = nullptr;
  /// Names the parameter that holds the log decay of gap t, for an error message.
  std::string (*ask_place)(const void* mask, direction way, index_t b, index_t h, index_t t) = nullptr;

  // For a gradient. Null if the mask does not turn the gradients of its gaps into the gradient of a parameter.
  per_axis (*ask_parameter_shape)(const void* mask) = nullptr;
  /// The row of the parameter that gives the decays per channel of gap t.
  index_t (*ask_parameter_row)(const void* mask, direction way, index_t t) = nullptr;
  void (*ask_pull_back_tokens)(const void* mask, index_t b, index_t h, const segment& piece, const double* forward,
                               const double* backward, const tensor_view<Real>& to) = nullptr;
  void (*ask_pull_back_head)(const void* mask, index_t h, double forward, double backward, const tensor_view<Real>& to) = nullptr;
};

template <class Real, class Mask, class Gaps>
void add_checks(mask_view<Real>& view) {
  view.ask_wrong = [](const void* any, index_t B, index_t H, index_t L) {
    const Mask& asked = *static_cast<const Mask*>(any);
    error_message wrong = detail::check_parameters(asked, B, H, L);
    if constexpr (!std::is_same_v<Mask, Gaps>)
      if (wrong.empty()) wrong = detail::check_parameters(detail::gaps_of(asked), B, H, L);
    return wrong;
  };
  view.ask_overlap = [](const void* any, detail::named_tensors outputs) {
    const Mask& asked = *static_cast<const Mask*>(any);
    error_message wrong = detail::check_gates_apart(outputs, asked);
    if constexpr (!std::is_same_v<Mask, Gaps>)
      if (wrong.empty()) wrong = detail::check_gates_apart(outputs, detail::gaps_of(asked));
    return wrong;
  };
  view.ask_place = [](const void* any, direction way, index_t b, index_t h, index_t t) {
    if constexpr (names_parameters<Gaps> && gapped<Gaps>)
      return std::string(static_cast<const Gaps*>(any)->parameter_of(way, b, h, t));
    else
      return message("mask.log_", way == direction::forward ? "forward" : "backward", "(b = ", b, ", h = ", h, ", t = ", t, ")");
  };
}

/// Adds the pointers to the parameter that a mask or rule has besides its gaps.
template <class Real, class Mask>
void add_own_parameter(mask_view<Real>& view, const Mask& mask) {
  if constexpr (has_own_heads<Mask>) view.own_heads = mask.own_heads();
  if constexpr (weighs_keys<Mask>) {
    view.own = detail::own_parameter::log_weight;
    view.ask_log_weights = [](const void* any, index_t b, index_t h, index_t first, index_t count, double* to) {
      for (index_t t = 0; t < count; ++t) to[t] = static_cast<const Mask*>(any)->log_weight(b, h, first + t);
    };
    view.ask_wrong_values = [](const void* any, index_t b, index_t h, const segment& piece) -> error_message {
      for (index_t t = piece.first; t < piece.first + piece.count; ++t)
        if (const double w = static_cast<const Mask*>(any)->log_weight(b, h, t); !(w <= (std::numeric_limits<double>::max)()))
          return message("log_weight(b = ", b, ", h = ", h, ", t = ", t, ") = ", w, ", it must be a number or -inf");
      return {};
    };
  } else if constexpr (ruled<Mask>) {
    view.own = detail::own_parameter::betas;
    if constexpr (requires { mask.one_strength(); })
      if (mask.one_strength()) view.own = detail::own_parameter::beta;
    view.ask_strengths = [](const void* any, direction way, index_t b, index_t h, index_t first, index_t count, Real* to) {
      for (index_t t = 0; t < count; ++t) to[t] = static_cast<Real>(static_cast<const Mask*>(any)->strength(way, b, h, first + t));
    };
    view.ask_wrong_values = [](const void* any, index_t b, index_t h, const segment& piece) -> error_message {
      for (index_t t = piece.first; t < piece.first + piece.count; ++t)
        for (const direction way : {direction::forward, direction::backward})
          if (const double beta = static_cast<const Mask*>(any)->strength(way, b, h, t); !(beta >= 0 && beta <= 2))
            return message("strength(", way == direction::forward ? "forward" : "backward", ", b = ", b, ", h = ", h, ", t = ", t,
                           ") = ", beta, ", beta must be in [0, 2]");
      return {};
    };
  } else if constexpr (reads_exclusively<Mask>) {
    view.own = detail::own_parameter::bonus;
    view.exclusive = true;
    view.ask_bonus = [](const void* any, index_t h, index_t Dk, Real* to) {
      for (index_t d = 0; d < Dk; ++d) to[d] = static_cast<Real>(static_cast<const Mask*>(any)->bonus(h, d));
    };
    view.ask_wrong_bonus = [](const void* any, index_t h, index_t Dk) -> error_message {
      for (index_t d = 0; d < Dk; ++d)
        if (const double u = static_cast<const Mask*>(any)->bonus(h, d); !detail::is_finite(u))
          return message("bonus(h = ", h, ", d = ", d, ") = ", u, ", it must be finite");
      return {};
    };
  } else if constexpr (leveled<Mask>) {
    view.own = detail::own_parameter::levels;
    view.levels = mask.levels();
    view.ask_levels = [](const void* any, direction way, index_t b, index_t h, index_t first, index_t count, index_t levels,
                         Real* to, index_t stride) {
      for (index_t t = 0; t < count; ++t)
        for (index_t l = 0; l < levels; ++l)
          to[t * stride + l] = static_cast<Real>(static_cast<const Mask*>(any)->level(way, b, h, first + t, l));
    };
    view.ask_wrong_values = [](const void* any, index_t b, index_t h, const segment& piece) -> error_message {
      const Mask& asked = *static_cast<const Mask*>(any);
      const auto used =
          static_cast<index_t>(std::bit_width(static_cast<std::uint64_t>((std::max<index_t>)(piece.count, 1) - 1))) + 1;
      if (piece.count > 0 && asked.levels() < used)
        return message("the mask has ", asked.levels(), " levels, but ", piece.count, " tokens have ", used);
      for (index_t t = piece.first; t < piece.first + piece.count; ++t)
        for (const direction way : {direction::forward, direction::backward})
          for (index_t l = 0; l < used; ++l)
            if (const double w = asked.level(way, b, h, t, l); !detail::is_finite(w))
              return message("level(", way == direction::forward ? "forward" : "backward", ", b = ", b, ", h = ", h, ", t = ", t,
                             ", l = ", l, ") = ", w, ", it must be finite");
      return {};
    };
  }
}

/// Adds the pointers to decays per channel.
template <class Real, class Mask>
void add_channels(mask_view<Real>& view, const Mask& gaps) {
  view.gapped = true;
  view.gaps = gap::per_token;
  view.per_channel = true;
  if constexpr (has_channels<Mask>) view.channels = gaps.channels();
  view.ask_channels = [](const void* any, index_t b, index_t h, direction way, index_t first, index_t count, index_t Dk, Real* to,
                         index_t stride) {
    const Mask& asked = *static_cast<const Mask*>(any);
    const auto copy = [Dk](Real* row, const auto& at) {
      for (index_t d = 0; d < Dk; ++d) row[d] = (std::min)(Real(0), static_cast<Real>(at(d)));
    };
    for (index_t t = first; t < first + count; ++t, to += stride) {
      if constexpr (has_gate_rows<Mask>) {
        const auto row = asked.gate_row(way, b, h, t);
        if (row.column_stride == 1)
          copy(to, [x = row.data](index_t d) { return x[d]; });
        else
          copy(to, [&](index_t d) { return row(0, d); });
      } else {
        copy(to,
             [&](index_t d) { return way == direction::forward ? asked.log_forward(b, h, t, d) : asked.log_backward(b, h, t, d); });
      }
    }
  };
  view.ask_wrong_channels = [](const void* any, index_t b, index_t h, const segment& piece, index_t Dk) -> error_message {
    const Mask& asked = *static_cast<const Mask*>(any);
    for (index_t t = piece.first + 1; t < piece.first + piece.count; ++t)
      for (const direction way : {direction::forward, direction::backward}) {
        if constexpr (has_gate_rows<Mask>)
          if (const auto row = asked.gate_row(way, b, h, t); row.column_stride == 1 && detail::are_log_decays(row.data, Dk))
            continue;
        for (index_t d = 0; d < Dk; ++d) {
          const double log = way == direction::forward ? asked.log_forward(b, h, t, d) : asked.log_backward(b, h, t, d);
          if (!detail::is_log_decay(log))
            return message("mask.log_", way == direction::forward ? "forward" : "backward", "(b = ", b, ", h = ", h, ", t = ", t,
                           ", d = ", d, ") = ", log, ", a log decay must be <= 0");
        }
      }
    return {};
  };
}

template <class Real, class Mask>
mask_view<Real> view_of_mask(const Mask& mask) {
  using Gaps = std::remove_cvref_t<decltype(detail::gaps_of(mask))>;
  const Gaps& gaps = detail::gaps_of(mask);
  mask_view<Real> view;
  view.mask = &gaps;
  view.outer = &mask;
  view.orders_tokens = bila::orders_tokens<Mask>;
  if constexpr (has_heads<Gaps>) view.heads = gaps.heads();
  add_checks<Real, Mask, Gaps>(view);
  add_own_parameter<Real>(view, mask);
  if constexpr (channelled<Gaps>) {
    add_channels(view, gaps);
  } else if constexpr (gapped<Gaps>) {
    view.gapped = true;
    view.gaps = Gaps::gaps;
    view.ask_log_decays = [](const void* any, index_t b, index_t h, direction way, index_t first, index_t count, double* to) {
      const Gaps& asked = *static_cast<const Gaps*>(any);
      for (index_t t = 0; t < count; ++t)
        to[t] = way == direction::forward ? asked.log_forward(b, h, first + t) : asked.log_backward(b, h, first + t);
    };
  } else {
    view.ask_weights = [](const void* any, index_t b, index_t h, index_t first, index_t count, index_t j, double* to) {
      const Mask& asked = *static_cast<const Mask*>(any);
      for (index_t i = 0; i < count; ++i) to[i] = asked.weight(b, h, first + i, j);
    };
    if constexpr (banded<Mask>)
      view.ask_reach = [](const void* any, index_t b, index_t h) -> index_t { return static_cast<const Mask*>(any)->reach(b, h); };
  }
  return view;
}

/// Adds to view_of_mask() the pointers that turn the gradients of gaps into a parameter's gradient. Only a gradient needs them.
template <class Real, class Mask>
mask_view<Real> view_with_pull_back(const Mask& mask) {
  using Gaps = std::remove_cvref_t<decltype(detail::gaps_of(mask))>;
  mask_view<Real> view = view_of_mask<Real>(mask);
  if constexpr (channelled<Gaps> && requires { std::declval<const Gaps&>().log_decay.extents; }) {
    view.ask_parameter_shape = [](const void* any) { return static_cast<const Gaps*>(any)->log_decay.extents; };
    view.ask_parameter_row = [](const void* any, direction way, index_t t) { return static_cast<const Gaps*>(any)->token(way, t); };
  } else if constexpr (detail::has_log_decay<Gaps, Real>) {
    view.ask_parameter_shape = [](const void* any) { return std::get<0>(static_cast<const Gaps*>(any)->parameters()).extents; };
    if constexpr (Gaps::gaps == gap::per_token)
      view.ask_pull_back_tokens = [](const void* any, index_t b, index_t h, const segment& piece, const double* forward,
                                     const double* backward, const tensor_view<Real>& to) {
        static_cast<const Gaps*>(any)->pull_back(b, h, piece.first, piece.count, forward, backward, to);
      };
    else
      view.ask_pull_back_head = [](const void* any, index_t h, double forward, double backward, const tensor_view<Real>& to) {
        static_cast<const Gaps*>(any)->pull_back(h, forward, backward, to);
      };
  }
  return view;
}

/// A mask restricted to one segment of one head. Tokens and gaps count from the segment's first token.
template <class Real>
struct head_mask : mask_view<Real> {
  index_t b, h, first;                   // batch row, head of the gaps' parameters, first token of the segment
  index_t own_head = 0;                  // head of the parameter besides the gaps
  const key_ends<Real>* ends = nullptr;  // the weights of keys; null if the mask has none

  /// Writes the log decays of gaps [t, t + count). The checks accept log decays up to 1e-6; positive ones become 0 here.
  void log_decays(direction way, index_t t, index_t count, double* to) const {
    this->ask_log_decays(this->mask, b, h, way, first + t, count, to);
    for (index_t n = 0; n < count; ++n) to[n] = (std::min)(0.0, to[n]);
  }

  double decay(direction way, index_t t) const {
    double log = 0;
    log_decays(way, t, 1, &log);
    return std::exp(log);
  }

  void weights(index_t i, index_t count, index_t j, double* to) const {
    this->ask_weights(this->mask, b, h, first + i, count, first + j, to);
  }

  /// Writes the log decays per channel of gaps [t, t + rows of `to`).
  void channels(direction way, index_t t, const kernel::tile<Real>& to) const {
    this->ask_channels(this->mask, b, h, way, first + t, to.rows, to.columns, to.data, to.stride);
  }

  void bonus(index_t Dk, Real* to) const { this->ask_bonus(this->outer, own_head, Dk, to); }

  void log_weights(index_t t, index_t count, double* to) const {
    this->ask_log_weights(this->outer, b, own_head, first + t, count, to);
  }

  void strengths(direction way, index_t t, index_t count, Real* to) const {
    this->ask_strengths(this->outer, way, b, own_head, first + t, count, to);
  }

  void level_weights(direction way, index_t t, index_t count, index_t wanted, Real* to, index_t stride) const {
    this->ask_levels(this->outer, way, b, own_head, first + t, count, wanted, to, stride);
  }

  /// The distance between tokens beyond which weights are zero; at most 2^48, so that sums with places do not overflow.
  index_t reach() const {
    constexpr index_t any = index_t{1} << 48;
    return this->ask_reach == nullptr ? any : (std::min)(any, this->ask_reach(this->mask, b, h));
  }
};

/// A view of any norm, for row sums in Real.
template <class Real>
struct norm_view {
  const void* norm = nullptr;
  bool uses_row_sum = false;

  error_message (*ask_wrong)(const void* norm) = nullptr;  // returns what is wrong with the norm's numbers

  // `unit` is read only if the mask weighs keys: see relative_normaliser.
  bool (*ask_row_scales)(const void* norm, Real* out, const Real* z, index_t n, double scale, const Real* unit) = nullptr;
  quotient<Real> (*ask_quotient)(const void* norm, Real Z, double scale, const Real* unit) = nullptr;
  double (*ask_slopes)(const void* norm, Real* a, Real* b, const rows<const Real>& Z, const double* dots, index_t n, double scale,
                       const Real* unit) = nullptr;  // null except for a gradient

  /// Writes out_i with y_i = out_i N_i. Returns false if some rows have no such factor: they get 1, for divide_exceptional_rows().
  bool row_scales(Real* out, const Real* z, index_t n, double scale, const Real* unit = nullptr) const {
    return ask_row_scales(norm, out, z, n, scale, unit);
  }

  /// `unit` points to that of the row.
  quotient<Real> quotient_of(Real Z, double scale, const Real* unit = nullptr) const { return ask_quotient(norm, Z, scale, unit); }

  /// Writes the slopes a_i, b_i of tokens with row sums Z and dots_i = dy_i . y_i. Returns their part in the scale's gradient.
  double slopes(Real* a, Real* b, const rows<const Real>& Z, const double* dots, index_t n, double scale,
                const Real* unit = nullptr) const {
    return ask_slopes(norm, a, b, Z, dots, n, scale, unit);
  }
};

/// Relative: the mask weighs keys, so the norm is asked with the rows' units.
template <class Real, bool Relative = false, class Norm>
norm_view<Real> view_of_norm(const Norm& norm) {
  norm_view<Real> view;
  view.norm = &norm;
  view.uses_row_sum = Norm::uses_row_sum;
  view.ask_wrong = [](const void* any) { return detail::check_itself(*static_cast<const Norm*>(any)); };
  view.ask_row_scales = [](const void* any, Real* out, const Real* z, index_t n, double scale, [[maybe_unused]] const Real* unit) {
    const Norm& asked = *static_cast<const Norm*>(any);
    if constexpr (Relative)
      return norm::scales_of(
          out, n, [&](index_t i) { return asked(Norm::uses_row_sum ? z[i] : Real(0), static_cast<Real>(scale), unit[i]); });
    else
      return norm::row_scales(out, z, n, asked, scale);
  };
  view.ask_quotient = [](const void* any, Real Z, double scale, [[maybe_unused]] const Real* unit) {
    if constexpr (Relative)
      return (*static_cast<const Norm*>(any))(Z, static_cast<Real>(scale), *unit);
    else
      return (*static_cast<const Norm*>(any))(Z, static_cast<Real>(scale));
  };
  return view;
}

/// Adds the slopes to view_of_norm(). Only a gradient needs them.
template <class Real, bool Relative = false, differentiable_normaliser Norm>
norm_view<Real> view_with_slopes(const Norm& norm) {
  norm_view<Real> view = view_of_norm<Real, Relative>(norm);
  view.ask_slopes = [](const void* any, Real* a, Real* b, const rows<const Real>& Z, const double* dots, index_t n, double scale,
                       [[maybe_unused]] const Real* unit) {
    double total = 0;
    const auto slope_of = [&](index_t i) {
      const Real z = Norm::uses_row_sum ? Z(i, 0) : Real(0);
      if constexpr (Relative)
        return static_cast<const Norm*>(any)->slope(z, static_cast<Real>(scale), static_cast<Real>(dots[i]), unit[i]);
      else
        return static_cast<const Norm*>(any)->slope(z, static_cast<Real>(scale), static_cast<Real>(dots[i]));
    };
    for (index_t i = 0; i < n; ++i) {
      const slope<Real> by = slope_of(i);
      a[i] = by.numerator;
      b[i] = by.row_sum;
      total += static_cast<double>(by.scale);
    }
    return total;
  };
  return view;
}

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
