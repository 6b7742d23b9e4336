// SPDX-License-Identifier: Apache-2.0
// The closed forms, with every sum taken twice: as it is, and over absolute values.
#include "cuda/support/gradient_definition.hpp"

#include <algorithm>
#include <utility>

namespace test {

namespace {

/// A number and the sum of the absolute values of its terms.
struct sum {
  double value = 0, spread = 0;

  void add(double term) { add(term, std::fabs(term)); }
  void add(double term, double size) { value += term, spread += size; }
};

using sums = std::vector<sum>;

sums zeros(index_t n) { return sums(static_cast<std::size_t>(n)); }

sum& at(sums& x, index_t n) { return x[static_cast<std::size_t>(n)]; }

slope finished(const sums& x) {
  slope result;
  for (const sum& s : x) result.value.push_back(s.value), result.spread.push_back(s.spread);
  return result;
}

/// Tokens [first, first + n) of batch row b.
struct sequence {
  index_t b, first, n;
};

std::vector<sequence> sequences_of(const problem<double>& x) {
  std::vector<sequence> result;
  for (std::size_t s = 1; s < x.offsets.size(); ++s) result.push_back({0, x.offsets[s - 1], x.offsets[s] - x.offsets[s - 1]});
  for (index_t b = 0; b < x.size.B && x.offsets.empty(); ++b)
    result.push_back({b, 0, x.lengths.empty() ? x.size.L : x.lengths[static_cast<std::size_t>(b)]});
  return result;
}

double lambda(double log) { return std::exp(std::fmin(log, 0.0)); }

/// The gaps of one way: gradients of pairs are added over all gaps that they cross, in the end by one running sum.
class gap_sums {
 public:
  explicit gap_sums(index_t n) : steps_(zeros(n + 2)), rows_(static_cast<std::size_t>(n + 1)), columns_(rows_.size()) {}

  /// A pair whose gradient by the log of its weight is E, crossing gaps [first, last].
  void cross(index_t first, index_t last, double E, double size) {
    at(steps_, first).add(E, size);
    at(steps_, last + 1).add(-E, -size);
  }
  void row(index_t i, double size) { rows_[static_cast<std::size_t>(i)] += size; }
  void column(index_t j, double size) { columns_[static_cast<std::size_t>(j)] += size; }

  /// Of gap t; the rows and columns that it may be computed from are taken to be at most 1024 tokens away: a panel, or a short
  /// sequence.
  sum gap(index_t t) {
    if (done_.empty()) {
      sum running;
      double peak = 0;
      for (const sum& step : steps_) {
        running.add(step.value, step.spread);
        peak = std::fmax(peak, running.spread);
        done_.push_back(running);
        if (std::fabs(running.value) < 0x1p-50 * peak) done_.back().value = 0;  // what cancels leaves this in double
      }
    }
    sum result = at(done_, t);
    const double crossing = std::fmax(result.spread, 0);  // what cancels in the running sum may end below zero
    result.spread = crossing + noise(t);
    return result;
  }

  double noise(index_t t) const {
    const auto count = static_cast<index_t>(rows_.size());
    double squares = 0;
    for (index_t i = std::max<index_t>(0, t - 1024); i < std::min(count, t + 1024); ++i) {
      const auto n = static_cast<std::size_t>(i);
      squares += rows_[n] * rows_[n] + columns_[n] * columns_[n];
    }
    return std::sqrt(squares);
  }

 private:
  sums steps_, done_;
  std::vector<double> rows_, columns_;
};

/// What one way adds up for the state that it enters with and the one that it leaves.
struct way_of {
  const carried<double>& initial;
  const carried<double>& by_final;
  const std::vector<double>& logs;
  bool looks;
};

class step {
 public:
  explicit step(const lesson<double>& x)
      : x_(x), p_(x.x), size_(x.x.size), gaps_(x.x.gaps()), H_(size_.H), L_(size_.L), Dk_(size_.Dk), Dv_(size_.Dv) {
    const index_t tokens = size_.B * H_ * L_, n_states = x.sequences() * H_;
    y_ = zeros(tokens * Dv_), row_sum_ = zeros(tokens), log_forward_ = zeros(tokens), log_backward_ = zeros(tokens);
    q_ = zeros(size_.B * p_.q.extent(1) * L_ * Dk_), k_ = zeros(size_.B * p_.k.extent(1) * L_ * Dk_);
    v_ = zeros(size_.B * p_.v.extent(1) * L_ * Dv_), log_decay_ = zeros(p_.gates.extent(0) * H_ * p_.gates.extent(2));
    for (auto* const s : {&final_[0], &final_[1], &initial_[0], &initial_[1]})
      *s = {zeros(n_states * Dk_ * Dv_), zeros(n_states * Dk_), zeros(n_states)};
    const std::vector<sequence> all = sequences_of(p_);
    for (std::size_t n = 0; n < all.size(); ++n)
      for (index_t h = 0; h < H_; ++h) run(all[n], static_cast<index_t>(n), h);
  }

  step_answer answer() const {
    const auto state = [](const state_sums& s) { return state_slopes{finished(s.S), finished(s.z), finished(s.log_decay)}; };
    return {finished(y_),       finished(row_sum_),    state(final_[0]),     state(final_[1]),       finished(q_),
            finished(k_),       finished(v_),          finished(log_decay_), finished(log_forward_), finished(log_backward_),
            finished({scale_}), finished({diagonal_}), state(initial_[0]),   state(initial_[1])};
  }

 private:
  struct state_sums {
    sums S, z, log_decay;
  };

  void run(const sequence& at_tokens, index_t s, index_t h) {
    const auto [b, first, n] = at_tokens;
    const index_t hq = h / (H_ / p_.q.extent(1)), hk = h / (H_ / p_.k.extent(1)), hv = h / (H_ / p_.v.extent(1));
    const bool counts_Z = x_.row_sums();
    const auto copy = [&, row = b, start = first, count = n](const tensor<double>& from, index_t head, index_t D) {
      std::vector<double> to;
      for (index_t l = 0; l < count; ++l)
        for (index_t d = 0; d < D; ++d) to.push_back(from(row, head, start + l, d));
      return to;
    };
    const std::vector<double> q = copy(p_.q, hq, Dk_), k = copy(p_.k, hk, Dk_), v = copy(p_.v, hv, Dv_), dy = copy(x_.dy, h, Dv_);
    const auto row = [](const std::vector<double>& of, index_t i, index_t D) { return of.data() + i * D; };

    // lambda of gap t, for 0 < t < n, and of the gap by which a state enters.
    const way_of ways[2] = {{x_.initial_forward, x_.by_forward, gaps_.forward, x_.looks(bila::direction::forward)},
                            {x_.initial_backward, x_.by_backward, gaps_.backward, x_.looks(bila::direction::backward)}};
    std::vector<double> decay[2], enter[2],
        leave[2];                // of a gap; what token i reads of the initial state; what is left of it at the end
    double through[2] = {1, 1};  // what is left of the initial state at the end
    for (int w = 0; w < 2; ++w) {
      const way_of& way = ways[w];
      decay[w].assign(static_cast<std::size_t>(n + 1), 1.0);
      for (index_t t = 1; t < n && !way.logs.empty(); ++t)
        decay[w][static_cast<std::size_t>(t)] = lambda(way.logs[static_cast<std::size_t>((b * H_ + h) * L_ + first + t)]);
      enter[w].assign(static_cast<std::size_t>(n), 1.0), leave[w].assign(static_cast<std::size_t>(n), 1.0);
      const auto lambda_of = [&](index_t t) { return decay[w][static_cast<std::size_t>(t)]; };
      double weight = way.initial.given() && way.initial.log_decay.extent(0) > 0 ? lambda(way.initial.log_decay(s, h, 0)) : 1;
      for (index_t m = 0; m < n; ++m) {  // forwards from the first token, backwards from the last
        const index_t i = w == 0 ? m : n - 1 - m;
        if (m > 0) weight *= lambda_of(w == 0 ? i : i + 1);
        enter[w][static_cast<std::size_t>(i)] = weight;
      }
      through[w] = n > 0 ? weight : 1;
      weight = 1;
      for (index_t m = 0; m < n; ++m) {
        const index_t j = w == 0 ? n - 1 - m : m;
        if (m > 0) weight *= lambda_of(w == 0 ? j + 1 : j);
        leave[w][static_cast<std::size_t>(j)] = weight;
      }
    }

    // f(j, M, way) for all tokens j that token i sees; way 0 below the diagonal, 1 above it, 2 on it.
    const auto for_each_seen = [&, count = n](index_t i, const auto& f) {
      f(i, p_.diagonal, 2);
      double M = 1;
      for (index_t j = i - 1; j >= 0 && ways[0].looks; --j)
        if ((M *= decay[0][static_cast<std::size_t>(j + 1)]) == 0)
          break;
        else
          f(j, M, 0);
      M = 1;
      for (index_t j = i + 1; j < count && ways[1].looks; ++j)
        if ((M *= decay[1][static_cast<std::size_t>(j)]) == 0)
          break;
        else
          f(j, M, 1);
    };
    const auto product = [](const double* x, const double* y, index_t D) {
      sum result;
      for (index_t d = 0; d < D; ++d) result.add(x[d] * y[d]);
      return result;
    };

    // Forward: N and Z without the scale, then y and, through the norm, dN and dZ.
    sums dN = zeros(n * Dv_), dZ = zeros(n);
    for (index_t i = 0; i < n; ++i) {
      sums N = zeros(Dv_);
      sum Z;
      for_each_seen(i, [&](index_t j, double M, int) {
        const sum a = product(row(q, i, Dk_), row(k, j, Dk_), Dk_);
        Z.add(a.value * M, a.spread * std::fabs(M));
        for (index_t d = 0; d < Dv_; ++d)
          at(N, d).add(a.value * M * row(v, j, Dv_)[d], a.spread * std::fabs(M * row(v, j, Dv_)[d]));
      });
      for (int w = 0; w < 2; ++w) {
        if (!ways[w].looks || !ways[w].initial.given()) continue;
        const double weight = enter[w][static_cast<std::size_t>(i)];
        for (index_t c = 0; c < Dk_; ++c) {
          const double qc = weight * row(q, i, Dk_)[c];
          for (index_t d = 0; d < Dv_; ++d) at(N, d).add(qc * ways[w].initial.S(s, h, c, d));
          Z.add(qc * ways[w].initial.z(s, h, c));
        }
      }
      const index_t token = (b * H_ + h) * L_ + first + i;
      leave_norm(token, N, Z, row(dy, i, Dv_), &at(dN, i * Dv_), at(dZ, i));
    }

    // Backward: every pair once.
    gap_sums gaps[2] = {gap_sums(n), gap_sums(n)};
    const index_t to_q = ((b * p_.q.extent(1) + hq) * L_ + first) * Dk_, to_k = ((b * p_.k.extent(1) + hk) * L_ + first) * Dk_,
                  to_v = ((b * p_.v.extent(1) + hv) * L_ + first) * Dv_;
    for (index_t i = 0; i < n; ++i)
      for_each_seen(i, [&](index_t j, double M, int way) {
        const sum a = product(row(q, i, Dk_), row(k, j, Dk_), Dk_);
        sum g = at(dZ, i);
        for (index_t d = 0; d < Dv_; ++d) {
          const sum& dn = at(dN, i * Dv_ + d);
          const double vd = row(v, j, Dv_)[d];
          g.add(dn.value * vd, dn.spread * std::fabs(vd));
        }
        const double size = std::fabs(M);
        for (index_t c = 0; c < Dk_; ++c) {
          at(q_, to_q + i * Dk_ + c).add(g.value * M * row(k, j, Dk_)[c], g.spread * size * std::fabs(row(k, j, Dk_)[c]));
          at(k_, to_k + j * Dk_ + c).add(g.value * M * row(q, i, Dk_)[c], g.spread * size * std::fabs(row(q, i, Dk_)[c]));
        }
        for (index_t d = 0; d < Dv_; ++d) {
          const sum& dn = at(dN, i * Dv_ + d);
          at(v_, to_v + j * Dv_ + d).add(a.value * M * dn.value, a.spread * size * dn.spread);
        }
        if (way == 2) {
          diagonal_.add(g.value * a.value, g.spread * a.spread);
          return;
        }
        const double E = g.value * a.value * M, E_size = g.spread * a.spread * size;
        gaps[way].cross(std::min(i, j) + 1, std::max(i, j), E, E_size);
        gaps[way].row(i, E_size);
        gaps[way].column(j, E_size);
      });

    for (int w = 0; w < 2; ++w) {
      const way_of& way = ways[w];
      state_sums& final = final_[w];
      state_sums& initial = initial_[w];
      if (!way.looks) continue;
      const bool has_initial = way.initial.given(), has_final = way.by_final.given();
      const index_t place = (s * H_ + h) * Dk_;
      // Gaps that lie between the initial state and token i, and between token i and the end.
      const auto before = [&, count = n](index_t i) { return w == 0 ? std::pair(index_t(1), i) : std::pair(i + 1, count - 1); };
      const auto behind = [&, count = n](index_t i) { return w == 0 ? std::pair(i + 1, count - 1) : std::pair(index_t(1), i); };

      // S_end = sum_j leave_j k_j v_j^T + through S_start; column Dv of a row stands for z.
      for (index_t c = 0; c < Dk_; ++c)
        for (index_t d = 0; d <= Dv_; ++d) {
          sum& S = d < Dv_ ? at(final.S, (place + c) * Dv_ + d) : at(final.z, place + c);
          for (index_t j = 0; j < n; ++j)
            S.add(leave[w][static_cast<std::size_t>(j)] * row(k, j, Dk_)[c] * (d < Dv_ ? row(v, j, Dv_)[d] : 1));
          if (has_initial) S.add(through[w] * (d < Dv_ ? way.initial.S(s, h, c, d) : way.initial.z(s, h, c)));
        }

      sum enters;
      if (has_initial)
        for (index_t i = 0; i < n; ++i) {
          const double weight = enter[w][static_cast<std::size_t>(i)];
          sum E;
          for (index_t c = 0; c < Dk_; ++c) {
            const double qc = row(q, i, Dk_)[c];
            for (index_t d = 0; d <= Dv_; ++d) {
              if (d == Dv_ && !counts_Z) continue;
              const sum& dn = d < Dv_ ? at(dN, i * Dv_ + d) : at(dZ, i);
              const double S = d < Dv_ ? way.initial.S(s, h, c, d) : way.initial.z(s, h, c);
              at(q_, to_q + i * Dk_ + c).add(weight * S * dn.value, weight * std::fabs(S) * dn.spread);
              sum& to = d < Dv_ ? at(initial.S, (place + c) * Dv_ + d) : at(initial.z, place + c);
              to.add(weight * qc * dn.value, weight * std::fabs(qc) * dn.spread);
              E.add(weight * qc * S * dn.value, weight * std::fabs(qc * S) * dn.spread);
            }
          }
          enters.add(E.value, E.spread);
          const auto [from, to] = before(i);
          gaps[w].cross(from, to, E.value, E.spread);
          gaps[w].row(i, E.spread);
        }
      if (has_final)
        for (index_t j = 0; j < n; ++j) {
          const double weight = leave[w][static_cast<std::size_t>(j)];
          sum E;
          for (index_t c = 0; c < Dk_; ++c) {
            const double kc = row(k, j, Dk_)[c];
            for (index_t d = 0; d <= Dv_; ++d) {
              if (d == Dv_ && !counts_Z) continue;
              const double D = d < Dv_ ? way.by_final.S(s, h, c, d) : way.by_final.z(s, h, c), vd = d < Dv_ ? row(v, j, Dv_)[d] : 1;
              at(k_, to_k + j * Dk_ + c).add(weight * D * vd);
              if (d < Dv_) at(v_, to_v + j * Dv_ + d).add(weight * D * kc);
              E.add(weight * D * kc * vd);
            }
          }
          const auto [from, to] = behind(j);
          gaps[w].cross(from, to, E.value, E.spread);
          gaps[w].column(j, E.spread);
        }
      if (has_initial && has_final) {
        sum E;
        for (index_t c = 0; c < Dk_; ++c)
          for (index_t d = 0; d <= Dv_; ++d) {
            if (d == Dv_ && !counts_Z) continue;
            const double D = d < Dv_ ? way.by_final.S(s, h, c, d) : way.by_final.z(s, h, c);
            const double S = d < Dv_ ? way.initial.S(s, h, c, d) : way.initial.z(s, h, c);
            (d < Dv_ ? at(initial.S, (place + c) * Dv_ + d) : at(initial.z, place + c)).add(through[w] * D);
            E.add(through[w] * D * S);
          }
        if (n > 0) {
          enters.add(E.value, E.spread);
          gaps[w].cross(1, n - 1, E.value, E.spread);
        }
      }
      enters.spread += gaps[w].noise(w == 0 ? 0 : n);
      if (has_initial && n > 0) at(initial.log_decay, s * H_ + h) = enters;
    }

    for (index_t t = 1; t < n; ++t) {
      const index_t token = (b * H_ + h) * L_ + first + t;
      const sum f = gaps[0].gap(t), g = gaps[1].gap(t);
      if (ways[0].looks) at(log_forward_, token) = f;
      if (ways[1].looks) at(log_backward_, token) = g;
      const auto give = [&](index_t to, const sum& of, bool looks) {
        if (looks) at(log_decay_, to).add(of.value, of.spread);
      };
      if (p_.kind == mask_kind::fixed) {
        give(h, f, ways[0].looks), give(h, g, ways[1].looks);
      } else if (x_.has_log_decay()) {
        const bool f_before = p_.kind == mask_kind::source || p_.kind == mask_kind::earlier;
        const bool g_before = p_.kind == mask_kind::target || p_.kind == mask_kind::earlier;
        give(f_before ? token - 1 : token, f, ways[0].looks), give(g_before ? token - 1 : token, g, ways[1].looks);
      }
    }
  }

  void leave_norm(index_t token, const sums& N, const sum& Z, const double* dy, sum* dN, sum& dZ) {
    const double s = p_.scale,
                 eps = std::holds_alternative<bila::norm::row_sum>(p_.norm) ? std::get<bila::norm::row_sum>(p_.norm).eps : 0;
    const bool by_row_sum = std::holds_alternative<bila::norm::row_sum>(p_.norm);
    const double scaled = std::fabs(s * Z.value);
    const bool by_max = std::holds_alternative<bila::norm::max_one>(p_.norm) && scaled > 1;
    const double divisor = by_row_sum ? Z.value + eps : by_max ? scaled : 1, factor = by_row_sum ? 1 : s;
    const double uncertain = by_row_sum ? Z.spread / std::fabs(divisor) : by_max ? std::fabs(s) * Z.spread / scaled : 0;
    at(row_sum_, token) = Z;
    if (divisor == 0) return;
    sum dy_y;
    for (index_t d = 0; d < Dv_; ++d) {
      const sum& n = N[static_cast<std::size_t>(d)];
      sum& y = at(y_, token * Dv_ + d);
      y.value = factor * n.value / divisor;
      y.spread = std::fabs(factor) * n.spread / std::fabs(divisor) + std::fabs(y.value) * uncertain;
      dN[d].value = factor / divisor * dy[d];
      dN[d].spread = std::fabs(dN[d].value) * (1 + uncertain);
      dy_y.add(dy[d] * y.value, std::fabs(dy[d]) * y.spread);
    }
    if (by_row_sum || by_max) {
      const double by = by_row_sum ? divisor : Z.value;
      dZ = {-dy_y.value / by, dy_y.spread / std::fabs(by) * (1 + uncertain)};
    } else if (s != 0) {
      scale_.add(dy_y.value / s, dy_y.spread / std::fabs(s));
    }
  }

  const lesson<double>& x_;
  const problem<double>& p_;
  const sizes& size_;
  gap_logs gaps_;
  index_t H_, L_, Dk_, Dv_;
  sums y_, row_sum_, q_, k_, v_, log_decay_, log_forward_, log_backward_;
  state_sums final_[2], initial_[2];
  sum scale_, diagonal_;
};

}  // namespace

step_answer step_by_definition(const lesson<double>& x) { return step(x).answer(); }

}  // namespace test
