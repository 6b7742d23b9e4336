// SPDX-License-Identifier: Apache-2.0
// Type-erased views of a mask and of a norm. Checks, plans and forms reach a mask or a norm only through the function pointers
// here. So the code of a call serves every mask and every norm, and is compiled once for each number type.
#pragma once

#include <bila/call/checks.hpp>
#include <bila/call/gradients.hpp>
#include <bila/call/segments.hpp>
#include <bila/config.hpp>
#include <bila/mask/concepts.hpp>
#include <bila/norm/concepts.hpp>
#include <bila/norm/quotient.hpp>
#include <bila/view/number.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// A view of any mask, for a call in Real. Checks use the pointers once a call. Forms use them for many tokens at a time.
template <class Real>
struct mask_view {
  const void* mask = nullptr;
  bool gapped = false;         // false: the mask is pairwise, and `gaps` has no meaning
  bila::gap gaps = gap::none;  // the granularity of the decay
  bool orders_tokens = true;
  index_t heads = 0;  // heads of the mask's parameters; 0: as many as y has

  /// Writes the log decays of gaps [first, first + count) of a batch row, crossed in direction `way`. Null if the mask is pairwise.
  void (*ask_log_decays)(const void* mask, index_t b, index_t h, direction way, index_t first, index_t count, double* to) = nullptr;
  /// Writes the weights of queries [first, first + count) for key j. Null if the mask is gapped.
  void (*ask_weights)(const void* mask, index_t b, index_t h, index_t first, index_t count, index_t j, double* to) = nullptr;

  /// Returns what is wrong with the mask's parameters, for a y of B batch rows, H heads and L tokens.
  error_message (*ask_wrong)(const void* mask, index_t B, index_t H, index_t L) = nullptr;
  /// Returns an error if one of these outputs overlaps the mask's parameters in memory.
  error_message (*ask_overlap)(const void* mask, detail::named_tensors outputs) = nullptr;
  /// Names the parameter that holds the log decay of gap t, for an error message.
  std::string (*ask_place)(const void* mask, direction way, index_t b, index_t h, index_t t) = nullptr;

  // For a gradient. Null if the mask does not turn the gradients of its gaps into the gradient of a parameter.
  per_axis (*ask_parameter_shape)(const void* mask) = nullptr;
  void (*ask_pull_back_tokens)(const void* mask, index_t b, index_t h, const segment& piece, const double* forward,
                               const double* backward, const tensor_view<Real>& to) = nullptr;
  void (*ask_pull_back_head)(const void* mask, index_t h, double forward, double backward, const tensor_view<Real>& to) = nullptr;
};

template <class Real, class Mask>
void add_checks(mask_view<Real>& view) {
  view.ask_wrong = [](const void* any, index_t B, index_t H, index_t L) {
    return detail::check_parameters(*static_cast<const Mask*>(any), B, H, L);
  };
  view.ask_overlap = [](const void* any, detail::named_tensors outputs) {
    return detail::check_gates_apart(outputs, *static_cast<const Mask*>(any));
  };
  view.ask_place = [](const void* any, direction way, index_t b, index_t h, index_t t) {
    if constexpr (names_parameters<Mask>)
      return std::string(static_cast<const Mask*>(any)->parameter_of(way, b, h, t));
    else
      return message("mask.log_", way == direction::forward ? "forward" : "backward", "(b = ", b, ", h = ", h, ", t = ", t, ")");
  };
}

template <class Real, class Mask>
mask_view<Real> view_of_mask(const Mask& mask) {
  mask_view<Real> view;
  view.mask = &mask;
  view.orders_tokens = bila::orders_tokens<Mask>;
  if constexpr (has_heads<Mask>) view.heads = mask.heads();
  add_checks<Real, Mask>(view);
  if constexpr (gapped<Mask>) {
    view.gapped = true;
    view.gaps = Mask::gaps;
    view.ask_log_decays = [](const void* any, index_t b, index_t h, direction way, index_t first, index_t count, double* to) {
      const Mask& asked = *static_cast<const Mask*>(any);
      for (index_t t = 0; t < count; ++t)
        to[t] = way == direction::forward ? asked.log_forward(b, h, first + t) : asked.log_backward(b, h, first + t);
    };
  } else {
    view.ask_weights = [](const void* any, index_t b, index_t h, index_t first, index_t count, index_t j, double* to) {
      const Mask& asked = *static_cast<const Mask*>(any);
      for (index_t i = 0; i < count; ++i) to[i] = asked.weight(b, h, first + i, j);
    };
  }
  return view;
}

/// Adds to view_of_mask() the pointers that turn the gradients of gaps into a parameter's gradient. Only a gradient needs them.
template <class Real, class Mask>
mask_view<Real> view_with_pull_back(const Mask& mask) {
  mask_view<Real> view = view_of_mask<Real>(mask);
  if constexpr (detail::has_log_decay<Mask, Real>) {
    view.ask_parameter_shape = [](const void* any) { return std::get<0>(static_cast<const Mask*>(any)->parameters()).extents; };
    if constexpr (Mask::gaps == gap::per_token)
      view.ask_pull_back_tokens = [](const void* any, index_t b, index_t h, const segment& piece, const double* forward,
                                     const double* backward, const tensor_view<Real>& to) {
        static_cast<const Mask*>(any)->pull_back(b, h, piece.first, piece.count, forward, backward, to);
      };
    else
      view.ask_pull_back_head = [](const void* any, index_t h, double forward, double backward, const tensor_view<Real>& to) {
        static_cast<const Mask*>(any)->pull_back(h, forward, backward, to);
      };
  }
  return view;
}

/// A mask restricted to one segment of one head. Tokens and gaps count from the segment's first token.
template <class Real>
struct head_mask : mask_view<Real> {
  index_t b, h, first;  // batch row, head of the mask's parameters, first token of the segment

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
};

/// A view of any norm, for row sums in Real.
template <class Real>
struct norm_view {
  const void* norm = nullptr;
  bool uses_row_sum = false;

  error_message (*ask_wrong)(const void* norm) = nullptr;  // returns what is wrong with the norm's numbers

  bool (*ask_row_scales)(const void* norm, Real* out, const Real* z, index_t n, double scale) = nullptr;
  quotient<Real> (*ask_quotient)(const void* norm, Real Z, double scale) = nullptr;
  double (*ask_slopes)(const void* norm, Real* a, Real* b, const rows<const Real>& Z, const double* dots, index_t n,
                       double scale) = nullptr;  // null except for a gradient

  /// Writes out_i with y_i = out_i N_i. Returns false if some rows have no such factor: they get 1, for divide_exceptional_rows().
  bool row_scales(Real* out, const Real* z, index_t n, double scale) const { return ask_row_scales(norm, out, z, n, scale); }

  quotient<Real> quotient_of(Real Z, double scale) const { return ask_quotient(norm, Z, scale); }

  /// Writes the slopes a_i, b_i of tokens with row sums Z and dots_i = dy_i . y_i. Returns their part in the scale's gradient.
  double slopes(Real* a, Real* b, const rows<const Real>& Z, const double* dots, index_t n, double scale) const {
    return ask_slopes(norm, a, b, Z, dots, n, scale);
  }
};

template <class Real, class Norm>
norm_view<Real> view_of_norm(const Norm& norm) {
  norm_view<Real> view;
  view.norm = &norm;
  view.uses_row_sum = Norm::uses_row_sum;
  view.ask_wrong = [](const void* any) { return detail::check_itself(*static_cast<const Norm*>(any)); };
  view.ask_row_scales = [](const void* any, Real* out, const Real* z, index_t n, double scale) {
    return norm::row_scales(out, z, n, *static_cast<const Norm*>(any), scale);
  };
  view.ask_quotient = [](const void* any, Real Z, double scale) {
    return (*static_cast<const Norm*>(any))(Z, static_cast<Real>(scale));
  };
  return view;
}

/// Adds the slopes to view_of_norm(). Only a gradient needs them.
template <class Real, differentiable_normaliser Norm>
norm_view<Real> view_with_slopes(const Norm& norm) {
  norm_view<Real> view = view_of_norm<Real>(norm);
  view.ask_slopes = [](const void* any, Real* a, Real* b, const rows<const Real>& Z, const double* dots, index_t n, double scale) {
    double total = 0;
    for (index_t i = 0; i < n; ++i) {
      const slope<Real> by = static_cast<const Norm*>(any)->slope(Norm::uses_row_sum ? Z(i, 0) : Real(0), static_cast<Real>(scale),
                                                                  static_cast<Real>(dots[i]));
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
