// SPDX-License-Identifier: Apache-2.0
// Calls with decays per channel, drawn at random; their slices; and how far rounding may move their results.
#pragma once

#include "support/catch.hpp"
#include "support/gradient.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace test {
namespace per_channel {

using bila::direction;
using bila::gate;
using bila::index_t;
using test::layout;
using test::random_source;
using test::tensor;

/// The forms of decays per channel.
using any_form = std::variant<bila::form::chunkwise, bila::form::recurrent>;
inline const std::array<any_form, 3> forms{bila::form::chunkwise{}, bila::form::chunkwise{.size = 5}, bila::form::recurrent{}};

/// Whether a form carries states.
inline bool carries(const any_form& form) {
  return std::visit([]<class Form>(const Form&) { return !std::is_same_v<Form, bila::form::full>; }, form);
}

constexpr double cut = -std::numeric_limits<double>::infinity();
constexpr direction ways[] = {direction::forward, direction::backward};

enum axis { rows, sequences, tokens, channels };
using places = std::array<int, 4>;  // where a tensor has each axis; -1: nowhere

/// Of a call: what it reads, and the gradient of the loss by what it writes. Of its results: what it writes, and the gradient of
/// the loss by what it reads. States are [forward, backward], without elements if they are not given.
template <class T>
struct numbers {
  using Real = bila::real_of<T>;

  tensor<T> q, k, v, y;
  tensor<Real> a, b, u, Z;  // log decays of tokens or of forward gaps; of backward gaps; bonuses; row sums
  std::array<tensor<Real>, 2> S, z, gap, S_end, z_end;
  double scale = 1, diagonal = 1;

  /// Calls f(name, places, x.tensor...) for each tensor.
  template <class F, class... X>
  static void each(const F& f, X&... x) {
    constexpr places keys{0, -1, 2, 3}, values{0, -1, 2, -1}, states{-1, 0, -1, 2}, gaps{-1, 0, -1, 3}, bonuses{-1, -1, -1, 3};
    f("q", keys, x.q...), f("k", keys, x.k...), f("v", values, x.v...), f("y", values, x.y...);
    f("a", keys, x.a...), f("b", keys, x.b...), f("u", bonuses, x.u...), f("Z", values, x.Z...);
    for (std::size_t n = 0; n < 2; ++n) {
      f("S", states, x.S[n]...), f("z", states, x.z[n]...), f("gap", gaps, x.gap[n]...);
      f("S_end", states, x.S_end[n]...), f("z_end", states, x.z_end[n]...);
    }
  }
};

struct options {
  bool two_sided = false, exclusive = false, divided = false;  // divided: by row sums
  gate crossing = gate::later;
  direction way = direction::both;
  std::vector<index_t> offsets = {}, lengths = {};

  bool looks(direction d) const { return way == direction::both || way == d; }
  /// The token whose gates give gap t.
  index_t token(direction d, index_t t) const {
    const bool earlier = crossing == gate::earlier || crossing == (d == direction::forward ? gate::source : gate::target);
    return !two_sided && earlier ? t - 1 : t;
  }
};

template <class T>
struct call : options, numbers<T> {
  index_t B() const { return this->k.extent(0); }
  index_t H() const { return this->k.extent(1); }
  index_t L() const { return this->k.extent(2); }
  index_t Dk() const { return this->k.extent(3); }
  index_t Dv() const { return this->v.extent(3); }
  index_t sequence_count() const { return offsets.empty() ? B() : static_cast<index_t>(offsets.size()) - 1; }
  auto& gates(direction d) { return two_sided && d == direction::backward ? this->b : this->a; }
  auto& gates(direction d) const { return two_sided && d == direction::backward ? this->b : this->a; }
};

template <class X>
std::array<index_t, 4> extents(const tensor<X>& x) {
  return {x.extent(0), x.extent(1), x.extent(2), x.extent(3)};
}

template <class X>
tensor<X> shaped(const std::array<index_t, 4>& n, layout where = layout::bhld) {
  return {n[0], n[1], n[2], n[3], where};
}

inline std::vector<index_t> range(index_t first, index_t last) {
  std::vector<index_t> all;
  for (index_t n = first; n < last; ++n) all.push_back(n);
  return all;
}

/// The slices `which` of one axis, in this order.
template <class X>
tensor<X> picked(const tensor<X>& x, int place, const std::vector<index_t>& which) {
  const auto axis = static_cast<std::size_t>(place);
  std::array<index_t, 4> n = extents(x);
  if (n[axis] == 0) return x;
  n[axis] = static_cast<index_t>(which.size());
  tensor<X> to = shaped<X>(n);
  to.for_each([&](X& e, index_t b, index_t h, index_t l, index_t d) {
    std::array<index_t, 4> at{b, h, l, d};
    at[axis] = which[static_cast<std::size_t>(at[axis])];
    e = x(at[0], at[1], at[2], at[3]);
  });
  return to;
}

/// The same of every tensor of a call or of its results.
template <class N>
N picked(N x, axis of, const std::vector<index_t>& which) {
  N::each([&](auto, const places& at, auto& t) { t = at[of] < 0 ? t : picked(t, at[of], which); }, x);
  return x;
}

/// The results of two calls side by side along an axis. Tensors that do not have the axis are added.
template <class T>
numbers<T> joined(const numbers<T>& x, const numbers<T>& y, axis of) {
  numbers<T> to = x;
  to.scale += y.scale, to.diagonal += y.diagonal;
  const auto join = [&]<class X>(auto, const places& place, tensor<X>& sum, const tensor<X>& left, const tensor<X>& right) {
    std::array<index_t, 4> n = extents(left);
    const bool adds = place[of] < 0;
    if (adds && n != extents(right)) return;
    const auto axis = static_cast<std::size_t>(adds ? 0 : place[of]);
    const index_t border = n[axis];
    if (!adds) n[axis] += right.extent(axis);
    sum = shaped<X>(n);
    sum.for_each([&](X& e, index_t b, index_t h, index_t l, index_t d) {
      std::array<index_t, 4> at{b, h, l, d};
      if (adds) e = left(b, h, l, d) + right(b, h, l, d);
      if (!adds && at[axis] < border) e = left(b, h, l, d);
      if (adds || at[axis] < border) return;
      at[axis] -= border;
      e = right(at[0], at[1], at[2], at[3]);
    });
  };
  numbers<T>::each(join, to, x, y);
  return to;
}

template <class U, class T>
call<U> in_type(const call<T>& c) {
  call<U> to;
  static_cast<options&>(to) = c;
  to.scale = c.scale, to.diagonal = c.diagonal;
  numbers<T>::each([]<class X>(auto, auto, const auto& x, tensor<X>& y) { y = test::converted<X>(x); }, c, to);
  return to;
}

enum kind { whole, packed, padded };

template <class T>
call<T> random_call(random_source& from, kind of = whole, index_t least_L = 1) {
  using Real = bila::real_of<T>;
  call<T> c;
  const index_t B = of == packed ? 1 : 1 + from.below(2), H = 1 + from.below(2),
                L = least_L + from.below(from.below(3) == 0 ? 6 : 60);
  const index_t Dk = 1 + from.below(from.below(4) == 0 ? 40 : 9), Dv = 1 + from.below(20);
  c.two_sided = from.below(2) == 0, c.exclusive = from.below(3) == 0, c.divided = from.below(3) == 0;
  c.crossing = static_cast<gate>(from.below(4)), c.way = static_cast<direction>(from.below(3));
  c.scale = from.uniform(0.3, 2), c.diagonal = from.below(2) == 0 ? 1 : from.uniform(0.3, 2);
  const auto fill = [&]<class X>(tensor<X>& x, const std::array<index_t, 4>& n, double low, double high) {
    x = shaped<X>(n);
    x.for_each([&](X& e, auto...) { e = X(static_cast<Real>(from.uniform(low, high))); });
  };
  if (of == packed)
    for (c.offsets = {0}; c.offsets.back() < L;) c.offsets.push_back(std::min(L, c.offsets.back() + from.below(2 + L / 2)));
  if (of == padded)
    for (index_t b = 0; b < B; ++b) c.lengths.push_back(from.below(L + 1));
  const double least = c.divided ? 0.1 : -1, strength = std::exp(from.uniform(-6, 2));
  for (tensor<T>* x : {&c.q, &c.k}) fill(*x, {B, H, L, Dk}, least, 1);
  for (tensor<T>* x : {&c.v, &c.y}) fill(*x, {B, H, L, Dv}, -1, 1);
  const index_t heads = from.below(2) == 0 ? 1 : H;
  for (tensor<Real>* x : {&c.a, &c.b}) {
    fill(*x, {B, heads, L, Dk}, -strength, 0);
    x->for_each([&](Real& e, auto...) { e = from.below(50) > 0 ? e : from.below(2) == 0 ? Real(-60) : static_cast<Real>(cut); });
  }
  fill(c.u, {1, from.below(2) == 0 ? 1 : H, 1, Dk}, least, 1);
  c.Z = tensor<Real>(B, H, L, 1);
  for (std::size_t n = 0; n < 2; ++n) {
    if (!c.looks(ways[n])) continue;
    const index_t given = from.below(2) * c.sequence_count(), wanted = from.below(2) * c.sequence_count();
    fill(c.S[n], {given, H, Dk, Dv}, -1, 1), fill(c.z[n], {given, H, Dk, 1}, 1, 2), fill(c.gap[n], {given, H, 1, Dk}, -1, 0);
    fill(c.S_end[n], {wanted, H, Dk, Dv}, -1, 1), fill(c.z_end[n], {wanted, H, Dk, 1}, -1, 1);
  }
  return c;
}

template <class T>
call<T> without_states(call<T> c) {
  for (auto* x : {&c.S, &c.z, &c.gap, &c.S_end, &c.z_end}) (*x)[0] = (*x)[1] = {};
  return c;
}

/// The arguments of one call, and the results that they point into.
template <class T>
struct step {
  using Real = bila::real_of<T>;

  numbers<T> r;
  bila::inputs<T> in;
  bila::outputs<T> out;
  bila::saved<T> kept;
  bila::output_gradients<T> dy;
  bila::gradients<T> to;

  step(const step&) = delete;
  step(const call<T>& c, layout where) {
    numbers<T>::each([&]<class X>(auto, auto, const auto& x, tensor<X>& y) { y = shaped<X>(extents(x), where); }, c, r);
    if (c.two_sided) r.a = r.b = tensor<Real>(c.B(), c.H(), c.L(), c.a.extent(3), where);
    if (!c.two_sided) r.b.fill(0);
    if (!c.exclusive) r.u.fill(0);
    r.scale = r.diagonal = 0;
    in.k = c.k.view(), in.v = c.v.view();
    in.scale = c.scale, in.diagonal = c.diagonal, in.direction = c.way;
    in.offsets = c.offsets, in.lengths = c.lengths;
    to.k = r.k.view(), to.v = r.v.view();
    if (c.y.extent(1) > 0) {  // else the call computes states alone
      in.q = c.q.view(), out.y = r.y.view(), dy.y = c.y.view(), to.q = r.q.view(), to.diagonal = &r.diagonal;
      kept.y = std::as_const(r.y).view();
      if (c.divided) out.row_sum = r.Z.view(), kept.row_sum = std::as_const(r.Z).view();
      if (!c.divided) to.scale = &r.scale, r.Z.fill(0);
    }
    if (c.two_sided) to.log_forward = r.a.view(), to.log_backward = r.b.view();
    if (!c.two_sided) to.log_decay = r.a.view();
    if (c.exclusive) to.bonus = r.u.view();
    for (std::size_t n = 0; n < 2; ++n) {
      if (!c.divided) r.z[n].fill(0), r.z_end[n].fill(0);
      auto &initial = n == 0 ? in.initial_forward : in.initial_backward, &by_final = n == 0 ? dy.final_forward : dy.final_backward;
      auto &final = n == 0 ? out.final_forward : out.final_backward,
           &by_initial = n == 0 ? to.initial_forward : to.initial_backward;
      if (c.S[n].extent(0) > 0) initial = {c.S[n].view(), c.z[n].view(), c.gap[n].view()};
      if (c.S[n].extent(0) > 0) by_initial = {r.S[n].view(), r.z[n].view(), r.gap[n].view()};
      if (c.S_end[n].extent(0) > 0) final = {r.S_end[n].view(), r.z_end[n].view()};
      if (c.S_end[n].extent(0) > 0) by_final = {c.S_end[n].view(), c.z_end[n].view()};
    }
  }

  bool intact() const {
    bool all = true;
    numbers<T>::each([&](auto, auto, const auto& x) { all = all && x.intact(); }, r);
    return all;
  }
};

/// Calls use(form, mask, norm) with those of the call. In 16 bits no row is divided: there is less to compile.
template <class T, class Use>
void with_policies(const any_form& any, const call<T>& c, const Use& use) {
  const auto with_norm = [&](const auto& form, const auto& mask) {
    if constexpr (sizeof(T) > 2)
      if (c.divided) return use(form, mask, bila::norm::row_sum{1e-6});
    use(form, mask, bila::norm::none{});
  };
  const auto with_gates = [&](const auto& gates) {
    std::visit(
        [&](const auto& form) {
          c.exclusive ? with_norm(form, bila::mask::exclusive_read{gates, c.u.view()}) : with_norm(form, gates);
        },
        any);
  };
  c.two_sided ? with_gates(bila::mask::two_sided_channels{c.a.view(), c.b.view()})
              : with_gates(bila::mask::channel_decay{c.a.view(), c.crossing});
}

template <class T>
numbers<T> run(const any_form& any, const call<T>& c, const bila::cpu& backend = {}, layout where = layout::bhld) {
  step<T> s(c, where);
  with_policies(any, c, [&](const auto& form, const auto& mask, const auto& norm) {
    bila::attend(backend, form, mask, norm, s.in, s.out);
    bila::gradient(backend, form, mask, norm, s.in, s.kept, s.dy, s.to);
  });
  CHECK(s.intact());
  return std::move(s.r);
}

/// The same by a mask of scalars: the gates of the only channel of a, b and gap, or none at all.
template <class T>
numbers<T> run_scalar(const call<T>& c, bool all_ones = false) {
  step<T> s(c, layout::bhld);
  const auto a = test::converted<double>(c.a), b = test::converted<double>(c.b);
  const test::any_mask mask = all_ones      ? test::any_mask(bila::mask::all_ones{})
                              : c.two_sided ? test::any_mask(bila::mask::two_sided<double>{a.view(), b.view()})
                                            : test::any_mask(bila::mask::selective_decay<double>{a.view(), c.crossing});
  const test::any_norm norm = c.divided ? test::any_norm(bila::norm::row_sum{1e-6}) : test::any_norm(bila::norm::none{});
  if (all_ones) s.to.log_decay = s.to.log_forward = s.to.log_backward = s.to.bonus = {};
  test::forward_pass<T>(test::layer::eigen, {}, bila::form::chunkwise{}, mask, norm, s.in, s.out);
  test::backward_pass<T>(test::layer::eigen, {}, bila::form::chunkwise{}, mask, norm, s.in, s.kept, s.dy, s.to);
  return std::move(s.r);
}

/// How far rounding may move each result. A term is a product of decays, at most two in each of 16 gaps, with three roundings each,
/// summed over channels, features and tokens; what the terms sum to in size is what the call gives for absolute values, in double.
/// A row of v and of a state is at most 1 and 2 for each 1 in the row sum. A gap's gradient is a running sum over a chunk, here of
/// the whole row.
template <class T>
numbers<double> allowance(const call<T>& c, const numbers<T>& r) {
  using Real = bila::real_of<T>;
  call<double> x = in_type<double>(c);
  x.divided = false;
  for (tensor<double>* t : {&x.q, &x.k, &x.u, &x.y}) t->for_each([](double& e, auto...) { e = std::fabs(e); });
  const auto row = [&](index_t b, index_t h, index_t l) { return static_cast<double>(r.Z(b, h, l)) + 1e-6; };
  x.v.fill(1);
  if (c.divided) {
    x.scale = 1;
    x.y.for_each([&](double& e, index_t b, index_t h, index_t l, index_t) { e /= row(b, h, l); });
  }
  for (std::size_t n = 0; n < 2; ++n) {
    x.S[n].fill(2);
    x.S_end[n].for_each([&](double& e, index_t s, index_t h, index_t d, index_t) {
      e = std::fabs(e) + (c.divided ? std::fabs(x.z_end[n](s, h, d)) : 0);
    });
  }
  numbers<double> to = run(forms[0], x);
  tensor<double> gaps(c.B(), c.a.extent(1), 1, c.Dk());
  gaps.fill(0);
  const index_t shared = c.H() / c.a.extent(1);
  for (const auto& pair : {std::pair(&x.q, &to.q), std::pair(&x.k, &to.k)})
    pair.first->for_each([&](const double& e, index_t b, index_t h, index_t l, index_t d) {
      gaps(b, h / shared, 0, d) += e * (*pair.second)(b, h, l, d);
    });
  for (std::size_t n = 0; n < 2; ++n) {
    to.S[n].for_each([&](const double& e, index_t s, index_t h, index_t d, index_t) {
      gaps(c.offsets.empty() ? s : 0, h / shared, 0, d) += 2 * e;
    });
    to.z[n].for_each([&](double& e, index_t s, index_t h, index_t d, index_t) {
      for (index_t f = 0; f < c.Dv(); ++f) e += to.S[n](s, h, d, f);
    });
    to.z_end[n].for_each([&](double& e, index_t s, index_t h, index_t d, index_t) { e = to.S_end[n](s, h, d, 0); });
  }
  for (tensor<double>* t : {&to.a, &to.b})
    t->for_each(
        [&](double& e, index_t b, index_t h, index_t, index_t d) { e = gaps(b, t->extent(1) == c.H() ? h / shared : h, 0, d); });
  for (tensor<double>& t : to.gap)
    t.for_each([&](double& e, index_t s, index_t h, index_t, index_t d) { e = gaps(c.offsets.empty() ? s : 0, h / shared, 0, d); });
  if (c.divided) {
    to.Z.for_each([&](double& e, index_t b, index_t h, index_t l, index_t) { e = to.y(b, h, l, 0); });
    to.y.for_each([&](double& e, index_t b, index_t h, index_t l, index_t) { e /= row(b, h, l); });
  }
  const double count = static_cast<double>(c.L() + c.Dk() + c.Dv() + 100), unit = std::numeric_limits<Real>::epsilon();
  numbers<double>::each(
      [&](const std::string& name, auto, tensor<double>& t) {
        const double passes = name == "y" || name == "Z" || name == "S_end" || name == "z_end" ? 1 : 4;  // gradients read y and Z
        t.for_each([&](double& e, auto...) { e = passes * count * (unit * e + count * std::numeric_limits<Real>::min()); });
      },
      to);
  to.scale *= 4 * count * unit, to.diagonal *= 4 * count * unit;
  return to;
}

/// `pieces`: these are results of pieces of a call, and what is summed over all of the call is not compared.
template <class T>
bool close(const numbers<T>& found, const numbers<T>& wanted, const numbers<double>& allowed, bool pieces = false) {
  bool all = true;
  const auto apart = [&](const std::string& name, double x, double y, double limit) {
    if (std::fabs(x - y) <= limit) return;
    if (all) UNSCOPED_INFO(name << " is " << x << " and not " << y << ", allowed " << limit);
    all = false;
  };
  numbers<T>::each(
      [&](const std::string& name, auto, const auto& x, const auto& y, const auto& limit) {
        if (extents(x) != extents(y)) apart(name + "'s shape", 0, 1, 0);
        if (extents(x) != extents(y) || (pieces && name == "u")) return;
        x.for_each([&](const auto& e, index_t b, index_t h, index_t l, index_t d) {
          apart(name, static_cast<double>(e), static_cast<double>(y(b, h, l, d)), limit(b, h, l, d));
        });
      },
      found, wanted, allowed);
  if (!pieces)
    apart("scale", found.scale, wanted.scale, allowed.scale), apart("diagonal", found.diagonal, wanted.diagonal, allowed.diagonal);
  return all;
}

template <class T>
bool same(const numbers<T>& x, const numbers<T>& y, bool pieces = false) {
  bool all = pieces || (!(x.scale < y.scale || x.scale > y.scale) && !(x.diagonal < y.diagonal || x.diagonal > y.diagonal));
  numbers<T>::each(
      [&](const std::string& name, auto, const auto& s, const auto& t) {
        if ((pieces && name == "u") || same_bits(s, t)) return;
        UNSCOPED_INFO(name << " differs");
        all = false;
      },
      x, y);
  return all;
}

/// Calls law(form, call, random) with random calls and every form.
template <class T, class Law>
void for_calls(std::uint64_t stream, int count, std::initializer_list<kind> kinds, index_t least_L, const Law& law) {
  random_source random(stream);
  for (int n = 0; n < count; ++n) {
    const call<T> c = random_call<T>(random, kinds.begin()[n % static_cast<int>(kinds.size())], least_L);
    for (const any_form& form : forms) {
      INFO("seed " << test::seed() << " call " << n << " form " << &form - forms.data() << ": B " << c.B() << " H " << c.H()
                   << " L " << c.L() << " Dk " << c.Dk() << " Dv " << c.Dv() << " two-sided " << c.two_sided << " exclusive "
                   << c.exclusive << " divided " << c.divided << " gate " << static_cast<int>(c.crossing) << " way "
                   << static_cast<int>(c.way) << " sequences " << c.sequence_count() << " padded " << !c.lengths.empty());
      law(form, carries(form) ? c : without_states(c), random);
    }
  }
}

}  // namespace per_channel
}  // namespace test
