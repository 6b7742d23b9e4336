// SPDX-License-Identifier: Apache-2.0
// A training step: a call with states at its ends, the loss sum(dy y) + sum(dS S) + sum(dz z) over outputs and final states, and
// the gradient of that loss by everything the call reads. Beside it the same loss by its definition, in long double.
#pragma once

#include "support/problem.hpp"

#include <bila/bila.hpp>

#include <string>
#include <vector>

namespace test {

enum class layer { eigen, reference };  // the kernel layer

/// bila::attend and bila::gradient with everything chosen at run time; instantiated once per type, in gradient_<type>.cpp. The
/// reference layer is there for double only.
template <class T>
void forward_pass(layer kernel, const bila::cpu& backend, const any_form& form, const any_mask& mask, const any_norm& norm,
                  const bila::inputs<T>& in, const bila::outputs<T>& out);

template <class T>
void backward_pass(layer kernel, const bila::cpu& backend, const any_form& form, const any_mask& mask, const any_norm& norm,
                   const bila::inputs<T>& in, const bila::saved<T>& kept, const bila::output_gradients<T>& dy,
                   const bila::gradients<T>& to);

template <class T>
std::size_t backward_bytes(const bila::cpu& backend, const any_form& form, const bila::inputs<T>& in,
                           const bila::tensor_view<const T>& y);

/// A state of every sequence and head, or a loss's gradient by it. Without sequences it is not given.
template <class Real>
struct carried {
  tensor<Real> S, z, log_decay;  // [n, H, Dk, Dv] [n, H, Dk, 1] [n, H, 1, 1]

  bool given() const { return S.extent(0) > 0; }
  bila::state<const Real> view() const {
    return given() ? bila::state<const Real>{S.view(), z.view(), decay()} : bila::state<const Real>{};
  }
  bila::state<Real> view() {
    if (!given()) return {};
    return {S.view(), z.view(), log_decay.extent(0) > 0 ? log_decay.view() : bila::tensor_view<Real>{}};
  }
  bool intact() const { return S.intact() && z.intact() && log_decay.intact(); }

 private:
  bila::tensor_view<const Real> decay() const {
    return log_decay.extent(0) > 0 ? log_decay.view() : bila::tensor_view<const Real>{};
  }
};

template <class T>
struct lesson {
  using Real = bila::real_of<T>;
  problem<T> x;
  tensor<T> dy;                                               // [B, H, L, Dv]
  carried<Real> initial_forward = {}, initial_backward = {};  // what the call starts from
  carried<Real> by_forward = {}, by_backward = {};            // the gradient of the loss by its final states

  index_t sequences() const { return x.offsets.empty() ? x.size.B : static_cast<index_t>(x.offsets.size()) - 1; }
  bool row_sums() const { return !std::holds_alternative<bila::norm::none>(x.norm); }
  bool looks(bila::direction way) const { return x.direction == bila::direction::both || x.direction == way; }
  bool has_log_decay() const { return x.kind != mask_kind::all_ones && x.kind != mask_kind::two_sided; }

  bila::inputs<T> inputs() const {
    bila::inputs<T> in = x.inputs();
    in.initial_forward = initial_forward.view();
    in.initial_backward = initial_backward.view();
    return in;
  }

  std::string name() const { return x.name() + (initial_forward.given() || initial_backward.given() ? " with states" : ""); }
};

/// All that a step writes, NaN before it does.
template <class T>
struct learned {
  using Real = bila::real_of<T>;
  tensor<T> y;
  tensor<Real> row_sum;
  carried<Real> final_forward, final_backward;
  tensor<T> q, k, v;
  tensor<Real> log_decay, log_forward, log_backward;
  carried<Real> initial_forward, initial_backward;
  double scale = not_a_number<double>, diagonal = not_a_number<double>;

  bool intact() const {
    bool all = true;
    for (const auto* x : {&y, &q, &k, &v}) all = all && x->intact();
    for (const auto* x : {&row_sum, &log_decay, &log_forward, &log_backward}) all = all && x->intact();
    for (const auto* x : {&final_forward, &final_backward, &initial_forward, &initial_backward}) all = all && x->intact();
    return all;
  }
};

/// Room for the answers to a lesson.
template <class T>
learned<T> room_for(const lesson<T>& x) {
  using Real = bila::real_of<T>;
  const sizes& size = x.x.size;
  const auto like = [](const auto& t) { return std::decay_t<decltype(t)>(t.extent(0), t.extent(1), t.extent(2), t.extent(3)); };
  const auto state_like = [&](const carried<Real>& t) {
    return t.given() ? carried<Real>{like(t.S), like(t.z), like(t.log_decay)} : carried<Real>{};
  };
  const tensor<Real> tokens(size.B, size.H, size.L, 1);
  learned<T> to{like(x.dy),
                tokens,
                state_like(x.by_forward),
                state_like(x.by_backward),
                like(x.x.q),
                like(x.x.k),
                like(x.x.v),
                x.has_log_decay() ? tensor<Real>(x.x.gates.extent(0), x.x.gates.extent(1), x.x.gates.extent(2), 1) : tensor<Real>(),
                tokens,
                tokens,
                state_like(x.initial_forward),
                state_like(x.initial_backward)};
  return to;
}

template <class T>
bila::outputs<T> outputs_of(learned<T>& to) {
  return {to.y.view(), to.row_sum.view(), to.final_forward.view(), to.final_backward.view()};
}

template <class T>
bila::saved<T> saved_of(const learned<T>& to) {
  return {to.y.view(), to.row_sum.view()};
}

template <class T>
bila::output_gradients<T> given_to(const lesson<T>& x) {
  return {x.dy.view(), x.by_forward.view(), x.by_backward.view()};
}

template <class T>
bila::gradients<T> gradients_of(learned<T>& to) {
  using Real = bila::real_of<T>;
  return {to.q.view(),
          to.k.view(),
          to.v.view(),
          to.log_decay.extent(0) > 0 ? to.log_decay.view() : bila::tensor_view<Real>{},
          to.log_forward.view(),
          to.log_backward.view(),
          &to.scale,
          &to.diagonal,
          to.initial_forward.view(),
          to.initial_backward.view()};
}

/// The step itself: forward in `form`, and backward in it too.
template <class T>
learned<T> learn(const any_form& form, const lesson<T>& x, const bila::cpu& backend = {}, layer kernel = layer::eigen) {
  learned<T> to = room_for(x);
  forward_pass<T>(kernel, backend, form, x.x.mask(), x.x.norm, x.inputs(), outputs_of(to));
  bila::gradients<T> wanted = gradients_of(to);
  if (x.x.crosses()) wanted.log_forward = wanted.log_backward = {}, wanted.diagonal = nullptr;
  backward_pass<T>(kernel, backend, form, x.x.mask(), x.x.norm, x.inputs(), saved_of(to), given_to(x), wanted);
  return to;
}

/// A random problem with a loss. row_sum: q and k in [0.2, 1].
lesson<double> random_lesson(random_source& random, const sizes& size, mask_kind kind, const any_norm& norm);

/// Gives it initial states and a loss by final ones, in every direction that its call looks.
void add_states(lesson<double>& x, random_source& random);

/// The numbers of the definition; finals by sequence as carried has them.
struct defined {
  std::vector<wide> y, row_sum;  // [B, H, L, Dv] [B, H, L]
  std::vector<wide> S_forward, z_forward, S_backward, z_backward;
  wide loss = 0;
  wide from_kink = 1;  // smallest | |scale Z| - 1 |
};
defined by_definition(const lesson<double>& x);

/// max_one has a kink where |scale Z| is 1; changes the scale until no row is near one.
void leave_kinks(lesson<double>& x);

/// One thing that a loss depends on, and where its gradient is found.
struct parameter {
  const char* name;
  tensor<double>& (*value)(lesson<double>&);
  const tensor<double>& (*slope)(const learned<double>&);
};

/// Those that this lesson has; scale and diagonal, which are no tensors, are left out.
std::vector<parameter> parameters_of(const lesson<double>& x);

/// Derivatives of the definition's loss along one random direction per parameter, by differences of order four.
class directional {
 public:
  directional(const lesson<double>& x, random_source& random);

  /// The largest difference between a gradient and these derivatives, in units of what is allowed; `where` is the parameter.
  struct verdict {
    double worst = 0;
    std::string where;
  };
  verdict judge(const learned<double>& found) const;

 private:
  struct line {
    parameter of;
    tensor<double> direction;
    wide slope;
  };
  std::vector<line> lines_;
  wide scale_, diagonal_;
  bool crosses_;
};

/// The largest |x - y| relative to the largest |y|; infinite when one is NaN and the other is not. A gradient that is all but zero,
/// because what it is by cancels, is a difference of numbers around one: what is smaller than 1e-3 counts as that.
template <class T>
double distance(const tensor<T>& x, const tensor<T>& y) {
  double largest = 0, difference = 0;
  x.for_each([&](const T& a, index_t b, index_t h, index_t l, index_t d) {
    const double u = static_cast<double>(a), w = static_cast<double>(y(b, h, l, d)), gap = std::fabs(u - w);
    largest = std::fmax(largest, std::fabs(w));
    if (!(std::isnan(u) && std::isnan(w)))
      difference = std::fmax(difference, std::isnan(gap) ? std::numeric_limits<double>::infinity() : gap);
  });
  return difference / std::fmax(largest, 1e-3);
}

/// The same over all gradients of a step.
template <class T>
double distance(const learned<T>& x, const learned<T>& y) {
  double worst = 0;
  const auto look = [&worst](double d) { worst = std::fmax(worst, d); };
  for (const auto member : {&learned<T>::q, &learned<T>::k, &learned<T>::v}) look(distance(x.*member, y.*member));
  for (const auto member : {&learned<T>::log_decay, &learned<T>::log_forward, &learned<T>::log_backward})
    look(distance(x.*member, y.*member));
  for (const auto member : {&learned<T>::initial_forward, &learned<T>::initial_backward}) {
    look(distance((x.*member).S, (y.*member).S));
    look(distance((x.*member).z, (y.*member).z));
    look(distance((x.*member).log_decay, (y.*member).log_decay));
  }
  for (const auto member : {&learned<T>::scale, &learned<T>::diagonal})
    look(std::fabs(x.*member - y.*member) / std::fmax(1, std::fabs(y.*member)));
  return worst;
}

/// Bitwise, over everything a step writes.
template <class T>
bool same_bits(const learned<T>& x, const learned<T>& y) {
  bool same = true;
  for (const auto member : {&learned<T>::y, &learned<T>::q, &learned<T>::k, &learned<T>::v})
    same = same && same_bits(x.*member, y.*member);
  for (const auto member : {&learned<T>::row_sum, &learned<T>::log_decay, &learned<T>::log_forward, &learned<T>::log_backward})
    same = same && same_bits(x.*member, y.*member);
  for (const auto member :
       {&learned<T>::final_forward, &learned<T>::final_backward, &learned<T>::initial_forward, &learned<T>::initial_backward})
    same = same && same_bits((x.*member).S, (y.*member).S) && same_bits((x.*member).z, (y.*member).z) &&
           same_bits((x.*member).log_decay, (y.*member).log_decay);
  return same && std::memcmp(&x.scale, &y.scale, sizeof(double)) == 0 && std::memcmp(&x.diagonal, &y.diagonal, sizeof(double)) == 0;
}

template <class To, class From>
tensor<To> converted(const tensor<From>& from) {
  tensor<To> to(from.extent(0), from.extent(1), from.extent(2), from.extent(3));
  to.for_each([&from](To& x, index_t b, index_t h, index_t l, index_t d) {
    x = static_cast<To>(static_cast<bila::real_of<To>>(from(b, h, l, d)));
  });
  return to;
}

/// The lesson with its tensors stored as T, each number rounded to nearest; gates stay double.
template <class T, class From>
lesson<T> stored_as(const lesson<From>& from) {
  using Real = bila::real_of<T>;
  const problem<From>& p = from.x;
  const auto state = [](const auto& x) {
    return carried<Real>{converted<Real>(x.S), converted<Real>(x.z), converted<Real>(x.log_decay)};
  };
  return {{p.size, p.kind, p.norm, converted<T>(p.q), converted<T>(p.k), converted<T>(p.v), p.gates, p.other_gates, p.scale,
           p.diagonal, p.direction, p.offsets, p.lengths, p.key_lengths},
          converted<T>(from.dy),
          state(from.initial_forward),
          state(from.initial_backward),
          state(from.by_forward),
          state(from.by_backward)};
}

}  // namespace test
