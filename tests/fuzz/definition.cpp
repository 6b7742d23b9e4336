// SPDX-License-Identifier: Apache-2.0
// What a call must give, from the equations alone: every sum over all pairs, in long double. Beside each number stands its size,
// the same sum over absolute values: whatever the order of a sum, its rounding error is at most (number of roundings) u size.
#include "definition.hpp"

#include <algorithm>
#include <limits>

namespace fuzz {

namespace {

using wide = long double;

/// Larger than any size of which something can still be said.
constexpr wide hopeless = 1e4000L;

struct sized {
  wide value = 0, size = 0;

  void add(wide x) { add(x, std::fabs(x)); }
  void add(wide x, wide of_size) {
    value += x;
    size += of_size;
  }
  void add(const sized& x) { add(x.value, x.size); }
};

sized operator*(const sized& x, const sized& y) { return {x.value * y.value, x.size * y.size}; }
sized operator*(const sized& x, wide y) { return {x.value * y, x.size * std::fabs(y)}; }

/// Of a type of numbers: what rounding and the smallest number do.
struct precision {
  wide u, smallest, largest;
};

precision precision_of(number kind) {
  if (kind == number::f64) return {0x1p-53L, 0x1p-1021L, 1e300L};
  if (kind == number::f32) return {0x1p-24L, 0x1p-125L, 1e37L};
  if (kind == number::bf16) return {0x1p-8L, 0x1p-125L, 1e37L};
  return {0x1p-11L, 0x1p-24L, 65000};
}

/// Rows of numbers of one head.
struct matrix {
  matrix(index_t rows, index_t columns) : columns_(columns), x_(static_cast<std::size_t>(rows * columns)) {}
  sized& operator()(index_t i, index_t j) { return x_[static_cast<std::size_t>(i * columns_ + j)]; }
  const sized& operator()(index_t i, index_t j) const { return x_[static_cast<std::size_t>(i * columns_ + j)]; }

 private:
  index_t columns_;
  std::vector<sized> x_;
};

/// How far a state at one end of a sequence reaches, one way.
struct reach {
  std::vector<sized> read, write;  // from the initial state to query i; from key j to the final state
  sized through;
};

struct ends {
  bool initial, final;                  // there is one
  matrix S, loss;                       // (Dk, Dv + 1): the initial state, and the loss's gradient by the final one
  const state *from, *to, *by, *slope;  // in the call
};

/// One sequence of one head.
struct head {
  index_t b, h, n, first, count, keys;  // keys apart from count in cross attention
  matrix q, k, v, M, score;             // v has a last column of ones, M (count, keys)
  reach forward, backward;
  ends before, after;
};

class definition {
 public:
  explicit definition(const call& c, stage at) : c_(c), at_(at), size_(c.sizes(at)), real_(precision_of(real_of(c.type))) {}

  std::vector<expectation> results() {
    prepare();
    for (index_t b = 0; b < size_.B; ++b)
      for (index_t h = 0; h < size_.H; ++h)
        for (index_t n = 0; n < c_.segments(); ++n) {
          const head x = make(b, h, n);
          at_ == stage::forward ? forward(x) : gradient(x);
        }
    if (at_ == stage::forward && c_.add) add_to_y();
    return finish();
  }

 private:
  static constexpr bila::direction ways[] = {bila::direction::forward, bila::direction::backward};

  /// An output and the sums that it is rounded from.
  struct written {
    const view* where;
    number kind;
    std::vector<sized> sums;
    std::vector<wide> extra;  // what may be off besides the rounding of the sum
    wide roundings = 0;

    sized& at(index_t b, index_t h, index_t l, index_t d) { return sums[place(b, h, l, d)]; }
    wide& extra_at(index_t b, index_t h, index_t l, index_t d) { return extra[place(b, h, l, d)]; }
    std::size_t place(index_t b, index_t h, index_t l, index_t d) const {
      const auto& e = where->extents;
      return static_cast<std::size_t>(((b * e[1] + h) * e[2] + l) * e[3] + d);
    }
  };

  void expect(const view& x, number kind) {
    if (!x.given()) return;
    const auto n = static_cast<std::size_t>(x.extents[0] * x.extents[1] * x.extents[2] * x.extents[3]);
    all_.push_back({&x, kind, std::vector<sized>(n), std::vector<wide>(n), 0});
  }

  void expect(const state& x, bool log_decay) {
    if (!x.given()) return;
    expect(x.S, x.stored_in(c_));
    if (c_.row_sums()) expect(x.z, x.stored_in(c_));
    if (log_decay) expect(x.log_decay, real_of(c_.type));
  }

  void prepare() {
    const number real = real_of(c_.type);
    if (at_ == stage::forward) {
      expect(c_.y, c_.type);
      if (c_.row_sums()) expect(c_.row_sum, real);
      expect(c_.final_forward, false);
      expect(c_.final_backward, false);
      return;
    }
    for (const view* x : {&c_.to.q, &c_.to.k, &c_.to.v}) expect(*x, c_.type);
    for (const view* x : {&c_.to.log_decay, &c_.to.log_forward, &c_.to.log_backward, &c_.to.weights}) expect(*x, real);
    expect(c_.to.initial_forward, true);
    expect(c_.to.initial_backward, true);
  }

  written* find(const view& x) {
    for (written& w : all_)
      if (w.where == &x) return &w;
    return nullptr;
  }

  static void add(written* to, index_t b, index_t h, index_t l, index_t d, const sized& x) {
    if (to != nullptr) to->at(b, h, l, d).add(x);
  }

  /// What y holds is added to the result, which has been rounded.
  void add_to_y() {
    written& y = *find(c_.y);
    const precision stored = precision_of(c_.type);
    c_.y.each([&](index_t, index_t b, index_t h, index_t l, index_t d) {
      sized& x = y.at(b, h, l, d);
      const wide before = c_.at(c_.y, b, h, l, d);
      if (x.size != 0) y.extra_at(b, h, l, d) += stored.u * std::fabs(x.value) + stored.smallest;
      x = {x.value + before, x.size == 0 ? 0 : x.size + std::fabs(before)};
    });
  }

  std::vector<expectation> finish() {
    const auto& [B, H, L, Lk, Dk, Dv, cross, only_states] = size_;
    // Each key and each decay on the way is a few roundings, and so is each feature; the gradient does twice as much.
    const wide roundings = at_ == stage::forward ? wide(Dk + 4 * (L + Lk) + 32) : wide(Dk + 2 * Dv + 8 * (L + Lk) + 2 * H + 64);
    roundings_ = roundings;
    std::vector<expectation> results;
    for (written& w : all_) {
      const precision stored = precision_of(w.kind);
      expectation e{w.where, std::vector<double>(), std::vector<double>()};
      for (std::size_t n = 0; n < w.sums.size(); ++n) {
        const sized& x = w.sums[n];
        wide error = roundings * real_.u * x.size + w.extra[n];
        if (x.size != 0 || w.extra[n] != 0) error += stored.u * std::fabs(x.value) + stored.smallest + roundings * real_.smallest;
        const bool beyond = !(x.size <= real_.largest) || !(std::fabs(x.value) + error <= stored.largest);
        e.value.push_back(static_cast<double>(std::clamp(x.value, wide(-1e308), wide(1e308))));
        e.error.push_back(beyond ? std::numeric_limits<double>::infinity() : static_cast<double>(error));
      }
      results.push_back(std::move(e));
    }
    return results;
  }

 public:
  /// The same of the two gradients that are one number for a whole call.
  void scalars(double& scale, double& scale_error, double& diagonal, double& diagonal_error) const {
    const auto bound = [this](const sized& x, wide extra) {
      const wide error = roundings_ * real_.u * x.size + extra + (x.size == 0 ? 0 : roundings_ * real_.smallest);
      return !(x.size <= real_.largest) ? std::numeric_limits<double>::infinity() : static_cast<double>(error);
    };
    scale = static_cast<double>(scale_.value);
    scale_error = bound(scale_, 0);
    diagonal = static_cast<double>(diagonal_.value);
    diagonal_error = bound(diagonal_, 0);
  }

 private:
  matrix rows_of(index_t b, index_t h, const view& x, index_t first, index_t count) const {
    matrix m(count, x.extents[3]);
    for (index_t i = 0; i < count; ++i)
      for (index_t d = 0; d < x.extents[3]; ++d) m(i, d).add(c_.at(x, b, h / (size_.H / x.extents[1]), first + i, d));
    return m;
  }

  ends ends_of(index_t row, index_t h, const state& from, const state& to, const state& by, const state& slope) const {
    const index_t Dk = size_.Dk, Dv = size_.Dv;
    ends e{from.given(), to.given() || by.given() || slope.given(), matrix(Dk, Dv + 1), matrix(Dk, Dv + 1), &from, &to, &by,
           &slope};
    const auto read = [&](matrix& m, const state& x) {
      if (!x.given()) return;
      for (index_t a = 0; a < Dk; ++a) {
        for (index_t d = 0; d < Dv && x.S.given(); ++d) m(a, d).add(c_.at(x.S, row, h, a, d));
        if (c_.row_sums() && x.z.given()) m(a, Dv).add(c_.at(x.z, row, h, a, 0));
      }
    };
    read(e.S, from);
    if (at_ == stage::gradient) read(e.loss, by);
    return e;
  }

  /// A product of decays: below the smallest number it may be zero.
  sized weight(wide x) const { return {x, x == 0 ? 0 : std::fabs(x) + real_.smallest / real_.u}; }

  static wide decay(double log) { return std::exp(std::min(wide(0), wide(log))); }

  head make(index_t b, index_t h, index_t n) const {
    const index_t Dk = size_.Dk, Dv = size_.Dv;
    index_t first = 0, count = size_.L;
    if (!c_.offsets.empty()) {
      first = c_.offsets[static_cast<std::size_t>(n)];
      count = c_.offsets[static_cast<std::size_t>(n) + 1] - first;
    } else if (!c_.lengths.empty()) {
      count = c_.lengths[static_cast<std::size_t>(b)];
    }
    const index_t keys = !size_.cross ? count : c_.key_lengths.empty() ? size_.Lk : c_.key_lengths[static_cast<std::size_t>(b)];
    const index_t row = c_.offsets.empty() ? b : n;
    head x{b,
           h,
           n,
           first,
           count,
           keys,
           size_.only_states ? matrix(count, Dk) : rows_of(b, h, c_.q, first, count),
           rows_of(b, h, c_.k, first, keys),
           matrix(keys, Dv + 1),
           matrix(count, keys),
           matrix(count, keys),
           {},
           {},
           ends_of(row, h, c_.initial_forward, c_.final_forward, c_.by_forward, c_.to.initial_forward),
           ends_of(row, h, c_.initial_backward, c_.final_backward, c_.by_backward, c_.to.initial_backward)};
    const matrix v = rows_of(b, h, c_.v, first, keys);
    for (index_t j = 0; j < keys; ++j) {
      for (index_t d = 0; d < Dv; ++d) x.v(j, d) = v(j, d);
      x.v(j, Dv).add(1);
    }
    for (index_t i = 0; i < count; ++i)
      for (index_t j = 0; j < keys; ++j)
        for (index_t a = 0; a < Dk; ++a) x.score(i, j).add(x.q(i, a) * x.k(j, a));
    weigh(x, row, size_.cross);
    return x;
  }

  /// M, and what reaches the states at both ends.
  void weigh(head& x, index_t row, bool cross) const {
    const index_t m = x.keys;
    std::vector<wide> f, g;  // of gap t, 0 <= t <= m: gap 0 is the initial state's, gap m that of the backward one
    const auto enters = [&](const state& from) {
      return from.given() && from.log_decay.given() ? decay(c_.at(from.log_decay, row, x.h, 0, 0)) : wide(1);
    };
    for (index_t t = 0; t <= m; ++t) {
      const bool inside = t > 0 && t < m && c_.gapped() && !cross;
      f.push_back(inside ? decay(log_gap(c_, bila::direction::forward, x.b, x.h, x.first + t)) : wide(1));
      g.push_back(inside ? decay(log_gap(c_, bila::direction::backward, x.b, x.h, x.first + t)) : wide(1));
    }
    const auto at = [](std::vector<wide>& of, index_t t) -> wide& { return of[static_cast<std::size_t>(t)]; };
    at(f, 0) = enters(c_.initial_forward);
    at(g, m) = enters(c_.initial_backward);

    for (index_t j = 0; j < m; ++j) {
      if (cross || !c_.gapped()) {
        for (index_t i = 0; i < x.count; ++i) {
          const bool seen = cross || i == j || c_.looks(i > j ? bila::direction::forward : bila::direction::backward);
          const wide w = c_.gapped() ? 1 : wide(own_weight(x.b, x.h, x.first + i, x.first + j));
          if (seen) x.M(i, j).add(i == j && !cross ? w * c_.diagonal : w);
        }
        continue;
      }
      x.M(j, j).add(c_.diagonal);
      wide w = 1;
      for (index_t i = j + 1; i < x.count && c_.looks(bila::direction::forward); ++i) x.M(i, j) = weight(w *= at(f, i));
      w = 1;
      for (index_t i = j - 1; i >= 0 && c_.looks(bila::direction::backward); --i) x.M(i, j) = weight(w *= at(g, i + 1));
    }

    const auto product = [&](const std::vector<wide>& of, index_t from, index_t to) {
      wide w = 1;
      for (index_t t = from; t <= to; ++t) w *= of[static_cast<std::size_t>(t)];
      return weight(w);
    };
    for (index_t i = 0; i < x.count; ++i) {
      x.forward.read.push_back(product(f, 0, cross ? 0 : i));
      x.backward.read.push_back(product(g, cross ? m : i + 1, m));
    }
    for (index_t j = 0; j < m; ++j) {
      x.forward.write.push_back(product(f, j + 1, m - 1));
      x.backward.write.push_back(product(g, 1, j));
    }
    x.forward.through = m == 0 ? sized{1, 1} : product(f, 0, m - 1);
    x.backward.through = m == 0 ? sized{1, 1} : product(g, 1, m);
  }

  const reach& reach_of(const head& x, bila::direction way) const {
    return way == bila::direction::forward ? x.forward : x.backward;
  }
  const ends& ends_at(const head& x, bila::direction way) const { return way == bila::direction::forward ? x.before : x.after; }

  void forward(const head& x) {
    const index_t Dk = size_.Dk, Dv = size_.Dv;
    const wide error_per_size = wide(Dk + 4 * (size_.L + size_.Lk) + 32) * real_.u;
    written *const y = find(c_.y), *const row_sum = find(c_.row_sum);
    for (index_t i = 0; i < x.count && !size_.only_states; ++i) {
      std::vector<sized> N(static_cast<std::size_t>(Dv) + 1);
      for (index_t d = 0; d <= Dv; ++d) {
        sized& sum = N[static_cast<std::size_t>(d)];
        for (index_t j = 0; j < x.keys; ++j) sum.add(x.score(i, j) * x.M(i, j) * x.v(j, d));
        for (const auto way : ways)
          if (ends_at(x, way).initial)
            for (index_t a = 0; a < Dk; ++a)
              sum.add(x.q(i, a) * ends_at(x, way).S(a, d) * reach_of(x, way).read[static_cast<std::size_t>(i)]);
      }
      const sized Z = N.back();
      add(row_sum, x.b, x.h, x.first + i, 0, Z);
      for (index_t d = 0; d < Dv; ++d)
        divide(N[static_cast<std::size_t>(d)], Z, error_per_size, y->at(x.b, x.h, x.first + i, d),
               y->extra_at(x.b, x.h, x.first + i, d));
    }
    for (const auto way : ways) {
      const ends& e = ends_at(x, way);
      if (!e.to->given()) continue;
      const index_t row = c_.offsets.empty() ? x.b : x.n;
      written *const S = find(e.to->S), *const z = find(e.to->z);
      for (index_t a = 0; a < Dk; ++a)
        for (index_t d = 0; d <= Dv; ++d) {
          sized sum = e.S(a, d) * reach_of(x, way).through;
          for (index_t j = 0; j < x.keys; ++j) sum.add(x.k(j, a) * x.v(j, d) * reach_of(x, way).write[static_cast<std::size_t>(j)]);
          d < Dv ? add(S, row, x.h, a, d, sum) : add(z, row, x.h, a, 0, sum);
        }
    }
  }

  /// y = N / n(Z): the error of both, to first order and over the smallest divisor that it leaves.
  void divide(const sized& N, const sized& Z, wide error_per_size, sized& y, wide& extra) const {
    // A scale below the smallest number may count as zero.
    const wide s = c_.scale, lost = std::fabs(s) < real_.smallest ? std::fabs(s) * N.size : 0;
    const wide least = real_.smallest * error_per_size / real_.u;
    const wide eN = error_per_size * N.size + (N.size == 0 ? 0 : least), eZ = error_per_size * Z.size + (Z.size == 0 ? 0 : least);
    if (!(N.size <= real_.largest && Z.size <= real_.largest)) {
      extra = hopeless;
      return;
    }
    if (c_.norm == norm_kind::none) {
      y = N * s;
      extra = std::fabs(s) * eN + lost;
      return;
    }
    if (c_.norm == norm_kind::max_one) {
      const wide divisor = std::max(std::fabs(s * Z.value), wide(1)), smallest = std::max(wide(1), divisor - std::fabs(s) * eZ);
      y = N * (s / divisor);
      extra = std::fabs(s) * (eN + std::fabs(N.value / divisor * s) * eZ) / smallest + lost;
      return;
    }
    const wide divisor = Z.value + c_.eps, off = eZ + 2 * real_.u * (Z.size + c_.eps);
    if (divisor == 0 && off == 0) return;  // y is zero where nothing was summed
    if (std::fabs(divisor) <= 2 * off || std::fabs(divisor) < real_.smallest * 1e3L) {
      y = {0, 0};
      extra = hopeless;
      return;
    }
    y = N * (1 / divisor);
    extra = (eN + std::fabs(y.value) * off) / (std::fabs(divisor) - off);
  }

  /// Through the norm, from the y and the row sum that the call was given: dN = numerator dy, dZ.
  void slopes(const head& x, index_t i, sized& numerator, sized& dZ) {
    const index_t Dv = size_.Dv, l = x.first + i;
    sized dot;
    for (index_t d = 0; d < Dv; ++d) dot.add(wide(c_.at(c_.dy, x.b, x.h, l, d)) * wide(c_.at(c_.y, x.b, x.h, l, d)));
    const wide s = c_.scale, Z = c_.row_sums() && c_.row_sum.given() ? wide(c_.at(c_.row_sum, x.b, x.h, l, 0)) : 0;
    const auto by_scale = [&] {
      if (c_.to.scale) scale_.add(std::fabs(s) < real_.smallest ? sized{0, hopeless} : dot * (1 / s));
    };
    numerator = dZ = {};
    if (c_.norm == norm_kind::none) {
      numerator.add(s);
      by_scale();
    } else if (c_.norm == norm_kind::max_one) {
      const wide size = std::fabs(s * Z);
      if (size > 1) {
        numerator.add(s / size);
        dZ = dot * (-1 / Z);
      } else {
        numerator.add(s);
        by_scale();
      }
      if (std::fabs(size - 1) < 8 * real_.u) {  // at the kink both slopes are right
        dZ.size = hopeless;
        scale_.size += c_.to.scale ? hopeless : 0;
      }
    } else {
      const wide divisor = Z + c_.eps, size = std::fabs(Z) + c_.eps;
      if (divisor == 0 && (Z == 0 || c_.eps == 0)) return;
      if (std::fabs(divisor) < 8 * real_.u * size || std::fabs(divisor) < real_.smallest * 1e3L) {
        numerator.size = dZ.size = hopeless;
        return;
      }
      numerator.add(1 / divisor, size / (divisor * divisor));
      dZ = dot * sized{-1 / divisor, size / (divisor * divisor)};
    }
  }

  /// Sums over the pairs that cross a gap one way.
  struct crossings {
    explicit crossings(index_t keys) : steps(static_cast<std::size_t>(keys) + 2) {}
    void add(index_t from, index_t to, const sized& E) {  // gaps from..to
      if (from > to) return;
      steps[static_cast<std::size_t>(from)] += E.value;
      steps[static_cast<std::size_t>(to) + 1] -= E.value;
      size += E.size;
    }
    std::vector<wide> steps;
    wide size = 0;  // of all pairs: sums over tokens cancel down to those that cross
  };

  void gradient(const head& x) {
    const index_t Dk = size_.Dk, Dv = size_.Dv, m = x.keys;
    matrix dN(x.count, Dv + 1);
    for (index_t i = 0; i < x.count && !size_.only_states; ++i) {
      sized numerator, dZ;
      slopes(x, i, numerator, dZ);
      for (index_t d = 0; d < Dv; ++d) dN(i, d) = numerator * wide(c_.at(c_.dy, x.b, x.h, x.first + i, d));
      dN(i, Dv) = dZ;
    }
    const auto row_in = [&](const view& to) { return to.given() ? x.h / (size_.H / to.extents[1]) : 0; };
    written *const q = find(c_.to.q), *const k = find(c_.to.k), *const v = find(c_.to.v), *const weights = find(c_.to.weights);
    const index_t hq = row_in(c_.to.q), hk = row_in(c_.to.k), hv = row_in(c_.to.v), row = c_.offsets.empty() ? x.b : x.n;
    crossings f(m), g(m);

    for (index_t i = 0; i < x.count; ++i)
      for (index_t j = 0; j < m; ++j) {
        sized G;  // the loss's gradient by A_ij
        for (index_t d = 0; d <= Dv; ++d) G.add(dN(i, d) * x.v(j, d));
        const sized GM = G * x.M(i, j), AM = x.score(i, j) * x.M(i, j), E = GM * x.score(i, j);
        for (index_t a = 0; a < Dk; ++a) {
          add(q, x.b, hq, x.first + i, a, GM * x.k(j, a));
          add(k, x.b, hk, x.first + j, a, GM * x.q(i, a));
        }
        for (index_t d = 0; d < Dv; ++d) add(v, x.b, hv, x.first + j, d, AM * dN(i, d));
        if (size_.cross) continue;  // no key is a query's token
        if (i > j) f.add(j + 1, i, E);
        if (i < j) g.add(i + 1, j, E);
        if (i == j) {
          const wide own = c_.gapped() ? 1 : wide(own_weight(x.b, x.h, x.first + i, x.first + j));
          diagonal_.add(G * x.score(i, j) * own);
        }
        if (i == j)
          add(weights, x.b, x.h, x.first + i, x.first + j, G * x.score(i, j) * wide(c_.diagonal));
        else if (c_.looks(i > j ? bila::direction::forward : bila::direction::backward))
          add(weights, x.b, x.h, x.first + i, x.first + j, G * x.score(i, j));
      }

    for (const auto way : ways) {
      const bool forwards = way == bila::direction::forward;
      const ends& e = ends_at(x, way);
      const reach& w = reach_of(x, way);
      crossings& gaps = forwards ? f : g;
      if (!e.initial && !e.final) continue;
      written *const S_slope = find(e.slope->S), *const z_slope = find(e.slope->z);
      for (index_t a = 0; a < Dk; ++a)
        for (index_t d = 0; d <= Dv; ++d) {
          const sized S = e.S(a, d), D = e.loss(a, d);
          sized dS = D * w.through;
          for (index_t i = 0; i < x.count; ++i) {
            const sized read = w.read[static_cast<std::size_t>(i)], E = x.q(i, a) * S * dN(i, d) * read;
            add(q, x.b, hq, x.first + i, a, S * dN(i, d) * read);
            dS.add(x.q(i, a) * dN(i, d) * read);
            forwards ? gaps.add(0, size_.cross ? 0 : i, E) : gaps.add(size_.cross ? m : i + 1, m, E);
          }
          for (index_t j = 0; j < m; ++j) {
            const sized write = w.write[static_cast<std::size_t>(j)], E = x.k(j, a) * x.v(j, d) * D * write;
            add(k, x.b, hk, x.first + j, a, D * x.v(j, d) * write);
            if (d < Dv) add(v, x.b, hv, x.first + j, d, D * x.k(j, a) * write);
            forwards ? gaps.add(j + 1, m - 1, E) : gaps.add(1, j, E);
          }
          if (m > 0) forwards ? gaps.add(0, m - 1, S * D * w.through) : gaps.add(1, m, S * D * w.through);
          d < Dv ? add(S_slope, row, x.h, a, d, dS) : add(z_slope, row, x.h, a, 0, dS);
        }
    }
    if (c_.gapped()) spread(x, f, g, row);
  }

  /// From the pairs to the gaps, and to the mask's parameters.
  void spread(const head& x, const crossings& f, const crossings& g, index_t row) {
    const index_t m = x.keys;
    written *const log_decay = find(c_.to.log_decay), *const log_forward = find(c_.to.log_forward),
                   *const log_backward = find(c_.to.log_backward);
    const index_t gate = log_decay == nullptr ? 0 : x.h / (size_.H / c_.to.log_decay.extents[1]);
    for (const auto way : ways) {
      const bool forwards = way == bila::direction::forward;
      const crossings& of = forwards ? f : g;
      wide sum = 0;
      for (index_t t = 0; t <= m; ++t) {
        sum += of.steps[static_cast<std::size_t>(t)];
        const sized E{sum, of.size};
        if (t > 0 && t < m) {
          if (size_.cross) continue;
          if (std::exp(log_gap(c_, way, x.b, x.h, x.first + t)) == 0) continue;  // a gap of zero passes nothing
          add(forwards ? log_forward : log_backward, x.b, x.h, x.first + t, 0, E);
          if (c_.mask == mask_kind::fixed) add(log_decay, 0, gate, 0, 0, E);
          if (c_.mask == mask_kind::selective) {
            const bool of_the_one_before =
                c_.crossing == bila::gate::earlier || c_.crossing == (forwards ? bila::gate::source : bila::gate::target);
            add(log_decay, x.b, gate, x.first + t - (of_the_one_before ? 1 : 0), 0, E);
          }
        } else if (m > 0 && t == (forwards ? 0 : m)) {
          const state& from = forwards ? c_.initial_forward : c_.initial_backward;
          const double log = from.given() && from.log_decay.given() ? c_.at(from.log_decay, row, x.h, 0, 0) : 0;
          if (std::exp(log) != 0)
            add(find((forwards ? c_.to.initial_forward : c_.to.initial_backward).log_decay), row, x.h, 0, 0, E);
        }
      }
    }
  }

  const call& c_;
  stage at_;
  sizes size_;
  precision real_;
  wide roundings_ = 0;
  std::vector<written> all_;
  sized scale_, diagonal_;
};

}  // namespace

std::vector<expectation> define(const call& c, stage at, scalar_expectations& scalars) {
  definition all(c, at);
  std::vector<expectation> results = all.results();
  all.scalars(scalars.scale, scalars.scale_error, scalars.diagonal, scalars.diagonal_error);
  return results;
}

}  // namespace fuzz
