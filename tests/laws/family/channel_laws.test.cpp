// SPDX-License-Identifier: Apache-2.0
// The laws of decays per channel: what a call owes to calls with scalar gates, to permuted and reversed calls, and to calls on
// pieces of itself. They hold for results and for gradients. channels.test.cpp has the definition.
#include "channel_call.hpp"

#include "allocation/count.hpp"
#include "support/catch.hpp"
#include "support/refusal.hpp"

using namespace test::per_channel;
using wide = long double;

TEMPLATE_TEST_CASE("equal channels are one scalar gate, and two groups of equal channels the sum of two scalar calls", "", float,
                   double) {
  using T = TestType;
  for_calls<T>(9401, 18, {whole, packed, padded}, 1, [](const any_form& form, call<T> c, random_source& random) {
    const index_t border = random.below(2) == 0 ? c.Dk() : 1 + random.below(c.Dk());
    std::vector<index_t> first_of_group;
    for (index_t d = 0; d < c.Dk(); ++d) first_of_group.push_back(d < border ? 0 : border);
    const auto for_gates = [](auto& x, const auto& use) {
      for (auto* t : {&x.a, &x.b, &x.gap[0], &x.gap[1]})
        if (t->extent(0) > 0) *t = use(*t);
    };
    for_gates(c, [&](const auto& t) { return picked(t, 3, first_of_group); });
    c.exclusive = false;
    c.divided = c.divided && border == c.Dk();
    const auto scalar = [&](index_t first, index_t last) {
      call<T> part = picked(c, channels, range(first, last));
      for_gates(part, [](const auto& t) { return picked(t, 3, {0}); });
      return run_scalar(part);
    };
    numbers<T> found = run(form, c), wanted = scalar(0, border);
    if (border < c.Dk()) wanted = joined(wanted, scalar(border, c.Dk()), channels);
    numbers<double> allowed = allowance(c, found);
    const auto sums_of_groups = [&](const auto& t) {  // the gradient of the scalar
      auto to = picked(t, 3, border < c.Dk() ? std::vector<index_t>{0, border} : std::vector<index_t>{0});
      t.for_each([&](const auto& e, index_t b, index_t h, index_t l, index_t d) {
        if (d != 0 && d != border) to(b, h, l, d < border ? 0 : 1) += e;
      });
      return to;
    };
    for_gates(found, sums_of_groups), for_gates(allowed, sums_of_groups);
    CHECK(close(found, wanted, allowed));
  });
}

TEMPLATE_TEST_CASE("without decay, and with bonuses of one, the mask is all ones", "", float, double) {
  using T = TestType;
  for_calls<T>(9402, 8, {whole, packed, padded}, 1, [](const any_form& form, call<T> c, random_source&) {
    c = without_states(c);
    c.a.fill(0), c.b.fill(0), c.u.fill(1);
    numbers<T> found = run(form, c), wanted = run_scalar(c, true);
    wanted.a = found.a, wanted.b = found.b, wanted.u = found.u;  // all ones have no such gradients
    CHECK(close(found, wanted, allowance(c, found)));
  });
}

TEMPLATE_TEST_CASE("the order of channels does not matter", "", float, double) {
  using T = TestType;
  for_calls<T>(9403, 8, {whole, packed, padded}, 1, [](const any_form& form, const call<T>& c, random_source& random) {
    std::vector<index_t> order = range(0, c.Dk());
    for (std::size_t d = order.size() - 1; d > 0; --d)
      std::swap(order[d], order[static_cast<std::size_t>(random.below(static_cast<index_t>(d + 1)))]);
    const numbers<T> found = run(form, picked(c, channels, order)), other = run(form, c);
    CHECK(close(found, picked(other, channels, order), picked(allowance(c, other), channels, order)));
  });
}

TEMPLATE_TEST_CASE("a gate of zero cuts its own channel, and no other", "", float, double) {
  using T = TestType;
  for_calls<T>(9404, 8, {whole}, 2, [](const any_form& form, call<T> c, random_source& random) {
    const index_t t = 1 + random.below(c.L() - 1), last = c.Dk() - 1;
    c = picked(without_states(c), rows, {0});
    c.exclusive = c.divided = false;                                  // an exclusive read does not cross the gap next to it
    c.crossing = random.below(2) == 0 ? gate::later : gate::earlier;  // one token's gates cut both ways
    for (const direction way : ways)
      for (index_t h = 0; h < c.a.extent(1); ++h) c.gates(way)(0, h, c.token(way, t), last) = static_cast<T>(cut);
    call<T> one = picked(c, channels, {last});
    one.offsets = {0, t, c.L()};
    const numbers<T> found = run(form, c);
    numbers<T> wanted = run(form, one);
    if (last > 0) wanted = joined(run(form, picked(c, channels, range(0, last))), wanted, channels);
    CHECK(close(found, wanted, allowance(c, found)));
  });
}

namespace {

/// The tensors of the reversed call, or of its results. Gap t becomes gap L - t.
template <class N>
N mirrored(const N& x, const options& o) {
  const index_t L = x.v.extent(2), n = static_cast<index_t>(o.offsets.size()) - 1;
  std::vector<index_t> backwards, gaps, other_sequences;
  for (index_t t = 0; t < L; ++t) backwards.push_back(L - 1 - t), gaps.push_back((L - t) % L);
  for (index_t s = 0; s < n; ++s) other_sequences.push_back(n - 1 - s);
  N to = picked(x, tokens, backwards);
  if (o.two_sided) to.a = picked(x.b, 2, gaps), to.b = picked(x.a, 2, gaps);
  if (n > 0) to = picked(to, sequences, other_sequences);
  for (auto* s : {&to.S, &to.z, &to.gap, &to.S_end, &to.z_end}) std::swap((*s)[0], (*s)[1]);
  return to;
}

}  // namespace

TEMPLATE_TEST_CASE("the reversed sequence gives the reversed result", "", float, double) {
  using T = TestType;
  for_calls<T>(9405, 16, {whole, packed}, 1, [](const any_form& form, const call<T>& c, random_source&) {
    call<T> other = mirrored(c, c);
    if (c.way != direction::both) other.way = c.looks(ways[0]) ? ways[1] : ways[0];
    if (c.crossing == gate::later) other.crossing = gate::earlier;
    if (c.crossing == gate::earlier) other.crossing = gate::later;
    for (std::size_t n = 0; n < c.offsets.size(); ++n) other.offsets[n] = c.L() - c.offsets[c.offsets.size() - 1 - n];
    const numbers<T> found = run(form, other), wanted = run(form, c);
    CHECK(close(found, mirrored(wanted, c), mirrored(allowance(c, wanted), c)));
  });
}

TEMPLATE_TEST_CASE("forms and chunks of any size agree, and give zero for padding and for gates of zero", "", float, double) {
  using T = TestType;
  for_calls<T>(9406, 12, {whole, packed, padded}, 1, [](const any_form& form, const call<T>& c, random_source& random) {
    const bila::form::chunkwise other{.size = 1 + random.below(20), .recompute = random.below(2) == 0};
    const numbers<T> found = run(form, c);
    CHECK(close(found, run(other, c), allowance(c, found)));
    bool zero = true;
    for (const auto& pair : {std::pair(&found.a, &c.a), std::pair(&found.b, &c.b)})
      pair.first->for_each([&](const T& e, index_t b, index_t h, index_t l, index_t d) {
        const auto& gates = *pair.second;
        const bool dead = gates(b, h / (pair.first->extent(1) / gates.extent(1)), l, d) <= static_cast<T>(cut);
        zero = zero && (!dead || std::fabs(e) <= 0);
      });
    numbers<T>::each(
        [&](auto, const places& at, const auto& x) {
          x.for_each([&](const auto& e, index_t b, index_t, index_t l, index_t) {
            const bool padding = at[tokens] == 2 && !c.lengths.empty() && l >= c.lengths[static_cast<std::size_t>(b)];
            zero = zero && (!padding || std::fabs(e) <= 0);
          });
        },
        found);
    CHECK(zero);
  });
}

TEMPLATE_TEST_CASE("bits do not depend on threads, layout, repetition, the batch, the pack or padding", "", float, double) {
  using T = TestType;
  for_calls<T>(9407, 18, {whole, packed, padded}, 1, [](const any_form& form, const call<T>& c, random_source& random) {
    const auto place = [&] { return test::all_layouts[static_cast<std::size_t>(random.below(6))]; };
    const numbers<T> alone = run(form, c);
    CHECK(same(run(form, c), alone));
    for (const int threads : {2, 5}) CHECK(same(run(form, c, test::spread({.threads = threads})), alone));
    call<T> moved = c;
    numbers<T>::each(
        [&]<class X>(auto, const places& at, tensor<X>& x) {
          if (!c.lengths.empty() && at[tokens] == 2)
            x.for_each([&](X& e, index_t b, index_t, index_t l, index_t) {
              if (l >= c.lengths[static_cast<std::size_t>(b)]) e = test::not_a_number<X>;
            });
          x = x.laid_out(place());
        },
        moved);
    CHECK(same(run(form, moved, {}, place()), alone));
    for (index_t s = 0; s < c.sequence_count(); ++s) {
      const auto n = static_cast<std::size_t>(s);
      const index_t first = c.offsets.empty() ? 0 : c.offsets[n];
      const index_t last = !c.offsets.empty() ? c.offsets[n + 1] : c.lengths.empty() ? c.L() : c.lengths[n];
      const auto part = [&](const auto& x) {
        return picked(picked(picked(x, tokens, range(first, last)), rows, {c.offsets.empty() ? s : 0}), sequences, {s});
      };
      call<T> piece = part(c);
      piece.offsets = piece.lengths = {};
      CHECK(same(run(form, piece), part(alone), true));
    }
  });
}

TEMPLATE_TEST_CASE("a sequence cut anywhere and joined by states is what it is whole", "", float, double) {
  using T = TestType;
  for_calls<T>(9408, 14, {whole}, 2, [](const any_form& form, const call<T>& c, random_source& random) {
    if (!carries(form)) return;
    const index_t middle = 1 + random.below(c.L() - 1);
    call<T> pieces[] = {picked(c, tokens, range(0, middle)), picked(c, tokens, range(middle, c.L()))};
    numbers<T> r[2];
    const auto run_both = [&] { r[0] = run(form, pieces[0]), r[1] = run(form, pieces[1]); };
    // Calls use(n, from, to) for each direction n, in which the state goes from one piece to the other.
    const auto across = [&](const auto& use) {
      for (std::size_t n = 0; n < 2; ++n)
        if (c.looks(ways[n])) use(n, n, 1 - n);
    };
    across([&](std::size_t n, std::size_t from, std::size_t to) {
      pieces[from].S_end[n] = tensor<T>(c.B(), c.H(), c.Dk(), c.Dv()), pieces[from].z_end[n] = tensor<T>(c.B(), c.H(), c.Dk(), 1);
      pieces[from].S_end[n].fill(0), pieces[from].z_end[n].fill(0);
      pieces[to].S[n] = pieces[to].z[n] = pieces[to].gap[n] = {};
    });
    across([&](std::size_t n, std::size_t from, std::size_t to) {
      call<T> states_alone = pieces[from];
      states_alone.q = states_alone.y = states_alone.Z = {};
      const numbers<T> end = run(form, states_alone);
      pieces[to].S[n] = end.S_end[n], pieces[to].z[n] = end.z_end[n];
      const tensor<T>& gates = c.gates(ways[n]);
      pieces[to].gap[n] = tensor<T>(c.B(), c.H(), 1, c.Dk());
      pieces[to].gap[n].for_each([&](T& e, index_t b, index_t h, index_t, index_t d) {
        e = gates(b, h / (c.H() / gates.extent(1)), c.token(ways[n], middle), d);
      });
    });
    run_both();
    across([&](std::size_t n, std::size_t from, std::size_t to) {  // the gradients of states go the other way
      pieces[from].S_end[n] = r[to].S[n], pieces[from].z_end[n] = r[to].z[n];
    });
    run_both();
    numbers<T> found = joined(r[0], r[1], tokens);
    for (std::size_t n = 0; n < 2; ++n) {
      found.S[n] = r[n].S[n], found.z[n] = r[n].z[n], found.gap[n] = r[n].gap[n];
      found.S_end[n] = r[1 - n].S_end[n], found.z_end[n] = r[1 - n].z_end[n];
    }
    across([&](std::size_t n, std::size_t, std::size_t to) {
      tensor<T>& gates = c.two_sided && n == 1 ? found.b : found.a;
      r[to].gap[n].for_each([&](const T& e, index_t b, index_t h, index_t, index_t d) {
        gates(b, h / (c.H() / gates.extent(1)), c.token(ways[n], middle), d) += e;
      });
    });
    const numbers<T> wanted = run(form, c);
    CHECK(close(found, wanted, allowance(c, wanted)));
  });
}

TEST_CASE("a hundred thousand equal tokens do not drift") {
  random_source random(9409);
  const index_t L = 100000, Dk = 3, Dv = 2;
  call<float> c;
  c.two_sided = true;
  const auto repeat = [&](tensor<float>& x, index_t D, double low, double high) {
    x = tensor<float>(1, 1, 1, D);
    x.fill_uniform(random, low, high);
    x = picked(x, 2, std::vector<index_t>(static_cast<std::size_t>(L), 0));
  };
  repeat(c.q, Dk, 0.1, 1), repeat(c.k, Dk, 0.1, 1), repeat(c.v, Dv, 0.1, 1), repeat(c.y, Dv, 0.1, 1);
  repeat(c.a, Dk, -2e-7, -5e-8), repeat(c.b, Dk, -2e-7, -5e-8), repeat(c.Z, 1, 0, 0);
  const auto at = [](const tensor<float>& x, index_t d, index_t t = 0) { return static_cast<wide>(x(0, 0, t, d)); };
  const auto side = [](wide a, index_t n) { return std::expm1(a * static_cast<wide>(n)) / -std::expm1(-a); };  // e^a + ... + e^na
  wide dyv = 0;
  for (index_t f = 0; f < Dv; ++f) dyv += at(c.y, f) * at(c.v, f);
  // Two decays in each of 16 gaps of a chunk round three times, as do sums inside a chunk. A sum over chunks rounds 128 times, and
  // is then compensated.
  const wide unit = std::numeric_limits<float>::epsilon() / 2, allowed = (2 * 3 * 16 + Dk + Dv + 16 + 128) * unit;
  std::vector<any_form> all(forms.begin(), forms.end());
  all.push_back(bila::form::chunkwise{.size = 1});
  for (const any_form& any : all) {
    if (!carries(any)) continue;
    step<float> s(c, layout::bhld);
    const numbers<float>& found = s.r;
    const bool slopes = &any == all.data();  // of the gradient, which has chunks of the same size in every form
    with_policies(any, c, [&](const auto& form, const auto& mask, const auto& norm) {
      bila::attend(form, mask, norm, s.in, s.out);
      if (slopes) bila::gradient(form, mask, norm, s.in, s.kept, s.dy, s.to);
    });
    const auto compare = [&](wide x, wide exact) { CHECK(std::fabs(x - exact) <= allowed * exact); };  // all terms are positive
    for (const index_t t : {index_t(0), index_t(1), L / 3, L / 2, L - 2, L - 1}) {
      wide read = 0;
      for (index_t d = 0; d < Dk; ++d) {
        const wide a = at(c.a, d), b = at(c.b, d), qk = at(c.q, d) * at(c.k, d);
        const wide of_query = 1 + side(a, t) + side(b, L - 1 - t), of_key = 1 + side(b, t) + side(a, L - 1 - t);
        read += qk * of_query;
        if (!slopes) continue;
        compare(at(found.q, d, t), at(c.k, d) * dyv * of_query);
        compare(at(found.k, d, t), at(c.q, d) * dyv * of_key);
        if (t > 0) compare(at(found.a, d, t), qk * dyv * side(a, t) * side(a, L - t) * std::exp(-a));
        if (t > 0) compare(at(found.b, d, t), qk * dyv * side(b, t) * side(b, L - t) * std::exp(-b));
      }
      for (index_t f = 0; f < Dv; ++f) compare(at(found.y, f, t), read * at(c.v, f));
    }
  }
}

TEMPLATE_TEST_CASE("nothing crosses a gap of zero, or of almost zero", "", float, double) {
  using T = TestType;
  for_calls<T>(9410, 12, {whole, padded}, 1, [](const any_form& form, call<T> c, random_source& random) {
    c = without_states(c);
    c.divided = false;
    c.scale = 1, c.diagonal = 2;
    for (tensor<T>* x : {&c.q, &c.k, &c.v, &c.y, &c.u})  // sums of which are exact
      x->for_each([&](T& e, auto...) { e = static_cast<T>(1 + random.below(3)); });
    const T log_decay = static_cast<T>(random.below(2) == 0 ? cut : -60), least = log_decay > cut ? T(1e-18) : 0;
    c.a.fill(log_decay), c.b.fill(log_decay);
    tensor<T> y = c.y, dq = c.q;
    y.fill(0), dq.fill(0);
    c.q.for_each([&](T& q, index_t b, index_t h, index_t i, index_t d) {
      const index_t L = c.lengths.empty() ? c.L() : c.lengths[static_cast<std::size_t>(b)];
      for (index_t j = std::max<index_t>(i - 1, 0); i < L && j <= std::min(i + 1, L - 1); ++j) {
        if (j != i && (!c.exclusive || !c.looks(j < i ? direction::forward : direction::backward))) continue;
        const T own = c.exclusive ? 2 * c.u(0, h / (c.H() / c.u.extent(1)), 0, d) : 2, k = (i == j ? own : 1) * c.k(b, h, j, d);
        for (index_t f = 0; f < c.Dv(); ++f)
          y(b, h, i, f) += q * k * c.v(b, h, j, f), dq(b, h, i, d) += c.y(b, h, i, f) * c.v(b, h, j, f) * k;
      }
    });
    // Exactly; but a state is kept relative to a factor, so an exclusive read of the last token of a chunk is multiplied by it and
    // divided.
    const T rounding = c.exclusive ? 8 * std::numeric_limits<T>::epsilon() : 0;
    const numbers<T> found = run(form, c);
    bool exact = true;
    for (const auto& pair : {std::pair(&found.y, &y), std::pair(&found.q, &dq)})
      pair.first->for_each([&](const T& e, index_t b, index_t h, index_t l, index_t d) {
        const T wanted = (*pair.second)(b, h, l, d);
        exact = exact && std::fabs(e - wanted) <= rounding * wanted;
      });
    for (const tensor<T>* x : {&found.a, &found.b})
      x->for_each([&](const T& e, auto...) { exact = exact && std::fabs(e) <= least; });
    CHECK(exact);
  });
}

TEST_CASE("an empty sequence hands its state on") {
  for_calls<float>(9411, 12, {whole}, 1, [](const any_form& form, call<float> c, random_source& random) {
    if (!carries(form)) return;
    std::vector<index_t> empty{0};
    c = picked(picked(c, rows, empty), sequences, empty);
    if (random.below(2) == 0) {
      c = picked(c, tokens, {});
    } else {
      const index_t t = random.below(c.L());
      c.offsets = {0, 0, t, t, c.L()}, empty = {0, 2};
      c = picked(c, sequences, {0, 0, 0, 0});
    }
    const numbers<float> found = run(form, c);
    // Whether the empty sequences have the numbers of `wanted`, or zeros if this is not given.
    const auto have = [&](const tensor<float>& x, const tensor<float>& wanted) {
      tensor<float> expected = picked(wanted.extent(0) > 0 ? wanted : x, 0, empty);
      if (wanted.extent(0) == 0) expected.fill(0);
      return x.extent(0) == 0 || same_bits(picked(x, 0, empty), expected);
    };
    for (std::size_t n = 0; n < 2; ++n) {
      CHECK((have(found.S_end[n], c.S[n]) && have(found.S[n], c.S_end[n]) && have(found.gap[n], {})));
      if (c.divided) CHECK((have(found.z_end[n], c.z[n]) && have(found.z[n], c.z_end[n])));
    }
  });
}

TEMPLATE_TEST_CASE("an exclusive read is two one-way reads by shifted queries, and the bonus", "", float, double) {
  using T = TestType;
  for_calls<T>(9412, 12, {whole}, 2, [](const any_form& form, call<T> c, random_source&) {
    c = without_states(c);
    c.exclusive = true, c.divided = false;
    const numbers<T> wanted = run(form, c);
    numbers<T> found = wanted;
    found.y.for_each([&](T& e, index_t b, index_t h, index_t l, index_t f) {
      wide own = 0;
      for (index_t d = 0; d < c.Dk(); ++d)
        own += wide(c.q(b, h, l, d)) * wide(c.u(0, h / (c.H() / c.u.extent(1)), 0, d)) * wide(c.k(b, h, l, d));
      e = static_cast<T>(wide(c.scale * c.diagonal) * own * wide(c.v(b, h, l, f)));
    });
    for (const direction way : ways) {
      if (!c.looks(way)) continue;
      const auto shifted = [&](auto view, bool by_one) {
        view.data += by_one ? view.strides[2] : 0, view.extents[2] = c.L() - 1;
        return view;
      };
      const call<T>& x = c;
      const bool ahead = way == direction::forward;
      bila::inputs<T> in{shifted(x.q.view(), ahead), shifted(x.k.view(), !ahead), shifted(x.v.view(), !ahead)};
      in.scale = c.scale, in.direction = way;
      bila::outputs<T> out{shifted(found.y.view(), ahead)};
      out.add = true;
      const auto a = shifted(x.a.view(), !ahead), b = shifted(x.b.view(), !ahead);
      std::visit(
          [&](const auto& f) {
            if (c.two_sided) bila::attend(f, bila::mask::two_sided_channels{a, b}, bila::norm::none{}, in, out);
            if (!c.two_sided) bila::attend(f, bila::mask::channel_decay{a, c.crossing}, bila::norm::none{}, in, out);
          },
          form);
    }
    CHECK(close(found, wanted, allowance(c, wanted)));
  });
}

TEST_CASE("a second call allocates nothing") {
  for_calls<float>(9413, 6, {whole, packed, padded}, 1, [](const any_form& any, const call<float>& c, random_source&) {
    step<float> s(c, layout::bhld);
    with_policies(any, c, [&](const auto& form, const auto& mask, const auto& norm) {
      long before = 0;
      for (int n = 0; n < 2; ++n) {
        before = test::allocations();
        bila::attend(form, mask, norm, s.in, s.out);
        bila::gradient(form, mask, norm, s.in, s.kept, s.dy, s.to);
      }
      CHECK(test::allocations() == before);
    });
  });
}

TEST_CASE("16-bit tensors are computed in float and rounded once") {
  using T = bila::bf16;
  for_calls<T>(9414, 9, {whole, packed, padded}, 1, [](const any_form& form, call<T> c, random_source&) {
    c.divided = false;  // else the gradient reads the rounded y
    numbers<T> found = run(form, c);
    const numbers<T> wanted = in_type<T>(call<float>{c, run(form, in_type<float>(c))});
    found.scale = wanted.scale;  // read off the rounded y too
    CHECK(same(found, wanted));
  });
}

TEST_CASE("what cannot be computed is refused in a sentence, before anything is written") {
  using test::has_all;
  random_source random(9416);
  call<float> good = random_call<float>(random, whole, 9);
  while (good.Dk() < 3 || good.H() != 2 || good.S[0].extent(0) == 0 || good.divided || !good.exclusive || good.two_sided)
    good = random_call<float>(random, whole, 9);
  good.crossing = gate::later;
  const auto fewer = range(0, good.Dk() - 1);
  const std::string width = std::to_string(good.Dk()), length = std::to_string(good.L());
  // The sentence of attend, the same in every form. The gradient refuses the call too, if not always for its first fault.
  const auto says = [&](const auto& change) {
    std::string sentence;
    for (const any_form& any : forms) {
      if (!carries(any)) continue;
      call<float> c = good;
      change(c);
      step<float> s(c, layout::bhld);
      s.r.y = good.y, s.r.y.fill(7), s.r.v.fill(7);
      s.out.y = s.r.y.view(), s.kept.y = std::as_const(s.r.y).view();
      std::string by_gradient;
      with_policies(any, c, [&](const auto& form, const auto& mask, const auto& norm) {
        sentence = test::refusal([&] { bila::attend(form, mask, norm, s.in, s.out); });
        by_gradient = test::refusal([&] { bila::gradient(form, mask, norm, s.in, s.kept, s.dy, s.to); });
      });
      bool untouched = true;
      for (const auto* x : {&s.r.y, &s.r.v}) x->for_each([&](const float& e, auto...) { untouched = untouched && e == 7; });
      CHECK((untouched != sentence.empty() && by_gradient.empty() == sentence.empty()));
    }
    UNSCOPED_INFO(sentence);
    return sentence;
  };
  CHECK(says([](auto&) {}).empty());
  CHECK(
      has_all(says([](auto& c) { c.a = picked(c.a, 2, range(1, c.L())); }), {"log_decay has shape", length + ", " + width + "]"}));
  CHECK(has_all(says([](auto& c) { c.a = picked(c.a, 3, {0}), c.exclusive = false; }), {"1 channels", width + " features"}));
  CHECK(has_all(says([](auto& c) { c.a = picked(c.a, 3, {}), c.exclusive = false; }), {"0 channels", width + " features"}));
  CHECK(
      has_all(says([&](auto& c) { c.a = picked(c.a, 3, fewer), c.u = picked(c.u, 3, fewer); }), {"channels", width + " features"}));
  CHECK(has_all(says([&](auto& c) { c.two_sided = true, c.b = picked(c.b, 3, fewer); }), {"backward_gaps has shape", width + "]"}));
  CHECK(has_all(says([](auto& c) { c.u = picked(c.u, 3, {0}); }), {"bonuses has 1 channels", "gates have " + width}));
  CHECK(has_all(says([](auto& c) { c.u = picked(c.u, 2, {0, 0}); }), {"bonuses has shape", "it must be [1, 2, 1, Dk]"}));
  CHECK(has_all(says([](auto& c) { c.k = picked(c.k, 2, range(0, 5)), c.v = picked(c.v, 2, range(0, 5)); }),
                {"k has length 5", "q has " + length, "a mask with decay"}));
  CHECK(
      has_all(says([](auto& c) { c.gap[0] = picked(c.gap[0], 3, {0}); }), {"initial_forward.log_decay has 1 ", "needs " + width}));
  CHECK(
      has_all(says([&](auto& c) { c.gap[0] = picked(c.gap[0], 3, fewer); }), {"initial_forward.log_decay has ", "needs " + width}));
  for (const float wrong : {0.5f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    CHECK(has_all(says([&](auto& c) { c.a(0, 0, 4, 1) = wrong; }), {"b = 0, h = 0, t = 4, d = 1", "a log decay must be <= 0"}));
    CHECK(
        has_all(says([&](auto& c) { c.gap[0](0, 1, 0, 2) = wrong; }), {"initial_forward.log_decay[n = 0, h = 1, d = 2]", "<= 0"}));
    if (wrong != 0.5f) CHECK(has_all(says([&](auto& c) { c.u(0, 0, 0, 2) = wrong; }), {"bonus(h = 0, d = 2)", "must be finite"}));
  }
}
