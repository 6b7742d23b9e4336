// SPDX-License-Identifier: Apache-2.0
// The loss of a lesson by its definition, and its derivatives by differences.
#include "support/gradient.hpp"

#include <cmath>

namespace test {

namespace {

carried<double> random_state(random_source& random, const lesson<double>& x, double low, bool enters) {
  const sizes& size = x.x.size;
  const index_t n = x.sequences();
  carried<double> state{{n, size.H, size.Dk, size.Dv}, {n, size.H, size.Dk, 1}, {}};
  state.S.fill_uniform(random, -1, 1);
  state.z.fill_uniform(random, low, 1);
  if (!enters) return state;
  state.log_decay = {n, size.H, 1, 1};
  state.log_decay.fill_uniform(random, -1, -0.1);
  return state;
}

/// Tokens [first, last) of batch row b that see each other.
struct sequence {
  index_t b, first, last;
};

std::vector<sequence> sequences_of(const problem<double>& x) {
  std::vector<sequence> result;
  for (std::size_t n = 1; n < x.offsets.size(); ++n) result.push_back({0, x.offsets[n - 1], x.offsets[n]});
  for (index_t b = 0; b < x.size.B && x.offsets.empty(); ++b)
    result.push_back({b, 0, x.lengths.empty() ? x.size.L : x.lengths[static_cast<std::size_t>(b)]});
  return result;
}

/// A state of one head: S and, as its last column, z.
class running {
 public:
  running(const carried<double>& from, index_t n, index_t h, const sizes& size)
      : columns_(size.Dv + 1), S_(static_cast<std::size_t>(size.Dk * columns_)) {
    if (!from.given()) return;
    for (index_t c = 0; c < size.Dk; ++c)
      for (index_t d = 0; d < columns_; ++d) at(c, d) = d < size.Dv ? from.S(n, h, c, d) : from.z(n, h, c);
  }

  wide& at(index_t c, index_t d) { return S_[static_cast<std::size_t>(c * columns_ + d)]; }
  void add(const running& other) {
    for (std::size_t n = 0; n < S_.size(); ++n) S_[n] += other.S_[n];
  }
  void decay(wide lambda) {
    for (wide& s : S_) s *= lambda;
  }

 private:
  index_t columns_;
  std::vector<wide> S_;
};

wide lambda(double log) { return std::exp(wide(std::fmin(log, 0.0))); }

}  // namespace

lesson<double> random_lesson(random_source& random, const sizes& size, mask_kind kind, const any_norm& norm) {
  lesson<double> x{random_problem<double>(random, size, kind, norm), {size.B, size.H, size.L, size.Dv}};
  if (std::holds_alternative<bila::norm::row_sum>(norm)) {
    x.x.q.fill_uniform(random, 0.2, 1);
    x.x.k.fill_uniform(random, 0.2, 1);
  }
  // No decay is so near one that a step of a difference makes it a growth.
  x.x.gates.fill_uniform(random, -1.5, -0.001);
  x.x.other_gates.fill_uniform(random, -1.5, -0.001);
  x.dy.fill_uniform(random, -1, 1);
  return x;
}

void add_states(lesson<double>& x, random_source& random) {
  const double low = x.row_sums() ? 0.2 : -1;
  if (x.looks(bila::direction::forward)) {
    x.initial_forward = random_state(random, x, low, true);
    x.by_forward = random_state(random, x, -1, false);
  }
  if (x.looks(bila::direction::backward)) {
    x.initial_backward = random_state(random, x, low, true);
    x.by_backward = random_state(random, x, -1, false);
  }
}

// Two scans over the states before and after each token, which the token itself is not in.
defined by_definition(const lesson<double>& x) {
  const problem<double>& p = x.x;
  const sizes& size = p.size;
  const index_t H = size.H, L = size.L, Dk = size.Dk, Dv = size.Dv;
  const gap_logs gaps = p.gaps();
  const auto room = [](index_t n) { return std::vector<wide>(static_cast<std::size_t>(n)); };
  const index_t n_states = x.sequences() * H * Dk;
  defined result{room(size.B * H * L * Dv), room(size.B * H * L), room(n_states * Dv), room(n_states),
                 room(n_states * Dv),       room(n_states)};

  const std::vector<sequence> all = sequences_of(p);
  for (std::size_t n = 0; n < all.size(); ++n)
    for (index_t h = 0; h < H; ++h) {
      const auto [b, first, last] = all[n];
      const index_t s = static_cast<index_t>(n), hq = h / (H / p.q.extent(1)), hk = h / (H / p.k.extent(1)),
                    hv = h / (H / p.v.extent(1));
      const auto gap = [&, row = b](const std::vector<double>& logs, index_t t) {
        return logs.empty() ? wide(1) : lambda(logs[static_cast<std::size_t>((row * H + h) * L + t)]);
      };
      std::vector<wide> rows = room((last - first) * (Dv + 1));
      const auto row = [&, start = first](index_t i, index_t d) -> wide& {
        return rows[static_cast<std::size_t>((i - start) * (Dv + 1) + d)];
      };
      const auto value = [&, r = b](index_t j, index_t d) { return d < Dv ? wide(p.v(r, hv, j, d)) : wide(1); };
      const auto read = [&, r = b](index_t i, running& S) {
        for (index_t d = 0; d <= Dv; ++d)
          for (index_t c = 0; c < Dk; ++c) row(i, d) += p.q(r, hq, i, c) * S.at(c, d);
      };
      const auto write = [&, r = b](index_t j, running& S) {
        for (index_t d = 0; d <= Dv; ++d)
          for (index_t c = 0; c < Dk; ++c) S.at(c, d) += p.k(r, hk, j, c) * value(j, d);
      };
      const auto keep = [&](running& S, const carried<double>& by, std::vector<wide>& to_S, std::vector<wide>& to_z) {
        for (index_t c = 0; c < Dk; ++c) {
          const index_t place = (s * H + h) * Dk + c;
          for (index_t d = 0; d < Dv; ++d) {
            to_S[static_cast<std::size_t>(place * Dv + d)] = S.at(c, d);
            if (by.given()) result.loss += by.S(s, h, c, d) * S.at(c, d);
          }
          to_z[static_cast<std::size_t>(place)] = S.at(c, Dv);
          if (by.given() && x.row_sums()) result.loss += by.z(s, h, c) * S.at(c, Dv);
        }
      };
      const index_t keys = p.key_lengths.empty() ? p.k.extent(2) : p.key_lengths[static_cast<std::size_t>(b)];  // if it crosses
      const auto enter = [&](const carried<double>& from, running& S) {
        if (from.given() && from.log_decay.extent(0) > 0 && !(rows.empty() && (!p.crosses() || keys == 0)))
          S.decay(lambda(from.log_decay(s, h, 0)));
      };

      if (p.crosses()) {
        running own({}, s, h, size), before(x.initial_forward, s, h, size), after(x.initial_backward, s, h, size);
        for (index_t j = 0; j < keys; ++j) write(j, own);
        enter(x.initial_forward, before);
        enter(x.initial_backward, after);
        running seen = own;
        seen.add(before), seen.add(after), before.add(own), after.add(own);
        for (index_t i = first; i < last; ++i) read(i, seen);
        keep(before, x.by_forward, result.S_forward, result.z_forward);
        keep(after, x.by_backward, result.S_backward, result.z_backward);
      } else if (x.looks(bila::direction::forward)) {
        running S(x.initial_forward, s, h, size);
        enter(x.initial_forward, S);
        for (index_t i = first; i < last; ++i) {
          if (i > first) S.decay(gap(gaps.forward, i));
          read(i, S);
          write(i, S);
        }
        keep(S, x.by_forward, result.S_forward, result.z_forward);
      }
      if (!p.crosses() && x.looks(bila::direction::backward)) {
        running S(x.initial_backward, s, h, size);
        enter(x.initial_backward, S);
        for (index_t i = last - 1; i >= first; --i) {
          if (i + 1 < last) S.decay(gap(gaps.backward, i + 1));
          read(i, S);
          write(i, S);
        }
        keep(S, x.by_backward, result.S_backward, result.z_backward);
      }
      for (index_t i = first; i < last; ++i) {
        wide own = 0;
        for (index_t c = 0; c < Dk && !p.crosses(); ++c) own += p.diagonal * wide(p.q(b, hq, i, c)) * p.k(b, hk, i, c);
        for (index_t d = 0; d <= Dv && !p.crosses(); ++d) row(i, d) += own * value(i, d);
        const wide Z = row(i, Dv);
        wide factor = p.scale, divisor = 1;
        if (const auto* sum = std::get_if<bila::norm::row_sum>(&p.norm)) {
          factor = 1;
          divisor = Z + sum->eps;
        } else if (std::holds_alternative<bila::norm::max_one>(p.norm)) {
          divisor = std::fmax(std::fabs(p.scale * Z), wide(1));
          result.from_kink = std::fmin(result.from_kink, std::fabs(std::fabs(p.scale * Z) - 1));
        }
        result.row_sum[static_cast<std::size_t>((b * H + h) * L + i)] = Z;
        for (index_t d = 0; d < Dv; ++d) {
          const wide y = divisor == 0 ? wide(0) : factor * row(i, d) / divisor;
          result.y[static_cast<std::size_t>(((b * H + h) * L + i) * Dv + d)] = y;
          result.loss += x.dy(b, h, i, d) * y;
        }
      }
    }
  return result;
}

void leave_kinks(lesson<double>& x) {
  while (by_definition(x).from_kink < 2e-3L) x.x.scale *= 1.01;
}

std::vector<parameter> parameters_of(const lesson<double>& x) {
  using L = lesson<double>;
  using G = learned<double>;
  using V = tensor<double>;
  std::vector<parameter> all{
      {"q", [](L& of) -> V& { return of.x.q; }, [](const G& to) -> const V& { return to.q; }},
      {"k", [](L& of) -> V& { return of.x.k; }, [](const G& to) -> const V& { return to.k; }},
      {"v", [](L& of) -> V& { return of.x.v; }, [](const G& to) -> const V& { return to.v; }},
  };
  if (x.has_log_decay())
    all.push_back({"log_decay", [](L& of) -> V& { return of.x.gates; }, [](const G& to) -> const V& { return to.log_decay; }});
  if (x.x.kind == mask_kind::two_sided) {
    all.push_back({"log_forward", [](L& of) -> V& { return of.x.gates; }, [](const G& to) -> const V& { return to.log_forward; }});
    all.push_back(
        {"log_backward", [](L& of) -> V& { return of.x.other_gates; }, [](const G& to) -> const V& { return to.log_backward; }});
  }
  if (x.initial_forward.given()) {
    all.push_back({"initial_forward.S", [](L& of) -> V& { return of.initial_forward.S; },
                   [](const G& to) -> const V& { return to.initial_forward.S; }});
    if (x.row_sums())
      all.push_back({"initial_forward.z", [](L& of) -> V& { return of.initial_forward.z; },
                     [](const G& to) -> const V& { return to.initial_forward.z; }});
    if (x.initial_forward.log_decay.extent(0) > 0)
      all.push_back({"initial_forward.log_decay", [](L& of) -> V& { return of.initial_forward.log_decay; },
                     [](const G& to) -> const V& { return to.initial_forward.log_decay; }});
  }
  if (x.initial_backward.given()) {
    all.push_back({"initial_backward.S", [](L& of) -> V& { return of.initial_backward.S; },
                   [](const G& to) -> const V& { return to.initial_backward.S; }});
    if (x.row_sums())
      all.push_back({"initial_backward.z", [](L& of) -> V& { return of.initial_backward.z; },
                     [](const G& to) -> const V& { return to.initial_backward.z; }});
    if (x.initial_backward.log_decay.extent(0) > 0)
      all.push_back({"initial_backward.log_decay", [](L& of) -> V& { return of.initial_backward.log_decay; },
                     [](const G& to) -> const V& { return to.initial_backward.log_decay; }});
  }
  return all;
}

namespace {

// (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h. What is cut off grows as h^4, and the rounding of x + h in double as 1/h.
template <class Move>
wide derivative(const Move& move) {
  constexpr double h = 0x1p-16;
  const auto pair = [&](double t) { return move(t) - move(-t); };
  return (8 * pair(h) - pair(2 * h)) / (12 * h);
}

}  // namespace

directional::directional(const lesson<double>& x, random_source& random) : crosses_(x.x.crosses()) {
  for (const parameter& of : parameters_of(x)) {
    lesson<double> moved = x;
    tensor<double>& value = of.value(moved);
    const tensor<double> start = value;
    tensor<double> direction = start;
    direction.for_each([&](double& d, index_t, index_t, index_t, index_t) { d = std::isinf(d) ? 0 : random.uniform(-1, 1); });
    const wide slope = derivative([&](double t) {
      value.for_each([&](double& to, index_t b, index_t h, index_t l, index_t d) {
        to = std::isinf(start(b, h, l, d)) ? start(b, h, l, d) : start(b, h, l, d) + t * direction(b, h, l, d);
      });
      return by_definition(moved).loss;
    });
    lines_.push_back({of, std::move(direction), slope});
  }
  lesson<double> moved = x;
  scale_ = derivative([&](double t) {
    moved.x.scale = x.x.scale + t;
    return by_definition(moved).loss;
  });
  moved = x;
  diagonal_ = derivative([&](double t) {
    moved.x.diagonal = x.x.diagonal + t;
    return by_definition(moved).loss;
  });
}

directional::verdict directional::judge(const learned<double>& found) const {
  verdict result;
  const auto look = [&result](const char* name, wide slope, wide expected, wide size) {
    const wide units = std::fabs(slope - expected) / (1e-9L * (1 + size));
    if (units <= result.worst) return;
    result = {static_cast<double>(std::isnan(units) ? std::numeric_limits<wide>::infinity() : units), name};
  };
  for (const line& l : lines_) {
    wide slope = 0, size = 0;
    l.of.slope(found).for_each([&](const double& g, index_t b, index_t h, index_t i, index_t d) {
      slope += wide(g) * l.direction(b, h, i, d);
      size += std::fabs(wide(g) * l.direction(b, h, i, d));
    });
    look(l.of.name, slope, l.slope, size);
  }
  look("scale", found.scale, scale_, std::fabs(wide(found.scale)));
  if (!crosses_) look("diagonal", found.diagonal, diagonal_, std::fabs(wide(found.diagonal)));
  return result;
}

}  // namespace test
