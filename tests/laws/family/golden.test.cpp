// SPDX-License-Identifier: Apache-2.0
// The members of the wider family against results that tests/golden/make.py computed from their definitions with 40 digits.
#include "golden/golden_family.hpp"
#include "support/catch.hpp"

#include <bila/bila.hpp>

#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace {

using bila::direction;
using bila::index_t;
using test::golden::decays;
using test::golden::divides_by;
using test::golden::family;
using test::golden::family_case;

template <class Real>
std::vector<Real> as(std::span<const double> x) {
  return {x.begin(), x.end()};
}

/// The arrays of a case in Real, and the call that they make.
template <class Real>
struct prepared {
  explicit prepared(const family_case& c)
      : of(c),
        q(as<Real>(c.q)),
        k(as<Real>(c.k)),
        v(as<Real>(c.v)),
        log_decay(as<Real>(c.log_decay)),
        backward(as<Real>(c.log_decay_backward)),
        weights(as<Real>(c.log_weights)),
        bonus(as<Real>(c.bonus)),
        beta{as<Real>(c.beta_forward), as<Real>(c.beta_backward)},
        levels{as<Real>(c.levels_forward), as<Real>(c.levels_backward)} {
    for (int n = 0; n < 2; ++n) {
      const auto& state = n == 0 ? c.initial_forward : c.initial_backward;
      S[n] = as<Real>(state.S), z[n] = as<Real>(state.z), enter[n] = as<Real>(state.log_decay);
      if (z[n].empty() && !S[n].empty()) z[n].assign(static_cast<std::size_t>(c.B * c.H * c.Dk), Real(0));
    }
    if (levels[0].empty()) levels[0] = levels[1];  // a direction that the call does not take
    if (levels[1].empty()) levels[1] = levels[0];
  }

  bila::inputs<Real> in() const {
    const family_case& c = of;
    bila::inputs<Real> x{bila::bhld(q.data(), c.B, c.H, c.L, c.Dk), bila::bhld(k.data(), c.B, c.H, c.L, c.Dk),
                         bila::bhld(v.data(), c.B, c.H, c.L, c.Dv)};
    x.scale = c.scale;
    x.diagonal = c.diagonal;
    x.direction = c.direction;
    for (int n = 0; n < 2; ++n) {
      if (S[n].empty()) continue;
      bila::state<const Real> s{bila::bhld(S[n].data(), c.B, c.H, c.Dk, c.Dv), bila::bhld(z[n].data(), c.B, c.H, c.Dk, index_t(1))};
      if (!enter[n].empty()) s.log_decay = bila::bhld(enter[n].data(), c.B, c.H, index_t(1), c.channels);
      (n == 0 ? x.initial_forward : x.initial_backward) = s;
    }
    return x;
  }

  /// Calls use(mask) with the scalar gaps of the case.
  template <class Use>
  void with_gaps(const Use& use) const {
    const family_case& c = of;
    if (c.by == decays::all_ones) return use(bila::mask::all_ones{});
    const auto f = bila::bhl(log_decay.data(), c.B, c.H, c.L);
    if (c.by == decays::sides) return use(bila::mask::two_sided{f, bila::bhl(backward.data(), c.B, c.H, c.L)});
    use(bila::mask::selective_decay{f, c.crossing});
  }

  template <class Use>
  void with_channels(const Use& use) const {
    const family_case& c = of;
    const auto f = bila::bhld(log_decay.data(), c.B, c.H, c.L, c.Dk);
    if (c.by == decays::sides) return use(bila::mask::two_sided_channels{f, bila::bhld(backward.data(), c.B, c.H, c.L, c.Dk)});
    use(bila::mask::channel_decay{f, c.crossing});
  }

  /// Calls use(mask) with the member's mask or rule.
  template <class Use>
  void with_mask(const Use& use) const {
    const family_case& c = of;
    const auto token = [&](const std::vector<Real>& x) { return bila::bhl(x.data(), c.B, c.H, c.L); };
    const auto level = [&](const std::vector<Real>& x) { return bila::bhld(x.data(), c.B, c.H, c.L, c.levels); };
    if (c.member == family::weighed_keys)
      with_gaps([&](const auto& gaps) { use(bila::mask::weighed_keys{gaps, token(weights)}); });
    else if (c.member == family::channels)
      with_channels(use);
    else if (c.member == family::exclusive_read)
      with_channels([&](const auto& gaps) {
        use(bila::mask::exclusive_read{gaps, bila::tensor_view<const Real>{bonus.data(), {1, c.H, 1, c.Dk}, {0, c.Dk, 0, 1}}});
      });
    else if (c.member == family::delta || c.member == family::delta_channels) {
      const auto &f = beta[0].empty() ? beta[1] : beta[0], &b = beta[1].empty() ? beta[0] : beta[1];
      const auto with_rule = [&](const auto& gaps) { use(bila::rule::delta{gaps, token(f), token(b)}); };
      c.member == family::delta ? with_gaps(with_rule) : with_channels(with_rule);
    } else
      with_gaps([&](const auto& gaps) { use(bila::mask::log_linear{gaps, level(levels[0]), level(levels[1])}); });
  }

  const family_case& of;
  std::vector<Real> q, k, v, log_decay, backward, weights, bonus, beta[2], levels[2], S[2], z[2], enter[2];
};

template <class Real>
void check_close(const char* what, const std::vector<Real>& found, std::span<const double> exact, double tolerance) {
  REQUIRE(found.size() == exact.size());
  double size = 0, difference = 0;
  for (std::size_t n = 0; n < exact.size(); ++n) {
    size = std::max(size, std::fabs(exact[n]));
    const double apart = std::fabs(static_cast<double>(found[n]) - exact[n]);
    if (!(apart <= difference)) difference = apart;  // a NaN stays
  }
  INFO(what << ": largest difference " << difference << ", of numbers up to " << size);
  CHECK(difference <= tolerance * (1 + size));
}

template <class Real, class Form, class Mask>
void check_mask(const prepared<Real>& x, const Form& form, const Mask& mask) {
  constexpr bool carries = bila::form::engine_of<Form, bila::form::memory_of<Mask>>::carries_states;
  const family_case& c = x.of;
  if (!carries && !(c.initial_forward.S.empty() && c.initial_backward.S.empty())) return;
  std::vector<Real> y(c.y.size()), S[2], z[2];
  const double tolerance = 40 * static_cast<double>(std::numeric_limits<Real>::epsilon());
  bila::outputs<Real> out{bila::bhld(y.data(), c.B, c.H, c.L, c.Dv)};
  for (int n = 0; n < 2; ++n) {
    const auto& exact = n == 0 ? c.final_forward : c.final_backward;
    if (exact.S.empty() || !carries) continue;
    S[n].resize(exact.S.size()), z[n].resize(static_cast<std::size_t>(c.B * c.H * c.Dk));
    (n == 0 ? out.final_forward : out.final_backward) =
        bila::state<Real>{bila::bhld(S[n].data(), c.B, c.H, c.Dk, c.Dv), bila::bhld(z[n].data(), c.B, c.H, c.Dk, index_t(1))};
  }
  const bool sums = c.norm != divides_by::one && c.member != family::delta && c.member != family::delta_channels;
  if (!sums) bila::attend(form, mask, bila::norm::none{}, x.in(), out);
  if constexpr (!bila::ruled<Mask>) {
    if (c.norm == divides_by::row_sum) bila::attend(form, mask, bila::norm::row_sum{c.eps}, x.in(), out);
    if (c.norm == divides_by::max_one) bila::attend(form, mask, bila::norm::max_one{}, x.in(), out);
  }
  check_close("y", y, c.y, tolerance);
  for (int n = 0; n < 2; ++n) {
    if (S[n].empty()) continue;
    const auto& exact = n == 0 ? c.final_forward : c.final_backward;
    check_close("final S", S[n], exact.S, tolerance);
    if (sums && !exact.z.empty()) check_close("final z", z[n], exact.z, tolerance);
  }
}

/// Checks a case in one form, unless the form refuses the member or has no states and the case starts from one.
template <class Real, class Form>
void check(const family_case& c, const Form& form) {
  const prepared<Real> x(c);
  x.with_mask([&](const auto& mask) {
    if constexpr (bila::form::has_engine<Form, bila::form::memory_of<std::remove_cvref_t<decltype(mask)>>>)
      check_mask(x, form, mask);
  });
}

template <class Real>
void check_case(const family_case& c) {
  INFO(c.name);
  check<Real>(c, bila::form::chunkwise{});
  check<Real>(c, bila::form::chunkwise{.size = 4});
  check<Real>(c, bila::form::recurrent{});
  check<Real>(c, bila::form::full{});
}

}  // namespace

TEMPLATE_TEST_CASE("the wider family gives its golden results", "", float, double) {
  for (const family_case* c : test::golden::family_cases) check_case<TestType>(*c);
}
