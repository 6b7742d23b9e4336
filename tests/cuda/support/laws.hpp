// SPDX-License-Identifier: Apache-2.0
// What the device's laws have in common: forms, types, random lessons, and how a result is checked.
#pragma once

#include "cuda/support/bounds.hpp"
#include "cuda/support/step.hpp"
#include "support/catch.hpp"
#include "support/refusal.hpp"

#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace test {

/// The device rounds the size of a chunk up to 128 tokens at least.
inline const std::array<any_form, 5> device_forms{bila::form::full{}, bila::form::recurrent{}, bila::form::chunkwise{.size = 24},
                                                  bila::form::chunkwise{.size = 300}, bila::form::automatic{}};

inline const std::array<any_form, 4> stateful_forms{bila::form::recurrent{}, bila::form::chunkwise{.size = 24},
                                                    bila::form::chunkwise{.size = 300}, bila::form::automatic{}};

template <class T>
T one_of(random_source& random, const std::vector<T>& all) {
  return all[static_cast<std::size_t>(random.below(static_cast<index_t>(all.size())))];
}

/// Any norm, direction, diagonal, scale and eps.
inline any_norm random_norm(random_source& random) {
  return one_of<any_norm>(random,
                          {bila::norm::none{}, bila::norm::row_sum{one_of<double>(random, {1e-6, 0, 0.5})}, bila::norm::max_one{}});
}

template <class T>
void draw_options(random_source& random, problem<T>& x) {
  x.direction = one_of<bila::direction>(random, {bila::direction::both, bila::direction::forward, bila::direction::backward});
  x.diagonal = one_of<double>(random, {1, 1, 0, 2, 0.3});
  x.scale = one_of<double>(random, {1, 0.125, 3, -0.5});
}

/// The lesson with q, k, v and dy in steps of 1/128, which float, bf16 and f16 hold exactly: one definition serves all three.
inline lesson<double> coarse(lesson<double> x) {
  for (auto* const t : {&x.x.q, &x.x.k, &x.x.v, &x.dy})
    t->for_each([](double& value, index_t, index_t, index_t, index_t) { value = std::round(value * 128) / 128; });
  return x;
}

/// The lesson for a type: as it is for float, whose last bits count, and coarse for 16 bits.
template <class T>
lesson<T> lesson_for(const lesson<double>& x) {
  return stored_as<T>(std::is_same_v<T, float> ? x : coarse(x));
}

template <class T>
std::string words(const any_form& form, const lesson<T>& x) {
  return name_of(form) + " in " + precision<T>::name + ": " + x.name();
}

inline void check_good(const char* what, const verdict& found) {
  INFO(what << ": " << found.words());
  CHECK(found.good());
}

/// y, row sums and final states of a forward pass.
template <class T>
void check_outputs(const lesson<T>& x, const learned<T>& found, const step_answer& exact) {
  check_good("y", judge<T>(found.y, exact.y));
  if (x.row_sums()) check_good("row_sum", judge<T>(found.row_sum, exact.row_sum));
  const auto check_state = [&](const char* name, const auto& state, const state_slopes& slopes) {
    if (!state.given()) return;
    check_good(name, judge<T>(state.S, slopes.S));
    if (x.row_sums()) check_good(name, judge<T>(state.z, slopes.z));
  };
  check_state("final_forward", found.final_forward, exact.final_forward);
  check_state("final_backward", found.final_backward, exact.final_backward);
}

/// One number, which has no elements to take a mean over.
template <class T>
void check_number(const char* what, double found, const slope& exact) {
  tensor<double> one(1, 1, 1, 1);
  one.fill(found);
  check_good(what, judge<T>(one, exact));
}

template <class T>
void check_gradients(const lesson<T>& x, const learned<T>& found, const step_answer& exact) {
  check_good("q", judge<T>(found.q, exact.q));
  check_good("k", judge<T>(found.k, exact.k));
  check_good("v", judge<T>(found.v, exact.v));
  check_good("log_forward", judge<T>(found.log_forward, exact.log_forward));
  check_good("log_backward", judge<T>(found.log_backward, exact.log_backward));
  if (x.has_log_decay()) check_good("log_decay", judge<T>(found.log_decay, exact.log_decay));
  if (x.x.scale != 0) check_number<T>("scale", found.scale, exact.scale);
  check_number<T>("diagonal", found.diagonal, exact.diagonal);
  const auto check_state = [&](const std::string& name, const auto& state, const state_slopes& slopes) {
    if (!state.given()) return;
    check_good((name + ".S").c_str(), judge<T>(state.S, slopes.S));
    if (x.row_sums()) check_good((name + ".z").c_str(), judge<T>(state.z, slopes.z));
    if (state.log_decay.extent(0) > 0) check_good((name + ".log_decay").c_str(), judge<T>(state.log_decay, slopes.log_decay));
  };
  check_state("initial_forward", found.initial_forward, exact.initial_forward);
  check_state("initial_backward", found.initial_backward, exact.initial_backward);
}

/// A forward pass in all these forms against the definition.
template <class T, class Forms>
void check_forward(const Forms& forms, const lesson<T>& x, const answer& exact) {
  for (const any_form& form : forms) {
    INFO(words(form, x));
    const auto found = device::evaluate(form, x);
    CHECK(found.intact);
    check_good("y", judge(found.to.y, exact));
  }
}

/// The same in the three types. Each problem's definition is worked out twice: for float, and for the coarse numbers of the others.
template <class Forms>
void check_forward_in_all_types(const Forms& forms, const lesson<double>& x) {
  const auto in_float = lesson_for<float>(x);
  check_forward(forms, in_float, in_float.x.exact());
  const auto in_bf16 = lesson_for<bila::bf16>(x);
  const answer exact = in_bf16.x.exact();
  check_forward(forms, in_bf16, exact);
  check_forward(forms, stored_as<bila::f16>(in_bf16), exact);
}

/// A training step in all these forms.
template <class T, class Forms>
void check_step(const Forms& forms, const lesson<T>& x, const step_answer& exact) {
  for (const any_form& form : forms) {
    INFO(words(form, x));
    const auto found = device::learn(form, x);
    CHECK(found.intact);
    check_outputs(x, found.to, exact);
    check_gradients(x, found.to, exact);
  }
}

template <class T, class Forms>
void check_step(const Forms& forms, lesson<T> x) {
  leave_rows_at_kinks(x, precision<T>::spread);
  check_step(forms, x, step_by_definition(x));
}

template <class Forms>
void check_step_in_all_types(const Forms& forms, const lesson<double>& x) {
  check_step(forms, lesson_for<float>(x));
  auto in_bf16 = lesson_for<bila::bf16>(x);
  leave_rows_at_kinks(in_bf16, precision<bila::bf16>::spread);
  const step_answer exact = step_by_definition(in_bf16);
  check_step(forms, in_bf16, exact);
  check_step(forms, stored_as<bila::f16>(in_bf16), exact);
}

}  // namespace test
