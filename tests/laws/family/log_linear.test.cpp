// SPDX-License-Identifier: Apache-2.0
// Log-linear attention against its definition in long double, and its laws.
#include "log_linear.hpp"

#include "support/catch.hpp"
#include "support/refusal.hpp"

using test::direction;
using test::divisor;
using test::gate;
using test::index_t;
using test::level_call;
using test::level_options;
using test::level_results;
using test::wide;

namespace {

/// Calls use(form) for every form, and for chunks of several sizes.
template <class Use>
void for_each_form(const Use& use) {
  use(bila::form::full{});
  use(bila::form::recurrent{});
  use(bila::form::automatic{});
  for (const index_t size : {1, 2, 8, 24, 32, 128}) use(bila::form::chunkwise{.size = size});
}

/// The largest difference from the definition, in units of what is allowed.
template <class T>
wide worst(const level_call<T>& in, const test::tensor<T>& y, const test::answer& exact) {
  using Real = bila::real_of<T>;
  const wide n = test::roundings<Real>(in.x.L, in.x.Dk) + 64;
  const wide u = std::numeric_limits<Real>::epsilon() / 2;
  const wide rounded = std::is_same_v<T, Real> ? 0 : std::is_same_v<T, bila::bf16> ? 0x1p-8L : 0x1p-11L;
  wide result = 0;
  y.for_each([&](const T& element, index_t b, index_t h, index_t l, index_t d) {
    const std::size_t at = exact.place(b, h, l, d);
    const wide error = std::fabs(static_cast<wide>(static_cast<double>(element)) - exact.y[at]);
    const wide allowed =
        u * test::grown(n) * exact.spread[at] + rounded * std::fabs(exact.y[at]) * (1 + 1e-3L) +
        n * (std::is_same_v<T, bila::f16> ? 0x1p-25L : wide(std::numeric_limits<Real>::min())) * (1 + exact.flushed[at]);
    if (!(error <= allowed)) result = std::isnan(error) ? 1e9L : std::fmax(result, error / allowed);
  });
  return result;
}

/// Compares with differences of the definition, at a few places of each gradient.
template <class T>
void check_differences(const level_call<T>& x, const level_results<T>& r, test::random_source& random) {
  test::level_numbers in(x);
  wide closest = 1;
  test::definition(in, &closest);
  if (x.x.norm == divisor::max_one && closest < 1e-3L) return;
  const wide h = 1e-6L, tolerance = std::is_same_v<T, double> ? 2e-9L : std::is_same_v<T, float> ? 1e-4L : 6e-2L;
  const auto slope = [&](const auto& shift) {
    shift(h);
    const wide up = test::loss(in);
    shift(-2 * h);
    const wide down = test::loss(in);
    shift(h);
    return (up - down) / (2 * h);
  };
  wide size = 1;
  const auto compare = [&](const char* name, wide mine, wide exact) {
    INFO(name << ": " << static_cast<double>(mine) << " and not " << static_cast<double>(exact) << ", size "
              << static_cast<double>(size));
    CHECK(std::fabs(mine - exact) <= tolerance * size);
  };
  const auto few = [&](const char* name, const auto& gradient, std::vector<wide>& numbers) {
    size = 1;
    std::vector<wide> all;
    gradient.for_each([&](const auto& g, index_t, index_t, index_t, index_t) {
      all.push_back(static_cast<wide>(static_cast<double>(g)));
      size = std::fmax(size, std::fabs(all.back()));
    });
    for (int n = 0; n < 5 && !all.empty(); ++n) {
      const auto at = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(all.size())));
      if (!std::isfinite(numbers[at])) {
        CHECK(all[at] == 0);
        continue;
      }
      compare(name, all[at], slope([&](wide by) { numbers[at] += by; }));
    }
  };
  few("q", r.dq, in.q);
  few("k", r.dk, in.k);
  few("v", r.dv, in.v);
  few("forward weights", r.dw[0], in.w[0]);
  few("backward weights", r.dw[1], in.w[1]);
  if (x.x.kind == test::gaps::per_token) few("log decay", r.da, in.a);
  if (x.x.kind == test::gaps::per_head)
    for (index_t head = 0; head < x.x.Hg; ++head) {
      const wide mine = static_cast<wide>(r.da(0, head, 0));
      size = 1 + std::fabs(mine);
      compare("log decay of a head", mine, slope([&](wide by) {
                for (index_t b = 0; b < x.x.B; ++b) in.a[static_cast<std::size_t>((b * x.x.Hg + head) * x.x.L)] += by;
              }));
    }
  size = 10 + std::fabs(static_cast<wide>(r.scale)) + std::fabs(static_cast<wide>(r.diagonal));
  compare("scale", r.scale, slope([&](wide by) { in.scale += by; }));
  compare("diagonal", r.diagonal, slope([&](wide by) { in.diagonal += by; }));
}

template <class T>
void check_call(const level_call<T>& x, test::random_source& random, bool differences) {
  const test::answer exact = test::definition(test::level_numbers(x));
  for_each_form([&](const auto& form) {
    level_results<T> r(x, x.x.where[3]);
    run_forward({}, form, x, r);
    INFO(x.x.name());
    CHECK(worst(x, r.y, exact) == 0);
    CHECK(r.intact());
    if (!differences) return;
    run_gradient({}, form, x, r);
    CHECK(r.intact());
    check_differences(x, r, random);
    const auto zero_at_padding = [&](const auto& g) {
      g.for_each([&](const auto& element, index_t b, index_t, index_t l, index_t) {
        if (g.extent(2) == x.x.L && x.x.segment(b, l).second == 0 && static_cast<double>(element) != 0)
          FAIL("padding has a gradient");
      });
    };
    zero_at_padding(r.dq), zero_at_padding(r.dk), zero_at_padding(r.dv), zero_at_padding(r.dw[0]), zero_at_padding(r.dw[1]);
  });
}

level_options plain(index_t L, index_t Dk, index_t Dv) {
  level_options x;
  x.L = L, x.Dk = Dk, x.Dv = Dv;
  return x;
}

template <class T, class Form>
level_results<T> results_of(const Form& form, const level_call<T>& x, const bila::cpu& backend = {},
                            test::layout where = test::layout::bhld) {
  level_results<T> r(x, where);
  run_forward(backend, form, x, r);
  run_gradient(backend, form, x, r);
  return r;
}

/// The largest difference of two tensors, relative to the largest element.
template <class T>
double apart(const test::tensor<T>& a, const test::tensor<T>& b) {
  double difference = 0, size = 1e-300;
  a.for_each([&](const T& x, index_t n, index_t h, index_t l, index_t d) {
    const auto y = static_cast<double>(b(n, h, l, d));
    difference = std::fmax(difference, std::isnan(static_cast<double>(x) - y) ? 1e9 : std::fabs(static_cast<double>(x) - y));
    size = std::fmax(size, std::fabs(y));
  });
  return difference / size;
}

}  // namespace

TEMPLATE_TEST_CASE("any call equals the definition", "[random]", float, double, bila::bf16, bila::f16) {
  test::random_source random(8101);
  const test::rounds rounds(25);
  for (int n = 0; rounds.go_on(n); ++n)
    check_call(level_call<TestType>(test::random_options(random, 150, 40), random), random, false);
}

TEMPLATE_TEST_CASE("the gradients of any call equal differences of the definition", "[random]", float, double, bila::bf16) {
  test::random_source random(8102);
  const test::rounds rounds(12);
  for (int n = 0; rounds.go_on(n); ++n)
    check_call(level_call<TestType>(test::random_options(random, 40, 20), random), random, true);
}

TEST_CASE("the gradients of all forms agree where many states are live") {
  test::random_source random(8103);
  for (const direction way : {direction::both, direction::forward, direction::backward})
    for (const divisor norm : {divisor::one, divisor::row_sum}) {
      level_options x = plain(700, 17, 24);
      x.H = x.Hq = x.Hv = x.Hw = 2;
      x.way = way, x.norm = norm, x.positive = norm == divisor::row_sum, x.strongest = 0.01;
      const level_call<double> call(x, random);
      const auto full = results_of(bila::form::full{}, call);
      for (const index_t size : {1, 4, 16, 64}) {
        const auto r = results_of(bila::form::chunkwise{.size = size}, call);
        CHECK(apart(r.y, full.y) < 1e-12);
        CHECK(apart(r.dq, full.dq) < 1e-12);
        CHECK(apart(r.dk, full.dk) < 1e-12);
        CHECK(apart(r.dv, full.dv) < 1e-12);
        CHECK(apart(r.df, full.df) < 1e-12);
        CHECK(apart(r.db, full.db) < 1e-12);
        CHECK(apart(r.da, full.da) < 1e-12);
        CHECK(apart(r.dw[0], full.dw[0]) < 1e-12);
        CHECK(apart(r.dw[1], full.dw[1]) < 1e-12);
      }
    }
}

TEMPLATE_TEST_CASE("the bits do not depend on threads, batch or layout", "", float, bila::bf16) {
  test::random_source random(8104);
  for (int n = 0; n < 6; ++n) {
    level_options x = test::random_options(random, 300, 40);
    x.offsets.clear();
    const level_call<TestType> call(x, random);
    for_each_form([&](const auto& form) {
      const auto alone = results_of(form, call);
      for (const int threads : {2, 3}) CHECK(same_bits(results_of(form, call, {.threads = threads}), alone));
      level_call<TestType> moved = call;
      for (auto* const t : {&moved.q, &moved.k, &moved.v, &moved.dy})
        *t = t->laid_out(test::all_layouts[static_cast<std::size_t>(random.below(6))]);
      for (auto* const t : {&moved.a, &moved.w[0], &moved.w[1]})
        *t = t->laid_out(test::all_layouts[static_cast<std::size_t>(random.below(6))]);
      CHECK(same_bits(results_of(form, moved, {}, test::layout::packed), alone));
    });
  }
}

TEST_CASE("a segment has the same bits alone and in a pack") {
  test::random_source random(8105);
  level_options x = plain(330, 20, 12);
  x.offsets = {0, 70, 70, 71, 200, 330};
  const level_call<float> call(x, random);
  for_each_form([&](const auto& form) {
    const auto pack = results_of(form, call);
    for (std::size_t n = 1; n < x.offsets.size(); ++n) {
      const index_t first = x.offsets[n - 1], count = x.offsets[n] - first;
      level_options one = x;
      one.offsets.clear();
      one.L = count;
      one.spare = x.levels() - one.levels();
      level_call<float> part(one, random);
      const auto cut = [&](auto& to, const auto& from) {
        to.for_each([&](float& element, index_t b, index_t h, index_t l, index_t d) { element = from(b, h, first + l, d); });
      };
      cut(part.q, call.q), cut(part.k, call.k), cut(part.v, call.v), cut(part.dy, call.dy), cut(part.a, call.a);
      cut(part.w[0], call.w[0]), cut(part.w[1], call.w[1]);
      const auto alone = results_of(form, part);
      level_results<float> of_pack(part);
      cut(of_pack.y, pack.y), cut(of_pack.dq, pack.dq), cut(of_pack.dk, pack.dk), cut(of_pack.dv, pack.dv);
      cut(of_pack.df, pack.df), cut(of_pack.db, pack.db), cut(of_pack.dw[0], pack.dw[0]), cut(of_pack.dw[1], pack.dw[1]);
      CHECK(same_bits(of_pack, alone));
    }
  });
}

TEST_CASE("weights of one give the mask alone, and so do the levels one by one") {
  test::random_source random(8106);
  for (const direction way : {direction::both, direction::forward, direction::backward}) {
    level_options x = plain(300, 12, 18);
    x.way = way, x.diagonal = 0.75;
    level_call<double> call(x, random);
    test::tensor<double> mask_alone(1, 1, x.L, x.Dv), y(1, 1, x.L, x.Dv), sum(1, 1, x.L, x.Dv);
    call.with_gaps(
        [&](const auto& mask) { bila::attend(bila::form::chunkwise{}, mask, bila::norm::none{}, call.in(), mask_alone.view()); });
    for_each_form([&](const auto& form) {
      const auto run = [&](index_t level) {
        for (auto& weights : call.w)
          weights.for_each([&](double& to, index_t, index_t, index_t, index_t l) { to = level < 0 || l == level ? 1 : 0; });
        call.with_mask([&](const auto& mask) { bila::attend(form, mask, bila::norm::none{}, call.in(), y.view()); });
      };
      run(-1);
      CHECK(apart(y, mask_alone) < 1e-13);
      sum.fill(0);
      for (index_t level = 0; level < x.levels(); ++level) {
        run(level);
        sum.for_each([&](double& to, index_t b, index_t h, index_t l, index_t d) { to += y(b, h, l, d); });
      }
      CHECK(apart(sum, mask_alone) < 1e-13);
    });
  }
}

TEST_CASE("a sequence whose length is a power of two is reversed by reversing its tokens") {
  test::random_source random(8107);
  level_options x = plain(256, 8, 16);
  x.crossing = gate::source;
  const level_call<double> call(x, random);
  level_call<double> reversed = call;
  const auto turn = [&](auto& to, const auto& from) {
    to.for_each([&](double& element, index_t b, index_t h, index_t l, index_t d) { element = from(b, h, x.L - 1 - l, d); });
  };
  turn(reversed.q, call.q), turn(reversed.k, call.k), turn(reversed.v, call.v), turn(reversed.dy, call.dy),
      turn(reversed.a, call.a);
  turn(reversed.w[0], call.w[1]), turn(reversed.w[1], call.w[0]);
  const auto one = results_of(bila::form::chunkwise{.size = 16}, call),
             other = results_of(bila::form::chunkwise{.size = 16}, reversed);
  level_results<double> turned(call);
  turn(turned.y, other.y), turn(turned.dq, other.dq), turn(turned.dw[0], other.dw[1]);
  CHECK(apart(turned.y, one.y) < 1e-13);
  CHECK(apart(turned.dq, one.dq) < 1e-13);
  CHECK(apart(turned.dw[0], one.dw[0]) < 1e-13);
}

TEST_CASE("weights times their gradients are queries times theirs") {
  test::random_source random(8108);
  level_options x = plain(200, 16, 16);
  x.diagonal = 1.25;
  const level_call<double> call(x, random);
  for_each_form([&](const auto& form) {
    const auto r = results_of(form, call);
    for (index_t t = 0; t < x.L; ++t) {
      double of_weights = 0, of_queries = 0;
      for (index_t l = 0; l < x.levels(); ++l)
        for (int way : {0, 1}) of_weights += call.w[way](0, 0, t, l) * r.dw[way](0, 0, t, l);
      for (index_t c = 0; c < x.Dk; ++c) of_queries += call.q(0, 0, t, c) * r.dq(0, 0, t, c);
      if (std::fabs(of_weights - of_queries) > 1e-10) FAIL(of_weights << " and " << of_queries);
    }
    CHECK(true);
  });
}

TEMPLATE_TEST_CASE("a long sequence of equal tokens does not drift", "", float, double) {
  const index_t L = 100000;
  level_options x = plain(L, 1, 1);
  test::random_source random(8109);
  level_call<TestType> call(x, random);
  for (auto* const t : {&call.q, &call.k, &call.v, &call.dy}) t->fill(1);
  for (auto& weights : call.w) weights.fill(1);
  call.a.fill(static_cast<TestType>(-1e-7));
  const auto side = [](wide n) { return std::expm1(-1e-7L * n) / -std::expm1(-1e-7L) * -std::exp(-1e-7L); };  // of n tokens
  for (const bila::form::chunkwise form : {bila::form::chunkwise{}, bila::form::chunkwise{.size = 4}}) {
    const auto r = results_of(form, call);
    wide worst = 0;
    for (index_t t = 0; t < L; ++t) {
      const wide exact = 1 + side(wide(t)) + side(wide(L - 1 - t));
      for (const auto* const of : {&r.y, &r.dq, &r.dk, &r.dv})
        worst = std::fmax(worst, std::fabs(static_cast<wide>((*of)(0, 0, t)) / exact - 1));
    }
    CHECK(worst < (std::is_same_v<TestType, float> ? 4e-6L : 1e-10L));
    wide crossed = 0;
    for (index_t t = 1; t < L; t += 97) {  // the sum over all pairs that cross gap t
      const wide exact = side(wide(t)) * side(wide(L - t)) * std::exp(1e-7L);
      crossed = std::fmax(crossed, std::fabs(static_cast<wide>(r.df(0, 0, t)) / exact - 1));
      crossed = std::fmax(crossed, std::fabs(static_cast<wide>(r.db(0, 0, t)) / exact - 1));
    }
    CHECK(crossed < (std::is_same_v<TestType, float> ? 2e-5L : 1e-10L));
  }
}

TEST_CASE("few tokens, none, and empty segments") {
  test::random_source random(8110);
  for (const index_t L : {0, 1, 2, 3, 5}) check_call(level_call<double>(plain(L, 3, 2), random), random, L > 0);
  level_options x = plain(9, 3, 4);
  x.offsets = {0, 0, 1, 1, 9, 9};
  check_call(level_call<double>(x, random), random, true);
}

TEST_CASE("a wrong call is refused before anything is written") {
  test::random_source random(8111);
  level_options x = plain(20, 4, 4);
  const auto says = [&](level_call<float>& call, const auto& change, std::initializer_list<std::string_view> words) {
    level_results<float> r(call);
    std::vector<float> state(16);
    bila::inputs<float> in = call.in();
    bila::outputs<float> out{r.y.view()};
    change(in, out, state);
    for_each_form([&](const auto& form) {
      const std::string said =
          test::refusal([&] { call.with_mask([&](const auto& mask) { bila::attend(form, mask, bila::norm::none{}, in, out); }); });
      INFO(said);
      CHECK(test::has_all(said, words));
      CHECK((std::isnan(r.y(0, 0, 0, 0)) && state[0] == 0));
    });
  };
  const auto nothing = [](auto&, auto&, auto&) {};
  level_call<float> call(x, random);
  says(call, [](auto& in, auto&, auto& s) { in.initial_forward.S = bila::bhld<const float>(s.data(), 1, 1, 4, 4); },
       {"initial_forward"});
  says(call, [](auto&, auto& out, auto& s) { out.final_backward.S = bila::bhld(s.data(), 1, 1, 4, 4); }, {"final_backward"});
  says(call,
       [](auto&, auto& out, auto& s) {
         out = {};
         out.final_forward.S = bila::bhld(s.data(), 1, 1, 4, 4);
       },
       {"final_forward"});
  call.w[1](0, 0, 7, 3) = std::numeric_limits<float>::quiet_NaN();
  says(call, nothing, {"backward", "t = 7", "l = 3"});
  level_call<float> few(x, random);
  few.w[0] = few.w[1] = test::tensor<float>(1, 1, x.L, 5);
  for (auto& weights : few.w) weights.fill(1);
  says(few, nothing, {"5 levels", "20 tokens have 6"});
  level_call<float> shapes(x, random);
  shapes.w[1] = test::tensor<float>(1, 1, x.L, 7);
  shapes.w[1].fill(1);
  says(shapes, nothing, {"backward"});
  level_call<float> cross(x, random);
  cross.k = test::tensor<float>(1, 1, 15, 4), cross.v = test::tensor<float>(1, 1, 15, 4);
  cross.k.fill(1), cross.v.fill(1);
  says(cross, nothing, {"length 15"});
  const std::string said = test::refusal([&] {
    level_results<float> r(cross);
    run_forward({}, bila::form::chunkwise{.size = -1}, level_call<float>(x, random), r);
  });
  CHECK(test::has_all(said, {"chunkwise.size = -1"}));
}
