// SPDX-License-Identifier: Apache-2.0
// Decays per channel, exclusive reads and bonuses against a dense definition in long double, and their laws.
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/refusal.hpp"
#include "support/tensor.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using bila::direction;
using bila::gate;
using bila::index_t;
using wide = long double;

constexpr gate conventions[] = {gate::later, gate::source, gate::target, gate::earlier};

/// A call with decays per channel: its numbers in logical order, one segment list for all batch rows.
template <class Real>
struct channel_call {
  index_t B = 1, H = 1, L = 1, Dk = 1, Dv = 1;
  std::vector<Real> q, k, v, gates, other_gates, bonus;
  std::vector<Real> S[2], z[2], enter[2];  // initial states [forward, backward], with their log decays; empty: none
  std::vector<index_t> offsets, lengths;
  bool two_sided = false, exclusive = false, sums = false;
  gate crossing = gate::target;
  direction way = direction::both;
  double scale = 1, diagonal = 1;
  test::layout where = test::layout::bhld;  // of the tokens that run() is given

  index_t segments() const { return offsets.empty() ? 1 : static_cast<index_t>(offsets.size()) - 1; }
  index_t sequences() const { return B * segments(); }

  bila::inputs<Real> in() const {
    bila::inputs<Real> x{bila::bhld(q.data(), B, H, L, Dk), bila::bhld(k.data(), B, H, L, Dk), bila::bhld(v.data(), B, H, L, Dv)};
    x.scale = scale;
    x.diagonal = diagonal;
    x.direction = way;
    x.offsets = offsets;
    x.lengths = lengths;
    const auto state = [&](int n) {
      bila::state<const Real> s{};
      if (S[n].empty()) return s;
      s.S = bila::bhld(S[n].data(), sequences(), H, Dk, Dv);
      s.z = bila::bhld(z[n].data(), sequences(), H, Dk, index_t(1));
      s.log_decay = bila::bhld(enter[n].data(), sequences(), H, index_t(1), Dk);
      return s;
    };
    x.initial_forward = state(0);
    x.initial_backward = state(1);
    return x;
  }

  /// Calls use(mask) with the call's mask.
  template <class Use>
  void with_mask(const Use& use) const {
    with_mask(bila::bhld(gates.data(), B, H, L, Dk), bila::bhld(other_gates.data(), B, H, L, Dk), use);
  }

  template <class Use>
  void with_mask(bila::tensor_view<const Real> g, bila::tensor_view<const Real> o, const Use& use) const {
    const bila::tensor_view<const Real> u{bonus.data(), {1, H, 1, Dk}, {0, Dk, 0, 1}};
    const bila::mask::channel_decay one{g, crossing};
    const bila::mask::two_sided_channels both{g, o};
    if (exclusive && two_sided) return use(bila::mask::exclusive_read{both, u});
    if (exclusive) return use(bila::mask::exclusive_read{one, u});
    if (two_sided) return use(both);
    return use(one);
  }

  /// The log decay of gap t of batch row b.
  wide log_gap(direction d, index_t b, index_t h, index_t t, index_t c) const {
    const auto at = [&](const std::vector<Real>& x, index_t l) {
      return static_cast<wide>(x[static_cast<std::size_t>(((b * H + h) * L + l) * Dk + c)]);
    };
    if (two_sided) return at(d == direction::forward ? gates : other_gates, t);
    const bool earlier = crossing == gate::earlier || crossing == (d == direction::forward ? gate::source : gate::target);
    return at(gates, earlier ? t - 1 : t);
  }
};

template <class Real>
struct results {
  std::vector<Real> y, sums, S[2], z[2];
};

template <class Real, class Form>
results<Real> run(const channel_call<Real>& x, const Form& form, int threads = 1, bool states = false) {
  const auto placed = [&](const std::vector<Real>& numbers, index_t D) {
    test::tensor<Real> to(x.B, x.H, x.L, D, x.where);
    std::size_t n = 0;
    to.for_each([&](Real& number, index_t, index_t, index_t, index_t) { number = numbers[n++]; });
    return to;
  };
  const test::tensor<Real> q = placed(x.q, x.Dk), k = placed(x.k, x.Dk), v = placed(x.v, x.Dv), gates = placed(x.gates, x.Dk),
                           others = placed(x.other_gates, x.Dk);
  test::tensor<Real> y(x.B, x.H, x.L, x.Dv, x.where);
  bila::inputs<Real> in = x.in();
  in.q = q.view(), in.k = k.view(), in.v = v.view();
  results<Real> r;
  r.sums.assign(static_cast<std::size_t>(x.B * x.H * x.L), Real(77));
  bila::outputs<Real> out{y.view()};
  if (x.sums) out.row_sum = bila::bhl(r.sums.data(), x.B, x.H, x.L);
  for (int n = 0; n < 2 && states; ++n) {
    if ((n == 0 ? direction::backward : direction::forward) == x.way) continue;
    r.S[n].assign(static_cast<std::size_t>(x.sequences() * x.H * x.Dk * x.Dv), Real(77));
    r.z[n].assign(static_cast<std::size_t>(x.sequences() * x.H * x.Dk), Real(77));
    (n == 0 ? out.final_forward : out.final_backward) = bila::state<Real>{
        bila::bhld(r.S[n].data(), x.sequences(), x.H, x.Dk, x.Dv), bila::bhld(r.z[n].data(), x.sequences(), x.H, x.Dk, index_t(1))};
  }
  x.with_mask(gates.view(), others.view(), [&](const auto& mask) {
    const bila::cpu backend{.threads = threads};
    if (x.sums)
      bila::attend(backend, form, mask, bila::norm::row_sum{1e-6}, in, out);
    else
      bila::attend(backend, form, mask, bila::norm::none{}, in, out);
  });
  CHECK(y.intact());
  y.for_each([&](const Real& number, index_t, index_t, index_t, index_t) { r.y.push_back(number); });
  return r;
}

/// A sum and the sum of the sizes of its terms, from which a bound of the rounding error follows.
struct term_sum {
  wide value = 0, size = 0;
  void add(wide x) { value += x, size += std::fabs(x); }
};

/// The definition: y of one head of one segment [first, first + n), written term by term.
template <class Real>
void check_segment(const channel_call<Real>& x, const results<Real>& r, index_t b, index_t h, index_t first, index_t n,
                   index_t sequence, wide tolerance) {
  const auto at = [&](const auto& values, index_t l, index_t d, index_t width) {
    return static_cast<wide>(values[static_cast<std::size_t>(((b * x.H + h) * x.L + first + l) * width + d)]);
  };
  const auto in_state = [&](const std::vector<Real>& values, index_t c, index_t d, index_t width) {
    return static_cast<wide>(values[static_cast<std::size_t>(((sequence * x.H + h) * x.Dk + c) * width + d)]);
  };
  // The decay of channel c from token j to query i; j = -1 and j = n are the states at the ends.
  const auto decay = [&](index_t j, index_t i, index_t c, bool exclusive) -> wide {
    wide log = 0;
    if (j < i)
      for (index_t t = (std::max)(j + 1, index_t(1)); t <= i - exclusive; ++t)
        log += x.log_gap(direction::forward, b, h, first + t, c);
    else
      for (index_t t = i + 1 + exclusive; t <= (std::min)(j, n - 1); ++t) log += x.log_gap(direction::backward, b, h, first + t, c);
    return std::exp(log);
  };
  const auto entering = [&](int side, index_t c) {
    return std::exp(static_cast<wide>(x.enter[side][static_cast<std::size_t>((sequence * x.H + h) * x.Dk + c)]));
  };
  bool all = true;
  for (index_t i = 0; i < n; ++i) {
    std::vector<term_sum> N(static_cast<std::size_t>(x.Dv + 1));
    for (index_t j = 0; j < n; ++j) {
      if ((j > i && x.way == direction::forward) || (j < i && x.way == direction::backward)) continue;
      for (index_t c = 0; c < x.Dk; ++c) {
        wide w = at(x.q, i, c, x.Dk) * at(x.k, j, c, x.Dk);
        if (i == j)
          w *= static_cast<wide>(x.diagonal) *
               (x.exclusive ? static_cast<wide>(x.bonus[static_cast<std::size_t>(h * x.Dk + c)]) : 1);
        else
          w *= decay(j, i, c, x.exclusive);
        for (index_t d = 0; d <= x.Dv; ++d) N[static_cast<std::size_t>(d)].add(w * (d == x.Dv ? 1 : at(x.v, j, d, x.Dv)));
      }
    }
    for (int side = 0; side < 2; ++side) {
      if (x.S[side].empty() || x.way == (side == 0 ? direction::backward : direction::forward)) continue;
      for (index_t c = 0; c < x.Dk; ++c) {
        // The gap of a state lies next to the first token of the sweep, whose exclusive read does not cross it.
        const bool next_to_state = i == (side == 0 ? 0 : n - 1);
        const wide w = at(x.q, i, c, x.Dk) * (x.exclusive && next_to_state ? 1 : entering(side, c)) *
                       decay(side == 0 ? -1 : n, i, c, x.exclusive);
        for (index_t d = 0; d <= x.Dv; ++d)
          N[static_cast<std::size_t>(d)].add(w * (d == x.Dv ? in_state(x.z[side], c, 0, 1) : in_state(x.S[side], c, d, x.Dv)));
      }
    }
    const term_sum& Z = N.back();
    const wide scale = static_cast<wide>(x.scale), divisor = x.sums ? Z.value + 1e-6L : 1 / scale;
    for (index_t d = 0; d < x.Dv; ++d) {
      const term_sum& sum = N[static_cast<std::size_t>(d)];
      const wide exact = sum.value / divisor,
                 allowed = tolerance * (sum.size + (x.sums ? std::fabs(exact) * Z.size : 0)) / std::fabs(divisor);
      const wide found = at(r.y, i, d, x.Dv);
      if (!(std::fabs(found - exact) <= allowed + 1e-35L)) {
        all = false;
        UNSCOPED_INFO("i = " << i << ", d = " << d << ": " << static_cast<double>(found) << ", exact " << static_cast<double>(exact)
                             << ", allowed " << static_cast<double>(allowed));
      }
    }
  }
  CHECK(all);
  for (int side = 0; side < 2; ++side) {
    if (r.S[side].empty()) continue;
    bool same = true;
    for (index_t c = 0; c < x.Dk; ++c)
      for (index_t d = 0; d < x.Dv; ++d) {
        term_sum S;
        // The decay to the state after the last token, or before the first, is that to the token there.
        const index_t end = side == 0 ? n - 1 : 0;
        for (index_t j = 0; j < n; ++j) S.add(at(x.k, j, c, x.Dk) * at(x.v, j, d, x.Dv) * (j == end ? 1 : decay(j, end, c, false)));
        // The final state of an empty segment is the initial state, which crosses no gap.
        const wide crossed = n == 0 || x.S[side].empty() ? 1 : entering(side, c) * decay(side == 0 ? -1 : n, end, c, false);
        if (!x.S[side].empty()) S.add(in_state(x.S[side], c, d, x.Dv) * crossed);
        same = same && std::fabs(in_state(r.S[side], c, d, x.Dv) - S.value) <= tolerance * S.size + 1e-35L;
      }
    CHECK(same);
  }
}

/// Fills a call that has its sizes with numbers and options.
template <class Real>
void add_options(test::random_source& from, channel_call<Real>& x, bool packed) {
  x.two_sided = from.below(2) == 0, x.exclusive = from.below(3) == 0, x.sums = from.below(3) == 0;
  x.crossing = conventions[from.below(4)];
  x.way = from.below(2) == 0 ? direction::both : from.below(2) == 0 ? direction::forward : direction::backward;
  x.scale = from.uniform(0.2, 2), x.diagonal = from.below(2) == 0 ? 1 : from.uniform(0, 2);
  const auto fill = [&](std::vector<Real>& to, index_t n, double low, double high) {
    to.resize(static_cast<std::size_t>(n));
    for (Real& value : to) value = static_cast<Real>(from.uniform(low, high));
  };
  const double least = x.sums ? 0.1 : -1;
  fill(x.q, x.B * x.H * x.L * x.Dk, least, 1);
  fill(x.k, x.B * x.H * x.L * x.Dk, least, 1);
  fill(x.v, x.B * x.H * x.L * x.Dv, -1, 1);
  fill(x.bonus, x.H * x.Dk, least, 1);
  const double strength = std::exp(from.uniform(-9, 3));
  for (std::vector<Real>* const gates : {&x.gates, &x.other_gates}) {
    fill(*gates, x.B * x.H * x.L * x.Dk, -strength, 0);
    for (Real& gate : *gates)
      if (from.below(40) == 0) gate = from.below(2) == 0 ? Real(-60) : -std::numeric_limits<Real>::infinity();
  }
  if (packed) {
    x.offsets = {0};
    while (x.offsets.back() < x.L) x.offsets.push_back((std::min)(x.L, x.offsets.back() + from.below(2 + x.L / 2)));
    if (x.L == 0) x.offsets.push_back(0);
  } else if (from.below(2) == 0) {
    for (index_t b = 0; b < x.B; ++b) x.lengths.push_back(from.below(x.L + 1));
  }
  for (int side = 0; side < 2; ++side)
    if (from.below(2) == 0 && x.way != (side == 0 ? direction::backward : direction::forward)) {
      fill(x.S[side], x.sequences() * x.H * x.Dk * x.Dv, -1, 1);
      fill(x.z[side], x.sequences() * x.H * x.Dk, least, 1);
      fill(x.enter[side], x.sequences() * x.H * x.Dk, -1, 0);
    }
}

template <class Real>
channel_call<Real> random_call(test::random_source& from) {
  channel_call<Real> x;
  const bool packed = from.below(3) == 0;
  x.B = packed ? 1 : 1 + from.below(2), x.H = 1 + from.below(2), x.Dk = 1 + from.below(from.below(3) == 0 ? 70 : 9),
  x.Dv = from.below(20);
  x.L = from.below(4) == 0 ? from.below(3) : 1 + from.below(70);
  x.where = test::all_layouts[static_cast<std::size_t>(from.below(6))];
  add_options(from, x, packed);
  return x;
}

/// A call with L tokens and few channels.
template <class Real>
channel_call<Real> long_call(test::random_source& from, index_t L, index_t H = 1) {
  channel_call<Real> x;
  x.H = H, x.L = L, x.Dk = 1 + from.below(6), x.Dv = 1 + from.below(5);
  add_options(from, x, from.below(3) == 0);
  return x;
}

template <class Form>
constexpr bool carries = !std::is_same_v<Form, bila::form::full>;

/// The call as a form can compute it: without initial states if it carries none.
template <class Form, class Real>
channel_call<Real> call_for(channel_call<Real> x) {
  for (int side = 0; side < 2 && !carries<Form>; ++side) x.S[side].clear();
  return x;
}

template <class Real, class Form>
void check_definition(const channel_call<Real>& call, const Form& form, int threads = 1) {
  const channel_call<Real> x = call_for<Form>(call);
  const results<Real> r = run(x, form, threads, carries<Form>);
  // Each factor of a chunk rounds once per token, each product once per channel; between chunks decays are double.
  const wide tolerance = static_cast<wide>(std::numeric_limits<Real>::epsilon()) * static_cast<wide>(24 + x.Dk / 4 + x.L / 8);
  for (index_t b = 0; b < x.B; ++b)
    for (index_t h = 0; h < x.H; ++h)
      for (index_t s = 0; s < x.segments(); ++s) {
        const index_t first = x.offsets.empty() ? 0 : x.offsets[static_cast<std::size_t>(s)];
        const index_t last = x.offsets.empty() ? (x.lengths.empty() ? x.L : x.lengths[static_cast<std::size_t>(b)])
                                               : x.offsets[static_cast<std::size_t>(s) + 1];
        check_segment(x, r, b, h, first, last - first, b * x.segments() + s, tolerance);
      }
}

}  // namespace

TEMPLATE_TEST_CASE("decays per channel equal their definition", "[random]", float, double) {
  test::random_source from(901);
  const test::rounds rounds(150);
  for (int n = 0; rounds.go_on(n); ++n) {
    const channel_call<TestType> x = random_call<TestType>(from);
    INFO("call " << n << ": B=" << x.B << " H=" << x.H << " L=" << x.L << " Dk=" << x.Dk << " Dv=" << x.Dv
                 << " two_sided=" << x.two_sided << " exclusive=" << x.exclusive << " sums=" << x.sums
                 << " way=" << static_cast<int>(x.way) << " segments=" << x.segments() << " lengths=" << x.lengths.size());
    check_definition(x, bila::form::chunkwise{.size = from.below(3) == 0 ? 1 + from.below(40) : 0},
                     1 + static_cast<int>(from.below(3)));
    check_definition(x, bila::form::recurrent{});
    check_definition(x, bila::form::full{});
  }
}

TEMPLATE_TEST_CASE("the full form of decays per channel equals its definition over several blocks, on any number of threads", "",
                   float, double) {
  test::random_source from(904);
  for (int n = 0; n < 8; ++n) {
    channel_call<TestType> x = long_call<TestType>(from, 100 + from.below(320));
    INFO("call " << n << ": L=" << x.L << " Dk=" << x.Dk << " Dv=" << x.Dv << " two_sided=" << x.two_sided
                 << " exclusive=" << x.exclusive << " sums=" << x.sums << " way=" << static_cast<int>(x.way)
                 << " segments=" << x.segments() << " lengths=" << x.lengths.size());
    check_definition(x, bila::form::full{});
    x = call_for<bila::form::full>(x);
    const results<TestType> one = run(x, bila::form::full{}), four = run(x, bila::form::full{}, 4);
    CHECK((one.y == four.y && one.sums == four.sums));
  }
}

namespace {

/// y of one form for tensors that several heads share, stored in T.
template <class T, class Form>
std::vector<float> shared_heads(const channel_call<float>& x, const Form& form) {
  const auto stored = [](const std::vector<float>& values) {
    std::vector<T> to;
    for (const float value : values) to.push_back(static_cast<T>(value));
    return to;
  };
  const std::vector<T> q = stored(x.q), k = stored(x.k), v = stored(x.v);
  std::vector<T> y(static_cast<std::size_t>(x.B * 4 * x.L * x.Dv), static_cast<T>(77.f));
  bila::inputs<T> in{bila::bhld(q.data(), x.B, index_t(2), x.L, x.Dk), bila::bhld(k.data(), x.B, index_t(1), x.L, x.Dk),
                     bila::bhld(v.data(), x.B, index_t(4), x.L, x.Dv)};
  in.scale = x.scale, in.diagonal = x.diagonal, in.direction = x.way;
  in.offsets = x.offsets, in.lengths = x.lengths;
  const bila::mask::channel_decay gates{bila::bhld(x.gates.data(), x.B, index_t(2), x.L, x.Dk), x.crossing};
  const auto attend = [&](const auto& mask) {
    bila::attend(form, mask, bila::norm::none{}, in, bila::bhld(y.data(), x.B, index_t(4), x.L, x.Dv));
  };
  if (x.exclusive)
    attend(bila::mask::exclusive_read{gates, bila::tensor_view<const float>{x.bonus.data(), {1, 4, 1, x.Dk}, {0, x.Dk, 0, 1}}});
  else
    attend(gates);
  std::vector<float> to;
  for (const T value : y) to.push_back(static_cast<float>(value));
  return to;
}

}  // namespace

TEMPLATE_TEST_CASE("the forms of decays per channel agree on heads that are shared, and on 16-bit tensors", "", bila::bf16,
                   bila::f16, float) {
  test::random_source from(905);
  const double unit = std::is_same_v<TestType, float> ? 1e-6 : std::is_same_v<TestType, bila::bf16> ? 0x1p-8 : 0x1p-11;
  for (int n = 0; n < 10; ++n) {
    const channel_call<float> x = long_call<float>(from, from.below(300), 4);
    INFO("call " << n << ": L=" << x.L << " Dk=" << x.Dk << " Dv=" << x.Dv << " exclusive=" << x.exclusive
                 << " way=" << static_cast<int>(x.way) << " segments=" << x.segments() << " lengths=" << x.lengths.size());
    const std::vector<float> y = shared_heads<TestType>(x, bila::form::full{}),
                             expected = shared_heads<TestType>(x, bila::form::chunkwise{});
    double size = 1, difference = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      size = (std::max)(size, static_cast<double>(std::fabs(expected[i])));
      difference = (std::max)(difference, static_cast<double>(std::fabs(y[i] - expected[i])));
    }
    INFO("difference " << difference << " of " << size);
    CHECK(difference <= 3 * unit * size);
  }
}

namespace {

/// The gradients of a random loss: the sum of dy . y and of the final states' gradients times the states.
template <class Real>
struct learned {
  std::vector<Real> q, k, v, gates, other_gates, bonus, S[2], z[2], enter[2];
  double scale = 0, diagonal = 0;
};

template <class Real>
struct loss {
  std::vector<Real> dy, dS[2], dz[2];
};

template <class Real>
loss<Real> random_loss(test::random_source& from, const channel_call<Real>& x) {
  loss<Real> to;
  const auto fill = [&](std::vector<Real>& values, index_t n) {
    values.resize(static_cast<std::size_t>(n));
    for (Real& value : values) value = static_cast<Real>(from.uniform(-1, 1));
  };
  fill(to.dy, x.B * x.H * x.L * x.Dv);
  for (int n = 0; n < 2; ++n) {
    if ((n == 0 ? direction::backward : direction::forward) == x.way) continue;
    fill(to.dS[n], x.sequences() * x.H * x.Dk * x.Dv);
    fill(to.dz[n], x.sequences() * x.H * x.Dk);
  }
  return to;
}

template <class Form>
double value(const channel_call<double>& x, const loss<double>& by, const Form& form) {
  const results<double> r = run(x, form, 1, carries<Form>);
  wide sum = 0;
  const auto add = [&](const std::vector<double>& a, const std::vector<double>& b) {
    for (std::size_t n = 0; n < a.size() && n < b.size(); ++n) sum += static_cast<wide>(a[n]) * static_cast<wide>(b[n]);
  };
  std::vector<double> y = r.y;  // padding does not count
  add(by.dy, y);
  for (int n = 0; n < 2 && carries<Form>; ++n) {
    add(by.dS[n], r.S[n]);
    if (x.sums) add(by.dz[n], r.z[n]);
  }
  return static_cast<double>(sum);
}

template <class Real, class Form>
learned<Real> learn(const channel_call<Real>& x, const loss<Real>& by, const Form& form, int threads = 1) {
  const results<Real> r = run(x, form, 1);
  learned<Real> to;
  const auto room = [](std::vector<Real>& values, const std::vector<Real>& like) { values.assign(like.size(), Real(33)); };
  room(to.q, x.q), room(to.k, x.k), room(to.v, x.v), room(to.gates, x.gates), room(to.other_gates, x.other_gates),
      room(to.bonus, x.bonus);
  bila::saved<Real> kept{bila::bhld(r.y.data(), x.B, x.H, x.L, x.Dv)};
  if (x.sums) kept.row_sum = bila::bhl(r.sums.data(), x.B, x.H, x.L);
  bila::output_gradients<Real> dy{bila::bhld(by.dy.data(), x.B, x.H, x.L, x.Dv)};
  bila::gradients<Real> g{bila::bhld(to.q.data(), x.B, x.H, x.L, x.Dk), bila::bhld(to.k.data(), x.B, x.H, x.L, x.Dk),
                          bila::bhld(to.v.data(), x.B, x.H, x.L, x.Dv)};
  if (x.two_sided) {
    g.log_forward = bila::bhld(to.gates.data(), x.B, x.H, x.L, x.Dk);
    g.log_backward = bila::bhld(to.other_gates.data(), x.B, x.H, x.L, x.Dk);
  } else {
    g.log_decay = bila::bhld(to.gates.data(), x.B, x.H, x.L, x.Dk);
  }
  if (x.exclusive) g.bonus = {to.bonus.data(), {1, x.H, 1, x.Dk}, {0, x.Dk, 0, 1}};
  if (!x.sums) g.scale = &to.scale;
  g.diagonal = &to.diagonal;
  for (int n = 0; n < 2; ++n) {
    if (carries<Form> && !by.dz[n].empty())
      (n == 0 ? dy.final_forward : dy.final_backward) =
          bila::state<const Real>{bila::bhld(by.dS[n].data(), x.sequences(), x.H, x.Dk, x.Dv),
                                  bila::bhld(by.dz[n].data(), x.sequences(), x.H, x.Dk, index_t(1))};
    if (x.S[n].empty()) continue;
    room(to.S[n], x.S[n]), room(to.z[n], x.z[n]), room(to.enter[n], x.enter[n]);
    (n == 0 ? g.initial_forward : g.initial_backward) =
        bila::state<Real>{bila::bhld(to.S[n].data(), x.sequences(), x.H, x.Dk, x.Dv),
                          bila::bhld(to.z[n].data(), x.sequences(), x.H, x.Dk, index_t(1)),
                          bila::bhld(to.enter[n].data(), x.sequences(), x.H, index_t(1), x.Dk)};
  }
  x.with_mask([&](const auto& mask) {
    const bila::cpu backend{.threads = threads};
    if (x.sums)
      bila::gradient(backend, form, mask, bila::norm::row_sum{1e-6}, x.in(), kept, dy, g);
    else
      bila::gradient(backend, form, mask, bila::norm::none{}, x.in(), kept, dy, g);
  });
  return to;
}

/// Compares a few gradients with central differences of the loss in double.
template <class Form>
void check_differences(test::random_source& from, channel_call<double> x, const loss<double>& by, const learned<double>& g,
                       const Form& form) {
  const double step = 1e-5;
  const auto check_one = [&](const char* name, double& parameter, double found) {
    if (!std::isfinite(parameter)) {
      CHECK(std::fabs(found) <= 0);
      return;
    }
    const double before = parameter;
    parameter = before + step;
    const double above = value(x, by, form);
    parameter = before - step;
    const double below = value(x, by, form);
    parameter = before;
    const double expected = (above - below) / (2 * step);
    INFO(name << ": " << found << ", by differences " << expected);
    CHECK(std::fabs(found - expected) <= 2e-6 * (1 + std::fabs(expected)));
  };
  const auto check_some = [&](const char* name, std::vector<double>& parameters, const std::vector<double>& found) {
    for (int n = 0; n < 5 && !found.empty() && !parameters.empty(); ++n) {
      const auto at = static_cast<std::size_t>(from.below(static_cast<index_t>(parameters.size())));
      check_one(name, parameters[at], found[at]);
    }
  };
  check_some("q", x.q, g.q);
  check_some("k", x.k, g.k);
  check_some("v", x.v, g.v);
  check_some("gates", x.gates, g.gates);
  if (x.two_sided) check_some("other gates", x.other_gates, g.other_gates);
  if (x.exclusive) check_some("bonus", x.bonus, g.bonus);
  for (int n = 0; n < 2; ++n) {
    check_some("S", x.S[n], g.S[n]);
    if (x.sums) check_some("z", x.z[n], g.z[n]);
    check_some("the state's gap", x.enter[n], g.enter[n]);
  }
  if (!x.sums) check_one("scale", x.scale, g.scale);
  check_one("diagonal", x.diagonal, g.diagonal);
}

template <class Real>
channel_call<Real> call_with_gradient(test::random_source& from) {
  channel_call<Real> x = random_call<Real>(from);
  while (x.Dk > 20) x = random_call<Real>(from);
  for (std::vector<Real>* const gates : {&x.gates, &x.other_gates})  // a difference must not leave log decays <= 0
    for (Real& gate : *gates) gate = (std::min)(gate, Real(-1e-3));
  for (auto& enter : x.enter)
    for (Real& gate : enter) gate = (std::min)(gate, Real(-1e-3));
  if (x.sums) x.diagonal = (std::max)(x.diagonal, 0.01);
  return x;
}

}  // namespace

TEST_CASE("gradients of decays per channel equal differences of the loss", "[random]") {
  test::random_source from(902);
  const test::rounds rounds(60);
  for (int n = 0; rounds.go_on(n); ++n) {
    const channel_call<double> x = call_with_gradient<double>(from);
    INFO("call " << n << ": B=" << x.B << " H=" << x.H << " L=" << x.L << " Dk=" << x.Dk << " Dv=" << x.Dv
                 << " two_sided=" << x.two_sided << " exclusive=" << x.exclusive << " sums=" << x.sums
                 << " way=" << static_cast<int>(x.way) << " crossing=" << static_cast<int>(x.crossing)
                 << " segments=" << x.segments() << " lengths=" << x.lengths.size());
    const loss<double> by = random_loss(from, x);
    const bila::form::chunkwise form{.recompute = from.below(2) == 0};
    check_differences(from, x, by, learn(x, by, form), form);
    const channel_call<double> without_states = call_for<bila::form::full>(x);
    check_differences(from, without_states, by, learn(without_states, by, bila::form::full{}), bila::form::full{});
  }
}

TEST_CASE("gradients of decays per channel do not depend on threads, and float is close to double") {
  test::random_source from(903);
  for (int n = 0; n < 40; ++n) {
    const channel_call<float> x = call_with_gradient<float>(from);
    const loss<float> by = random_loss(from, x);
    const learned<float> one = learn(x, by, bila::form::chunkwise{}), four = learn(x, by, bila::form::chunkwise{}, 4);
    CHECK((one.q == four.q && one.k == four.k && one.v == four.v && one.gates == four.gates && one.bonus == four.bonus));
    CHECK((one.S[0] == four.S[0] && one.enter[1] == four.enter[1]));
    const channel_call<float> whole = call_for<bila::form::full>(x);
    const learned<float> full = learn(whole, by, bila::form::full{}), of_four = learn(whole, by, bila::form::full{}, 4);
    CHECK((full.q == of_four.q && full.k == of_four.k && full.v == of_four.v && full.gates == of_four.gates));
  }
}

TEMPLATE_TEST_CASE("gradients of decays per channel stay within their rows", "", float, double) {
  // Scratch rows of 512 bytes are made longer than those of q: see kernel::arena::padded.
  constexpr index_t wide_row = 512 / static_cast<index_t>(sizeof(TestType)), stride = wide_row + 8;
  test::random_source from(906);
  for (const direction way : {direction::both, direction::forward, direction::backward}) {
    channel_call<TestType> x;
    x.L = 40, x.Dk = wide_row, x.Dv = 3;
    add_options(from, x, false);
    x.way = way, x.sums = false, x.lengths.clear();
    for (int side = 0; side < 2; ++side) x.S[side].clear();
    loss<TestType> by = random_loss(from, x);
    for (int side = 0; side < 2; ++side) by.dS[side].clear(), by.dz[side].clear();
    const bila::form::chunkwise form;
    const results<TestType> r = run(x, form);
    const auto like = [&](const std::vector<TestType>& of) { return bila::bhld(of.data(), 1, 1, x.L, x.Dv); };
    std::vector<TestType> dq(static_cast<std::size_t>(x.L * stride), TestType(33)), dk = dq;
    const auto view = [&](std::vector<TestType>& to) {
      return bila::tensor_view<TestType>{to.data(), {1, 1, x.L, x.Dk}, {x.L * stride, x.L * stride, stride, 1}};
    };
    bila::gradients<TestType> to{.q = view(dq), .k = view(dk)};
    x.with_mask([&](const auto& mask) { bila::gradient(form, mask, bila::norm::none{}, x.in(), {like(r.y)}, {like(by.dy)}, to); });
    const learned<TestType> expected = learn(x, by, form);
    bool same = true;
    for (index_t l = 0; l < x.L; ++l)
      for (index_t c = 0; c < stride; ++c) {
        const auto at = static_cast<std::size_t>(l * stride + c), there = static_cast<std::size_t>(l * x.Dk + c);
        same = same && dq[at] == (c < x.Dk ? expected.q[there] : TestType(33)) &&
               dk[at] == (c < x.Dk ? expected.k[there] : TestType(33));
      }
    CHECK(same);
  }
}

TEST_CASE("a bonus that is not finite is refused, and a call without heads has gradients") {
  channel_call<float> x;
  x.q = x.k = x.v = {1}, x.gates = x.other_gates = {-1}, x.exclusive = true;
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    x.bonus = {bad};
    CHECK(test::has_all(test::refusal([&] { run(x, bila::form::chunkwise{}); }), {"bonus", "h = 0", "d = 0"}));
  }
  x.H = 0;
  const learned<float> g = learn(x, {}, bila::form::chunkwise{});
  CHECK(g.bonus == std::vector<float>{33});
}
