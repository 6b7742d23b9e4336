// SPDX-License-Identifier: Apache-2.0
// One call of attend and of gradient as data, whatever its types: what the fuzzer makes up, breaks, runs, defines and compares.
// Numbers are doubles here, which hold those of every storage type exactly.
#pragma once

#include <bila/mask/selective_decay.hpp>
#include <bila/view/direction.hpp>
#include <bila/view/tensor_view.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace fuzz {

using bila::index_t;

/// SplitMix64: the same numbers with every compiler and standard library.
class random_source {
 public:
  explicit random_source(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53; }
  index_t below(index_t n) { return static_cast<index_t>(bits() % static_cast<std::uint64_t>(n)); }  // n > 0
  bool chance(double p) { return uniform(0, 1) < p; }

  template <class List>
  auto one_of(const List& list) {
    return *(std::begin(list) + below(static_cast<index_t>(std::size(list))));
  }

 private:
  std::uint64_t state_;
};

enum class number { f32, f64, bf16, f16 };

/// What states and row sums of tensors stored like this are in.
inline number real_of(number storage) { return storage == number::f64 ? number::f64 : number::f32; }

/// x as a number of this kind.
double rounded(number kind, double x);

/// Elements that somebody allocated, their first one `skew` elements into the allocation.
struct memory {
  number kind;
  std::vector<double> x;
  index_t skew = 0;
};

/// A view into a memory; without one its pointer is null.
struct view {
  int memory = -1;
  index_t first = 0;
  bila::per_axis extents{}, strides{};

  bool given() const { return memory >= 0; }
  bool empty() const { return extents[0] == 0 || extents[1] == 0 || extents[2] == 0 || extents[3] == 0; }
  index_t cell(index_t b, index_t h, index_t l, index_t d) const {
    return first + b * strides[0] + h * strides[1] + l * strides[2] + d * strides[3];
  }

  /// f(cell, b, h, l, d) in logical order; nothing if it is not given.
  template <class Function>
  void each(const Function& f) const {
    if (!given()) return;
    for (index_t b = 0; b < extents[0]; ++b)
      for (index_t h = 0; h < extents[1]; ++h)
        for (index_t l = 0; l < extents[2]; ++l)
          for (index_t d = 0; d < extents[3]; ++d) f(cell(b, h, l, d), b, h, l, d);
  }
};

struct call;

struct state {
  view S, z, log_decay;
  bool given() const { return S.given() || z.given() || log_decay.given(); }
  number stored_in(const call& c) const;  // S and z alike
};

/// The sizes of a call; cross: keys are not the queries' tokens; only_states: it has no y.
struct sizes {
  index_t B, H, L, Lk, Dk, Dv;
  bool cross, only_states;
};

enum class stage { forward, gradient };

enum class form_kind { full, recurrent, chunkwise, automatic };
struct form {
  form_kind kind = form_kind::full;
  index_t size = 0;
  bool recompute = false;
};

enum class mask_kind { all_ones, fixed, selective, two_sided, own_gaps, own_pairs };
enum class norm_kind { none, row_sum, max_one };
enum class threads_of { pool, executor, shuffled };  // whose; the last runs tasks one by one, in random order
enum class room { library, exact, too_small };
struct call {
  number type = number::f32;
  std::vector<fuzz::memory> memories;

  form forward_form, gradient_form;
  mask_kind mask = mask_kind::all_ones;
  bila::gate crossing = bila::gate::later;
  view gates, other_gates;  // log_decay; log_forward and log_backward
  norm_kind norm = norm_kind::none;
  double eps = 0;

  view q, k, v;
  double scale = 1, diagonal = 1;
  bila::direction direction = bila::direction::both;
  std::vector<index_t> offsets, lengths, key_lengths;
  bool narrow_lists = false;  // they are given in 32 bits
  state initial_forward, initial_backward;

  view y, row_sum;
  state final_forward, final_backward;
  bool add = false;  // y += result

  view dy;
  state by_forward, by_backward;  // the loss's gradient by the final states
  struct {
    view q, k, v, log_decay, log_forward, log_backward, weights;
    bool scale = false, diagonal = false;
    state initial_forward, initial_backward;
  } to;
  double scale_slope = std::nan(""), diagonal_slope = std::nan("");

  int threads = 1;
  threads_of whose = threads_of::pool;
  room workspace = room::library;
  std::uint64_t order = 0;    // of shuffled tasks
  std::string broken;         // what was changed to break it; empty: nothing
  bool interleaved = false;   // q, k, v and y lie among each other
  bool has_gradient = false;  // what the gradient is given is there

  double at(const view& x, index_t b, index_t h, index_t l, index_t d) const {
    return memories[static_cast<std::size_t>(x.memory)].x[static_cast<std::size_t>(x.cell(b, h, l, d))];
  }
  bool row_sums() const { return norm != norm_kind::none; }
  bool gapped() const { return mask != mask_kind::own_pairs; }
  bool looks(bila::direction way) const { return direction == bila::direction::both || direction == way; }
  index_t segments() const { return offsets.empty() ? 1 : static_cast<index_t>(offsets.size()) - 1; }
  fuzz::sizes sizes(stage at) const;
};

/// The log decay of gap t of a gapped mask, or NaN where a parameter says so.
double log_gap(const call& c, bila::direction way, index_t b, index_t h, index_t t);

/// A mask of one's own: weights of pairs, some zero, some negative.
inline double own_weight(index_t b, index_t h, index_t i, index_t j) {
  static constexpr double weights[] = {1, 0.5, 0, 0.25, -0.5, 1, 0.75, 0.1, 0, 1, 0.3};
  return weights[(b * 3 + h * 5 + i * 7 + j * 2) % 11];
}

/// A random call that is right, of this storage type or any.
call make_call(random_source& random, bool to_be_broken, const number* type);

/// Changes one thing about what this stage is given. It may still be right afterwards.
void break_call(random_source& random, call& c, stage at);

/// One line.
std::string describe(const call& c);

enum class legality { legal, illegal, either };

/// What the documentation says of a call.
legality judge(const call& c, stage at);

struct outcome {
  enum { ran, refused, failed } end = ran;
  std::string words;
};

/// Runs a call: what it wrote is in its memories afterwards.
outcome execute(call& c, stage at);

template <number kind>
outcome execute_as_kind(call& c, stage at);

/// What is wrong with a call that ran; empty if nothing is.
std::string compare(const call& before, const call& after, stage at);

/// The first number that differs, or empty.
std::string unchanged(const call& before, const call& after);

inline number state::stored_in(const call& c) const {
  const view& x = S.given() ? S : z;
  return x.given() ? c.memories[static_cast<std::size_t>(x.memory)].kind : real_of(c.type);
}

}  // namespace fuzz
