// SPDX-License-Identifier: Apache-2.0
// Keys with weights: random calls and their gradients against a dense definition in long double that keeps no maximum, and the laws
// of weights.
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/refusal.hpp"
#include "support/tensor.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using bila::direction;
using bila::index_t;
using test::layout;
using test::tensor;
using wide = long double;

enum inner { all_ones, fixed, selective, two_sided };
enum divisor { none, row_sum, max_one };
enum shape { full, chunkwise, recurrent, automatic };

constexpr wide infinity = std::numeric_limits<wide>::infinity();

struct options {
  index_t B = 1, H = 1, L = 1, Dk = 1, Dv = 1, Hq = 1, Hk = 1, Hv = 1, Hg = 1, Hw = 1;
  inner mask = selective;
  divisor norm = none;
  bila::gate crossing = bila::gate::target;
  double scale = 1, diagonal = 1, eps = 0;
  direction way = direction::both;
  std::vector<index_t> offsets = {}, lengths = {};
  bool states = false, finals = false, scales = false;
  shape form = chunkwise;
  index_t size = 0;

  index_t segments() const { return offsets.empty() ? 1 : static_cast<index_t>(offsets.size()) - 1; }
  index_t sequences() const { return B * segments(); }
  index_t first(index_t n) const { return offsets.empty() ? 0 : offsets[static_cast<std::size_t>(n)]; }
  index_t last(index_t b, index_t n) const {
    if (!offsets.empty()) return offsets[static_cast<std::size_t>(n) + 1];
    return lengths.empty() ? L : lengths[static_cast<std::size_t>(b)];
  }
  bool looks(direction d) const { return way == direction::both || way == d; }
  bool has(direction d) const { return states && looks(d); }
  bool ends_in(direction d) const { return finals && looks(d); }
};

constexpr direction ways[] = {direction::forward, direction::backward};
constexpr std::size_t at(direction d) { return d == direction::forward ? 0 : 1; }

template <class T, bool = std::is_same_v<T, wide>>
struct number {
  using type = wide;
};
template <class T>
struct number<T, false> {
  using type = bila::real_of<T>;
};

template <class Real>
struct ends {  // [forward, backward]
  std::array<tensor<Real>, 2> S, z, log_decay, log_scale;
};

template <class T>
struct call {
  using Real = typename number<T>::type;

  options o;
  tensor<T> q, k, v, dy;
  tensor<Real> f, b, w;  // log decays: of heads, of tokens, or of gaps; log weights
  ends<Real> initial, by_final;
};

template <class U, class T>
tensor<U> cast(const tensor<T>& x, layout where = layout::bhld) {
  tensor<U> to(x.extent(0), x.extent(1), x.extent(2), x.extent(3), where);
  to.for_each([&](U& y, index_t b, index_t h, index_t l, index_t d) {
    if constexpr (sizeof(T) == 2)
      y = static_cast<U>(static_cast<float>(x(b, h, l, d)));
    else if constexpr (sizeof(U) == 2)
      y = U(static_cast<float>(x(b, h, l, d)));
    else
      y = static_cast<U>(x(b, h, l, d));
  });
  return to;
}

template <class U, class T>
call<U> cast(const call<T>& c, layout where = layout::bhld) {
  using Real = typename number<U>::type;
  call<U> to{c.o,
             cast<U>(c.q, where),
             cast<U>(c.k, where),
             cast<U>(c.v, where),
             cast<U>(c.dy, where),
             cast<Real>(c.f, where),
             cast<Real>(c.b, where),
             cast<Real>(c.w, where),
             {},
             {}};
  for (std::size_t n = 0; n < 2; ++n) {
    for (const auto& [from, into] : {std::pair(&c.initial, &to.initial), std::pair(&c.by_final, &to.by_final)}) {
      into->S[n] = cast<Real>(from->S[n], where);
      into->z[n] = cast<Real>(from->z[n], where);
      into->log_decay[n] = cast<Real>(from->log_decay[n], where);
      into->log_scale[n] = cast<Real>(from->log_scale[n], where);
    }
  }
  return to;
}

/// A random call; weights are within `span` of zero.
call<double> draw(test::random_source& r, index_t longest, double span, bool with_states) {
  options o;
  o.mask = static_cast<inner>(r.below(4));
  o.norm = static_cast<divisor>(r.below(span > 5 ? 2 : 3) + (span > 5));
  o.form = static_cast<shape>(r.below(4));
  o.size = r.below(3) == 0 ? 0 : 1 + r.below(9);
  const index_t heads[] = {1, 2, 3, 4, 6};
  o.H = heads[r.below(5)];
  const auto share = [&] {
    index_t h = o.H;
    while (r.below(2) == 0 && h > 1) h = h % 2 == 0 ? h / 2 : 1;
    return h;
  };
  o.Hq = share(), o.Hk = share(), o.Hv = share(), o.Hg = share(), o.Hw = share();
  o.L = r.below(longest + 1), o.Dk = 1 + r.below(9), o.Dv = 1 + r.below(9);
  o.B = 1 + r.below(2);
  o.crossing = static_cast<bila::gate>(r.below(4));
  o.scale = r.uniform(0.3, 1.2);
  o.diagonal = r.below(3) == 0 ? r.uniform(0.25, 2) : 1;
  o.eps = r.below(2) == 0 ? 0 : 0.125;
  o.way = r.below(3) == 0 ? ways[r.below(2)] : direction::both;
  if (r.below(3) == 0) {
    o.B = 1, o.offsets = {0};
    while (o.offsets.back() < o.L || r.below(4) == 0)
      o.offsets.push_back(o.offsets.back() + std::min<index_t>(r.below(7), o.L - o.offsets.back()));
    if (o.offsets.size() == 1) o.offsets.push_back(o.L);
  } else if (r.below(3) == 0) {
    for (index_t b = 0; b < o.B; ++b) o.lengths.push_back(r.below(o.L + 1));
  }
  o.states = with_states && o.form != full && r.below(2) == 0;
  o.finals = with_states && o.form != full && r.below(2) == 0;
  o.scales = span > 5 || r.below(2) == 0;
  call<double> c{o, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  const auto fill = [&](index_t B, index_t H, index_t L, index_t D, double low, double high) {
    tensor<float> x(B, H, L, D);
    x.fill_uniform(r, low, high);
    return cast<double>(cast<float>(cast<bila::bf16>(x)));
  };
  c.q = fill(o.B, o.Hq, o.L, o.Dk, 0.1, 1);
  c.k = fill(o.B, o.Hk, o.L, o.Dk, 0.1, 1);
  c.v = fill(o.B, o.Hv, o.L, o.Dv, -1, 1);
  c.dy = fill(o.B, o.H, o.L, o.Dv, -1, 1);
  c.f = o.mask == fixed ? fill(1, o.Hg, 1, 1, -0.5, 0) : fill(o.B, o.Hg, o.L, 1, -1, 0);
  c.b = fill(o.B, o.Hg, o.L, 1, -1, 0);
  c.w = fill(o.B, o.Hw, o.L, 1, -span, span);
  for (const direction d : ways) {
    const index_t n = o.has(d) ? o.sequences() : 0, m = o.ends_in(d) ? o.sequences() : 0;
    c.initial.S[at(d)] = fill(n, o.H, o.Dk, o.Dv, -1, 1);
    c.initial.z[at(d)] = fill(n, o.H, o.Dk, 1, 0.1, 1);
    c.initial.log_decay[at(d)] = fill(n, o.H, 1, 1, -1, 0);
    c.initial.log_scale[at(d)] = fill(o.scales ? n : 0, o.H, 1, 1, -span, span);
    c.by_final.S[at(d)] = fill(m, o.H, o.Dk, o.Dv, -1, 1);
    c.by_final.z[at(d)] = fill(m, o.H, o.Dk, 1, o.norm == none ? 0 : -1, o.norm == none ? 0 : 1);
    c.by_final.log_scale[at(d)] = tensor<double>(o.scales ? m : 0, o.H, 1, 1);
  }
  return c;
}

/// What the call must give. `bound` has the sums of absolute terms, on which an error is measured.
struct truth {
  tensor<wide> y, y_bound, Z, Z_bound;  // Z times e^{-m}
  ends<wide> final, final_bound;        // the true states; log_scale: the log of the largest weight in it
};

wide gap_of(const call<wide>& c, direction d, index_t b, index_t h, index_t t) {
  const index_t g = h / (c.o.H / c.o.Hg);
  if (c.o.mask == all_ones) return 0;
  if (c.o.mask == fixed) return c.f(0, g, 0);
  if (c.o.mask == two_sided) return (d == direction::forward ? c.f : c.b)(b, g, t);
  const bool leaves_earlier = d == direction::forward ? c.o.crossing == bila::gate::source : c.o.crossing == bila::gate::target;
  return c.f(b, g, leaves_earlier || c.o.crossing == bila::gate::earlier ? t - 1 : t);
}

truth define(const call<wide>& c) {
  const options& o = c.o;
  truth out{tensor<wide>(o.B, o.H, o.L, o.Dv),
            tensor<wide>(o.B, o.H, o.L, o.Dv),
            tensor<wide>(o.B, o.H, o.L, 1),
            tensor<wide>(o.B, o.H, o.L, 1),
            {},
            {}};
  for (auto* x : {&out.y, &out.y_bound, &out.Z, &out.Z_bound}) x->fill(0);
  for (const direction d : ways)
    for (auto* e : {&out.final, &out.final_bound}) {
      e->S[at(d)] = tensor<wide>(o.sequences(), o.H, o.Dk, o.Dv), e->S[at(d)].fill(0);
      e->z[at(d)] = tensor<wide>(o.sequences(), o.H, o.Dk, 1), e->z[at(d)].fill(0);
      e->log_scale[at(d)] = tensor<wide>(o.sequences(), o.H, 1, 1), e->log_scale[at(d)].fill(-infinity);
    }
  for (index_t b = 0; b < o.B; ++b)
    for (index_t n = 0; n < o.segments(); ++n)
      for (index_t h = 0; h < o.H; ++h) {
        const index_t first = o.first(n), last = o.last(b, n), s = b * o.segments() + n;
        const index_t hq = h / (o.H / o.Hq), hk = h / (o.H / o.Hk), hv = h / (o.H / o.Hv), hw = h / (o.H / o.Hw);
        const auto scale_of = [&](direction d) { return o.scales ? c.initial.log_scale[at(d)](s, h, 0) : 0; };
        // Calls add(d, j, log weight) for the keys on side d of token i, and with j = -1 for the initial state.
        const auto see = [&](direction d, index_t i, const auto& add) {
          const index_t step = d == direction::forward ? -1 : 1;
          wide log = 0;
          for (index_t j = i + step; j >= first && j < last; j += step) {
            log += gap_of(c, d, b, h, d == direction::forward ? j + 1 : j);
            add(j, log + c.w(b, hw, j));
          }
          if (o.has(d)) add(index_t(-1), log + c.initial.log_decay[at(d)](s, h, 0) + scale_of(d));
        };
        for (index_t i = first; i < last; ++i) {
          std::vector<wide> N(static_cast<std::size_t>(o.Dv)), N_abs(N);
          wide Z = 0, Z_abs = 0, m = c.w(b, hw, i);
          const auto add_key = [&](index_t j, wide weight) {
            wide dot = 0;
            for (index_t d = 0; d < o.Dk; ++d) dot += c.q(b, hq, i, d) * c.k(b, hk, j, d);
            for (index_t d = 0; d < o.Dv; ++d) {
              const wide term = weight * dot * c.v(b, hv, j, d);
              N[static_cast<std::size_t>(d)] += term, N_abs[static_cast<std::size_t>(d)] += std::abs(term);
            }
            Z += weight * dot, Z_abs += std::abs(weight * dot);
          };
          add_key(i, static_cast<wide>(o.diagonal) * std::exp(c.w(b, hw, i)));
          for (const direction d : ways)
            if (o.looks(d))
              see(d, i, [&](index_t j, wide log) {
                m = std::max(m, log);
                if (j >= 0) return add_key(j, std::exp(log));
                for (index_t a = 0; a < o.Dk; ++a) {
                  const wide q = c.q(b, hq, i, a) * std::exp(log);
                  for (index_t x = 0; x < o.Dv; ++x) {
                    const wide term = q * c.initial.S[at(d)](s, h, a, x);
                    N[static_cast<std::size_t>(x)] += term, N_abs[static_cast<std::size_t>(x)] += std::abs(term);
                  }
                  Z += q * c.initial.z[at(d)](s, h, a), Z_abs += std::abs(q * c.initial.z[at(d)](s, h, a));
                }
              });
          const wide scale = o.scale, factor = o.norm == row_sum ? 1 : scale;
          const wide divided_by = o.norm == none      ? 1
                                  : o.norm == row_sum ? Z + static_cast<wide>(o.eps)
                                                      : std::max(std::abs(scale * Z), wide(1));
          for (index_t d = 0; d < o.Dv; ++d) {
            out.y(b, h, i, d) = divided_by == 0 ? 0 : factor * N[static_cast<std::size_t>(d)] / divided_by;
            out.y_bound(b, h, i, d) = divided_by == 0 ? 0
                                                      : factor * N_abs[static_cast<std::size_t>(d)] / divided_by *
                                                            (1 + (o.norm == none ? 0 : Z_abs / std::abs(divided_by)));
          }
          out.Z(b, h, i) = m > -infinity ? Z * std::exp(-m) : 0;
          out.Z_bound(b, h, i) = m > -infinity ? Z_abs * std::exp(-m) : 0;
        }
        for (const direction d : ways) {
          if (!o.ends_in(d)) continue;
          const auto write = [&](index_t j, wide log) {
            auto& largest = out.final.log_scale[at(d)](s, h, 0);
            largest = std::max(largest, log);
            for (index_t a = 0; a < o.Dk; ++a) {
              const wide weight = std::exp(log), z = weight * (j < 0 ? c.initial.z[at(d)](s, h, a) : c.k(b, hk, j, a));
              out.final.z[at(d)](s, h, a) += z, out.final_bound.z[at(d)](s, h, a) += std::abs(z);
              for (index_t x = 0; x < o.Dv; ++x) {
                const wide S = weight * (j < 0 ? c.initial.S[at(d)](s, h, a, x) : c.k(b, hk, j, a) * c.v(b, hv, j, x));
                out.final.S[at(d)](s, h, a, x) += S, out.final_bound.S[at(d)](s, h, a, x) += std::abs(S);
              }
            }
          };
          if (first == last) {
            if (o.has(d)) write(-1, scale_of(d));
            continue;
          }
          const index_t end = d == direction::forward ? last - 1 : first;
          write(end, c.w(b, hw, end));
          see(d, end, write);
        }
      }
  return out;
}

/// sum dy y, and the sums over final states, which are written relative to by_final.log_scale if it is given.
wide loss_of(const call<wide>& c) {
  const truth t = define(c);
  wide loss = 0;
  t.y.for_each([&](const wide& y, index_t b, index_t h, index_t l, index_t d) { loss += y * c.dy(b, h, l, d); });
  for (const direction d : ways) {
    if (!c.o.ends_in(d)) continue;
    const auto relative = [&](index_t s, index_t h) {
      return c.o.scales ? std::exp(-c.by_final.log_scale[at(d)](s, h, 0)) : wide(1);
    };
    c.by_final.S[at(d)].for_each([&](const wide& g, index_t s, index_t h, index_t a, index_t x) {
      if (g != 0 && t.final.S[at(d)](s, h, a, x) != 0) loss += g * t.final.S[at(d)](s, h, a, x) * relative(s, h);
    });
    c.by_final.z[at(d)].for_each([&](const wide& g, index_t s, index_t h, index_t a, index_t) {
      if (g != 0 && t.final.z[at(d)](s, h, a) != 0) loss += g * t.final.z[at(d)](s, h, a) * relative(s, h);
    });
  }
  return loss;
}

template <class T>
bila::inputs<T> inputs_of(const call<T>& c) {
  bila::inputs<T> in{c.q.view(), c.k.view(), c.v.view()};
  in.scale = c.o.scale;
  in.diagonal = c.o.diagonal;
  in.direction = c.o.way;
  in.offsets = c.o.offsets;
  in.lengths = c.o.lengths;
  for (const direction d : ways) {
    if (!c.o.has(d)) continue;
    auto& to = d == direction::forward ? in.initial_forward : in.initial_backward;
    to = {c.initial.S[at(d)].view(), c.initial.z[at(d)].view(), c.initial.log_decay[at(d)].view()};
    if (c.o.scales) to.log_scale = c.initial.log_scale[at(d)].view();
  }
  return in;
}

/// Calls use(form, mask, norm) with what the options say.
template <class T, class Use>
void with_policies(const call<T>& c, const Use& use) {
  const auto with_mask = [&](const auto& form, const auto& norm) {
    if (c.o.mask == all_ones) return use(form, bila::mask::weighed_keys{bila::mask::all_ones{}, c.w.view()}, norm);
    if (c.o.mask == fixed) return use(form, bila::mask::weighed_keys{bila::mask::fixed_decay{c.f.view()}, c.w.view()}, norm);
    if (c.o.mask == two_sided)
      return use(form, bila::mask::weighed_keys{bila::mask::two_sided{c.f.view(), c.b.view()}, c.w.view()}, norm);
    return use(form, bila::mask::weighed_keys{bila::mask::selective_decay{c.f.view(), c.o.crossing}, c.w.view()}, norm);
  };
  const auto with_norm = [&](const auto& form) {
    if (c.o.norm == none) return with_mask(form, bila::norm::none{});
    if (c.o.norm == row_sum) return with_mask(form, bila::norm::row_sum{c.o.eps});
    return with_mask(form, bila::norm::max_one{});
  };
  if (c.o.form == full) return with_norm(bila::form::full{});
  if (c.o.form == chunkwise) return with_norm(bila::form::chunkwise{.size = c.o.size, .recompute = c.o.size % 2 == 1});
  if (c.o.form == recurrent) return with_norm(bila::form::recurrent{});
  with_norm(bila::form::automatic{});
}

template <class T>
struct results {
  using Real = typename number<T>::type;
  tensor<T> y;
  tensor<Real> row_sum;
  ends<Real> final;
};

template <class T>
results<T> room_for(const call<T>& c, layout where = layout::bhld) {
  const options& o = c.o;
  results<T> to{tensor<T>(o.B, o.H, o.L, o.Dv, where), tensor<typename number<T>::type>(o.B, o.H, o.L, 1, where), {}};
  for (const direction d : ways) {
    const index_t n = o.ends_in(d) ? o.sequences() : 0;
    to.final.S[at(d)] = {n, o.H, o.Dk, o.Dv, where};
    to.final.z[at(d)] = {n, o.H, o.Dk, 1, where};
    to.final.log_scale[at(d)] = {o.scales ? n : 0, o.H, 1, 1, where};
    to.final.z[at(d)].fill(0);
  }
  to.row_sum.fill(0);
  return to;
}

template <class T>
bila::outputs<T> outputs_of(const call<T>& c, results<T>& to) {
  bila::outputs<T> out{to.y.view(), to.row_sum.view()};
  for (const direction d : ways) {
    if (!c.o.ends_in(d)) continue;
    auto& state = d == direction::forward ? out.final_forward : out.final_backward;
    state = {to.final.S[at(d)].view(), to.final.z[at(d)].view()};
    if (c.o.scales) state.log_scale = to.final.log_scale[at(d)].view();
  }
  return out;
}

template <class T>
results<T> run(const call<T>& c, const bila::cpu& backend = {}, layout where = layout::bhld) {
  results<T> to = room_for(c, where);
  with_policies(c, [&](const auto& form, const auto& mask, const auto& norm) {
    bila::attend(backend, form, mask, norm, inputs_of(c), outputs_of(c, to));
  });
  return to;
}

template <class T>
bool equal_bits(const results<T>& x, const results<T>& y) {
  bool same = same_bits(x.y, y.y) && same_bits(x.row_sum, y.row_sum);
  for (std::size_t n = 0; n < 2; ++n)
    same = same && same_bits(x.final.S[n], y.final.S[n]) && same_bits(x.final.z[n], y.final.z[n]) &&
           same_bits(x.final.log_scale[n], y.final.log_scale[n]);
  return same;
}

template <class T>
wide value(const T& x) {
  if constexpr (sizeof(T) == 2)
    return static_cast<wide>(static_cast<float>(x));
  else
    return static_cast<wide>(x);
}

/// The largest error of x over its bound, in units of the type's precision.
template <class T>
wide error_of(const tensor<T>& x, const tensor<wide>& expected, const tensor<wide>& bound) {
  using Real = typename number<T>::type;
  const wide rounding = sizeof(T) == 2 ? 0x1p-8L : 0, smallest = std::is_same_v<Real, float> ? 1e-30L : 1e-290L;
  wide worst = 0;
  x.for_each([&](const T& found, index_t b, index_t h, index_t l, index_t d) {
    const wide e = std::abs(value(found) - expected(b, h, l, d)) - rounding * std::abs(expected(b, h, l, d)) - smallest;
    const wide over = e / (bound(b, h, l, d) + smallest) / static_cast<wide>(std::numeric_limits<Real>::epsilon());
    worst = over == over ? std::max(worst, over) : infinity;  // NaN
  });
  return worst;
}

template <class T>
struct derivatives {
  using Real = typename number<T>::type;
  tensor<T> q, k, v;
  tensor<Real> log_decay, log_forward, log_backward, log_weight;
  ends<Real> initial;
  double scale = 0, diagonal = 0;
};

template <class T>
derivatives<T> differentiate(const call<T>& c, results<T>& kept, const bila::cpu& backend = {}) {
  using Real = typename number<T>::type;
  const options& o = c.o;
  const auto like = []<class X>(const tensor<X>& x) { return tensor<X>(x.extent(0), x.extent(1), x.extent(2), x.extent(3)); };
  derivatives<T> to{like(c.q), like(c.k), like(c.v), like(c.f), tensor<Real>(o.B, o.H, o.L, 1), tensor<Real>(o.B, o.H, o.L, 1),
                    like(c.w), {}};
  bila::gradients<T> wanted;
  wanted.q = to.q.view(), wanted.k = to.k.view(), wanted.v = to.v.view(), wanted.log_weight = to.log_weight.view();
  if (o.mask == fixed || o.mask == selective) wanted.log_decay = to.log_decay.view();
  wanted.log_forward = to.log_forward.view(), wanted.log_backward = to.log_backward.view();
  wanted.scale = &to.scale, wanted.diagonal = &to.diagonal;
  bila::output_gradients<T> dy{c.dy.view()};
  for (const direction d : ways) {
    if (o.has(d)) {
      auto& state = d == direction::forward ? wanted.initial_forward : wanted.initial_backward;
      to.initial.S[at(d)] = like(c.initial.S[at(d)]), to.initial.z[at(d)] = like(c.initial.z[at(d)]);
      to.initial.log_decay[at(d)] = like(c.initial.log_decay[at(d)]);
      to.initial.z[at(d)].fill(0);
      state = {to.initial.S[at(d)].view(), to.initial.z[at(d)].view(), to.initial.log_decay[at(d)].view()};
    }
    if (o.ends_in(d)) {
      auto& state = d == direction::forward ? dy.final_forward : dy.final_backward;
      state = {c.by_final.S[at(d)].view(), c.by_final.z[at(d)].view()};
      if (o.scales) state.log_scale = kept.final.log_scale[at(d)].view();
    }
  }
  with_policies(c, [&](const auto& form, const auto& mask, const auto& norm) {
    bila::gradient(backend, form, mask, norm, inputs_of(c), {kept.y.view(), kept.row_sum.view()}, dy, wanted);
  });
  return to;
}

std::string named(const options& o) {
  return "form " + std::to_string(o.form) + " size " + std::to_string(o.size) + " mask " + std::to_string(o.mask) + " norm " +
         std::to_string(o.norm) + " gate " + std::to_string(static_cast<int>(o.crossing)) + " way " +
         std::to_string(static_cast<int>(o.way)) + " L " + std::to_string(o.L) + " B " + std::to_string(o.B) + " H " +
         std::to_string(o.H) + " segments " + std::to_string(o.segments()) + " states " + std::to_string(o.states) +
         std::to_string(o.finals) + std::to_string(o.scales) + " diagonal " + std::to_string(o.diagonal);
}

}  // namespace

TEMPLATE_TEST_CASE("random calls give the definition", "[random]", float, double, bila::bf16) {
  test::random_source random(7101);
  const test::rounds rounds(240);
  for (int n = 0; rounds.go_on(n); ++n) {
    const double span = n % 4 == 0 ? 500 : n % 4 == 1 ? 40 : 3;
    auto drawn = draw(random, n % 10 == 0 ? 150 : 40, span, true);
    if (n % 7 == 0)
      drawn.w.for_each([&](double& w, auto...) { w = random.below(3) == 0 ? -std::numeric_limits<double>::infinity() : w; });
    if (n % 5 == 0)
      drawn.f.for_each([&](double& f, auto...) { f = random.below(4) == 0 ? -std::numeric_limits<double>::infinity() : f; });
    INFO("seed " << test::seed() << " draw " << n << ": " << named(drawn.o));
    const auto c = cast<TestType>(drawn, test::all_layouts[static_cast<std::size_t>(random.below(6))]);
    auto to = run(c, {}, test::all_layouts[static_cast<std::size_t>(random.below(6))]);
    const truth expected = define(cast<wide>(c));
    CHECK(error_of(to.y, expected.y, expected.y_bound) < 64 + 4 * span);
    if (c.o.norm != none) CHECK(error_of(to.row_sum, expected.Z, expected.Z_bound) < 64 + 4 * span);
    for (const direction d : ways) {
      if (!c.o.ends_in(d)) continue;
      tensor<wide> S = expected.final.S[at(d)], S_bound = expected.final_bound.S[at(d)], z = expected.final.z[at(d)],
                   z_bound = expected.final_bound.z[at(d)];
      if (c.o.scales)
        for (auto* x : {&S, &S_bound, &z, &z_bound})
          x->for_each([&](wide& s, index_t b, index_t h, auto...) {
            const wide log = value(to.final.log_scale[at(d)](b, h, 0));
            if (s != 0) s *= std::exp(-log);
          });
      CHECK(error_of(to.final.S[at(d)], S, S_bound) < 64 + 4 * span);
      if (c.o.norm != none) CHECK(error_of(to.final.z[at(d)], z, z_bound) < 64 + 4 * span);
    }
    CHECK((to.y.intact() && to.row_sum.intact()));
  }
}

TEST_CASE("gradients are differences of the definition", "[random]") {
  test::random_source random(7102);
  const test::rounds rounds(160);
  for (int n = 0; rounds.go_on(n); ++n) {
    auto c = draw(random, n % 8 == 0 ? 40 : 14, n % 3 == 0 ? 20 : 2, true);
    if (n % 3 == 0 && !c.o.scales) continue;
    if (n % 6 == 0)
      c.w.for_each([&](double& w, auto...) { w = random.below(4) == 0 ? -std::numeric_limits<double>::infinity() : w; });
    INFO("seed " << test::seed() << " draw " << n << ": " << named(c.o));
    auto kept = run(c);
    c.by_final.log_scale = kept.final.log_scale;
    auto grads = differentiate(c, kept);
    call<wide> w = cast<wide>(c);
    const auto slope_at = [&](wide& x) {
      const wide before = x, step = 1e-6L;
      x = before + step;
      const wide up = loss_of(w);
      x = before - step;
      const wide down = loss_of(w);
      x = before;
      return (up - down) / (2 * step);
    };
    const auto agree = [&](const char* name, const tensor<double>& found, tensor<wide>& by, bool used = true) {
      if (!used || found.extent(0) * found.extent(1) * found.extent(2) * found.extent(3) == 0) return;
      INFO(name);
      for (int draws = 0; draws < 6; ++draws) {
        const index_t b = random.below(found.extent(0)), h = random.below(found.extent(1)), l = random.below(found.extent(2)),
                      d = random.below(found.extent(3));
        const wide expected = by(b, h, l, d) > -infinity ? slope_at(by(b, h, l, d)) : 0;
        CHECK(std::abs(static_cast<wide>(found(b, h, l, d)) - expected) < 1e-7L * (1 + std::abs(expected)));
      }
    };
    agree("q", grads.q, w.q);
    agree("k", grads.k, w.k);
    agree("v", grads.v, w.v);
    agree("log_weight", grads.log_weight, w.w);
    agree("log_decay", grads.log_decay, w.f, c.o.mask == fixed || c.o.mask == selective);
    agree("log_forward", grads.log_forward, w.f, c.o.mask == two_sided && c.o.Hg == c.o.H);
    agree("log_backward", grads.log_backward, w.b, c.o.mask == two_sided && c.o.Hg == c.o.H);
    for (const direction d : ways) {
      agree("S", grads.initial.S[at(d)], w.initial.S[at(d)], c.o.has(d));
      agree("z", grads.initial.z[at(d)], w.initial.z[at(d)], c.o.has(d) && c.o.norm != none);
      agree("log_decay of a state", grads.initial.log_decay[at(d)], w.initial.log_decay[at(d)], c.o.has(d));
    }
    for (const auto& [found, of] : {std::pair(grads.scale, &w.o.scale), std::pair(grads.diagonal, &w.o.diagonal)}) {
      const double before = *of, step = 0x1p-16;
      *of = before + step;
      const wide up = loss_of(w);
      *of = before - step;
      const wide down = loss_of(w);
      *of = before;
      CHECK(std::abs(static_cast<wide>(found) - (up - down) / (2 * step)) < 1e-6L * (1 + std::abs(found)));
    }
    // dw = k . dk per head, where heads share neither.
    if (c.o.Hk == c.o.H && c.o.Hw == c.o.H && !c.o.finals)
      grads.log_weight.for_each([&](double& found, index_t b, index_t h, index_t l, index_t) {
        double dot = 0;
        for (index_t d = 0; d < c.o.Dk; ++d) dot += c.k(b, h, l, d) * grads.k(b, h, l, d);
        CHECK(std::abs(found - dot) < 1e-9 * (1 + std::abs(dot)));
      });
    for (index_t b = 0; b < c.o.B; ++b)
      for (index_t l = c.o.lengths.empty() ? c.o.L : c.o.last(b, 0); l < c.o.L; ++l)
        for (index_t h = 0; h < c.o.Hw; ++h) CHECK(grads.log_weight(b, h, l) == 0);
  }
}

namespace {

constexpr double cut = -std::numeric_limits<double>::infinity();

/// A call of one head of tokens with a selective mask.
call<double> plain(test::random_source& random, index_t L, divisor norm, double span) {
  call<double> c = draw(random, 1, span, false);
  c.o = {.L = L, .Dk = 5, .Dv = 7, .mask = selective, .norm = norm, .eps = 0, .form = chunkwise};
  const auto fill = [&](tensor<double>& x, index_t D, double low, double high) {
    x = tensor<double>(1, 1, L, D);
    x.fill_uniform(random, low, high);
  };
  fill(c.q, 5, 0.1, 1), fill(c.k, 5, 0.1, 1), fill(c.v, 7, -1, 1), fill(c.dy, 7, -1, 1);
  fill(c.f, 1, -1, 0), fill(c.b, 1, -1, 0), fill(c.w, 1, -span, span);
  for (const direction d : ways) c.initial.S[at(d)] = c.by_final.S[at(d)] = {};
  return c;
}

double largest_difference(const tensor<double>& x, const tensor<double>& y, double times = 1) {
  double worst = 0;
  x.for_each([&](const double& a, index_t b, index_t h, index_t l, index_t d) {
    worst = std::max(worst, std::abs(a - times * y(b, h, l, d)) / (1 + std::abs(a)));
  });
  return worst;
}

/// Divides even the smallest call, and runs the last task first.
struct last_first : bila::executor {
  void run(index_t n, void (*task)(void*, index_t), void* context) override {
    while (n-- > 0) task(context, n);
  }
};

/// y of the call's mask without weights.
template <class T>
tensor<T> unweighed(const call<T>& c) {
  tensor<T> y(c.o.B, c.o.H, c.o.L, c.o.Dv);
  with_policies(c, [&](const auto& form, const auto& mask, const auto& norm) {
    bila::attend(form, mask.mask, norm, inputs_of(c), y.view());
  });
  return y;
}

}  // namespace

TEST_CASE("weights of one leave the mask as it is: the same bits where gaps are given for tokens, else up to rounding") {
  test::random_source random(7103);
  for (int n = 0; n < 60; ++n) {
    auto c = draw(random, 90, 1, false);
    if (c.o.form == recurrent) c.o.form = full;  // without weights this form is no chunkwise one
    c.w.fill(0);
    c.o.finals = false;
    INFO(named(c.o));
    if (c.o.mask == selective || c.o.mask == two_sided) {
      CHECK(same_bits(run(c).y, unweighed(c)));
      CHECK(same_bits(run(cast<float>(c)).y, unweighed(cast<float>(c))));
    } else {
      CHECK(largest_difference(run(c).y, unweighed(c)) < 1e-12);
    }
  }
}

TEST_CASE("a weight is a factor of the value without a norm, and of the key for row sums") {
  test::random_source random(7104);
  for (const shape form : {full, chunkwise, recurrent, automatic}) {
    for (const divisor norm : {none, row_sum, max_one}) {
      auto c = plain(random, 300, norm, norm == max_one ? 0.05 : 3);
      c.o.form = form;
      if (norm == max_one) c.o.scale = 0.02;
      auto scaled = c;
      c.w.for_each([&](const double& w, index_t b, index_t h, index_t l, index_t) {
        for (index_t d = 0; d < c.o.Dk && norm != none; ++d) scaled.k(b, h, l, d) *= std::exp(w);
        for (index_t d = 0; d < c.o.Dv && norm == none; ++d) scaled.v(b, h, l, d) *= std::exp(w);
      });
      const auto y = run(c).y;
      CHECK(largest_difference(y, unweighed(scaled)) < 1e-11);

      auto shifted = c;
      shifted.w.for_each([](double& w, auto...) { w += 2.5; });
      if (norm == none) CHECK(largest_difference(run(shifted).y, y, std::exp(2.5)) < 1e-11);
      if (norm == row_sum) CHECK(largest_difference(run(shifted).y, y) < 1e-11);
    }
  }
}

TEST_CASE("a key of weight zero is gone, and its gates are crossed") {
  test::random_source random(7105);
  for (const shape form : {full, chunkwise, recurrent, automatic}) {
    auto c = plain(random, 140, row_sum, 3);
    c.o.form = form;
    auto other = c;
    for (index_t l = 0; l < 140; l += 3) {
      c.w(0, 0, l) = cut;
      other.w(0, 0, l) = cut;
      for (index_t d = 0; d < 5; ++d) other.k(0, 0, l, d) = random.uniform(5, 6);
      for (index_t d = 0; d < 7; ++d) other.v(0, 0, l, d) = random.uniform(5, 6);
    }
    CHECK(largest_difference(run(c).y, run(other).y) == 0);
    c.w.fill(cut);
    const auto nothing = run(c);
    nothing.y.for_each([](const double& y, auto...) { CHECK(y == 0); });
  }
}

TEST_CASE("an initial state of weight zero is gone, among keys that are gone too") {
  constexpr double gone = -std::numeric_limits<double>::infinity();
  const std::vector<double> ones(4, 1), w(4, gone);
  const auto tokens = bila::bhl(ones.data(), 1, 1, 4), one = bila::bhl(ones.data(), 1, 1, 1), none = bila::bhl(w.data(), 1, 1, 1);
  for (const bool by_scale : {true, false}) {
    bila::inputs<double> in{tokens, tokens, tokens};
    in.initial_forward = {one, one};
    (by_scale ? in.initial_forward.log_scale : in.initial_forward.log_decay) = none;
    std::vector<double> y(4, 42), row_sums(4, 42), S(1, 42), z(1, 42), scale(1, 42);
    bila::outputs<double> out{bila::bhl(y.data(), 1, 1, 4), bila::bhl(row_sums.data(), 1, 1, 4)};
    out.final_forward = {bila::bhl(S.data(), 1, 1, 1), bila::bhl(z.data(), 1, 1, 1), {}, bila::bhl(scale.data(), 1, 1, 1)};
    bila::attend(bila::form::chunkwise{}, bila::mask::weighed_keys{bila::mask::all_ones{}, bila::bhl(w.data(), 1, 1, 4)},
                 bila::norm::row_sum{}, in, out);
    CHECK((y == std::vector<double>(4, 0) && row_sums == y && S[0] == 0 && z[0] == 0 && scale[0] == gone));
  }
}

TEMPLATE_TEST_CASE("the same bits for any threads, place in the batch, layout and packing", "", float, double, bila::bf16) {
  test::random_source random(7106);
  for (int n = 0; n < 60; ++n) {
    auto drawn = draw(random, n % 5 == 0 ? 700 : 60, 3, true);
    INFO("draw " << n << ": " << named(drawn.o));
    const auto c = cast<TestType>(drawn);
    auto expected = run(c);
    last_first pool;
    for (const int threads : {2, 3, 7}) CHECK(equal_bits(run(c, {.threads = threads, .executor = &pool}), expected));
    CHECK(equal_bits(run(cast<TestType>(c, layout::reversed), {}, layout::strided), expected));
    if (c.o.offsets.empty() || c.o.states || c.o.finals) continue;
    for (index_t s = 0; s < c.o.segments(); ++s) {  // each segment alone
      call<TestType> alone = c;
      alone.o.offsets.clear();
      alone.o.L = c.o.last(0, s) - c.o.first(s);
      const auto piece = [&]<class X>(const tensor<X>& x) {
        if (x.extent(2) != c.o.L) return x;
        tensor<X> part(1, x.extent(1), alone.o.L, x.extent(3));
        part.for_each([&](X& y, index_t b, index_t h, index_t l, index_t d) { y = x(b, h, c.o.first(s) + l, d); });
        return part;
      };
      alone.q = piece(c.q), alone.k = piece(c.k), alone.v = piece(c.v), alone.w = piece(c.w), alone.b = piece(c.b);
      if (c.o.mask != fixed) alone.f = piece(c.f);
      CHECK(same_bits(run(alone).y, piece(expected.y)));
    }
  }
}

TEST_CASE("gradients have the same bits for any number of threads, and those of float are close") {
  test::random_source random(7107);
  for (int n = 0; n < 30; ++n) {
    const auto c = draw(random, 90, 2, true);
    INFO("draw " << n << ": " << named(c.o));
    auto kept = run(c);
    last_first pool;
    const auto one = differentiate(c, kept), several = differentiate(c, kept, {.threads = 3, .executor = &pool});
    CHECK((same_bits(one.q, several.q) && same_bits(one.k, several.k) && same_bits(one.v, several.v)));
    CHECK((same_bits(one.log_weight, several.log_weight) && same_bits(one.log_forward, several.log_forward)));
    const auto narrow = cast<float>(c);
    auto narrow_kept = run(narrow);
    const auto approximate = differentiate(narrow, narrow_kept);
    double size = 1;
    one.log_weight.for_each([&](const double& g, auto...) { size = std::max(size, std::abs(g)); });
    CHECK(largest_difference(cast<double>(approximate.log_weight), one.log_weight) < 2e-4 * size);
  }
}

TEST_CASE("the reversed sequence gives the reversed result") {
  test::random_source random(7108);
  for (const shape form : {full, chunkwise, recurrent}) {
    auto c = plain(random, 150, max_one, 20);
    c.o.form = form;
    auto reversed = c;
    const auto reverse = [](tensor<double>& to, const tensor<double>& x) {
      to.for_each([&](double& y, index_t b, index_t h, index_t l, index_t d) { y = x(b, h, x.extent(2) - 1 - l, d); });
    };
    reverse(reversed.q, c.q), reverse(reversed.k, c.k), reverse(reversed.v, c.v), reverse(reversed.f, c.f),
        reverse(reversed.w, c.w);
    auto y = run(reversed).y, expected = y;
    reverse(expected, run(c).y);
    CHECK(largest_difference(y, expected) < 1e-12);
  }
}

TEST_CASE("a sequence cut by states gives what it gives whole, with weights of any size") {
  test::random_source random(7109);
  for (const shape form : {chunkwise, recurrent, automatic})
    for (const bool only_states : {false, true})
      for (int n = 0; n < 8; ++n) {
        auto c = plain(random, 61, max_one, n % 2 == 0 ? 500 : 3);
        c.o.form = form;
        c.o.crossing = bila::gate::later;  // a gap's gate is that of the token behind it, both ways
        const auto whole = run(c).y;
        const index_t middle = 1 + random.below(60);
        const auto part = [&](index_t first, index_t last) {
          call<double> p = c;
          p.o.L = last - first;
          p.o.scales = true;
          for (auto x :
               {&call<double>::q, &call<double>::k, &call<double>::v, &call<double>::f, &call<double>::b, &call<double>::w}) {
            p.*x = tensor<double>(1, 1, p.o.L, (c.*x).extent(3));
            (p.*x).for_each([&](double& y, index_t b, index_t h, index_t l, index_t d) { y = (c.*x)(b, h, first + l, d); });
          }
          return p;
        };
        const call<double> left = part(0, middle), right = part(middle, 61);
        test::tensor<double> S[2], z[2], scale[2];
        for (int d = 0; d < 2; ++d) S[d] = {1, 1, 5, 7}, z[d] = {1, 1, 5, 1}, scale[d] = {1, 1, 1, 1};
        const tensor<double>& gates = c.f;
        const double decay = gates(0, 0, middle);
        const auto state = [&](std::size_t d) { return bila::state<double>{S[d].view(), z[d].view(), {}, scale[d].view()}; };
        const auto entering = [&](std::size_t d) {
          return bila::state<const double>{S[d].view(), z[d].view(), {&decay, {1, 1, 1, 1}, {}}, scale[d].view()};
        };
        tensor<double> y_left(1, 1, middle, 7), y_right(1, 1, 61 - middle, 7);
        with_policies(left, [&](const auto& f, const auto& mask, const auto& norm) {
          bila::outputs<double> out;
          if (!only_states) out.y = y_left.view();
          out.final_forward = state(0);
          bila::attend(f, mask, norm, inputs_of(left), out);
        });
        with_policies(right, [&](const auto& f, const auto& mask, const auto& norm) {
          bila::inputs<double> in = inputs_of(right);
          in.initial_forward = entering(0);
          bila::outputs<double> out{y_right.view()};
          out.final_backward = state(1);
          bila::attend(f, mask, norm, in, out);
        });
        with_policies(left, [&](const auto& f, const auto& mask, const auto& norm) {
          bila::inputs<double> in = inputs_of(left);
          in.initial_backward = entering(1);
          bila::attend(f, mask, norm, in, y_left.view());
        });
        double worst = 0;
        whole.for_each([&](const double& y, index_t b, index_t h, index_t l, index_t d) {
          worst = std::max(worst, std::abs(y - (l < middle ? y_left(b, h, l, d) : y_right(b, h, l - middle, d))));
        });
        CHECK(worst < 1e-11);
      }
}

TEST_CASE("a hundred thousand tokens do not drift") {
  constexpr index_t L = 100000;
  std::vector<float> q(L, 1), v(L), y(L), gates(L, -1e-7f), weights(L);
  test::random_source random(7110);
  for (std::size_t l = 0; l < L; ++l) {
    v[l] = static_cast<float>(random.uniform(0, 1));
    weights[l] = static_cast<float>(random.uniform(-1, 1));
  }
  const auto x = bila::bhld<const float>(q.data(), 1, 1, L, 1);
  const bila::inputs<float> in{x, x, bila::bhld<const float>(v.data(), 1, 1, L, 1)};
  const bila::mask::selective_decay gate{bila::bhl(gates.data(), 1, 1, L), bila::gate::later};
  const bila::mask::weighed_keys mask{gate, bila::bhl(weights.data(), 1, 1, L)};
  for (const index_t size : {4, 16, 128}) {
    bila::attend(bila::form::chunkwise{.size = size}, mask, bila::norm::row_sum{}, in, bila::bhld(y.data(), 1, 1, L, 1));
    for (const index_t i : {index_t(0), L / 3, L - 1}) {
      wide N = 0, Z = 0;
      for (index_t j = 0; j < L; ++j) {
        const auto at_j = static_cast<std::size_t>(j);
        const wide weight = std::exp(static_cast<wide>(weights[at_j]) + static_cast<wide>(gates[0]) * std::abs(i - j));
        N += weight * static_cast<wide>(v[at_j]), Z += weight;
      }
      CHECK(std::abs(static_cast<wide>(y[static_cast<std::size_t>(i)]) - N / Z) < 5e-6L);
    }
  }
}

TEST_CASE("bad weights and scales are refused before anything is written") {
  test::random_source random(7111);
  auto c = plain(random, 20, max_one, 3);
  const auto refused = [&](const auto& change_mask, const auto& change_in) {
    tensor<double> y(1, 1, 20, 7);
    y.fill(42);
    auto altered = c;
    change_mask(altered);
    auto in = inputs_of(altered);
    change_in(in);
    const std::string words = test::refusal([&] {
      with_policies(altered,
                    [&](const auto& form, const auto& mask, const auto& norm) { bila::attend(form, mask, norm, in, y.view()); });
    });
    y.for_each([](const double& x, auto...) { CHECK(x == 42); });
    return words;
  };
  const auto as_it_is = [](auto&) {};
  CHECK(test::has_all(refused([](auto& x) { x.w(0, 0, 3) = std::nan(""); }, as_it_is), {"log_weight", "t = 3", "nan"}));
  CHECK(test::has_all(refused([](auto& x) { x.w(0, 0, 19) = -cut; }, as_it_is), {"log_weight", "t = 19", "inf"}));
  CHECK(test::has_all(refused([](auto& x) { x.w = tensor<double>(1, 1, 19, 1); }, as_it_is), {"log_weights", "19"}));
  CHECK(test::has_all(refused(as_it_is, [](auto& in) { in.k.extents[2] = in.v.extents[2] = 10; }), {"needs them equal"}));
  const std::vector<index_t> keys{20};
  CHECK(test::has_all(refused(as_it_is, [&](auto& in) { in.key_lengths = keys; }), {"needs them equal"}));

  tensor<double> S(1, 1, 5, 7), z(1, 1, 5, 1), scale(1, 1, 1, 1), y(1, 1, 20, 7);
  S.fill(0), z.fill(0), scale.fill(std::nan(""));
  const auto give = [&](auto& in) { in.initial_forward = {S.view(), z.view(), {}, scale.view()}; };
  CHECK(test::has_all(refused(as_it_is, give), {"initial_forward.log_scale", "nan"}));
  scale.fill(0);
  auto in = inputs_of(c);
  give(in);
  const bila::mask::selective_decay bare{c.f.view(), bila::gate::target};
  CHECK(test::has_all(test::refusal([&] { bila::attend(bila::form::chunkwise{}, bare, bila::norm::row_sum{}, in, y.view()); }),
                      {"initial_forward.log_scale", "weighed_keys"}));
  bila::outputs<double> out{y.view()};
  out.final_backward = {S.view(), z.view(), {}, scale.view()};
  CHECK(test::has_all(test::refusal([&] { bila::attend(bila::form::chunkwise{}, bare, bila::norm::none{}, inputs_of(c), out); }),
                      {"final_backward.log_scale", "weighed_keys"}));
  bila::gradients<double> to;
  tensor<double> row_sums(1, 1, 20, 1), dw(1, 1, 20, 1);
  row_sums.fill(1), y.fill(0);
  to.log_weight = dw.view();
  CHECK(
      test::has_all(test::refusal([&] {
                      bila::gradient(bila::form::full{}, bare, bila::norm::none{}, inputs_of(c), {y.view(), {}}, {c.dy.view()}, to);
                    }),
                    {"gradients.log_weight"}));
  to = {};
  to.initial_forward.log_scale = scale.view();
  CHECK(test::has_all(test::refusal([&] {
                        bila::gradient(bila::form::chunkwise{}, bila::mask::weighed_keys{bare, c.w.view()}, bila::norm::none{},
                                       inputs_of(c), {y.view(), {}}, {c.dy.view()}, to);
                      }),
                      {"initial_forward.log_scale"}));
}

TEST_CASE("a workspace of the size that is asked for is enough") {
  test::random_source random(7112);
  for (int n = 0; n < 40; ++n) {
    const auto c = draw(random, 70, 3, true);
    INFO(named(c.o));
    auto expected = run(c), to = room_for(c);
    with_policies(c, [&](const auto& form, const auto& mask, const auto& norm) {
      const auto in = inputs_of(c);
      const auto out = outputs_of(c, to);
      std::vector<std::byte> memory(bila::workspace_bytes(bila::cpu{}, form, mask, norm, in, out));
      bila::attend(bila::cpu{.workspace = memory}, form, mask, norm, in, out);
    });
    CHECK(equal_bits(to, expected));
  }
}
