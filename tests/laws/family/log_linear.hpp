// SPDX-License-Identifier: Apache-2.0
// Calls with weights of levels, drawn at random, and their definition in long double:
//
//     M_ij = w^F_i[l(i, j)] exp(f_{j+1} + ... + f_i)    j < i,   w^B_i[l(i, j)] exp(b_{i+1} + ... + b_j)   j > i,
//            delta (w^F_i[0] + w^B_i[0]) / 2, one way delta w_i[0]   i = j;   l(i, j) = bit_width(i xor j), from the segment's
//            start
#pragma once

#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace test {

using bila::direction;
using bila::gate;

enum class gaps { none, per_head, per_token };

/// A call's shape and options.
struct level_options {
  index_t B = 1, H = 1, Hq = 1, Hk = 1, Hv = 1, Hg = 1, Hw = 1, L = 1, Dk = 1, Dv = 1, spare = 0;  // spare: levels that nobody has
  gaps kind = gaps::per_token;
  gate crossing = gate::source;
  bila::direction way = bila::direction::both;
  divisor norm = divisor::one;
  double eps = 1e-3, scale = 1, diagonal = 1, strongest = 1;  // strongest: of the log decays
  bool positive = false, cuts = false;
  std::vector<index_t> offsets, lengths;
  layout where[7] = {};

  index_t levels() const {
    return static_cast<index_t>(std::bit_width(static_cast<std::uint64_t>(std::max<index_t>(L, 1) - 1))) + 1 + spare;
  }

  /// The segment of token t: its first token and its length, 0 for padding.
  std::pair<index_t, index_t> segment(index_t b, index_t t) const {
    for (std::size_t n = 1; n < offsets.size(); ++n)
      if (offsets[n - 1] <= t && t < offsets[n]) return {offsets[n - 1], offsets[n] - offsets[n - 1]};
    if (lengths.empty()) return {0, L};
    return {0, t < lengths[static_cast<std::size_t>(b)] ? lengths[static_cast<std::size_t>(b)] : 0};
  }

  std::string name() const {
    std::ostringstream s;
    s << "B " << B << " H " << H << '/' << Hq << Hk << Hv << Hg << Hw << " L " << L << " Dk " << Dk << " Dv " << Dv << " gaps "
      << static_cast<int>(kind) << " gate " << static_cast<int>(crossing) << " way " << static_cast<int>(way) << " norm "
      << static_cast<int>(norm) << " scale " << scale << " diagonal " << diagonal << " segments " << offsets.size() << " lengths "
      << lengths.size();
    return s.str();
  }
};

inline index_t one_of(random_source& random, std::initializer_list<index_t> choices) {
  return choices.begin()[random.below(static_cast<std::int64_t>(choices.size()))];
}

inline level_options random_options(random_source& random, index_t most_tokens, index_t most_features) {
  level_options x;
  x.H = one_of(random, {1, 2, 4});
  x.B = 1 + random.below(2);
  for (index_t* const heads : {&x.Hq, &x.Hk, &x.Hv, &x.Hg, &x.Hw}) *heads = random.below(2) == 0 ? x.H : 1;
  x.L = 1 + random.below(most_tokens);
  x.Dk = 1 + random.below(most_features);
  x.Dv = 1 + random.below(most_features);
  x.spare = random.below(3);
  x.kind = static_cast<gaps>(random.below(4) == 0 ? random.below(3) : 2);
  x.crossing = static_cast<gate>(random.below(4));
  x.way = static_cast<bila::direction>(random.below(2) == 0 ? 0 : random.below(3));
  x.norm = static_cast<divisor>(random.below(3));
  x.positive = x.norm == divisor::row_sum;
  x.cuts = random.below(4) == 0;
  x.scale = random.uniform(0.25, 2);
  x.diagonal = random.below(2) == 0 ? 1 : random.uniform(0, 2);
  x.strongest = random.below(2) == 0 ? 0.05 : 2;
  if (random.below(3) == 0) {
    x.B = 1;
    x.offsets.push_back(0);
    while (x.offsets.back() < x.L) x.offsets.push_back(std::min(x.L, x.offsets.back() + random.below(x.L / 2 + 2)));
  } else if (random.below(2) == 0) {
    for (index_t b = 0; b < x.B; ++b) x.lengths.push_back(random.below(x.L + 1));
  }
  for (layout& where : x.where)
    where = random.below(2) == 0 ? layout::bhld : all_layouts[static_cast<std::size_t>(random.below(6))];
  return x;
}

template <class T>
struct level_call {
  using Real = bila::real_of<T>;
  level_options x;
  tensor<T> q, k, v, dy;
  tensor<Real> a, w[2];  // log decays [B, Hg, L] or [1, Hg, 1]; weights of levels, forward and backward

  level_call(const level_options& options, random_source& random)
      : x(options),
        q(x.B, x.Hq, x.L, x.Dk, x.where[0]),
        k(x.B, x.Hk, x.L, x.Dk, x.where[1]),
        v(x.B, x.Hv, x.L, x.Dv, x.where[2]),
        dy(x.B, x.H, x.L, x.Dv, x.where[3]),
        a(x.B, x.Hg, x.L, 1, x.where[4]) {
    for (auto* const t : {&q, &k}) fill(*t, random, x.positive ? 0.125 : -1);
    for (auto* const t : {&v, &dy}) fill(*t, random, -1);
    a.for_each([&](Real& g, index_t, index_t, index_t, index_t) {
      g = x.cuts && random.below(8) == 0 ? -std::numeric_limits<Real>::infinity()
                                         : static_cast<Real>(-x.strongest * std::fabs(random.uniform(-1, 1)));
    });
    if (x.kind == gaps::per_head)
      a.for_each([&](Real& g, index_t, index_t h, index_t, index_t) { g = static_cast<Real>(-0.01 * static_cast<double>(h + 1)); });
    for (auto& weights : w) {
      weights = tensor<Real>(x.B, x.Hw, x.L, x.levels(), x.where[&weights == w ? 5 : 6]);
      weights.for_each([&](Real& to, index_t b, index_t, index_t t, index_t l) {  // NaN where nobody may look
        const auto count = static_cast<std::uint64_t>(x.segment(b, t).second);
        const bool used = count > 0 && l <= static_cast<index_t>(std::bit_width(count - 1));
        const double drawn = random.uniform(x.positive ? 0.125 : -1, 1);
        to = used ? static_cast<Real>(drawn) : not_a_number<Real>;
      });
    }
  }

  static void fill(tensor<T>& t, random_source& random, double low) {
    t.for_each([&](T& to, index_t, index_t, index_t, index_t) { to = T(static_cast<Real>(random.uniform(low, 1))); });
  }

  bila::inputs<T> in() const {
    bila::inputs<T> to{q.view(), k.view(), v.view()};
    to.scale = x.scale;
    to.diagonal = x.diagonal;
    to.direction = x.way;
    to.offsets = x.offsets;
    to.lengths = x.lengths;
    return to;
  }

  /// Calls use(the mask of gaps).
  template <class Use>
  void with_gaps(const Use& use) const {
    if (x.kind == gaps::none) return use(bila::mask::all_ones{});
    if (x.kind == gaps::per_token) return use(bila::mask::selective_decay{a.view(), x.crossing});
    const auto all = a.view();
    use(bila::mask::fixed_decay{bila::tensor_view<const Real>{all.data, {1, x.Hg, 1, 1}, {0, all.strides[1], 0, 0}}});
  }

  template <class Use>
  void with_mask(const Use& use) const {
    with_gaps([&](const auto& gaps_alone) { use(bila::mask::log_linear{gaps_alone, w[0].view(), w[1].view()}); });
  }

  template <class Use>
  void with_norm(const Use& use) const {
    if (x.norm == divisor::one) return use(bila::norm::none{});
    if (x.norm == divisor::max_one) return use(bila::norm::max_one{});
    use(bila::norm::row_sum{x.eps});
  }
};

/// The numbers of a call in long double, in logical order.
struct level_numbers {
  level_options x;
  std::vector<wide> q, k, v, dy, a, w[2];
  wide scale = 0, diagonal = 0;

  template <class T>
  explicit level_numbers(const level_call<T>& from) : x(from.x), scale(from.x.scale), diagonal(from.x.diagonal) {
    const auto copy = [](std::vector<wide>& to, const auto& t) {
      t.for_each([&](const auto& element, index_t, index_t, index_t, index_t) {
        to.push_back(static_cast<wide>(static_cast<double>(element)));
      });
    };
    copy(q, from.q), copy(k, from.k), copy(v, from.v), copy(dy, from.dy), copy(a, from.a);
    copy(w[0], from.w[0]), copy(w[1], from.w[1]);
  }

  wide log_gap(bila::direction way, index_t b, index_t h, index_t t) const {
    if (x.kind == gaps::none) return 0;
    const bool earlier =
        x.crossing == gate::earlier || x.crossing == (way == bila::direction::forward ? gate::source : gate::target);
    return at(a, b, h, x.Hg, x.kind == gaps::per_head ? 0 : earlier ? t - 1 : t, 0, 1);
  }

  wide at(const std::vector<wide>& of, index_t b, index_t h, index_t heads, index_t t, index_t d, index_t width) const {
    return of[static_cast<std::size_t>(((b * heads + h / (x.H / heads)) * x.L + t) * width + d)];
  }

  wide weight(bila::direction way, index_t b, index_t h, index_t t, index_t l) const {
    return at(w[way == bila::direction::backward], b, h, x.Hw, t, l, x.levels());
  }
};

/// y of the definition. closest: how near a row of norm::max_one comes to its kink.
inline answer definition(const level_numbers& in, wide* closest = nullptr) {
  const level_options& x = in.x;
  constexpr auto forward = bila::direction::forward, backward = bila::direction::backward;
  const auto count = static_cast<std::size_t>(x.B * x.H * x.L * x.Dv);
  answer result{x.H, x.L, x.Dv, std::vector<wide>(count), std::vector<wide>(count), std::vector<wide>(count)};
  for (index_t b = 0; b < x.B; ++b)
    for (index_t h = 0; h < x.H; ++h)
      for (index_t i = 0; i < x.L; ++i) {
        const auto [first, tokens] = x.segment(b, i);
        if (tokens == 0) continue;
        detail::gathered row{std::vector<wide>(static_cast<std::size_t>(x.Dv)), std::vector<wide>(static_cast<std::size_t>(x.Dv))};
        row.reach = wide(tokens) * wide(x.Dk) * 4;
        const auto gather = [&](index_t j, wide M) {
          wide score = 0, size = 0;
          for (index_t c = 0; c < x.Dk; ++c) {
            const wide product = in.at(in.q, b, h, x.Hq, i, c, x.Dk) * in.at(in.k, b, h, x.Hk, j, c, x.Dk);
            score += product;
            size += std::fabs(product);
          }
          row.Z += score *= M;
          row.size_Z += size *= std::fabs(M);
          for (index_t d = 0; d < x.Dv; ++d) {
            const wide value = in.at(in.v, b, h, x.Hv, j, d, x.Dv);
            row.N[static_cast<std::size_t>(d)] += score * value;
            row.size_N[static_cast<std::size_t>(d)] += size * std::fabs(value);
          }
        };
        const wide own = x.way == bila::direction::both ? (in.weight(forward, b, h, i, 0) + in.weight(backward, b, h, i, 0)) / 2
                                                        : in.weight(x.way, b, h, i, 0);
        gather(i, in.diagonal * own);
        const auto level = [&, start = first](index_t j) {
          return index_t(std::bit_width(static_cast<std::uint64_t>((i - start) ^ (j - start))));
        };
        wide M = 1;
        for (index_t j = i - 1; j >= first && x.way != backward; --j) {
          M *= std::exp(in.log_gap(forward, b, h, j + 1));
          gather(j, M * in.weight(forward, b, h, i, level(j)));
        }
        M = 1;
        for (index_t j = i + 1; j < first + tokens && x.way != forward; ++j) {
          M *= std::exp(in.log_gap(backward, b, h, j));
          gather(j, M * in.weight(backward, b, h, i, level(j)));
        }
        if (closest != nullptr) *closest = std::fmin(*closest, std::fabs(std::fabs(in.scale * row.Z) - 1));
        detail::leave(result, result.place(b, h, i, 0), row, in.scale, {x.norm, x.eps});
      }
  return result;
}

inline wide loss(const level_numbers& in) {
  const answer y = definition(in);
  wide sum = 0;
  for (std::size_t n = 0; n < y.y.size(); ++n) sum += y.y[n] * in.dy[n];
  return sum;
}

/// The results of a call and of its gradient.
template <class T>
struct level_results {
  using Real = bila::real_of<T>;
  tensor<T> y, dq, dk, dv;
  tensor<Real> row_sum, da, df, db, dw[2];
  double scale = 0, diagonal = 0;

  explicit level_results(const level_call<T>& of, layout where = layout::bhld)
      : y(of.x.B, of.x.H, of.x.L, of.x.Dv, where),
        dq(of.x.B, of.x.Hq, of.x.L, of.x.Dk, where),
        dk(of.x.B, of.x.Hk, of.x.L, of.x.Dk, where),
        dv(of.x.B, of.x.Hv, of.x.L, of.x.Dv, where),
        row_sum(of.x.B, of.x.H, of.x.L, 1, where),
        da(of.x.kind == gaps::per_head ? 1 : of.x.B, of.x.Hg, of.x.kind == gaps::per_head ? 1 : of.x.L, 1, where),
        df(of.x.B, of.x.H, of.x.L, 1, where),
        db(of.x.B, of.x.H, of.x.L, 1, where) {
    for (auto& weights : dw) weights = tensor<Real>(of.x.B, of.x.Hw, of.x.L, of.x.levels(), where);
  }

  friend bool same_bits(const level_results& r, const level_results& s) {
    return same_bits(r.y, s.y) && same_bits(r.dq, s.dq) && same_bits(r.dk, s.dk) && same_bits(r.dv, s.dv) &&
           same_bits(r.df, s.df) && same_bits(r.db, s.db) && same_bits(r.dw[0], s.dw[0]) && same_bits(r.dw[1], s.dw[1]);
  }

  bool intact() const {
    return y.intact() && dq.intact() && dk.intact() && dv.intact() && row_sum.intact() && da.intact() && df.intact() &&
           db.intact() && dw[0].intact() && dw[1].intact();
  }
};

template <class Form, class T>
void run_forward(const bila::cpu& backend, const Form& form, const level_call<T>& x, level_results<T>& to) {
  x.with_norm([&](const auto& norm) {
    x.with_mask([&](const auto& mask) {
      bila::attend(backend, form, mask, norm, x.in(), bila::outputs<T>{to.y.view(), to.row_sum.view()});
    });
  });
}

template <class Form, class T>
void run_gradient(const bila::cpu& backend, const Form& form, const level_call<T>& x, level_results<T>& to) {
  bila::gradients<T> wanted;
  wanted.q = to.dq.view();
  wanted.k = to.dk.view();
  wanted.v = to.dv.view();
  if (x.x.kind != gaps::none) wanted.log_decay = to.da.view();
  wanted.log_forward = to.df.view();
  wanted.log_backward = to.db.view();
  wanted.levels_forward = to.dw[0].view();
  wanted.levels_backward = to.dw[1].view();
  wanted.scale = &to.scale;
  wanted.diagonal = &to.diagonal;
  const level_results<T>& read = to;
  x.with_norm([&](const auto& norm) {
    x.with_mask([&](const auto& mask) {
      bila::gradient(backend, form, mask, norm, x.in(), {read.y.view(), read.row_sum.view()}, {x.dy.view()}, wanted);
    });
  });
}

}  // namespace test
