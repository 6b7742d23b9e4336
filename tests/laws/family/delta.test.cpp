// SPDX-License-Identifier: Apache-2.0
// The delta rule in both directions: random calls against a definition in long double, token by token, and the laws that follow
// from the definition.
//
//     S_i = (I - beta_i k_i^T k_i) decay_i S_{i-1} + beta_i k_i^T v_i,   y_i = scale q_i S_i       per direction
//     both:  y_i = y^F_i + y^B_i - (2 - diagonal) scale b_i (q_i . k_i) v_i,   b_i = (beta^F_i + beta^B_i) / 2
//     one:   y_i = y^F_i - (1 - diagonal) scale beta_i (q_i . k_i) v_i
#include "allocation/count.hpp"
#include "support/catch.hpp"
#include "support/refusal.hpp"
#include "support/tensor.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using bila::direction;
using bila::index_t;
using test::layout;
using test::tensor;
using wide = long double;
template <class T>
using real_of = bila::real_of<T>;

constexpr direction both = bila::direction::both, forward = bila::direction::forward, backward = bila::direction::backward;

enum class gates { ones, fixed, selective, two_sided, channels, two_sided_channels };

/// What a call is, except for its numbers.
struct shape {
  index_t B = 1, H = 1, L = 1, Dk = 4, Dv = 4;
  index_t q_heads = 1, k_heads = 1, v_heads = 1, gate_heads = 1, beta_heads = 1;
  gates mask = gates::selective;
  bila::gate convention = bila::gate::target;
  bool one_beta = true, initial_forward = false, initial_backward = false, final_states = false;
  direction way = both;
  double scale = 1, diagonal = 1;
  std::vector<index_t> offsets{}, lengths{};

  index_t gate_width() const { return mask == gates::channels || mask == gates::two_sided_channels ? Dk : 1; }
  bool one_gate() const { return mask == gates::selective || mask == gates::channels; }
  bool gap_gates() const { return mask == gates::two_sided || mask == gates::two_sided_channels; }
  index_t sequences() const { return offsets.empty() ? B : static_cast<index_t>(offsets.size()) - 1; }
};

template <class T>
struct problem {
  using Real = real_of<T>;

  shape s;
  tensor<T> q, k, v;
  tensor<Real> log_decay, log_backward;                // log_backward: of two_sided
  std::vector<Real> per_head;                          // of fixed
  tensor<Real> beta, beta_backward;                    // beta_backward: if there are two
  tensor<Real> S_forward, S_backward;                  // initial states
  tensor<Real> state_gap_forward, state_gap_backward;  // log decays of their gaps

  bila::inputs<T> in() const {
    bila::inputs<T> x{q.view(), k.view(), v.view()};
    x.scale = s.scale;
    x.diagonal = s.diagonal;
    x.direction = s.way;
    if (!s.offsets.empty()) x.offsets = s.offsets;
    if (!s.lengths.empty()) x.lengths = s.lengths;
    if (s.initial_forward) x.initial_forward = {S_forward.view(), {}, state_gap_forward.view()};
    if (s.initial_backward) x.initial_backward = {S_backward.view(), {}, state_gap_backward.view()};
    return x;
  }

  /// Calls use(rule) with the rule of this call.
  template <class Use>
  void with_rule(const Use& use) const {
    const auto with_mask = [&](const auto& mask) {
      if (s.one_beta)
        use(bila::rule::delta{mask, beta.view()});
      else
        use(bila::rule::delta{mask, beta.view(), beta_backward.view()});
    };
    if (s.mask == gates::ones) with_mask(bila::mask::all_ones{});
    if (s.mask == gates::fixed) with_mask(bila::mask::fixed_decay<Real>{bila::vec(per_head.data(), s.gate_heads)});
    if (s.mask == gates::selective) with_mask(bila::mask::selective_decay<Real>{log_decay.view(), s.convention});
    if (s.mask == gates::two_sided) with_mask(bila::mask::two_sided<Real>{log_decay.view(), log_backward.view()});
    if (s.mask == gates::channels) with_mask(bila::mask::channel_decay{log_decay.view(), s.convention});
    if (s.mask == gates::two_sided_channels) with_mask(bila::mask::two_sided_channels{log_decay.view(), log_backward.view()});
  }

  /// The log decay of channel c at the gap between tokens t - 1 and t, crossed in direction `way`.
  wide gap(direction way, index_t b, index_t h, index_t t, index_t c) const {
    if (s.mask == gates::ones) return 0;
    const index_t g = h / (s.H / s.gate_heads);
    if (s.mask == gates::fixed) return per_head[static_cast<std::size_t>(g)];
    if (s.gap_gates()) return way == forward ? log_decay(b, g, t, c) : log_backward(b, g, t, c);
    const bool later = s.convention == bila::gate::later || (s.convention == bila::gate::target && way == forward) ||
                       (s.convention == bila::gate::source && way == backward);
    return log_decay(b, g, later ? t : t - 1, c);
  }
};

template <class T>
void make_keys_unit(tensor<T>& k) {
  for (index_t b = 0; b < k.extent(0); ++b)
    for (index_t h = 0; h < k.extent(1); ++h)
      for (index_t l = 0; l < k.extent(2); ++l) {
        double sum = 1e-30;
        for (index_t d = 0; d < k.extent(3); ++d) sum += static_cast<double>(k(b, h, l, d)) * static_cast<double>(k(b, h, l, d));
        for (index_t d = 0; d < k.extent(3); ++d)
          k(b, h, l, d) = static_cast<T>(static_cast<real_of<T>>(static_cast<double>(k(b, h, l, d)) / std::sqrt(sum)));
      }
}

layout any_layout(test::random_source& random) { return test::all_layouts[static_cast<std::size_t>(random.below(6))]; }

template <class T>
problem<T> numbers_for(test::random_source& random, const shape& s, bool any_place = true, double strongest = -1) {
  using Real = real_of<T>;
  const auto place = [&] { return any_place ? any_layout(random) : layout::bhld; };
  problem<T> p{s,
               {s.B, s.q_heads, s.L, s.Dk, place()},
               {s.B, s.k_heads, s.L, s.Dk, place()},
               {s.B, s.v_heads, s.L, s.Dv, place()},
               {s.B, s.gate_heads, s.L, s.gate_width(), place()},
               {s.B, s.gate_heads, s.L, s.gate_width(), place()},
               {},
               {s.B, s.beta_heads, s.L, 1, place()},
               {s.B, s.beta_heads, s.L, 1, place()},
               {s.sequences(), s.H, s.Dk, s.Dv, place()},
               {s.sequences(), s.H, s.Dk, s.Dv, place()},
               {s.sequences(), s.H, 1, s.gate_width()},
               {s.sequences(), s.H, 1, s.gate_width()}};
  const auto fill = [&](auto& x, double low, double high) {
    x.for_each([&](auto& number, index_t, index_t, index_t, index_t) {
      number = std::remove_reference_t<decltype(number)>(static_cast<Real>(random.uniform(low, high)));
    });
  };
  for (tensor<T>* x : {&p.q, &p.k, &p.v}) fill(*x, -1, 1);
  make_keys_unit(p.k);
  for (tensor<Real>* x : {&p.log_decay, &p.log_backward, &p.state_gap_forward, &p.state_gap_backward}) fill(*x, strongest, 0);
  for (index_t h = 0; h < s.gate_heads; ++h) p.per_head.push_back(static_cast<Real>(random.uniform(strongest, 0)));
  for (tensor<Real>* x : {&p.beta, &p.beta_backward}) fill(*x, 0, 2);
  for (tensor<Real>* x : {&p.S_forward, &p.S_backward}) fill(*x, -1, 1);
  // A padded token is never read.
  if (!s.lengths.empty())
    for (index_t b = 0; b < s.B; ++b)
      for (tensor<Real>* x : {&p.log_decay, &p.log_backward, &p.beta, &p.beta_backward})
        for (index_t h = 0; h < x->extent(1); ++h)
          for (index_t l = s.lengths[static_cast<std::size_t>(b)]; l < s.L; ++l)
            for (index_t c = 0; c < x->extent(3); ++c) (*x)(b, h, l, c) = std::numeric_limits<Real>::quiet_NaN();
  return p;
}

/// Any call: every shape, option and segment that the rule accepts.
shape any_shape(test::random_source& random, index_t longest) {
  const auto pick = [&](std::initializer_list<index_t> of) { return of.begin()[random.below(static_cast<index_t>(of.size()))]; };
  shape s;
  s.B = pick({1, 1, 2, 3});
  s.H = pick({1, 2, 4});
  s.L = pick({0, 1, 2, 3, 5, 15, 16, 17, 31, 33, 48, 64, 1 + random.below(longest)});
  s.L = std::min(s.L, longest);
  s.Dk = 1 + random.below(pick({4, 20, 40}));
  s.Dv = 1 + random.below(pick({4, 20, 70}));
  const auto divisor = [&] { return s.H / (index_t(1) << random.below(s.H == 4 ? 3 : s.H)); };
  s.q_heads = divisor(), s.k_heads = divisor(), s.v_heads = divisor(), s.gate_heads = divisor(), s.beta_heads = divisor();
  s.mask = static_cast<gates>(random.below(6));
  s.convention = static_cast<bila::gate>(random.below(4));
  s.one_beta = random.below(2) == 0;
  s.way = static_cast<direction>(random.below(3));
  s.scale = random.below(2) == 0 ? 1 : random.uniform(-2, 2);
  s.diagonal = random.below(2) == 0 ? 1 : random.uniform(-1, 2);
  s.initial_forward = s.way != backward && random.below(2) == 0;
  s.initial_backward = s.way != forward && random.below(2) == 0;
  s.final_states = random.below(2) == 0;
  if (const index_t kind = random.below(3); kind == 0) {
    s.B = 1;
    s.offsets = {0};
    while (s.offsets.back() < s.L) s.offsets.push_back(std::min(s.L, s.offsets.back() + random.below(30)));
    if (s.offsets.size() == 1) s.offsets.push_back(0);
  } else if (kind == 1) {
    for (index_t b = 0; b < s.B; ++b) s.lengths.push_back(random.below(s.L + 1));
  }
  return s;
}

std::string words(const shape& s) {
  std::string text = "B=" + std::to_string(s.B) + " H=" + std::to_string(s.H) + " L=" + std::to_string(s.L) +
                     " Dk=" + std::to_string(s.Dk) + " Dv=" + std::to_string(s.Dv) +
                     " mask=" + std::to_string(static_cast<int>(s.mask)) + " way=" + std::to_string(static_cast<int>(s.way)) +
                     " scale=" + std::to_string(s.scale) + " diagonal=" + std::to_string(s.diagonal) +
                     (s.one_beta ? " one beta" : " two betas") + " offsets:";
  for (const index_t x : s.offsets) text += " " + std::to_string(x);
  text += " lengths:";
  for (const index_t x : s.lengths) text += " " + std::to_string(x);
  return text;
}

/// y [B, H, L, Dv] and the final states [n, H, Dk, Dv].
template <class T, class Real = real_of<T>>
struct result {
  tensor<T> y;
  tensor<Real> S_forward, S_backward;
};

using exact_result = result<wide, wide>;

/// The definition. nudge(x) stands for every number that is read.
template <class T, class Nudge>
exact_result define(const problem<T>& p, const Nudge& nudge) {
  const shape& s = p.s;
  exact_result r{{s.B, s.H, s.L, s.Dv}, {s.sequences(), s.H, s.Dk, s.Dv}, {s.sequences(), s.H, s.Dk, s.Dv}};
  r.y.fill(0);
  std::vector<wide> S(static_cast<std::size_t>(s.Dk * s.Dv)), k(static_cast<std::size_t>(s.Dk)), q = k, decay = k;
  for (index_t n = 0; n < s.sequences(); ++n)
    for (index_t h = 0; h < s.H; ++h)
      for (const direction way : {forward, backward}) {
        if (s.way != both && s.way != way) continue;
        const bool ahead = way == forward;
        const index_t b = s.offsets.empty() ? n : 0;
        const index_t first = s.offsets.empty() ? 0 : s.offsets[static_cast<std::size_t>(n)];
        const index_t count = !s.offsets.empty()  ? s.offsets[static_cast<std::size_t>(n) + 1] - first
                              : s.lengths.empty() ? s.L
                                                  : s.lengths[static_cast<std::size_t>(b)];
        const bool given = ahead ? s.initial_forward : s.initial_backward;
        const auto& S0 = ahead ? p.S_forward : p.S_backward;
        const auto at = [&](index_t c, index_t d) -> wide& { return S[static_cast<std::size_t>(c * s.Dv + d)]; };
        for (index_t c = 0; c < s.Dk; ++c)
          for (index_t d = 0; d < s.Dv; ++d) at(c, d) = given ? nudge(wide(S0(n, h, c, d))) : 0;
        for (index_t step = 0; step < count; ++step) {
          const index_t t = first + (ahead ? step : count - 1 - step);
          const index_t hb = h / (s.H / s.beta_heads), hv = h / (s.H / s.v_heads);
          for (index_t c = 0; c < s.gate_width(); ++c) {
            wide log = 0;
            if (step > 0)
              log = p.gap(way, b, h, ahead ? t : t + 1, c);
            else if (given)
              log = (ahead ? p.state_gap_forward : p.state_gap_backward)(n, h, 0, c);
            decay[static_cast<std::size_t>(c)] = std::isinf(log) ? 0 : std::exp(nudge(log));
          }
          const auto decay_of = [&](index_t c) { return decay[static_cast<std::size_t>(s.gate_width() == 1 ? 0 : c)]; };
          const wide beta = nudge(wide((ahead || s.one_beta ? p.beta : p.beta_backward)(b, hb, t)));
          wide own = 0;
          for (index_t c = 0; c < s.Dk; ++c) {
            k[static_cast<std::size_t>(c)] = nudge(wide(static_cast<real_of<T>>(p.k(b, h / (s.H / s.k_heads), t, c))));
            q[static_cast<std::size_t>(c)] = nudge(wide(static_cast<real_of<T>>(p.q(b, h / (s.H / s.q_heads), t, c))));
            own += q[static_cast<std::size_t>(c)] * k[static_cast<std::size_t>(c)];
          }
          for (index_t d = 0; d < s.Dv; ++d) {
            const wide v = nudge(wide(static_cast<real_of<T>>(p.v(b, hv, t, d))));
            wide held = 0;  // what the decayed state holds for the key
            for (index_t c = 0; c < s.Dk; ++c) held += k[static_cast<std::size_t>(c)] * (at(c, d) *= decay_of(c));
            wide read = 0;
            for (index_t c = 0; c < s.Dk; ++c) {
              at(c, d) += k[static_cast<std::size_t>(c)] * beta * (v - held);
              read += q[static_cast<std::size_t>(c)] * at(c, d);
            }
            const wide counted = s.way == both ? 1 - wide(s.diagonal) / 2 : 1 - wide(s.diagonal);
            r.y(b, h, t, d) += s.scale * (read - counted * beta * own * v);
          }
        }
        auto& to = ahead ? r.S_forward : r.S_backward;
        for (index_t c = 0; c < s.Dk; ++c)
          for (index_t d = 0; d < s.Dv; ++d) to(n, h, c, d) = at(c, d);
      }
  return r;
}

template <class T>
exact_result define(const problem<T>& p) {
  return define(p, [](wide x) { return x; });
}

/// The definition, and how far rounding may move each row: what relative changes of all inputs by a unit do, times 4 sqrt(L).
template <class T>
struct bounded {
  exact_result exact, spread;

  explicit bounded(const problem<T>& p, test::random_source& random) : exact(define(p)), spread(exact) {
    const wide unit = std::numeric_limits<real_of<T>>::epsilon();
    const auto none = [](wide& x, index_t, index_t, index_t, index_t) { x = 0; };
    spread.y.for_each(none), spread.S_forward.for_each(none), spread.S_backward.for_each(none);
    for (int draw = 0; draw < 8; ++draw) {
      const exact_result other = define(p, [&](wide x) { return x * (1 + (random.below(2) == 0 ? unit : -unit)); });
      widen(spread.y, exact.y, other.y);
      widen(spread.S_forward, exact.S_forward, other.S_forward);
      widen(spread.S_backward, exact.S_backward, other.S_backward);
    }
  }

  template <class X>
  bool holds(const tensor<X>& found, const tensor<wide>& wanted, const tensor<wide>& moves, index_t L) const {
    const wide unit = std::numeric_limits<real_of<T>>::epsilon();
    bool good = true;
    found.for_each([&](const X& x, index_t b, index_t h, index_t l, index_t d) {
      const wide allowed = 4 * std::sqrt(static_cast<wide>(std::max<index_t>(L, 1))) * moves(b, h, l, 0) +
                           8 * unit * std::fabs(wanted(b, h, l, d)) + std::numeric_limits<real_of<T>>::min();
      if (!(std::fabs(wide(x) - wanted(b, h, l, d)) <= allowed)) {
        if (good) UNSCOPED_INFO(wide(x) << " for " << wanted(b, h, l, d) << " at " << b << " " << h << " " << l << " " << d);
        good = false;
      }
    });
    return good;
  }

 private:
  /// The first column of `to` is the largest move in a row.
  static void widen(tensor<wide>& to, const tensor<wide>& a, const tensor<wide>& b) {
    a.for_each([&](const wide& x, index_t n, index_t h, index_t l, index_t d) {
      to(n, h, l, 0) = std::max(to(n, h, l, 0), std::fabs(x - b(n, h, l, d)));
    });
  }
};

template <class Tuning = void, class T, class Form>
result<T> run(const Form& form, const problem<T>& p, const bila::cpu& backend = {}, layout where = layout::bhld) {
  const shape& s = p.s;
  result<T> r{{s.B, s.H, s.L, s.Dv, where}, {s.sequences(), s.H, s.Dk, s.Dv}, {s.sequences(), s.H, s.Dk, s.Dv}};
  r.S_forward.fill(0), r.S_backward.fill(0);
  bila::outputs<T> out{r.y.view()};
  if (s.final_states && s.way != backward) out.final_forward = {r.S_forward.view(), {}};
  if (s.final_states && s.way != forward) out.final_backward = {r.S_backward.view(), {}};
  p.with_rule([&](const auto& rule) { bila::attend<Tuning>(backend, form, rule, bila::norm::none{}, p.in(), out); });
  CHECK(r.y.intact());
  return r;
}

template <class T>
wide distance(const tensor<T>& a, const tensor<T>& b) {
  wide most = 0;
  a.for_each([&](const T& x, index_t n, index_t h, index_t l, index_t d) {
    const wide apart = std::fabs(wide(x) - wide(b(n, h, l, d)));
    if (!(apart <= most)) most = apart;
  });
  return most;
}

shape one_head(index_t L, index_t Dk, index_t Dv) {
  shape s;
  s.L = L, s.Dk = Dk, s.Dv = Dv;
  return s;
}

}  // namespace

TEMPLATE_TEST_CASE("delta: random calls agree with the definition, in every form", "[random]", float, double) {
  test::random_source random(2001);
  INFO("BILA_TEST_SEED = " << test::seed());
  const test::rounds rounds(120);
  for (int call = 0; rounds.go_on(call); ++call) {
    const shape s = any_shape(random, call % 10 == 0 ? 200 : 70);
    INFO("call " << call << ": " << words(s));
    auto p = numbers_for<TestType>(random, s, true, call % 3 == 0 ? -20 : -1);
    if (call % 5 == 0 && s.one_gate() && s.lengths.empty())
      p.log_decay.for_each([&](TestType& x, index_t, index_t, index_t, index_t) {
        if (random.below(8) == 0) x = -std::numeric_limits<TestType>::infinity();
      });
    const bounded<TestType> limit(p, random);
    const auto close = [&](const result<TestType>& r) {
      return limit.holds(r.y, limit.exact.y, limit.spread.y, s.L) &&
             (!s.final_states || s.way == backward ||
              limit.holds(r.S_forward, limit.exact.S_forward, limit.spread.S_forward, s.L)) &&
             (!s.final_states || s.way == forward ||
              limit.holds(r.S_backward, limit.exact.S_backward, limit.spread.S_backward, s.L));
    };
    const layout where = any_layout(random);
    CHECK(close(run(bila::form::chunkwise{}, p, {}, where)));
    CHECK(close(run(bila::form::recurrent{}, p, {}, where)));
    CHECK(close(run(bila::form::automatic{}, p, {}, where)));
    CHECK(close(run(bila::form::chunkwise{.size = 1 + random.below(140)}, p, {.threads = 2}, where)));
    if (call % 4 == 0) CHECK(close(run<bila::kernel::reference>(bila::form::chunkwise{}, p, {}, where)));
  }
}

TEMPLATE_TEST_CASE("delta: 16-bit tensors are computed in float and rounded once", "", bila::bf16, bila::f16) {
  test::random_source random(2002);
  for (int call = 0; call < 20; ++call) {
    const shape s = any_shape(random, 70);
    INFO("call " << call << ": " << words(s));
    const auto p = numbers_for<TestType>(random, s);
    const auto widened = [](const tensor<TestType>& x) {
      tensor<float> y(x.extent(0), x.extent(1), x.extent(2), x.extent(3));
      y.for_each([&](float& to, index_t b, index_t h, index_t l, index_t d) { to = static_cast<float>(x(b, h, l, d)); });
      return y;
    };
    const problem<float> same{
        s,      widened(p.q),    widened(p.k), widened(p.v), p.log_decay,         p.log_backward,      p.per_head,
        p.beta, p.beta_backward, p.S_forward,  p.S_backward, p.state_gap_forward, p.state_gap_backward};
    const auto narrow = run(bila::form::chunkwise{}, p), recurrent = run(bila::form::recurrent{}, p);
    const auto full = run(bila::form::chunkwise{}, same), full_recurrent = run(bila::form::recurrent{}, same);
    bool rounded = true;
    narrow.y.for_each([&](const TestType& x, index_t b, index_t h, index_t l, index_t d) {
      rounded = rounded && static_cast<float>(x) == static_cast<float>(TestType(full.y(b, h, l, d))) &&
                static_cast<float>(recurrent.y(b, h, l, d)) == static_cast<float>(TestType(full_recurrent.y(b, h, l, d)));
    });
    CHECK(rounded);
    CHECK((!s.final_states || (same_bits(narrow.S_forward, full.S_forward) && same_bits(narrow.S_backward, full.S_backward))));
  }
}

TEMPLATE_TEST_CASE("delta: the same bits for every number of threads, place in the batch, layout and packing", "", float, double) {
  test::random_source random(2003);
  for (int call = 0; call < 30; ++call) {
    shape s = any_shape(random, 300);
    if (call % 3 == 0) s.L = 260, s.Dk = s.Dv = 64, s.B = s.H = 1, s.offsets = s.lengths = {};  // a head that is divided
    if (call % 3 == 0) s.q_heads = s.k_heads = s.v_heads = s.gate_heads = s.beta_heads = 1;
    INFO("call " << call << ": " << words(s));
    const auto p = numbers_for<TestType>(random, s, false);
    const bila::form::chunkwise form{};
    const auto alone = run(form, p);
    for (const int threads : {2, 3, 5}) CHECK(same_bits(run(form, p, {.threads = threads}).y, alone.y));
    auto moved = p;
    moved.q = p.q.laid_out(any_layout(random)), moved.k = p.k.laid_out(any_layout(random)),
    moved.v = p.v.laid_out(any_layout(random));
    moved.beta = p.beta.laid_out(any_layout(random)), moved.log_decay = p.log_decay.laid_out(any_layout(random));
    const auto elsewhere = run(form, moved, {}, any_layout(random));
    CHECK((same_bits(elsewhere.y, alone.y) && same_bits(elsewhere.S_forward, alone.S_forward)));
    if (s.offsets.empty()) continue;
    for (index_t n = 0; n < s.sequences(); ++n) {  // a segment alone is what it is in the pack
      const index_t first = s.offsets[static_cast<std::size_t>(n)], count = s.offsets[static_cast<std::size_t>(n) + 1] - first;
      shape one = s;
      one.L = count, one.offsets = {};
      const auto cut = [&](const auto& x) {
        auto part = std::remove_cvref_t<decltype(x)>(1, x.extent(1), count, x.extent(3));
        part.for_each([&](auto& to, index_t, index_t h, index_t l, index_t d) { to = x(0, h, first + l, d); });
        return part;
      };
      const auto sequence = [&](const auto& x) {
        auto part = std::remove_cvref_t<decltype(x)>(1, x.extent(1), x.extent(2), x.extent(3));
        part.for_each([&](auto& to, index_t, index_t h, index_t l, index_t d) { to = x(n, h, l, d); });
        return part;
      };
      const problem<TestType> piece{one,
                                    cut(p.q),
                                    cut(p.k),
                                    cut(p.v),
                                    cut(p.log_decay),
                                    cut(p.log_backward),
                                    p.per_head,
                                    cut(p.beta),
                                    cut(p.beta_backward),
                                    sequence(p.S_forward),
                                    sequence(p.S_backward),
                                    sequence(p.state_gap_forward),
                                    sequence(p.state_gap_backward)};
      CHECK(same_bits(run(form, piece).y, cut(alone.y)));
    }
  }
}

TEST_CASE("delta: the reversed sequence gives the reversed result") {
  test::random_source random(2004);
  for (const bila::gate convention : {bila::gate::source, bila::gate::target}) {
    shape s = one_head(75, 8, 6);
    s.convention = convention;
    s.one_beta = false;
    const auto p = numbers_for<double>(random, s, false);
    const auto flip = [](const tensor<double>& x) {
      tensor<double> y = x;
      y.for_each([&](double& to, index_t b, index_t h, index_t l, index_t d) { to = x(b, h, x.extent(2) - 1 - l, d); });
      return y;
    };
    auto reversed = p;
    reversed.q = flip(p.q), reversed.k = flip(p.k), reversed.v = flip(p.v), reversed.log_decay = flip(p.log_decay);
    reversed.beta = flip(p.beta_backward), reversed.beta_backward = flip(p.beta);
    CHECK(distance(flip(run(bila::form::chunkwise{}, reversed).y), run(bila::form::chunkwise{}, p).y) < 1e-13L);
  }
}

TEMPLATE_TEST_CASE("delta: a sequence that is cut into pieces by states is what it is whole", "", float, double) {
  using Real = TestType;
  test::random_source random(2005);
  for (const index_t cut : {1, 7, 16, 40, 69}) {
    shape s = one_head(70, 9, 20);
    s.mask = gates::two_sided;
    s.one_beta = false;
    const auto p = numbers_for<Real>(random, s, false);
    const bounded<Real> limit(p, random);
    const auto piece = [&](index_t first, index_t count) {
      shape one = s;
      one.L = count;
      const auto part_of = [&](const tensor<Real>& x) {
        tensor<Real> part(1, 1, count, x.extent(3));
        part.for_each([&](Real& to, index_t, index_t, index_t l, index_t d) { to = x(0, 0, first + l, d); });
        return part;
      };
      auto part = p;
      part.s = one;
      for (const auto member : {&problem<Real>::q, &problem<Real>::k, &problem<Real>::v}) part.*member = part_of(p.*member);
      for (const auto member :
           {&problem<Real>::log_decay, &problem<Real>::log_backward, &problem<Real>::beta, &problem<Real>::beta_backward})
        part.*member = part_of(p.*member);
      return part;
    };
    auto left = piece(0, cut), right = piece(cut, 70 - cut);
    tensor<Real> middle_forward(1, 1, 9, 20), middle_backward(1, 1, 9, 20);
    left.with_rule([&](const auto& rule) {  // states alone: neither q nor y
      bila::inputs<Real> in{{}, left.k.view(), left.v.view()};
      bila::outputs<Real> out;
      out.final_forward = {middle_forward.view(), {}};
      bila::attend(bila::form::chunkwise{}, rule, bila::norm::none{}, in, out);
    });
    right.with_rule([&](const auto& rule) {
      bila::inputs<Real> in{{}, right.k.view(), right.v.view()};
      bila::outputs<Real> out;
      out.final_backward = {middle_backward.view(), {}};
      bila::attend(bila::form::recurrent{}, rule, bila::norm::none{}, in, out);
    });
    left.s.initial_backward = right.s.initial_forward = true;
    left.S_backward = middle_backward, right.S_forward = middle_forward;
    left.state_gap_backward(0, 0, 0) = p.log_backward(0, 0, cut), right.state_gap_forward(0, 0, 0) = p.log_decay(0, 0, cut);
    const auto y_left = run(bila::form::chunkwise{}, left).y, y_right = run(bila::form::chunkwise{}, right).y;
    tensor<Real> y(1, 1, 70, 20);
    y.for_each(
        [&](Real& to, index_t, index_t, index_t l, index_t d) { to = l < cut ? y_left(0, 0, l, d) : y_right(0, 0, l - cut, d); });
    CHECK(limit.holds(y, limit.exact.y, limit.spread.y, s.L));
  }
}

TEST_CASE("delta: beta of zero writes nothing") {
  test::random_source random(2006);
  auto p = numbers_for<float>(random, one_head(50, 8, 8));
  p.beta.fill(0);
  const auto y = run(bila::form::chunkwise{}, p).y;
  bool zero = true;
  y.for_each([&](const float& x, index_t, index_t, index_t, index_t) { zero = zero && x == 0; });
  CHECK(zero);
}

TEST_CASE("delta: with orthonormal keys it is selective decay, with values beta v") {
  test::random_source random(2007);
  for (const index_t L : {5, 24, 40}) {
    auto p = numbers_for<double>(random, one_head(L, L, 7), false);
    p.k.for_each([&](double& x, index_t, index_t, index_t l, index_t d) { x = l == d ? 1 : 0; });
    auto values = p.v;
    values.for_each([&](double& x, index_t b, index_t h, index_t l, index_t) { x *= p.beta(b, h, l); });
    tensor<double> y(1, 1, L, 7);
    bila::attend(bila::form::full{}, bila::mask::selective_decay<double>{p.log_decay.view(), bila::gate::target},
                 bila::norm::none{}, bila::inputs<double>{p.q.view(), p.k.view(), values.view()}, y.view());
    CHECK(distance(y, run(bila::form::chunkwise{}, p).y) < 1e-14L);
  }
}

TEST_CASE("delta: a repeated unit key with beta of 1 overwrites") {
  test::random_source random(2008);
  shape s = one_head(37, 6, 5);
  s.mask = gates::ones;
  s.final_states = true;
  auto p = numbers_for<double>(random, s, false);
  p.beta.fill(1);
  const index_t first = 3, last = 33;
  for (index_t c = 0; c < 6; ++c) p.k(0, 0, last, c) = p.k(0, 0, first, c);
  for (index_t l = last + 1; l < 37; ++l) p.beta(0, 0, l) = 0;
  const auto r = run(bila::form::chunkwise{}, p);
  for (index_t d = 0; d < 5; ++d) {
    double held = 0;
    for (index_t c = 0; c < 6; ++c) held += p.k(0, 0, last, c) * r.S_forward(0, 0, c, d);
    CHECK(std::abs(held - p.v(0, 0, last, d)) < 1e-13);
  }
}

TEST_CASE("delta: keys times c, betas over c^2 and values times c change nothing") {
  test::random_source random(2009);
  const auto p = numbers_for<double>(random, one_head(60, 8, 8), false);
  auto scaled = p;
  const double c = 1.25;
  for (index_t l = 0; l < 60; ++l) {
    scaled.beta(0, 0, l) /= c * c;
    for (index_t d = 0; d < 8; ++d) scaled.k(0, 0, l, d) *= c, scaled.v(0, 0, l, d) *= c;
  }
  CHECK(distance(run(bila::form::chunkwise{}, p).y, run(bila::form::chunkwise{}, scaled).y) < 1e-13L);
}

TEST_CASE("delta: both directions are forward and backward less a token's own value") {
  test::random_source random(2010);
  for (const bool one_beta : {true, false}) {
    shape s = one_head(60, 8, 8);
    s.one_beta = one_beta;
    auto p = numbers_for<double>(random, s, false);
    const auto y = run(bila::form::chunkwise{}, p).y;
    p.s.way = forward;
    const auto f = run(bila::form::chunkwise{}, p).y;
    p.s.way = backward;
    const auto b = run(bila::form::chunkwise{}, p).y;
    auto sum = y;
    sum.for_each([&](double& to, index_t, index_t, index_t l, index_t d) {
      double own = 0;
      for (index_t c = 0; c < 8; ++c) own += p.q(0, 0, l, c) * p.k(0, 0, l, c);
      const double beta = one_beta ? p.beta(0, 0, l) : (p.beta(0, 0, l) + p.beta_backward(0, 0, l)) / 2;
      to = f(0, 0, l, d) + b(0, 0, l, d) - beta * own * p.v(0, 0, l, d);
    });
    CHECK(distance(y, sum) < 1e-13L);
  }
}

TEST_CASE("delta: 64 equal unit keys with beta of 1 do not make the system ill") {
  test::random_source random(2011);
  for (const float gate : {0.f, -20.f})
    for (const index_t size : {16, 64, 128}) {
      auto p = numbers_for<float>(random, one_head(64, 16, 16), false);
      p.k.for_each([&](float& x, index_t, index_t, index_t, index_t d) { x = d == 3 ? 0.6f : d == 5 ? 0.8f : 0; });
      p.beta.fill(1);
      p.log_decay.fill(gate);
      const auto exact = define(p);
      const auto y = run(bila::form::chunkwise{.size = size}, p).y;
      wide most = 0;
      y.for_each([&](const float& x, index_t b, index_t h, index_t l, index_t d) {
        most = std::max(most, std::fabs(wide(x) - exact.y(b, h, l, d)));
      });
      CHECK(most < 1e-4L);
    }
}

TEST_CASE("delta: beta of 2 reflects, and keeps the norm of a state") {
  test::random_source random(2012);
  shape s = one_head(50, 8, 3);
  s.mask = gates::ones;
  s.initial_forward = s.final_states = true;
  auto p = numbers_for<double>(random, s, false);
  p.beta.fill(2);
  p.v.fill(0);
  p.state_gap_forward.fill(0);
  const auto r = run(bila::form::chunkwise{}, p);
  for (index_t d = 0; d < 3; ++d) {
    double before = 0, after = 0;
    for (index_t c = 0; c < 8; ++c) {
      before += p.S_forward(0, 0, c, d) * p.S_forward(0, 0, c, d);
      after += r.S_forward(0, 0, c, d) * r.S_forward(0, 0, c, d);
    }
    CHECK(std::abs(before - after) < 1e-13);
  }
}

TEST_CASE("delta: a token with k = v = beta = 0 and a gate of 0 is transparent") {
  test::random_source random(2013);
  const index_t L = 40, at = 21;
  const auto p = numbers_for<double>(random, one_head(L, 8, 8), false);
  auto more = p;
  more.s.L = L + 1;
  const auto widen = [&](const tensor<double>& x) {
    tensor<double> y(1, 1, L + 1, x.extent(3));
    y.for_each([&](double& to, index_t, index_t, index_t l, index_t d) { to = l == at ? 0 : x(0, 0, l < at ? l : l - 1, d); });
    return y;
  };
  more.q = widen(p.q), more.k = widen(p.k), more.v = widen(p.v), more.beta = widen(p.beta);
  // Gates `later`: the gap before the new token is open, the gap after it is the one that was there.
  more.log_decay = widen(p.log_decay);
  more.s.convention = bila::gate::later;
  auto plain = p;
  plain.s.convention = bila::gate::later;
  const auto y = run(bila::form::chunkwise{}, plain).y, wider = run(bila::form::chunkwise{}, more).y;
  tensor<double> kept(1, 1, L, 8);
  kept.for_each([&](double& to, index_t, index_t, index_t l, index_t d) { to = wider(0, 0, l < at ? l : l + 1, d); });
  CHECK(distance(y, kept) < 1e-13L);
}

TEST_CASE("delta: a gate of exactly -inf cuts the sequence as a border of segments does") {
  test::random_source random(2014);
  shape s = one_head(50, 8, 8);
  s.convention = bila::gate::later;
  auto p = numbers_for<float>(random, s, false);
  auto packed = p;
  packed.s.offsets = {0, 13, 30, 50};
  packed.S_forward = packed.S_backward = tensor<float>(3, 1, 8, 8);
  p.log_decay(0, 0, 13) = p.log_decay(0, 0, 30) = -std::numeric_limits<float>::infinity();
  CHECK(distance(run(bila::form::chunkwise{}, p).y, run(bila::form::chunkwise{}, packed).y) < 2e-6L);
}

namespace {

/// The gradients of a call, and what the loss weighs: y and the final states.
template <class T>
struct lesson {
  using Real = real_of<T>;

  tensor<T> dy, dq, dk, dv;
  tensor<Real> dS_forward, dS_backward, dbeta, dbeta_backward, dlog_decay, df, db, dS0_forward, dS0_backward, dgap_forward,
      dgap_backward;
  double dscale = 0, ddiagonal = 0;

  lesson(test::random_source& random, const problem<T>& p)
      : dy(p.s.B, p.s.H, p.s.L, p.s.Dv, any_layout(random)),
        dq(like(p.q)),
        dk(like(p.k)),
        dv(like(p.v)),
        dS_forward(p.s.sequences(), p.s.H, p.s.Dk, p.s.Dv),
        dS_backward(dS_forward),
        dbeta(like(p.beta)),
        dbeta_backward(like(p.beta_backward)),
        dlog_decay(like(p.log_decay)),
        df(p.s.B, p.s.H, p.s.L, p.s.gate_width()),
        db(df),
        dS0_forward(dS_forward),
        dS0_backward(dS_forward),
        dgap_forward(like(p.state_gap_forward)),
        dgap_backward(like(p.state_gap_forward)) {
    if (p.s.mask == gates::fixed) dlog_decay = tensor<Real>(1, p.s.gate_heads, 1, 1);
    const auto fill = [&](auto& x) {
      x.for_each([&](auto& number, index_t, index_t, index_t, index_t) {
        number = std::remove_reference_t<decltype(number)>(static_cast<Real>(random.uniform(-1, 1)));
      });
    };
    fill(dy), fill(dS_forward), fill(dS_backward);
  }

  template <class X>
  static tensor<X> like(const tensor<X>& x) {
    return {x.extent(0), x.extent(1), x.extent(2), x.extent(3)};
  }
};

/// Runs forward and gradient.
template <class Tuning = void, class T, class Form>
void learn(const Form& form, const problem<T>& p, lesson<T>& g, const bila::cpu& backend = {}) {
  const shape& s = p.s;
  const result<T> r = run<Tuning>(form, p, backend);
  bila::gradients<T> to;
  to.q = g.dq.view(), to.k = g.dk.view(), to.v = g.dv.view();
  if (s.one_gate() || s.mask == gates::fixed) to.log_decay = g.dlog_decay.view();
  to.log_forward = g.df.view(), to.log_backward = g.db.view();
  if (s.one_beta) {
    to.beta = g.dbeta.view();
  } else {
    to.beta_forward = g.dbeta.view(), to.beta_backward = g.dbeta_backward.view();
  }
  to.scale = &g.dscale, to.diagonal = &g.ddiagonal;
  if (s.initial_forward) to.initial_forward = {g.dS0_forward.view(), {}, g.dgap_forward.view()};
  if (s.initial_backward) to.initial_backward = {g.dS0_backward.view(), {}, g.dgap_backward.view()};
  bila::output_gradients<T> dy{g.dy.view()};
  if (s.final_states && s.way != backward) dy.final_forward = {std::as_const(g.dS_forward).view(), {}};
  if (s.final_states && s.way != forward) dy.final_backward = {std::as_const(g.dS_backward).view(), {}};
  p.with_rule([&](const auto& rule) {
    bila::gradient<Tuning>(backend, form, rule, bila::norm::none{}, p.in(), {std::as_const(r.y).view(), {}}, dy, to);
  });
}

/// The loss by the definition: the sum of all outputs times the lesson's weights.
template <class T>
wide loss(const problem<T>& p, const lesson<T>& g) {
  const exact_result r = define(p);
  wide sum = 0;
  const auto weigh = [&](const auto& weights, const tensor<wide>& x) {
    x.for_each([&](const wide& number, index_t b, index_t h, index_t l, index_t d) { sum += wide(weights(b, h, l, d)) * number; });
  };
  weigh(g.dy, r.y);
  if (p.s.final_states && p.s.way != backward) weigh(g.dS_forward, r.S_forward);
  if (p.s.final_states && p.s.way != forward) weigh(g.dS_backward, r.S_backward);
  return sum;
}

/// Holds every number of `found` against a difference of losses. `wanted` names the number of the problem.
template <class Wanted>
bool matches(problem<double>& p, const lesson<double>& g, const tensor<double>& found, const Wanted& wanted) {
  bool good = true;
  found.for_each([&](const double& x, index_t b, index_t h, index_t l, index_t d) {
    double& parameter = wanted(b, h, l, d);
    if (std::isnan(parameter) || std::isinf(parameter)) {  // a padded token or a cut gap
      if (x != 0 && good) UNSCOPED_INFO(x << " where there is no gradient, at " << b << " " << h << " " << l << " " << d);
      good = good && x == 0;
      return;
    }
    const double before = parameter, step = 1e-6;
    parameter = before + step;
    const wide up = loss(p, g), above = parameter;
    parameter = before - step;
    const wide down = loss(p, g), below = parameter;
    parameter = before;
    const wide slope = (up - down) / (above - below);
    if (!(std::fabs(wide(x) - slope) <= 3e-8L * (1 + std::fabs(slope)))) {
      if (good) UNSCOPED_INFO(x << " for " << slope << " at " << b << " " << h << " " << l << " " << d);
      good = false;
    }
  });
  return good;
}

template <class T>
bool same_gradients(const lesson<T>& a, const lesson<T>& b) {
  const auto same = [&](auto member) { return same_bits(a.*member, b.*member); };
  using L = lesson<T>;
  return same(&L::dq) && same(&L::dk) && same(&L::dv) && same(&L::dbeta) && same(&L::dbeta_backward) && same(&L::dlog_decay) &&
         same(&L::df) && same(&L::db) && same(&L::dS0_forward) && same(&L::dS0_backward) && same(&L::dgap_forward) &&
         same(&L::dgap_backward) && !(a.dscale != b.dscale) && !(a.ddiagonal != b.ddiagonal);
}

}  // namespace

TEST_CASE("delta: every gradient agrees with differences of the definition", "[random]") {
  test::random_source random(2020);
  INFO("BILA_TEST_SEED = " << test::seed());
  const test::rounds rounds(40);
  for (int call = 0; rounds.go_on(call); ++call) {
    shape s = any_shape(random, call % 4 == 0 ? 40 : 20);
    s.B = std::min<index_t>(s.B, 2);
    if (!s.lengths.empty()) s.lengths.resize(static_cast<std::size_t>(s.B));
    s.Dk = 1 + (s.Dk - 1) % 5, s.Dv = 1 + (s.Dv - 1) % 5;
    INFO("call " << call << ": " << words(s));
    auto p = numbers_for<double>(random, s);
    if (call % 5 == 0 && s.one_gate() && s.lengths.empty())
      p.log_decay.for_each([&](double& x, index_t, index_t, index_t, index_t) {
        if (random.below(8) == 0) x = -std::numeric_limits<double>::infinity();
      });
    lesson<double> g(random, p);
    if (call % 3 == 0)
      learn(bila::form::recurrent{}, p, g);
    else if (call % 3 == 1)
      learn(bila::form::chunkwise{}, p, g, {.threads = 2});
    else
      learn(bila::form::chunkwise{.size = 1 + random.below(40), .recompute = random.below(2) == 0}, p, g);
    const auto number = [](tensor<double>& x) {
      return [&x](index_t b, index_t h, index_t l, index_t d) -> double& { return x(b, h, l, d); };
    };
    const auto of_tokens = [&](const tensor<double>& found, tensor<double>& x) {
      double padded = std::numeric_limits<double>::quiet_NaN();
      return matches(p, g, found, [&](index_t b, index_t h, index_t l, index_t d) -> double& {
        return !s.lengths.empty() && l >= s.lengths[static_cast<std::size_t>(b)] ? padded : x(b, h, l, d);
      });
    };
    CHECK(of_tokens(g.dq, p.q));
    CHECK(of_tokens(g.dk, p.k));
    CHECK(of_tokens(g.dv, p.v));
    CHECK(of_tokens(g.dbeta, p.beta));
    if (!s.one_beta) CHECK(of_tokens(g.dbeta_backward, p.beta_backward));
    if (s.one_gate()) CHECK(of_tokens(g.dlog_decay, p.log_decay));
    if (s.mask == gates::fixed)
      CHECK(matches(p, g, g.dlog_decay,
                    [&](index_t, index_t h, index_t, index_t) -> double& { return p.per_head[static_cast<std::size_t>(h)]; }));
    if (s.gap_gates() && s.gate_heads == s.H) {
      double none = std::numeric_limits<double>::quiet_NaN();
      const auto gap_of = [&](tensor<double>& x) {
        return [&](index_t b, index_t h, index_t l, index_t d) -> double& {
          return l == 0 || std::count(s.offsets.begin(), s.offsets.end(), l) > 0 ? none : x(b, h, l, d);
        };
      };
      CHECK(matches(p, g, g.df, gap_of(p.log_decay)));
      CHECK(matches(p, g, g.db, gap_of(p.log_backward)));
    }
    if (s.initial_forward) CHECK(matches(p, g, g.dS0_forward, number(p.S_forward)));
    if (s.initial_backward) CHECK(matches(p, g, g.dS0_backward, number(p.S_backward)));
    if (s.initial_forward) CHECK(matches(p, g, g.dgap_forward, number(p.state_gap_forward)));
    if (s.initial_backward) CHECK(matches(p, g, g.dgap_backward, number(p.state_gap_backward)));
    tensor<double> one(1, 1, 1, 1);
    one.fill(g.dscale);
    CHECK(matches(p, g, one, [&](index_t, index_t, index_t, index_t) -> double& { return p.s.scale; }));
    one.fill(g.ddiagonal);
    CHECK(matches(p, g, one, [&](index_t, index_t, index_t, index_t) -> double& { return p.s.diagonal; }));
  }
}

TEMPLATE_TEST_CASE("delta: gradients have the same bits for every number of threads, and recomputed", "", float, double) {
  test::random_source random(2021);
  for (int call = 0; call < 15; ++call) {
    const shape s = any_shape(random, 200);
    INFO("call " << call << ": " << words(s));
    const auto p = numbers_for<TestType>(random, s);
    lesson<TestType> alone(random, p);
    auto other = alone, again = alone;
    learn(bila::form::chunkwise{.size = 16}, p, alone);
    learn(bila::form::chunkwise{.size = 16}, p, other, {.threads = 3});
    learn(bila::form::chunkwise{.size = 16, .recompute = true}, p, again);
    CHECK(same_gradients(alone, other));
    CHECK(same_gradients(alone, again));
  }
}

TEST_CASE("delta: equal channels are a scalar decay, and so are their gradients") {
  test::random_source random(2023);
  for (const index_t L : {1, 16, 77}) {
    shape s = one_head(L, 9, 6);
    s.way = static_cast<direction>(L % 3);
    const auto p = numbers_for<double>(random, s, false);
    auto wide_gates = p;
    wide_gates.s.mask = gates::channels;
    wide_gates.log_decay = tensor<double>(1, 1, L, 9);
    wide_gates.log_decay.for_each([&](double& x, index_t, index_t, index_t l, index_t) { x = p.log_decay(0, 0, l); });
    CHECK(distance(run(bila::form::chunkwise{}, wide_gates).y, run(bila::form::chunkwise{}, p).y) < 1e-13L);
    lesson<double> g(random, p), of_channels(random, wide_gates);
    of_channels.dy = g.dy, of_channels.dS_forward = g.dS_forward, of_channels.dS_backward = g.dS_backward;
    learn(bila::form::chunkwise{}, p, g), learn(bila::form::chunkwise{}, wide_gates, of_channels);
    tensor<double> summed(1, 1, L, 1);
    summed.fill(0);
    of_channels.dlog_decay.for_each([&](const double& x, index_t, index_t, index_t l, index_t) { summed(0, 0, l) += x; });
    CHECK((distance(of_channels.dk, g.dk) < 1e-12L && distance(of_channels.dbeta, g.dbeta) < 1e-12L));
    CHECK(distance(summed, g.dlog_decay) < 1e-12L);
  }
}

TEST_CASE("delta: gradients in float and in 16 bits are those in double, rounded") {
  test::random_source random(2022);
  for (int call = 0; call < 20; ++call) {
    const shape s = any_shape(random, 150);
    INFO("call " << call << ": " << words(s));
    const auto p = numbers_for<bila::bf16>(random, s);
    lesson<bila::bf16> narrow(random, p);
    const auto widened = [](const auto& x, auto number) {
      tensor<decltype(number)> y(x.extent(0), x.extent(1), x.extent(2), x.extent(3));
      y.for_each([&](auto& to, index_t b, index_t h, index_t l, index_t d) {
        to = static_cast<decltype(number)>(static_cast<float>(x(b, h, l, d)));
      });
      return y;
    };
    const auto in = [&](auto number) {
      const auto to = [&](const auto& x) { return widened(x, number); };
      return problem<decltype(number)>{s,
                                       to(p.q),
                                       to(p.k),
                                       to(p.v),
                                       to(p.log_decay),
                                       to(p.log_backward),
                                       {p.per_head.begin(), p.per_head.end()},
                                       to(p.beta),
                                       to(p.beta_backward),
                                       to(p.S_forward),
                                       to(p.S_backward),
                                       to(p.state_gap_forward),
                                       to(p.state_gap_backward)};
    };
    const auto p_float = in(0.f);
    const auto p_double = in(0.0);
    lesson<float> single(random, p_float);
    lesson<double> twice(random, p_double);
    single.dy = widened(narrow.dy, 0.f), twice.dy = widened(narrow.dy, 0.0);
    single.dS_forward = narrow.dS_forward, twice.dS_forward = widened(narrow.dS_forward, 0.0);
    single.dS_backward = narrow.dS_backward, twice.dS_backward = widened(narrow.dS_backward, 0.0);
    learn(bila::form::chunkwise{}, p, narrow);
    learn(bila::form::chunkwise{}, p_float, single);
    learn<bila::kernel::reference>(bila::form::chunkwise{.size = 8}, p_double, twice);
    bool rounded = true;
    narrow.dv.for_each([&](const bila::bf16& x, index_t b, index_t h, index_t l, index_t d) {
      rounded = rounded && static_cast<float>(x) == static_cast<float>(bila::bf16(single.dv(b, h, l, d)));
    });
    CHECK(rounded);
    const auto close = [&](const auto& a, const auto& b) {
      wide most = 0, size = 1;
      a.for_each([&](const auto& x, index_t n, index_t h, index_t l, index_t d) {
        const wide apart = std::fabs(wide(x) - wide(b(n, h, l, d)));
        if (!(apart <= most)) most = apart;
        size = std::max(size, std::fabs(wide(x)));
      });
      return most <= 2e-5L * size;
    };
    CHECK((close(single.dq, twice.dq) && close(single.dk, twice.dk) && close(single.dv, twice.dv)));
    CHECK((close(single.dbeta, twice.dbeta) && close(single.df, twice.df) && close(single.db, twice.db)));
  }
}

TEST_CASE("delta: what the rule cannot compute is refused in a sentence, before anything is written") {
  using test::has_all;
  test::random_source random(2015);
  const index_t L = 20;
  auto p = numbers_for<float>(random, one_head(L, 4, 4), false);
  tensor<float> y(1, 1, L, 4);
  y.fill(7);
  const auto call = [&](const auto& norm, const bila::inputs<float>& in) {
    return test::refusal(
        [&] { p.with_rule([&](const auto& rule) { bila::attend(bila::form::chunkwise{}, rule, norm, in, y.view()); }); });
  };
  CHECK(has_all(call(bila::norm::row_sum{1e-6}, p.in()), {"row sum", "delta rule"}));
  CHECK(has_all(call(bila::norm::max_one{}, p.in()), {"row sum", "delta rule"}));
  for (const float wrong : {-0.01f, 2.01f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const float before = p.beta(0, 0, 5);
    p.beta(0, 0, 5) = wrong;
    CHECK(has_all(call(bila::norm::none{}, p.in()), {"t = 5", "beta"}));
    p.beta(0, 0, 5) = before;
  }
  tensor<float> few(1, 1, L - 3, 4);
  few.fill(0);
  CHECK(has_all(call(bila::norm::none{}, {p.q.view(), few.view(), few.view()}), {"k has length 17", "q has 20"}));
  const std::vector<index_t> keys{5};
  auto in = p.in();
  in.key_lengths = keys;
  CHECK(has_all(call(bila::norm::none{}, in), {"key_lengths"}));
  const auto before = p.beta;
  p.beta = tensor<float>(1, 1, L - 1, 1);
  p.beta.fill(1);
  CHECK(has_all(call(bila::norm::none{}, p.in()), {"beta", "[1, 1, 19, 1]"}));
  p.beta = before;
  p.log_decay(0, 0, 4) = 0.5f;
  CHECK(has_all(call(bila::norm::none{}, p.in()), {"log_decay"}));
  p.log_decay(0, 0, 4) = -0.5f;
  CHECK(has_all(test::refusal([&] {
                  p.with_rule([&](const auto& rule) {
                    bila::attend(bila::form::chunkwise{.size = -5}, rule, bila::norm::none{}, p.in(), y.view());
                  });
                }),
                {"chunkwise.size", "-5"}));
  bool untouched = true;
  y.for_each([&](const float& x, index_t, index_t, index_t, index_t) { untouched = untouched && x == 7; });
  CHECK(untouched);
  CHECK(call(bila::norm::none{}, p.in()).empty());
}

TEST_CASE("delta: a second call allocates nothing") {
  test::random_source random(2016);
  const auto p = numbers_for<float>(random, one_head(100, 16, 16), false);
  tensor<float> y(1, 1, 100, 16);
  const bila::mask::selective_decay<float> mask{p.log_decay.view(), bila::gate::target};
  const bila::rule::delta rule{mask, p.beta.view()};
  const auto call = [&] { bila::attend(bila::form::chunkwise{}, rule, bila::norm::none{}, p.in(), y.view()); };
  lesson<float> g(random, p);
  const auto back = [&] {
    bila::gradients<float> to;
    to.q = g.dq.view(), to.k = g.dk.view(), to.v = g.dv.view(), to.beta = g.dbeta.view(), to.log_decay = g.dlog_decay.view();
    bila::gradient(bila::form::chunkwise{}, rule, bila::norm::none{}, p.in(), {std::as_const(y).view(), {}},
                   {std::as_const(g.dy).view()}, to);
  };
  call(), back();
  const long before = test::allocations();
  call(), back();
  CHECK(test::allocations() == before);
}
