// SPDX-License-Identifier: Apache-2.0
// What the documentation says of a call: is it right, and if so, what it writes and what it leaves alone.
#include "definition.hpp"

#include <bila/view/storage.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>

namespace fuzz {

double rounded(number kind, double x) {
  const float single = static_cast<float>(x);
  if (kind == number::f64) return x;
  if (kind == number::f32) return single;
  return kind == number::bf16 ? static_cast<float>(bila::bf16(single)) : static_cast<float>(bila::f16(single));
}

double log_gap(const call& c, bila::direction way, index_t b, index_t h, index_t t) {
  const index_t H = c.sizes(stage::forward).H;
  const auto of_head = [&](const view& x, index_t row, index_t token) { return c.at(x, row, h / (H / x.extents[1]), token, 0); };
  if (c.mask == mask_kind::all_ones) return 0;
  if (c.mask == mask_kind::fixed) return of_head(c.gates, 0, 0);
  if (c.mask == mask_kind::two_sided || c.mask == mask_kind::own_gaps)
    return of_head(way == bila::direction::forward ? c.gates : c.other_gates, b, t);
  const bool later = c.crossing == bila::gate::later || (c.crossing == bila::gate::target && way == bila::direction::forward) ||
                     (c.crossing == bila::gate::source && way == bila::direction::backward);
  return of_head(c.gates, b, later ? t : t - 1);
}

sizes call::sizes(stage at) const {
  const state &f = at == stage::forward ? final_forward : by_forward, &g = at == stage::forward ? final_backward : by_backward;
  const bool no_y = !y.given() && y.extents == bila::per_axis{};
  const bool no_dy = at == stage::forward || (!dy.given() && dy.extents == bila::per_axis{});
  const bool states = no_y && no_dy && (f.given() || g.given());
  const state& last = f.given() ? f : g;
  const index_t H = states ? last.S.given() ? last.S.extents[1] : last.z.extents[1] : y.extents[1];
  const index_t B = states ? k.extents[0] : y.extents[0], L = states ? k.extents[2] : y.extents[2];
  return {B, H, L, k.extents[2], k.extents[3], v.extents[3], k.extents[2] != L || !key_lengths.empty(), states};
}

namespace {

/// Collects reasons: one breach makes a call illegal.
class judgement {
 public:
  judgement(const call& c, stage at) : c_(c), at_(at), size_(c.sizes(at)) {}

  legality result() {
    shapes();
    if (illegal_) return legality::illegal;
    options();
    if (illegal_) return legality::illegal;
    states();
    if (!illegal_) gates();
    if (!illegal_) overlaps();
    return illegal_ ? legality::illegal : unclear_ ? legality::either : legality::legal;
  }

 private:
  void require(bool holds) { illegal_ = illegal_ || !holds; }

  static bool plausible(const view& x) {
    double numbers = 1, reach = 0;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      if (x.extents[axis] < 0) return false;
      const double extent = std::max(1.0, static_cast<double>(x.extents[axis]));
      numbers *= extent;
      reach += (extent - 1) * std::fabs(static_cast<double>(x.strides[axis]));
    }
    return numbers <= 0x1p48 && reach <= 0x1p48;
  }

  void tensor(const view& x, bila::per_axis wanted) { require(plausible(x) && x.extents == wanted && (x.given() || x.empty())); }
  void optional(const view& x, bila::per_axis wanted) {
    require(!x.given() || (plausible(x) && x.extents == wanted));
    unclear_ = unclear_ || (!x.given() && x.extents != bila::per_axis{});  // not wanted, or its pointer forgotten
  }
  void heads(const view& x) {
    const index_t n = x.extents[1];
    require(n == size_.H || (n > 0 && size_.H % n == 0));
  }

  void shapes() {
    const auto& [B, H, L, Lk, Dk, Dv, cross, only_states] = size_;
    for (const view* x : {&c_.k, &c_.v, &c_.y, &c_.dy}) require(plausible(*x));
    if (!only_states) require(plausible(c_.q));
    if (illegal_) return;
    heads(c_.k);
    heads(c_.v);
    tensor(c_.k, {B, c_.k.extents[1], Lk, Dk});
    tensor(c_.v, {B, c_.v.extents[1], Lk, Dv});
    if (only_states) {
      require(at_ == stage::gradient || !c_.row_sum.given());
    } else {
      heads(c_.q);
      tensor(c_.q, {B, c_.q.extents[1], L, Dk});
      tensor(c_.y, {B, H, L, Dv});
    }
    if (at_ == stage::forward) {
      optional(c_.row_sum, {B, H, L, 1});
      return;
    }
    const bila::per_axis tokens{B, H, L, 1};
    if (!only_states) {
      tensor(c_.dy, {B, H, L, Dv});
      optional(c_.row_sum, tokens);
      require(!c_.row_sums() || c_.row_sum.given() || B * H * L == 0);
      optional(c_.to.q, c_.q.extents);
    } else {
      // q is not read: its heads alone count, where it has any.
      const index_t Hq = c_.q.extents[1] == 0 ? H : c_.q.extents[1];
      require(Hq == H || (Hq > 0 && H % Hq == 0));
      optional(c_.to.q, {B, Hq, L, Dk});
    }
    optional(c_.to.k, c_.k.extents);
    optional(c_.to.v, c_.v.extents);
    optional(c_.to.log_forward, tokens);
    optional(c_.to.log_backward, tokens);
    optional(c_.to.weights, {B, H, L, L});
    require(!c_.to.weights.given() || !c_.gapped());
    require(!c_.to.log_decay.given() || c_.mask == mask_kind::fixed || c_.mask == mask_kind::selective);
    optional(c_.to.log_decay, c_.gates.extents);
    require(c_.gapped() || (!c_.to.log_forward.given() && !c_.to.log_backward.given()));
    require(!cross || (!c_.to.diagonal && !c_.to.log_forward.given() && !c_.to.log_backward.given()));
  }

  void options() {
    const auto& [B, H, L, Lk, Dk, Dv, cross, only_states] = size_;
    const form& by = at_ == stage::forward ? c_.forward_form : c_.gradient_form;
    const double largest = c_.type == number::f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
    const double smallest = c_.type == number::f64 ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
    require(by.kind != form_kind::chunkwise || by.size >= 0);
    require(c_.threads >= 0);
    if (c_.workspace == room::too_small)
      (at_ == stage::forward ? illegal_ : unclear_) = true;  // gradient_workspace_bytes is enough, whatever is asked for
    require(c_.norm != norm_kind::row_sum || (std::isfinite(c_.eps) && c_.eps >= 0));
    require(std::fabs(c_.scale) <= largest && std::fabs(c_.diagonal) <= largest);
    if (at_ == stage::gradient && c_.to.scale) require(std::fabs(c_.scale) >= smallest);
    if (!c_.offsets.empty()) {
      require(B == 1 && c_.offsets.size() >= 2 && c_.lengths.empty() && c_.offsets.front() == 0 && c_.offsets.back() == L &&
              std::is_sorted(c_.offsets.begin(), c_.offsets.end()));
    }
    const auto lengths = [&](const std::vector<index_t>& x, index_t most) {
      require(x.empty() || static_cast<index_t>(x.size()) == size_.B);
      for (const index_t n : x) require(n >= 0 && n <= most);
    };
    lengths(c_.lengths, L);
    lengths(c_.key_lengths, Lk);
    require(c_.lengths.empty() || Lk == L || !c_.key_lengths.empty());
    if (cross)
      require(c_.mask == mask_kind::all_ones && c_.direction == bila::direction::both && c_.diagonal == 1 && c_.offsets.empty());
  }

  void states() {
    const form& by = at_ == stage::forward ? c_.forward_form : c_.gradient_form;
    const index_t sequences = c_.offsets.empty() ? size_.B : c_.segments();
    const auto check = [&](const state& x, bila::direction way) {
      if (!x.given()) return;
      optional(x.S, {sequences, size_.H, size_.Dk, size_.Dv});
      optional(x.z, {sequences, size_.H, size_.Dk, 1});
      optional(x.log_decay, {sequences, size_.H, 1, 1});
      require(by.kind != form_kind::full && c_.gapped() && c_.looks(way));
      require(!c_.row_sums() || !x.S.given() || x.z.given());
    };
    for (const state* x : {&c_.initial_forward, at_ == stage::forward ? &c_.final_forward : &c_.by_forward})
      check(*x, bila::direction::forward);
    for (const state* x : {&c_.initial_backward, at_ == stage::forward ? &c_.final_backward : &c_.by_backward})
      check(*x, bila::direction::backward);
    if (at_ == stage::gradient) check(c_.to.initial_forward, bila::direction::forward);
    if (at_ == stage::gradient) check(c_.to.initial_backward, bila::direction::backward);
    if (illegal_) return;
    for (const view* x : {&c_.initial_forward.log_decay, &c_.initial_backward.log_decay})
      x->each([&](index_t cell, index_t, index_t, index_t, index_t) { require(number_in(*x, cell) <= 1e-6); });
  }

  void gates() {
    const auto& [B, H, L, Lk, Dk, Dv, cross, only_states] = size_;
    const auto check = [&](const view& x, bila::per_axis wanted) {
      wanted[1] = x.extents[1];
      tensor(x, wanted);
      const index_t n = x.extents[1];
      require(n == size_.H || (n > 0 && n < size_.H && size_.H % n == 0));
    };
    if (c_.mask == mask_kind::fixed) check(c_.gates, {1, H, 1, 1});
    if (c_.mask == mask_kind::selective || c_.mask == mask_kind::two_sided) check(c_.gates, {B, H, L, 1});
    if (c_.mask == mask_kind::two_sided) {
      check(c_.other_gates, {B, H, L, 1});
      require(c_.gates.extents[1] == c_.other_gates.extents[1]);
    }
    if (illegal_ || !c_.gapped() || c_.mask == mask_kind::all_ones) return;
    for (index_t b = 0; b < B; ++b)
      for (index_t n = 0; n < c_.segments(); ++n) {
        const index_t first = c_.offsets.empty() ? 0 : c_.offsets[static_cast<std::size_t>(n)];
        const index_t last = !c_.offsets.empty()   ? c_.offsets[static_cast<std::size_t>(n) + 1]
                             : !c_.lengths.empty() ? c_.lengths[static_cast<std::size_t>(b)]
                                                   : L;
        for (index_t h = 0; h < H; ++h)
          for (index_t t = first + 1; t < last; ++t)
            for (const auto way : {bila::direction::forward, bila::direction::backward})
              if (!(log_gap(c_, way, b, h, t) <= 1e-6)) (c_.looks(way) ? illegal_ : unclear_) = true;
      }
    // A value that no gap uses may be anything, but for the one of a head.
    if (c_.mask == mask_kind::fixed)
      c_.gates.each([&](index_t cell, index_t, index_t, index_t, index_t) { unclear_ |= !(number_in(c_.gates, cell) <= 1e-6); });
  }

  double number_in(const view& x, index_t cell) const {
    return c_.memories[static_cast<std::size_t>(x.memory)].x[static_cast<std::size_t>(cell)];
  }

  static std::vector<index_t> cells(const view& x) {
    std::vector<index_t> all;
    x.each([&](index_t cell, index_t, index_t, index_t, index_t) { all.push_back(cell); });
    return all;
  }

  /// Element by element: no output is part of itself, of another or of an input; a state may take the place of the one it follows.
  void overlaps() {
    std::map<std::pair<int, index_t>, const view*> written;
    const auto write = [&](const view& x) {
      for (const index_t cell : cells(x)) require(written.emplace(std::pair(x.memory, cell), &x).second);
    };
    const auto read = [&](const view& x, const view* replaced_by) {
      if (replaced_by != nullptr && replaced_by->memory == x.memory && cells(*replaced_by) == cells(x)) return;
      for (const index_t cell : cells(x)) require(written.find({x.memory, cell}) == written.end());
    };
    if (at_ == stage::forward) {
      for (const view* x :
           {&c_.y, &c_.row_sum, &c_.final_forward.S, &c_.final_forward.z, &c_.final_backward.S, &c_.final_backward.z})
        write(*x);
    } else {
      const auto& to = c_.to;
      for (const view* x : {&to.q, &to.k, &to.v, &to.log_decay, &to.log_forward, &to.log_backward, &to.weights,
                            &to.initial_forward.S, &to.initial_forward.z, &to.initial_forward.log_decay, &to.initial_backward.S,
                            &to.initial_backward.z, &to.initial_backward.log_decay})
        write(*x);
      for (const view* x : {&c_.y, &c_.row_sum, &c_.dy}) read(*x, nullptr);
      read(c_.by_forward.S, &to.initial_forward.S);
      read(c_.by_forward.z, &to.initial_forward.z);
      read(c_.by_backward.S, &to.initial_backward.S);
      read(c_.by_backward.z, &to.initial_backward.z);
    }
    const bool forward = at_ == stage::forward;
    read(c_.initial_forward.S, forward ? &c_.final_forward.S : nullptr);
    read(c_.initial_forward.z, forward ? &c_.final_forward.z : nullptr);
    read(c_.initial_backward.S, forward ? &c_.final_backward.S : nullptr);
    read(c_.initial_backward.z, forward ? &c_.final_backward.z : nullptr);
    for (const view* x : {&c_.k, &c_.v, &c_.initial_forward.log_decay, &c_.initial_backward.log_decay}) read(*x, nullptr);
    if (!size_.only_states) read(c_.q, nullptr);
    if (c_.mask != mask_kind::own_gaps)
      for (const view* x : {&c_.gates, &c_.other_gates}) read(*x, nullptr);
  }

  const call& c_;
  stage at_;
  sizes size_;
  bool illegal_ = false, unclear_ = false;
};

bool same(double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); }

std::string difference(const char* what, index_t at, double found, double wanted, double allowed) {
  std::ostringstream words;
  words.precision(9);
  words << what << "[" << at << "] = " << found << ", it should be " << wanted << " +- " << allowed;
  return words.str();
}

/// A call that was broken may read numbers that are none.
bool is_right(double found, double wanted, double allowed, const call& c) {
  if (!c.broken.empty() && !std::isfinite(allowed)) return true;
  return !std::isnan(found) && (std::isinf(allowed) || std::fabs(found - wanted) <= allowed);
}

/// The name of an output, by its place in the call.
const char* name_of(const call& c, const view* x) {
  const std::pair<const view*, const char*> names[] = {{&c.y, "y"},
                                                       {&c.row_sum, "row_sum"},
                                                       {&c.final_forward.S, "final_forward.S"},
                                                       {&c.final_forward.z, "final_forward.z"},
                                                       {&c.final_backward.S, "final_backward.S"},
                                                       {&c.final_backward.z, "final_backward.z"},
                                                       {&c.to.q, "gradients.q"},
                                                       {&c.to.k, "gradients.k"},
                                                       {&c.to.v, "gradients.v"},
                                                       {&c.to.log_decay, "gradients.log_decay"},
                                                       {&c.to.log_forward, "gradients.log_forward"},
                                                       {&c.to.log_backward, "gradients.log_backward"},
                                                       {&c.to.weights, "gradients.weights"},
                                                       {&c.to.initial_forward.S, "gradients.initial_forward.S"},
                                                       {&c.to.initial_forward.z, "gradients.initial_forward.z"},
                                                       {&c.to.initial_forward.log_decay, "gradients.initial_forward.log_decay"},
                                                       {&c.to.initial_backward.S, "gradients.initial_backward.S"},
                                                       {&c.to.initial_backward.z, "gradients.initial_backward.z"},
                                                       {&c.to.initial_backward.log_decay, "gradients.initial_backward.log_decay"}};
  for (const auto& [where, name] : names)
    if (where == x) return name;
  return "?";
}

}  // namespace

legality judge(const call& c, stage at) { return judgement(c, at).result(); }

std::string unchanged(const call& before, const call& after) {
  for (std::size_t m = 0; m < before.memories.size(); ++m)
    for (std::size_t n = 0; n < before.memories[m].x.size(); ++n)
      if (!same(before.memories[m].x[n], after.memories[m].x[n]))
        return difference(("memory " + std::to_string(m)).c_str(), static_cast<index_t>(n), after.memories[m].x[n],
                          before.memories[m].x[n], 0);
  if (!same(before.scale_slope, after.scale_slope) || !same(before.diagonal_slope, after.diagonal_slope))
    return "the gradient of scale or diagonal was written";
  return {};
}

std::string compare(const call& before, const call& after, stage at) {
  scalar_expectations scalars;
  call rest = after;  // what the call should have written, put back
  for (const expectation& e : define(before, at, scalars)) {
    std::string wrong;
    std::size_t n = 0;
    e.where->each([&](index_t cell, index_t, index_t, index_t, index_t) {
      const auto m = static_cast<std::size_t>(e.where->memory), place = static_cast<std::size_t>(cell);
      const double found = after.memories[m].x[place], wanted = e.value[n], allowed = e.error[n];
      if (wrong.empty() && !is_right(found, wanted, allowed, before))
        wrong = difference(name_of(before, e.where), static_cast<index_t>(n), found, wanted, allowed);
      rest.memories[m].x[place] = before.memories[m].x[place];
      ++n;
    });
    if (!wrong.empty()) return wrong;
  }
  const auto judge_scalar = [&before](const char* name, double& found, double wanted, double allowed, bool asked) -> std::string {
    if (!asked) return {};
    const std::string words =
        is_right(found, wanted, allowed, before) ? std::string() : difference(name, 0, found, wanted, allowed);
    found = std::nan("");
    return words;
  };
  if (at == stage::gradient) {
    std::string wrong = judge_scalar("gradients.scale", rest.scale_slope, scalars.scale, scalars.scale_error, before.to.scale);
    if (wrong.empty())
      wrong = judge_scalar("gradients.diagonal", rest.diagonal_slope, scalars.diagonal, scalars.diagonal_error, before.to.diagonal);
    if (!wrong.empty()) return wrong;
  }
  if (std::string wrong = unchanged(before, rest); !wrong.empty()) return "written though it should not be: " + wrong;
  return {};
}

}  // namespace fuzz
