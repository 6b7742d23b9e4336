// SPDX-License-Identifier: Apache-2.0
// Random calls that are right, and what can be done to break one.
#include "call.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <sstream>

namespace fuzz {

namespace {

using bila::direction;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double untouched = 123;  // what lies between the elements of outputs

class generator {
 public:
  generator(random_source& random, bool to_be_broken, const number* type) : random_(random), to_be_broken_(to_be_broken) {
    c_.type = random_.one_of(std::array{number::f32, number::f32, number::f64, number::bf16, number::f16});
    if (type != nullptr) c_.type = *type;
  }

  call make() {
    c_.mask = random_.one_of(std::array{mask_kind::all_ones, mask_kind::fixed, mask_kind::selective, mask_kind::selective,
                                        mask_kind::two_sided, mask_kind::own_gaps, mask_kind::own_pairs});
    c_.crossing = random_.one_of(std::array{bila::gate::later, bila::gate::source, bila::gate::target, bila::gate::earlier});
    c_.norm = random_.one_of(std::array{norm_kind::none, norm_kind::row_sum, norm_kind::row_sum, norm_kind::max_one});
    c_.eps = random_.one_of(std::array{0.0, 1e-6, 0.5});
    c_.direction = random_.one_of(std::array{direction::both, direction::both, direction::forward, direction::backward});
    c_.diagonal = random_.one_of(std::array{1.0, 1.0, 0.0, 2.0, -0.5, 0.3});
    c_.scale = random_.one_of(std::array{1.0, 1.0, 0.125, 4.0, -0.7, 0.0, random_.chance(0.1) ? 1e-50 : 1.0});
    choose_sizes();
    choose_forms();
    c_.threads = static_cast<int>(1 + random_.below(4));
    c_.whose = random_.one_of(std::array{threads_of::pool, threads_of::executor, threads_of::shuffled, threads_of::shuffled});
    c_.workspace = random_.chance(0.3) ? room::exact : room::library;
    c_.order = random_.bits();
    make_tokens();
    make_gates();
    make_states();
    make_outputs();
    make_gradient();
    return std::move(c_);
  }

 private:
  enum class role { read, written };
  using values = double (*)(random_source&);

  index_t extent(index_t most) {
    if (random_.chance(0.025)) return 0;
    if (random_.chance(0.2)) return 1;
    return 1 + random_.below(most);
  }

  index_t divisor(index_t n) {
    if (n == 0) return 0;
    index_t d = 1 + random_.below(n);
    while (n % d != 0) --d;
    return random_.chance(0.5) ? n : d;
  }

  void choose_sizes() {
    const bool packed = random_.chance(0.25);
    B_ = packed ? 1 : extent(3);
    H_ = extent(6);
    L_ = extent(random_.one_of(std::array<index_t, 4>{12, 40, 40, 200}));
    Dk_ = extent(random_.one_of(std::array<index_t, 3>{8, 24, 70}));
    Dv_ = extent(random_.one_of(std::array<index_t, 3>{8, 40, 90}));
    cross_ = c_.mask == mask_kind::all_ones && random_.chance(0.25);
    Lk_ = cross_ && random_.chance(0.8) ? extent(60) : L_;
    const bool one_long_head = random_.chance(0.04);  // threads share a head only if there are few
    if (one_long_head) {
      B_ = 1, H_ = 1 + random_.below(2), L_ = 129 + random_.below(300), Dk_ = extent(20), Dv_ = extent(40);
      if (!cross_) Lk_ = L_;
    }
    const double budget = one_long_head || random_.chance(0.01) ? 1e7 : random_.chance(0.75) ? 1e5 : 1e6;
    while (static_cast<double>(B_ * H_ * L_ * Lk_ * (Dk_ + Dv_)) > budget) {
      if (B_ * H_ > 4)
        B_ = (B_ + 1) / 2, H_ = (H_ + 1) / 2;
      else
        L_ = (L_ + 1) / 2, Lk_ = cross_ ? (Lk_ + 1) / 2 : L_;
    }
    if (cross_) c_.direction = direction::both, c_.diagonal = 1;
    c_.narrow_lists = random_.chance(0.5);
    const auto lengths = [&](index_t most) {
      std::vector<index_t> all;
      for (index_t b = 0; b < B_; ++b) all.push_back(random_.below(most + 1));
      return all;
    };
    if (cross_) {
      if (random_.chance(0.4) || Lk_ == L_) c_.key_lengths = lengths(Lk_);
      if (random_.chance(0.4) && (Lk_ == L_ || !c_.key_lengths.empty())) c_.lengths = lengths(L_);
      cross_ = Lk_ != L_ || !c_.key_lengths.empty();
    } else if (packed) {
      c_.offsets = {0, L_};
      for (index_t n = random_.below(6); n > 0; --n) c_.offsets.push_back(random_.below(L_ + 1));
      std::sort(c_.offsets.begin(), c_.offsets.end());
    } else if (random_.chance(0.3)) {
      c_.lengths = lengths(L_);
    }
    states_ = c_.mask != mask_kind::own_pairs && random_.chance(0.4);
    only_states_ = states_ && !cross_ && random_.chance(0.1);
    if (only_states_) c_.key_lengths.clear();
    in_place_ = states_ && random_.chance(0.2);
  }

  form any_form() {
    form f;
    std::vector<form_kind> kinds{form_kind::automatic};
    if (!states_) kinds.push_back(form_kind::full);
    if (c_.mask != mask_kind::own_pairs)
      kinds.insert(kinds.end(), {form_kind::recurrent, form_kind::chunkwise, form_kind::chunkwise});
    f.kind = random_.one_of(kinds);
    f.size = random_.one_of(std::array<index_t, 5>{0, 1, 1 + random_.below(8), 1 + random_.below(90), 1 + random_.below(90)});
    if (random_.chance(0.03)) f.size = std::numeric_limits<index_t>::max() - random_.below(3);
    f.recompute = random_.chance(0.4);
    return f;
  }

  void choose_forms() {
    c_.forward_form = any_form();
    c_.gradient_form = random_.chance(0.5) ? c_.forward_form : any_form();
  }

  /// A tensor somewhere in a memory of its own, all poison.
  view allocate(number kind, bila::per_axis extents, role as) {
    view x;
    x.extents = extents;
    std::array<std::size_t, 4> order{3, 2, 1, 0};  // from the innermost axis out
    if (random_.chance(0.2)) std::swap(order[1], order[2]);
    if (random_.chance(0.2))
      for (std::size_t n = 3; n > 0; --n)
        std::swap(order[n], order[static_cast<std::size_t>(random_.below(static_cast<index_t>(n) + 1))]);
    const bool holes = random_.chance(0.4), flips = random_.chance(0.15), broadcasts = as == role::read && random_.chance(0.15);
    index_t step = holes && random_.chance(0.3) ? 2 + random_.below(3) : 1, before = 0, after = 0;
    for (const std::size_t axis : order) {
      x.strides[axis] = step;
      step *= std::max<index_t>(extents[axis], 1);
      if (holes && random_.chance(0.5)) step += random_.below(7);
      if (flips && random_.chance(0.5)) x.strides[axis] = -x.strides[axis];
      if (broadcasts && random_.chance(0.4)) x.strides[axis] = 0;
      const index_t reach = std::max<index_t>(extents[axis] - 1, 0) * x.strides[axis];
      (reach < 0 ? before : after) += reach;
    }
    const index_t guard = to_be_broken_ ? 40 : random_.below(12);
    x.first = guard - before;
    memory m{kind, std::vector<double>(static_cast<std::size_t>(x.first + after + 1 + guard)), random_.below(4)};
    for (double& cell : m.x)
      cell = as == role::written ? untouched : to_be_broken_ ? rounded(kind, random_.uniform(0.2, 1)) : not_a_number;
    x.memory = static_cast<int>(c_.memories.size());
    c_.memories.push_back(std::move(m));
    return x;
  }

  view written(number kind, bila::per_axis extents) {
    view x = allocate(kind, extents, role::written);
    x.each([&](index_t cell, index_t, index_t, index_t, index_t) { cell_of(x, cell) = not_a_number; });
    return x;
  }

  double& cell_of(const view& x, index_t cell) {
    return c_.memories[static_cast<std::size_t>(x.memory)].x[static_cast<std::size_t>(cell)];
  }

  void set(const view& x, index_t cell, double value) {
    cell_of(x, cell) = rounded(c_.memories[static_cast<std::size_t>(x.memory)].kind, value);
  }

  /// Fills the tokens that are read; the rest stays poison.
  void fill(const view& x, const std::vector<index_t>& valid, double low, double high, double magnitude = 1) {
    const bool zeros = random_.chance(0.1);
    x.each([&](index_t cell, index_t b, index_t, index_t l, index_t) {
      const double value = zeros && random_.chance(0.2) ? 0 : random_.uniform(low, high) * magnitude;
      if (valid.empty() || l < valid[static_cast<std::size_t>(b)]) set(x, cell, value);
    });
  }

  void make_tokens() {
    const std::vector<index_t>& keys = cross_ ? c_.key_lengths : c_.lengths;
    positive_ = c_.norm == norm_kind::row_sum ? random_.chance(0.85) : random_.chance(0.3);
    const double low = positive_ ? 0.2 : -1, wide_range = c_.type == number::f32 || c_.type == number::f64 ? 1 : 0;
    magnitude_ = wide_range != 0 && random_.chance(0.05) ? random_.one_of(std::array{1e33, 1e25, 1e-25}) : 1;
    const index_t Hq = divisor(H_), Hk = divisor(H_), Hv = divisor(H_);
    const bool among = !only_states_ && !cross_ && !to_be_broken_ && Dk_ == Dv_ && Dk_ * L_ * H_ * B_ > 0 && random_.chance(0.5);
    if (among || (!cross_ && !only_states_ && !to_be_broken_ && L_ * H_ * B_ * Dk_ * Dv_ > 0 && random_.chance(0.08))) {
      interleave(among);
    } else {
      if (!only_states_ || random_.chance(0.3)) c_.q = allocate(c_.type, {B_, Hq, L_, Dk_}, role::read);
      c_.k = allocate(c_.type, {B_, Hk, Lk_, Dk_}, role::read);
      c_.v = allocate(c_.type, {B_, Hv, Lk_, Dv_}, role::read);
      if (!only_states_) c_.y = written(c_.type, {B_, H_, L_, Dv_});
    }
    fill(c_.q, c_.lengths, low, 1);
    fill(c_.k, keys, low, 1, magnitude_);
    fill(c_.v, keys, -1, 1);
  }

  /// q, k, v and y in one memory: side by side in each token, or as every fourth feature.
  void interleave(bool by_feature) {
    const bool heads_first = random_.chance(0.5);
    const index_t row = 2 * H_ * (Dk_ + Dv_);
    memory m{c_.type, std::vector<double>(static_cast<std::size_t>(B_ * L_ * row + 1), not_a_number), random_.below(3)};
    const int at = static_cast<int>(c_.memories.size());
    index_t first = 0;
    view* const all[] = {&c_.q, &c_.k, &c_.v, &c_.y};
    for (view* x : all) {
      const index_t D = x == &c_.q || x == &c_.k ? Dk_ : Dv_;
      *x = {at, first, {B_, H_, L_, D}, {L_ * row, D, row, 1}};
      if (by_feature) *x = {at, first, {B_, H_, L_, D}, {L_ * row, heads_first ? L_ * 4 * D : 4 * D, heads_first ? 4 * D : row, 4}};
      first += by_feature ? 1 : H_ * D;
    }
    c_.memories.push_back(std::move(m));
    c_.interleaved = true;
  }

  double any_gate() {
    switch (style_ == 6 ? random_.below(6) : style_) {
      case 0:
        return random_.uniform(-1, 0);
      case 1:
        return random_.chance(0.5) ? -1e-9 : -random_.uniform(0, 0.01);
      case 2:
        return 0;
      case 3:
        return random_.chance(0.2) ? -infinity : random_.uniform(-0.3, 0);
      case 4:
        return random_.one_of(std::array{-1e4, -100.0, -720.0, -750.0, -0.1});
      default:
        return random_.one_of(std::array{9e-7, -30.0, 0.0, -0.2});
    }
  }

  void make_gates() {
    if (c_.mask == mask_kind::all_ones || c_.mask == mask_kind::own_pairs) return;
    style_ = random_.below(7);
    const number kind = c_.mask == mask_kind::own_gaps || random_.chance(0.5) ? number::f64 : number::f32;
    const bool groups = c_.mask != mask_kind::own_gaps && random_.chance(0.3);
    const index_t heads = groups ? divisor(H_) : H_;
    if (c_.mask == mask_kind::fixed) {
      c_.gates = allocate(kind, {1, heads, 1, 1}, role::read);
      c_.gates.each([&](index_t cell, index_t, index_t, index_t, index_t) { set(c_.gates, cell, any_gate()); });
      return;
    }
    c_.gates = allocate(kind, {B_, heads, L_, 1}, role::read);
    if (c_.mask != mask_kind::selective) c_.other_gates = allocate(kind, {B_, heads, L_, 1}, role::read);
    fill_gates(c_.gates, direction::forward);
    fill_gates(c_.mask == mask_kind::selective ? c_.gates : c_.other_gates, direction::backward);
  }

  void fill_gates(const view& x, direction way) {
    const bool before =
        c_.mask == mask_kind::selective && (c_.crossing == bila::gate::earlier ||
                                            c_.crossing == (way == direction::forward ? bila::gate::source : bila::gate::target));
    for (index_t b = 0; b < B_; ++b)
      for (index_t h = 0; h < x.extents[1]; ++h)
        for (index_t n = 0; n < c_.segments(); ++n) {
          const auto at = static_cast<std::size_t>(n);
          const index_t first = c_.offsets.empty() ? 0 : c_.offsets[at];
          const index_t last = !c_.offsets.empty()   ? c_.offsets[at + 1]
                               : !c_.lengths.empty() ? c_.lengths[static_cast<std::size_t>(b)]
                                                     : L_;
          for (index_t t = first + 1; t < last; ++t) set(x, x.cell(b, h, before ? t - 1 : t, 0), any_gate());
        }
  }

  bool wants(double p) { return random_.chance(p); }

  /// What the numbers of a state that attend reads or writes are stored in.
  number any_state_storage() {
    if (c_.type == number::f64 || !wants(0.3)) return real_of(c_.type);
    return random_.one_of(std::array{number::bf16, number::f16});
  }

  state random_state(bool log_decay, number stored) {
    const number real = real_of(c_.type);
    const index_t n = c_.offsets.empty() ? B_ : c_.segments();
    state x;
    x.S = allocate(stored, {n, H_, Dk_, Dv_}, role::read);
    if (c_.row_sums() || wants(0.3)) x.z = allocate(stored, {n, H_, Dk_, 1}, role::read);
    if (log_decay && wants(0.5)) x.log_decay = allocate(real, {n, H_, 1, 1}, role::read);
    if (c_.row_sums() && wants(0.05)) x.S = {};
    fill(x.S, {}, -1, 1);
    if (c_.row_sums() || to_be_broken_) fill(x.z, {}, positive_ ? 0.2 : -1, 1);
    x.log_decay.each([&](index_t cell, index_t, index_t, index_t, index_t) { set(x.log_decay, cell, any_gate()); });
    return x;
  }

  state written_state(bool log_decay, number stored) {
    const number real = real_of(c_.type);
    const index_t n = c_.offsets.empty() ? B_ : c_.segments();
    state x;
    x.S = written(stored, {n, H_, Dk_, Dv_});
    if (c_.row_sums() || wants(0.3)) x.z = written(stored, {n, H_, Dk_, 1});
    if (log_decay && wants(0.6)) x.log_decay = written(real, {n, H_, 1, 1});
    if (x.z.given() && wants(0.05)) x.S = {};
    return x;
  }

  void make_states() {
    if (!states_) return;
    // Whether a state that passes no key at all is decayed is not said.
    const bool no_keys = cross_ && (Lk_ == 0 || L_ == 0 || std::count(c_.key_lengths.begin(), c_.key_lengths.end(), 0) > 0);
    for (const auto way : {direction::forward, direction::backward}) {
      if (!c_.looks(way)) continue;
      state& from = way == direction::forward ? c_.initial_forward : c_.initial_backward;
      state& to = way == direction::forward ? c_.final_forward : c_.final_backward;
      const number read = any_state_storage(), stored = in_place_ ? read : any_state_storage();
      if (wants(0.6)) from = random_state(!no_keys, read);
      if (wants(0.6)) to = written_state(false, stored);
      if (only_states_ && !c_.final_forward.given() && !c_.final_backward.given()) to = written_state(false, stored);
      if (only_states_ && to.given() && !to.S.given() && !to.z.given()) to = written_state(false, stored);
      if (!in_place_ || !from.S.given() || !to.S.given()) continue;
      to.S = from.S = distinct(from.S);
      if (c_.row_sums() && to.z.given()) to.z = from.z = distinct(from.z);
    }
    in_place_ = (c_.initial_forward.S.given() && c_.initial_forward.S.memory == c_.final_forward.S.memory) ||
                (c_.initial_backward.S.given() && c_.initial_backward.S.memory == c_.final_backward.S.memory);
  }

  /// The same numbers where each has an element of its own.
  view distinct(const view& from) {
    view x = written(c_.memories[static_cast<std::size_t>(from.memory)].kind, from.extents);
    x.each([&](index_t cell, index_t b, index_t h, index_t l, index_t d) { cell_of(x, cell) = c_.at(from, b, h, l, d); });
    return x;
  }

  void make_outputs() {
    if (!only_states_ && (c_.row_sums() ? wants(0.9) : wants(0.2))) c_.row_sum = written(real_of(c_.type), {B_, H_, L_, 1});
    c_.add = !only_states_ && !c_.row_sums() && wants(0.1);
    if (c_.add) fill(c_.y, {}, -1, 1);
  }

  void make_gradient() {
    const number real = real_of(c_.type);
    c_.has_gradient = !in_place_ && !c_.add && magnitude_ == 1 && (only_states_ || !c_.row_sums() || c_.row_sum.given());
    if (!c_.has_gradient) return;
    if (!only_states_) c_.dy = allocate(c_.type, {B_, H_, L_, Dv_}, role::read);
    fill(c_.dy, c_.lengths, -1, 1);
    if (states_)
      for (const auto way : {direction::forward, direction::backward}) {
        if (!c_.looks(way)) continue;
        const bool forward = way == direction::forward;
        const bool no_keys = cross_ && (Lk_ == 0 || L_ == 0 || std::count(c_.key_lengths.begin(), c_.key_lengths.end(), 0) > 0);
        state& by = forward ? c_.by_forward : c_.by_backward;
        if (wants(0.6) || (only_states_ && !c_.by_forward.given())) by = random_state(false, real);
        if (wants(0.6)) (forward ? c_.to.initial_forward : c_.to.initial_backward) = written_state(!no_keys, real);
      }
    if (only_states_ && !c_.by_forward.given() && !c_.by_backward.given())
      (c_.looks(direction::forward) ? c_.by_forward : c_.by_backward) = random_state(false, real);
    const bila::per_axis tokens{B_, H_, L_, 1};
    if (wants(0.8) && !only_states_) c_.to.q = written(c_.type, c_.q.extents);
    if (wants(0.8)) c_.to.k = written(c_.type, c_.k.extents);
    if (wants(0.8)) c_.to.v = written(c_.type, c_.v.extents);
    if (c_.gapped() && !cross_) {
      if ((c_.mask == mask_kind::fixed || c_.mask == mask_kind::selective) && wants(0.7))
        c_.to.log_decay = written(real, c_.gates.extents);
      if (wants(0.5)) c_.to.log_forward = written(real, tokens);
      if (wants(0.5)) c_.to.log_backward = written(real, tokens);
    }
    if (!c_.gapped() && wants(0.5)) c_.to.weights = written(real, {B_, H_, L_, L_});
    const double smallest = real == number::f64 ? 1e-307 : 1e-37;
    c_.to.scale = std::fabs(c_.scale) > smallest && wants(0.6);
    c_.to.diagonal = !cross_ && wants(0.6);
  }

  random_source& random_;
  const bool to_be_broken_;
  call c_;
  index_t B_ = 0, H_ = 0, L_ = 0, Lk_ = 0, Dk_ = 0, Dv_ = 0, style_ = 0;
  bool cross_ = false, states_ = false, only_states_ = false, in_place_ = false, positive_ = false;
  double magnitude_ = 1;
};

/// All views that a stage is given; those of the gates of a mask that looks at nothing are left out.
std::vector<std::pair<std::string, view*>> views_of(call& c, stage at) {
  std::vector<std::pair<std::string, view*>> all{{"q", &c.q}, {"k", &c.k}, {"v", &c.v}, {"y", &c.y}, {"row_sum", &c.row_sum}};
  const auto add = [&](const std::string& name, state& x, bool log_decay) {
    all.insert(all.end(), {{name + ".S", &x.S}, {name + ".z", &x.z}});
    if (log_decay) all.emplace_back(name + ".log_decay", &x.log_decay);
  };
  add("initial_forward", c.initial_forward, true);
  add("initial_backward", c.initial_backward, true);
  if (c.mask != mask_kind::own_gaps) all.insert(all.end(), {{"gates", &c.gates}, {"other_gates", &c.other_gates}});
  if (at == stage::forward) {
    add("final_forward", c.final_forward, false);
    add("final_backward", c.final_backward, false);
  } else {
    auto& to = c.to;
    all.insert(all.end(), {{"dy", &c.dy},
                           {"gradients.q", &to.q},
                           {"gradients.k", &to.k},
                           {"gradients.v", &to.v},
                           {"gradients.log_decay", &to.log_decay},
                           {"gradients.log_forward", &to.log_forward},
                           {"gradients.log_backward", &to.log_backward},
                           {"gradients.weights", &to.weights}});
    add("by_forward", c.by_forward, false);
    add("by_backward", c.by_backward, false);
    add("gradients.initial_forward", to.initial_forward, true);
    add("gradients.initial_backward", to.initial_backward, true);
  }
  std::erase_if(all, [](const auto& x) { return !x.second->given(); });
  return all;
}

/// Whether a view stays inside its memory, or reaches so far that it must be refused.
bool safe(const call& c, const view& x) {
  if (!x.given()) return true;
  double low = static_cast<double>(x.first), high = low;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (x.extents[axis] < 0) return true;
    const double reach = static_cast<double>(x.strides[axis]) * static_cast<double>(std::max<index_t>(x.extents[axis] - 1, 0));
    if (std::fabs(reach) > 0x1p50) return true;
    (reach < 0 ? low : high) += reach;
  }
  return low >= 0 && high < static_cast<double>(c.memories[static_cast<std::size_t>(x.memory)].x.size());
}

/// One attempt: says what it changed, or nothing if it did not.
std::string try_to_break(random_source& random, call& c, stage at) {
  const auto views = views_of(c, at);
  const auto& [name, chosen] = views[static_cast<std::size_t>(random.below(static_cast<index_t>(views.size())))];
  view& x = *chosen;
  const auto axis = static_cast<std::size_t>(random.below(4));
  const std::string where = name + " axis " + std::to_string(axis);
  form& by = at == stage::forward ? c.forward_form : c.gradient_form;
  const auto value_in = [&](view& of, double value) {
    const auto m = static_cast<std::size_t>(of.memory);
    const auto pick = [&](index_t n) { return n == 0 ? 0 : random.below(n); };
    if (of.empty()) return false;
    const index_t b = pick(of.extents[0]), h = pick(of.extents[1]), l = pick(of.extents[2]), d = pick(of.extents[3]);
    c.memories[m].x[static_cast<std::size_t>(of.cell(b, h, l, d))] = rounded(c.memories[m].kind, value);
    return true;
  };
  switch (random.below(20)) {
    case 0:
    case 1: {
      const index_t change = random.one_of(std::array<index_t, 4>{1, -1, 1, -x.extents[axis]});
      x.extents[axis] += change;
      return where + " is longer by " + std::to_string(change);
    }
    case 2:
      std::swap(x.strides[axis], x.strides[static_cast<std::size_t>(random.below(4))]);
      return name + ": two strides swapped";
    case 3:
      x.strides[axis] = random.one_of(std::array<index_t, 4>{0, 1, -x.strides[axis], x.strides[axis] + 1});
      return where + ": stride " + std::to_string(x.strides[axis]);
    case 4:
      x.strides[axis] =
          random.one_of(std::array<index_t, 3>{index_t(1) << 62, -(index_t(1) << 61), std::numeric_limits<index_t>::min()});
      if (x.extents[axis] < 2) return {};
      return where + ": huge stride";
    case 5: {  // every extent of this axis, in all that has it
      const index_t huge =
          random.one_of(std::array<index_t, 3>{index_t(1) << 62, index_t(1) << 50, std::numeric_limits<index_t>::max()});
      const index_t old = x.extents[axis];
      for (const auto& [other, its] : views)
        if (its->extents[axis] == old) its->extents[axis] = huge, its->strides[axis] = 0;
      return "all extents " + std::to_string(old) + " of axis " + std::to_string(axis) + " huge";
    }
    case 6:
      x.memory = -1;
      if (random.chance(0.3)) x.extents = {};
      return name + " without memory";
    case 7: {
      const auto& [other, its] = views[static_cast<std::size_t>(random.below(static_cast<index_t>(views.size())))];
      if (c.memories[static_cast<std::size_t>(its->memory)].kind != c.memories[static_cast<std::size_t>(x.memory)].kind) return {};
      x.memory = its->memory;
      x.first = its->first + random.one_of(std::array<index_t, 3>{0, 1, its->strides[axis]});
      if (random.chance(0.6)) x.strides = its->strides;
      return name + " lies on " + other;
    }
    case 8:
      x.first += random.one_of(std::array<index_t, 4>{1, -1, x.strides[1], x.strides[2]});
      return name + " moved";
    case 9: {
      const double bad = random.one_of(std::array{0.5, 2e-6, not_a_number, infinity, 5e-7});
      view* const of[] = {&c.gates, &c.other_gates, &c.initial_forward.log_decay, &c.initial_backward.log_decay};
      view& gate = *of[random.below(4)];
      if (!gate.given() || !value_in(gate, bad)) return {};
      return "a log decay is " + std::to_string(bad);
    }
    case 10:
      random.one_of(std::array{&c.scale, &c.diagonal, &c.eps})[0] =
          random.one_of(std::array{not_a_number, infinity, -infinity, -1.0, 1e300, 1e-50, 0.0});
      return "scale, diagonal or eps";
    case 11:
    case 12: {
      auto& list = *random.one_of(std::array{&c.offsets, &c.lengths, &c.key_lengths});
      if (list.empty() || random.chance(0.3)) {
        list.push_back(random.below(3));
      } else if (random.chance(0.3)) {
        list.pop_back();
      } else {
        index_t& entry = list[static_cast<std::size_t>(random.below(static_cast<index_t>(list.size())))];
        entry += random.one_of(std::array<index_t, 4>{1, -1, 1000, -1000});
      }
      return "offsets or lengths";
    }
    case 13:
      by.size = -1 - random.below(3);
      by.kind = c.gapped() ? form_kind::chunkwise : by.kind;
      return "a negative chunk size";
    case 14:
      by.kind = form_kind::full;
      return "full";
    case 15:
      c.norm = random.one_of(std::array{norm_kind::none, norm_kind::row_sum, norm_kind::max_one});
      return "another norm";
    case 16:
      c.threads = random.one_of(std::array{-1, -100, 0});
      return "threads";
    case 17:
      c.workspace = room::too_small;
      return "a workspace too small";
    case 18:
      c.direction = random.one_of(std::array{direction::both, direction::forward, direction::backward});
      return "another direction";
    default:
      if (at == stage::forward) return {};
      if (random.chance(0.5)) {
        c.to.scale = c.to.diagonal = true;
        return "asks for scale and diagonal";
      }
      c.to.log_decay = c.to.log_decay.given() ? c.row_sum : c.gates.given() ? c.to.log_forward : c.to.weights;
      return "another log_decay";
  }
}

}  // namespace

call make_call(random_source& random, bool to_be_broken, const number* type) {
  return generator(random, to_be_broken, type).make();
}

void break_call(random_source& random, call& c, stage at) {
  for (;;) {
    call broken = c;
    broken.broken = try_to_break(random, broken, at);
    bool usable = !broken.broken.empty();
    for (const auto& [name, x] : views_of(broken, at)) usable = usable && safe(broken, *x);
    const auto kind_of = [&](const view& x, number otherwise) {
      return x.given() ? broken.memories[static_cast<std::size_t>(x.memory)].kind : otherwise;
    };
    const number real = real_of(c.type);
    usable = usable && kind_of(broken.to.log_decay, real) == real && kind_of(broken.gates, number::f64) != number::bf16;
    // The shapes of a mask of one's own are one's own affair.
    if (broken.mask == mask_kind::own_gaps || broken.mask == mask_kind::own_pairs)
      usable = usable && broken.sizes(at).L == c.sizes(at).L && broken.sizes(at).B == c.sizes(at).B &&
               broken.sizes(at).H == c.sizes(at).H;
    // Whether a state that passes no key at all is decayed is not said.
    const auto& keys = broken.key_lengths;
    if (broken.initial_forward.log_decay.given() || broken.initial_backward.log_decay.given())
      usable = usable && std::count(keys.begin(), keys.end(), 0) == 0 && (keys.empty() || broken.sizes(at).Lk > 0);
    if (!usable) continue;
    c = std::move(broken);
    return;
  }
}

std::string describe(const call& c) {
  static constexpr const char* types[] = {"float", "double", "bf16", "f16"};
  static constexpr const char* forms[] = {"full", "recurrent", "chunkwise", "automatic"};
  static constexpr const char* masks[] = {"all_ones", "fixed_decay", "selective_decay", "two_sided", "own gaps", "own pairs"};
  static constexpr const char* norms[] = {"none", "row_sum", "max_one"};
  static constexpr const char* ways[] = {"both", "forward", "backward"};
  static constexpr const char* gates[] = {"later", "source", "target", "earlier"};
  std::ostringstream words;
  const auto form = [&](const fuzz::form& f) {
    words << forms[static_cast<std::size_t>(f.kind)];
    if (f.kind == form_kind::chunkwise) words << "{" << f.size << (f.recompute ? ", recompute}" : "}");
  };
  const auto list = [&](const char* name, const std::vector<index_t>& x) {
    if (x.empty()) return;
    words << " " << name;
    for (std::size_t n = 0; n < x.size(); ++n) words << (n == 0 ? "=" : ",") << x[n];
  };
  const auto state = [&](const char* name, const fuzz::state& x) {
    if (x.given())
      words << " " << name << "(" << (x.S.given() ? "S" : "") << (x.z.given() ? "z" : "") << (x.log_decay.given() ? "a" : "")
            << (x.stored_in(c) == real_of(c.type) ? ")" : ", 16 bits)");
  };
  const sizes s = c.sizes(stage::forward);
  words << types[static_cast<std::size_t>(c.type)] << " ";
  form(c.forward_form);
  words << " (gradient ";
  form(c.gradient_form);
  words << ") " << masks[static_cast<std::size_t>(c.mask)];
  if (c.mask == mask_kind::selective) words << "/" << gates[static_cast<std::size_t>(c.crossing)];
  words << " " << norms[static_cast<std::size_t>(c.norm)];
  if (c.norm == norm_kind::row_sum) words << "{" << c.eps << "}";
  words << " B=" << s.B << " H=" << s.H << " L=" << s.L << " Lk=" << s.Lk << " Dk=" << s.Dk << " Dv=" << s.Dv
        << " heads q,k,v=" << c.q.extents[1] << "," << c.k.extents[1] << "," << c.v.extents[1] << " "
        << ways[static_cast<std::size_t>(c.direction)] << " scale=" << c.scale << " diagonal=" << c.diagonal
        << " threads=" << c.threads;
  list("offsets", c.offsets);
  list("lengths", c.lengths);
  list("key_lengths", c.key_lengths);
  state("initial_forward", c.initial_forward);
  state("initial_backward", c.initial_backward);
  state("final_forward", c.final_forward);
  state("final_backward", c.final_backward);
  if (s.only_states) words << " states only";
  if (c.add) words << " add";
  if (c.interleaved) words << " interleaved";
  if (!c.broken.empty()) words << " broken: " << c.broken;
  return words.str();
}

}  // namespace fuzz
