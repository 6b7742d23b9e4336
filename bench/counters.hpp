// SPDX-License-Identifier: Apache-2.0
// What a call is counted as: tokens, floating-point operations and bytes. Every benchmark takes its counters from here, so
// that two numbers in two reports mean the same. README.md lists the formulas.
#pragma once

#include "tensors.hpp"

#include <bila/bila.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>

namespace bench {

struct shape {
  index_t B, H, L, Dk, Dv;
  bool row_sum;  // a column of ones beside v carries the row sum

  double heads() const { return static_cast<double>(B * H); }
  double length() const { return static_cast<double>(L); }
  double keys() const { return static_cast<double>(Dk); }
  double columns() const { return static_cast<double>(Dv + (row_sum ? 1 : 0)); }
};

template <class T>
shape shape_of(const problem<T>& p, index_t L, bool row_sum) {
  return {p.batches(), p.heads(), L, p.q.extents[3], p.v.extents[3], row_sum};
}

// Without decay the recurrent and the chunkwise form share one path: one state, written once and read once.
template <class Mask>
inline constexpr bool one_state = Mask::gaps == bila::gap::none;

// The squares of the chunk lengths, summed: L C when C divides L, less when the last chunk is short.
inline double chunk_squares(index_t L, index_t C) {
  const auto whole = static_cast<double>(L / C), last = static_cast<double>(L % C), size = static_cast<double>(C);
  return whole * size * size + last * last;
}

// Operations of a form; a multiply-add is two. Each form is counted by its own formula, not by the least that would do.
template <class Mask>
double flop(const bila::form::full&, const shape& s) {
  return s.heads() * s.length() * s.length() * (2 * (s.keys() + s.columns()) + 3);
}

template <class Mask>
double flop(const bila::form::recurrent&, const shape& s) {
  return s.heads() * (one_state<Mask> ? 4 : 10) * s.length() * s.keys() * s.columns();
}

template <class Mask>
double flop(const bila::form::chunkwise& form, const shape& s) {
  if (one_state<Mask>) return flop<Mask>(bila::form::recurrent{}, s);
  return s.heads() * (2 * chunk_squares(s.L, form.tokens()) * (s.keys() + s.columns()) + 8 * s.length() * s.keys() * s.columns());
}

template <class Mask>
bila::form::choice picked(const shape& s) {
  return bila::form::automatic::pick({s.L, s.Dk, s.Dv}, Mask::gaps, bila::direction::both, 1);
}

template <class Mask>
double flop(const bila::form::automatic&, const shape& s) {
  return picked<Mask>(s) == bila::form::choice::full ? flop<Mask>(bila::form::full{}, s)
                                                     : flop<Mask>(bila::form::automatic::linear, s);
}

// Compulsory traffic: q, k, v and gates per token are read once, y is written once.
template <class Mask, class T>
double compulsory_bytes(const problem<T>& p, index_t L) {
  index_t per_token = p.heads() * p.v.extents[3];
  for (const tensor<T>* x : {&p.q, &p.k, &p.v}) per_token += x->extents[1] * x->extents[3];
  if (Mask::gaps == bila::gap::per_token) per_token += p.heads();
  return static_cast<double>(p.batches() * L * per_token) * sizeof(T);
}

struct work {
  double tokens = 0;  // of the batch; a token with many heads counts once
  double flop = 0, bytes = 0;

  // No machine with these two limits can be faster.
  double floor(double flop_per_second, double bytes_per_second) const {
    return std::max(flop / flop_per_second, bytes / bytes_per_second);
  }

  void report(benchmark::State& state) const {
    const auto per_call = benchmark::Counter::kIsIterationInvariantRate;
    state.counters["tokens/s"] = {tokens, per_call};
    state.counters["FLOP/s"] = {flop, per_call};
    state.counters["bytes/s"] = {bytes, per_call};
  }
};

template <class Mask, class Form, class T>
work work_of(const Form& form, const problem<T>& p, index_t L, bool row_sum) {
  const shape s = shape_of(p, L, row_sum);
  return {static_cast<double>(s.B * s.L), flop<Mask>(form, s), compulsory_bytes<Mask>(p, L)};
}

}  // namespace bench
