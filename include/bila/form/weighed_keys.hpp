// SPDX-License-Identifier: Apache-2.0
// The engines of masks whose keys have weights: the engines of their gaps, with all sums kept relative to the largest weight.
#pragma once

#include <bila/config.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/chunkwise.hpp>
#include <bila/form/ends.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/full.hpp>
#include <bila/form/only_states.hpp>
#include <bila/form/recurrent.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

/// Finds the largest weights in a head's states and rows, and turns its mask into one of gaps that are relative to them:
///
///     mu^F_i = max(mu^F_{i-1} + f_i, w_i)      mu^B_i = max(mu^B_{i+1} + b_{i+1}, w_i)      m_i = max(mu^F_i, mu^B_i)
///
/// In a call of one direction m_i is that direction's mu_i. The value before the first token is the log decay of the initial
/// state's gap plus its log scale. In each direction the decay of a gap or the write factor is 1, and one of the two read factors
/// is 1. So a token needs four exponentials: one for each direction, one to read, and `unit`. All of it is computed in double.
template <class Kernel, class Real>
class ends_finder {
 public:
  ends_finder(kernel::arena& memory, index_t L)
      : ends(memory, L, std::type_identity<Kernel>()), later_(memory), w_(later_.numbers<Kernel, double>(L)) {
    for (double** const x : {&exponents_, &mu_forward_, &mu_backward_}) *x = later_.numbers<Kernel, double>(L);
  }

  /// The bytes of the arena up to the end of find()'s own scratch. The form may use this scratch after find().
  std::size_t used_at_first() const { return later_.used(); }

  /// Changes x so that a form computes with the relative gaps. x then points into this object.
  template <class T>
  BILA_NOINLINE void find(head<T>& x) {
    const index_t L = x.k.count;
    x.mask.log_weights(0, L, w_);
    for (index_t t = 0; t < L; ++t) w_[t] = (std::max)(w_[t], removed);
    scan(x);
    for (const direction way : {direction::forward, direction::backward}) {
      if (x.direction == other(way)) {
        std::fill_n(ends.write(way), L, Real(0));
        std::fill_n(ends.read(way), L, Real(0));
        continue;
      }
      std::fill_n(ends.read(way), L, Real(1));
      settle(ends.decays(way) + (way == direction::backward), ends.write(way), L);
    }
    x.initial_forward.decay = weighs(x.initial_forward) ? ends.forward[0] : 0;
    x.initial_backward.decay = weighs(x.initial_backward) ? ends.backward[L] : 0;
    ends.forward[0] = ends.forward[L] = ends.backward[0] = ends.backward[L] = 1;
    weigh_rows(x.direction, L);
    for (const direction way : {direction::forward, direction::backward}) finish(way, L, x);
    x.mask.gaps = gap::per_token;
    x.mask.ends = &ends;
  }

  /// The largest log weight in the final state of a direction.
  double last(direction way, index_t L) const { return way == direction::forward ? mu_forward_[L - 1] : mu_backward_[0]; }

  key_ends<Real> ends;

 private:
  // The log weight of a key that is removed, and of a sum that holds nothing. Smaller than any other, and mu is never below it.
  static constexpr double removed = -1e305;

  static double start(const head_state<const Real>& from) {
    return from.given() ? (std::max)(from.log_decay + from.log_scale, removed) : removed;
  }

  /// Whether an initial state has a weight at all. A state without a weight must not count among keys that are all removed.
  static bool weighs(const head_state<const Real>& from) { return start(from) > removed; }

  /// Writes mu, and in place of the decays the differences mu_{i-1} + f_i - w_i, which settle() turns into decays.
  template <class T>
  BILA_NOINLINE void scan(const head<T>& x) {
    const index_t L = x.k.count;
    for (const direction way : {direction::forward, direction::backward}) {
      double* const logs = ends.decays(way);
      logs[0] = logs[L] = 0;
      if (x.mask.gaps == gap::none || L < 2)
        std::fill_n(logs, L + 1, 0.0);
      else if (x.direction != other(way))
        x.mask.log_decays(way, 1, L - 1, logs + 1);
    }
    const auto step = [](double& mu, double& log, double w, double& to) {
      const double before = mu + log;
      mu = (std::max)(before, w);
      log = before - w;
      to = mu;
    };
    double mu_f = start(x.initial_forward), mu_b = start(x.initial_backward);
    double *const f = ends.forward, *const b = ends.backward + 1;
    if (x.direction == direction::forward) {
      for (index_t i = 0; i < L; ++i) step(mu_f, f[i], w_[i], mu_forward_[i]);
    } else if (x.direction == direction::backward) {
      for (index_t j = L - 1; j >= 0; --j) step(mu_b, b[j], w_[j], mu_backward_[j]);
    } else {  // in one loop, because each step must wait for the one before it
      for (index_t i = 0, j = L - 1; i < L; ++i, --j) {
        step(mu_f, f[i], w_[i], mu_forward_[i]);
        step(mu_b, b[j], w_[j], mu_backward_[j]);
      }
    }
  }

  /// Turns the differences d into decays e^{min(d, 0)} and write factors e^{min(-d, 0)}. The latter are 0 for removed keys.
  BILA_NOINLINE void settle(double* d, Real* write, index_t L) {
    for (index_t i = 0; i < L; ++i) exponents_[i] = -std::abs(d[i]);
    Kernel::exponentials(exponents_, L);
    for (index_t i = 0; i < L; ++i) {
      const double kept = w_[i] > removed ? 1 : 0;
      write[i] = static_cast<Real>(d[i] < 0 ? kept : kept * exponents_[i]);
      d[i] = d[i] < 0 ? exponents_[i] : 1;
    }
  }

  BILA_NOINLINE void weigh_rows(direction looks, index_t L) {
    const direction way = looks == direction::backward ? looks : direction::forward;
    const double* mu = way == direction::forward ? mu_forward_ : mu_backward_;
    if (looks == direction::both) {
      for (index_t i = 0; i < L; ++i) exponents_[i] = -std::abs(mu_forward_[i] - mu_backward_[i]);
      Kernel::exponentials(exponents_, L);
      for (index_t i = 0; i < L; ++i) {
        const Real less = static_cast<Real>(exponents_[i]);
        const bool forward_is_less = mu_forward_[i] < mu_backward_[i];
        ends.read_forward[i] = forward_is_less ? less : Real(1);
        ends.read_backward[i] = forward_is_less ? Real(1) : less;
      }
    }
    for (index_t i = 0; i < L; ++i) ends.own[i] = ends.write(way)[i] * ends.read(way)[i];
    constexpr double largest = 709;  // e^709 is a number in double, and infinite in float
    for (index_t i = 0; i < L; ++i)
      exponents_[i] = (std::min)(-(looks == direction::both ? (std::max)(mu[i], mu_backward_[i]) : mu[i]), largest);
    Kernel::exponentials(exponents_, L);
    for (index_t i = 0; i < L; ++i) ends.unit[i] = static_cast<Real>(exponents_[i]);
  }

  /// Says how the final state is written: relative, if its log scale is wanted.
  template <class T>
  void finish(direction way, index_t L, head<T>& x) const {
    auto& to = way == direction::forward ? x.final_forward : x.final_backward;
    if (x.direction == other(way)) return;
    const double mu = last(way, L);
    to.decay = to.scale_to == nullptr ? std::exp(mu) : 1;
    if (to.scale_to != nullptr) *to.scale_to = mu > removed ? static_cast<Real>(mu) : -std::numeric_limits<Real>::infinity();
  }

  kernel::arena later_;                                                                // what find() needs and a form does not
  double *w_, *exponents_ = nullptr, *mu_forward_ = nullptr, *mu_backward_ = nullptr;  // (L)
};

/// Counts the memory of an ends_finder and of the engine that computes with what it found.
template <class Kernel, class T, class Plan>
void plan_weighed(kernel::arena& memory, head_size largest, const Plan& plan) {
  const ends_finder<Kernel, real_of<T>> finder(memory, largest.L);
  kernel::arena inside;
  plan(inside);
  memory.take((std::max)(inside.used(), finder.used_at_first() - memory.used()));
}

/// The gradient of `Engine` for weighed keys. m_i counts as a constant: y does not depend on it. The gradient with respect to w_j
/// is the sum of E_ij over queries, which equals k_j . dk_j of the head.
template <class Engine>
struct weighed_gradient {
  Engine form;

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    memory.numbers<Kernel, double>(largest.L);
    plan_weighed<Kernel, T>(memory, largest, [&](kernel::arena& inside) { form.template plan<Kernel, T>(inside, largest); });
  }

  template <class Kernel, class T, class Real>
  void run(const head<T>& whole, head_gradient<T>& g, const norm_view<Real>& norm, kernel::arena memory) const {
    head<T> x = whole;
    double* const sums = memory.numbers<Kernel, double>(x.k.count);
    ends_finder<Kernel, Real> finder(memory, x.k.count);
    finder.find(x);
    if (g.own_forward.data != nullptr) {
      std::fill_n(sums, x.k.count, 0.0);
      finder.ends.sums = sums;
    }
    // The loss reads the true final state times e^{-log_scale}, the form holds it times e^{-mu}.
    for (const direction way : {direction::forward, direction::backward})
      if (auto& final = way == direction::forward ? g.final_forward : g.final_backward; final.given())
        final.decay = std::exp(finder.last(way, x.k.count) - (std::max)(final.log_scale, -1e305));
    form.template run<Kernel>(x, g, norm, memory);
    for (index_t j = 0; g.own_forward.data != nullptr && j < x.k.count; ++j) g.own_forward(j, 0) += static_cast<Real>(sums[j]);
  }
};

/// The final states alone.
struct weighed_states {
  template <class Kernel, class T>
  static void plan(kernel::arena& memory, head_size size) {
    plan_weighed<Kernel, T>(memory, size, [&](kernel::arena& inside) { only_states::plan<Kernel, T>(inside, size); });
  }

  template <class Kernel, class T>
  static void run(const head<T>& whole, bool row_sums, kernel::arena memory) {
    head<T> x = whole;
    ends_finder<Kernel, real_of<T>> finder(memory, x.k.count);
    finder.find(x);
    only_states::run<Kernel>(x, row_sums, memory);
  }
};

/// `Engine` for weighed keys. Each split of a head finds the largest weights again, which takes 2 % of a chunkwise sweep.
template <class Engine>
struct weighed : Engine {
  using states = weighed_states;

  template <class Kernel, class T>
  void plan(kernel::arena& memory, head_size largest) const {
    plan_weighed<Kernel, T>(memory, largest, [&](kernel::arena& inside) { Engine::template plan<Kernel, T>(inside, largest); });
  }

  template <class Kernel, class T, class Real, class... Between>
  void run(const head<T>& whole, const norm_view<Real>& norm, split part, kernel::arena memory, Between... between) const {
    head<T> x = whole;
    ends_finder<Kernel, Real> finder(memory, x.k.count);
    finder.find(x);
    Engine::template run<Kernel>(x, norm, part, memory, between...);
  }

  auto gradient() const { return weighed_gradient<decltype(Engine::gradient())>{Engine::gradient()}; }
};

template <>
struct engine_of<full, memory::weighed_gaps> {
  static constexpr bool carries_states = false;
  static weighed<full> of(const full& form) { return {form}; }
};

template <>
struct engine_of<chunkwise, memory::weighed_gaps> {
  using engine = decltype(engine_of<chunkwise, memory::gaps>::of(chunkwise{}));
  static constexpr bool carries_states = true;
  static weighed<engine> of(const chunkwise& form) { return {engine{form}}; }
};

/// Token by token would need a row weight for each direction, so the recurrent form takes chunks of four tokens.
template <>
struct engine_of<recurrent, memory::weighed_gaps> {
  struct engine : engine_of<chunkwise, memory::weighed_gaps>::engine {
    chunkwise_gradient gradient() const { return recurrent{}.gradient(); }
  };
  static constexpr bool carries_states = true;
  static weighed<engine> of(const recurrent&) { return {engine{{chunkwise{.size = 4}}}}; }
};

template <>
struct engine_of<automatic, memory::weighed_gaps> {
  static constexpr bool carries_states = true;
  static weighed<automatic> of(const automatic& form) { return {form}; }
};

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
