// SPDX-License-Identifier: Apache-2.0
// Calls of one direction against another library: what flash-linear-attention's naive code made of the same inputs, token by token.
// tests/golden/make_naive.py ran it once. Its scale, its decays and the gap that a gate belongs to are in the numbers.
#include "golden/golden_naive.hpp"
#include "support/catch.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace {

using bila::index_t;
using test::naive::member;
using test::naive::naive_case;

template <class Real>
std::vector<Real> as(std::span<const double> x) {
  return {x.begin(), x.end()};
}

/// The arrays of a case in Real, and the call that they make.
template <class Real>
struct prepared {
  explicit prepared(const naive_case& c)
      : of(c),
        q(as<Real>(c.q)),
        k(as<Real>(c.k)),
        v(as<Real>(c.v)),
        log_decay(as<Real>(c.log_decay)),
        bonus(as<Real>(c.bonus)),
        beta(as<Real>(c.beta)),
        levels(as<Real>(c.levels_forward)),
        S(as<Real>(c.initial_S)),
        z(as<Real>(c.initial_z)) {}

  bila::inputs<Real> in() const {
    const index_t B = of.B, H = of.H, L = of.L, C = of.channels;
    bila::inputs<Real> x{bila::bhld(q.data(), B, H, L, of.Dk), bila::bhld(k.data(), B, H, L, of.Dk),
                         bila::bhld(v.data(), B, H, L, of.Dv)};
    x.scale = of.scale;
    x.direction = bila::direction::forward;
    if (S.empty()) return x;
    x.initial_forward.S = bila::bhld(S.data(), B, H, of.Dk, of.Dv);
    if (!z.empty()) x.initial_forward.z = bila::bhld(z.data(), B, H, of.Dk, index_t(1));
    if (!log_decay.empty())  // the first token's
      x.initial_forward.log_decay = bila::tensor_view<const Real>{log_decay.data(), {B, H, 1, C}, {H * L * C, L * C, C, 1}};
    return x;
  }

  /// Calls use(mask) with the member's mask or rule.
  template <class Use>
  void with_mask(const Use& use) const {
    const index_t B = of.B, H = of.H, L = of.L, Dk = of.Dk;
    const bila::mask::selective_decay gates{bila::bhl(log_decay.data(), B, H, L), bila::gate::target};
    const bila::mask::channel_decay channels{bila::bhld(log_decay.data(), B, H, L, Dk), bila::gate::target};
    const auto strength = bila::bhl(beta.data(), B, H, L);
    const auto by_level = bila::bhld(levels.data(), B, H, L, of.levels);
    switch (of.is) {
      case member::all_ones:
        return use(bila::mask::all_ones{});
      case member::fixed_decay:
        return use(bila::mask::fixed_decay{bila::vec(log_decay.data(), H)});
      case member::selective_decay:
        return use(gates);
      case member::channel_decay:
        return use(channels);
      case member::exclusive_read:
        return use(bila::mask::exclusive_read{channels, bila::tensor_view<const Real>{bonus.data(), {1, H, 1, Dk}, {0, Dk, 0, 1}}});
      case member::delta:
        return use(bila::rule::delta{bila::mask::all_ones{}, strength});
      case member::gated_delta:
        return use(bila::rule::delta{gates, strength});
      case member::channel_delta:
        return use(bila::rule::delta{channels, strength});
      case member::log_linear:
        return use(bila::mask::log_linear{gates, by_level, by_level});
    }
  }

  const naive_case& of;
  std::vector<Real> q, k, v, log_decay, bonus, beta, levels, S, z;
};

/// Each token that enters the state and each channel that is read rounds a product and a sum by half an epsilon, there and here.
template <class Real>
void check_close(const naive_case& c, const char* what, const std::vector<Real>& found, std::span<const double> expected) {
  REQUIRE(found.size() == expected.size());
  double size = 0, difference = 0;
  for (std::size_t n = 0; n < expected.size(); ++n) {
    size = std::max(size, std::fabs(expected[n]));
    const double d = std::fabs(static_cast<double>(found[n]) - expected[n]);
    difference = std::max(difference, std::isnan(d) ? std::numeric_limits<double>::infinity() : d);
  }
  const double roundings = static_cast<double>(c.L + c.Dk);
  const double tolerance = roundings * (c.precision + static_cast<double>(std::numeric_limits<Real>::epsilon())) * (1 + size);
  INFO(what << ": largest difference " << difference << " of " << tolerance << ", of numbers up to " << size);
  CHECK(difference <= tolerance);
}

template <class Real, class Form>
void check(const naive_case& c, const Form& form) {
  const prepared<Real> x(c);
  std::vector<Real> y(c.y.size()), S(c.final_S.size()), z(c.final_z.size());
  bila::outputs<Real> out{bila::bhld(y.data(), c.B, c.H, c.L, c.Dv)};
  if (!S.empty()) out.final_forward.S = bila::bhld(S.data(), c.B, c.H, c.Dk, c.Dv);
  if (!z.empty()) out.final_forward.z = bila::bhld(z.data(), c.B, c.H, c.Dk, index_t(1));
  x.with_mask([&](const auto& mask) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(mask)>, bila::mask::all_ones>)
      if (c.eps > 0) return bila::attend(form, mask, bila::norm::row_sum{c.eps}, x.in(), out);
    bila::attend(form, mask, bila::norm::none{}, x.in(), out);
  });
  check_close(c, "y", y, c.y);
  if (!S.empty()) check_close(c, "final S", S, c.final_S);
  if (!z.empty()) check_close(c, "final z", z, c.final_z);
}

}  // namespace

TEMPLATE_TEST_CASE("calls of one direction give the numbers of another library", "", float, double) {
  for (const naive_case* c : test::naive::cases) {
    INFO(c->name);
    check<TestType>(*c, bila::form::chunkwise{});
    check<TestType>(*c, bila::form::chunkwise{.size = 8});
    check<TestType>(*c, bila::form::recurrent{});
  }
}
