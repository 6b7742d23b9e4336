// SPDX-License-Identifier: Apache-2.0
// One call with everything it reads: random tensors, a mask, a norm and the options, for the library and for the oracle alike.
#pragma once

#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/run.hpp"
#include "support/tensor.hpp"

#include <array>
#include <string>
#include <vector>

namespace test {

enum class mask_kind { all_ones, fixed, later, source, target, earlier, two_sided };

inline constexpr std::array all_masks{mask_kind::all_ones, mask_kind::fixed,   mask_kind::later,    mask_kind::source,
                                      mask_kind::target,   mask_kind::earlier, mask_kind::two_sided};

inline constexpr std::array all_directions{bila::direction::both, bila::direction::forward, bila::direction::backward};

inline std::string name_of(mask_kind mask) {
  constexpr std::array names{"all_ones", "fixed", "later", "source", "target", "earlier", "two_sided"};
  return names[static_cast<std::size_t>(mask)];
}

inline std::string name_of(bila::direction direction) {
  constexpr std::array names{"both", "forward", "backward"};
  return names[static_cast<std::size_t>(direction)];
}

/// Heads of q, k, v: zero stands for H. Lk: negative stands for L.
struct sizes {
  index_t B = 1, H = 1, L = 1, Dk = 1, Dv = 1;
  index_t Hq = 0, Hk = 0, Hv = 0, Lk = -1;
};

template <class T>
struct problem {
  sizes size;
  mask_kind kind;
  any_norm norm;
  tensor<T> q, k, v;
  tensor<double> gates, other_gates;  // [B, H, L, 1], log decays: per token (or f and b); [1, H, 1, 1] for a fixed mask; or H / n
  double scale = 1, diagonal = 1;
  bila::direction direction = bila::direction::both;
  std::vector<index_t> offsets = {}, lengths = {}, key_lengths = {};

  bila::inputs<T> inputs() const {
    bila::inputs<T> in{q.view(), k.view(), v.view(), scale, diagonal, direction, offsets, lengths};
    in.key_lengths = key_lengths;
    return in;
  }

  /// Whether the keys are not the queries' tokens.
  bool crosses() const { return !key_lengths.empty() || k.extent(2) != q.extent(2); }

  any_mask mask() const {
    switch (kind) {
      case mask_kind::all_ones:
        return bila::mask::all_ones{};
      case mask_kind::fixed:
        return bila::mask::fixed_decay<double>{gates.view()};
      case mask_kind::later:
        return bila::mask::selective_decay<double>{gates.view(), bila::gate::later};
      case mask_kind::source:
        return bila::mask::selective_decay<double>{gates.view(), bila::gate::source};
      case mask_kind::target:
        return bila::mask::selective_decay<double>{gates.view(), bila::gate::target};
      case mask_kind::earlier:
        return bila::mask::selective_decay<double>{gates.view(), bila::gate::earlier};
      case mask_kind::two_sided:
        break;
    }
    return bila::mask::two_sided<double>{gates.view(), other_gates.view()};
  }

  /// The gaps by the table of conventions: later a_t, a_t; source a_{t-1}, a_t; target a_t, a_{t-1}; earlier a_{t-1}, a_{t-1}.
  gap_logs gaps() const {
    gap_logs result;
    if (kind == mask_kind::all_ones) return result;
    for (index_t b = 0; b < size.B; ++b)
      for (index_t h = 0; h < size.H; ++h)
        for (index_t t = 0; t < size.L; ++t) {
          double f = 0, g = 0;
          const index_t gate = h / (size.H / gates.extent(1));
          if (kind == mask_kind::fixed) {
            f = g = gates(0, gate, 0);
          } else if (t > 0) {
            const double own = gates(b, gate, t), previous = gates(b, gate, t - 1);
            f = kind == mask_kind::source || kind == mask_kind::earlier ? previous : own;
            g = kind == mask_kind::target || kind == mask_kind::earlier ? previous : own;
            if (kind == mask_kind::two_sided) g = other_gates(b, gate, t);
          }
          result.forward.push_back(f);
          result.backward.push_back(g);
        }
    return result;
  }

  normalisation rule() const {
    if (const auto* row_sum = std::get_if<bila::norm::row_sum>(&norm)) return {divisor::row_sum, row_sum->eps};
    return {std::holds_alternative<bila::norm::max_one>(norm) ? divisor::max_one : divisor::one, 0};
  }

  answer exact() const { return definition(inputs(), size.H, gaps(), rule()); }

  /// A tensor that y may be written to; poisoned with a finite number, so that an element that is not written stays NaN.
  tensor<T> output(layout where = layout::bhld) const { return {size.B, size.H, size.L, size.Dv, where, T(1e30)}; }

  wide worst_error(const tensor<T>& y, const answer& exact_answer) const {
    return worst(y, exact_answer, size.Lk < 0 ? size.L : size.Lk, size.Dk);
  }

  std::string name() const {
    const auto number = [](const char* what, index_t n) { return std::string(" ") + what + "=" + std::to_string(n); };
    std::string words = name_of(kind) + " " + name_of(norm) + " " + name_of(direction) + number("B", size.B) + number("H", size.H) +
                        number("L", size.L) + number("Dk", size.Dk) + number("Dv", size.Dv) +
                        " diagonal=" + std::to_string(diagonal) + " scale=" + std::to_string(scale) +
                        (std::is_same_v<T, float> ? " float" : " double");
    if (size.Lk >= 0) words += number("Lk", size.Lk);
    for (const index_t offset : offsets) words += number("offset", offset);
    for (const index_t length : lengths) words += number("length", length);
    return words;
  }
};

/// Random q, k in [0.1, 1] for a row sum, which must not vanish, else in [-1, 1]; v in [-1, 1]; log decays in [-1.5, 0].
template <class T>
problem<T> random_problem(random_source& random, const sizes& size, mask_kind kind, const any_norm& norm) {
  const index_t Lk = size.Lk < 0 ? size.L : size.Lk;
  const auto heads = [&size](index_t n) { return n == 0 ? size.H : n; };
  const bool per_head = kind == mask_kind::fixed;
  problem<T> result{size,
                    kind,
                    norm,
                    {size.B, heads(size.Hq), size.L, size.Dk},
                    {size.B, heads(size.Hk), Lk, size.Dk},
                    {size.B, heads(size.Hv), Lk, size.Dv},
                    {per_head ? 1 : size.B, size.H, per_head ? 1 : size.L, 1},
                    {size.B, size.H, size.L, 1}};
  const double low = std::holds_alternative<bila::norm::row_sum>(norm) ? 0.1 : -1;
  result.q.fill_uniform(random, low, 1);
  result.k.fill_uniform(random, low, 1);
  result.v.fill_uniform(random, -1, 1);
  result.gates.fill_uniform(random, -1.5, 0);
  result.other_gates.fill_uniform(random, -1.5, 0);
  return result;
}

/// The same numbers in double.
inline problem<double> widened(const problem<float>& x) {
  const auto widen = [](const tensor<float>& from) {
    tensor<double> to(from.extent(0), from.extent(1), from.extent(2), from.extent(3));
    to.for_each([&from](double& y, index_t b, index_t h, index_t l, index_t d) { y = static_cast<double>(from(b, h, l, d)); });
    return to;
  };
  return {x.size,        x.kind,  x.norm,     widen(x.q),  widen(x.k), widen(x.v), x.gates,
          x.other_gates, x.scale, x.diagonal, x.direction, x.offsets,  x.lengths};
}

/// y = attend(...) into fresh memory with poison around it; `intact` says whether only elements of y were written.
template <class T>
struct outcome {
  tensor<T> y;
  bool intact;
};

template <class T>
outcome<T> evaluate(const any_form& form, const problem<T>& x, const bila::cpu& backend = {}, layout where = layout::bhld) {
  tensor<T> y = x.output(where);
  attend<T>(backend, form, x.mask(), x.norm, x.inputs(), y.view());
  const bool intact = y.intact() && x.q.intact() && x.k.intact() && x.v.intact();
  return {std::move(y), intact};
}

}  // namespace test
