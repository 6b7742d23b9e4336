// SPDX-License-Identifier: Apache-2.0
// Problems and training steps of support/, run on the device.
#pragma once

#include "cuda/support/door.hpp"
#include "cuda/support/image.hpp"
#include "support/gradient.hpp"

#include <cmath>
#include <utility>

namespace test::device {

/// How a call is made; none of it may change a bit of what it gives.
struct manner {
  index_t shift = 0;           // elements that tensors start after an aligned address
  unsigned char junk = 0xff;   // each byte of the workspace beforehand
  bool odd_workspace = false;  // one byte off
  bool captured = false;       // as a CUDA graph, launched twice
};

template <class T>
bila::state<const T> in(image& memory, const bila::state<const T>& x) {
  return {memory.in(x.S), memory.in(x.z), memory.in(x.log_decay)};
}

template <class T>
bila::state<T> out(image& memory, const bila::state<T>& x) {
  return {memory.out(x.S), memory.out(x.z), memory.out(x.log_decay)};
}

template <class T>
bila::inputs<T> in(image& memory, const bila::inputs<T>& x) {
  bila::inputs<T> there = x;
  there.q = memory.in(x.q), there.k = memory.in(x.k), there.v = memory.in(x.v);
  there.initial_forward = in(memory, x.initial_forward), there.initial_backward = in(memory, x.initial_backward);
  return there;
}

inline any_mask in(image& memory, const any_mask& mask) {
  struct mover {
    image& memory;
    any_mask operator()(const bila::mask::all_ones& x) const { return x; }
    any_mask operator()(const bila::mask::fixed_decay<double>& x) const {
      return bila::mask::fixed_decay<double>{memory.in(x.log_decay)};
    }
    any_mask operator()(const bila::mask::selective_decay<double>& x) const {
      return bila::mask::selective_decay<double>{memory.in(x.log_decay), x.crossing};
    }
    any_mask operator()(const bila::mask::two_sided<double>& x) const {
      return bila::mask::two_sided<double>{memory.in(x.forward_gaps), memory.in(x.backward_gaps)};
    }
  };
  return std::visit(mover{memory}, mask);
}

inline double* out(image& memory, double* number) {
  return number == nullptr ? nullptr : memory.out(bila::tensor_view<double>{number, {1, 1, 1, 1}, {1, 1, 1, 1}}).data;
}

template <class T>
bila::gradients<T> out(image& memory, const bila::gradients<T>& x) {
  return {memory.out(x.q),
          memory.out(x.k),
          memory.out(x.v),
          memory.out(x.log_decay),
          memory.out(x.log_forward),
          memory.out(x.log_backward),
          out(memory, x.scale),
          out(memory, x.diagonal),
          out(memory, x.initial_forward),
          out(memory, x.initial_backward)};
}

/// Makes call(on) with so many bytes of workspace. True if nothing but outputs was written.
template <class Call>
bool run(image& memory, std::size_t bytes, const manner& how, const Call& call) {
  const std::span<std::byte> room = workspace(bytes, how.junk, how.odd_workspace);
  if (how.captured) {
    const own_stream own;
    capture(
        own.get(),
        [&] {
          call(on{own.get(), room});
        },
        2);
  } else {
    call(on{nullptr, room});
  }
  finish();
  const bool intact = memory.download();
  return workspace_intact() && intact;
}

/// Room for what the forward pass alone writes.
template <class T>
learned<T> room_for_outputs(const lesson<T>& x) {
  using Real = bila::real_of<T>;
  const sizes& size = x.x.size;
  const auto state_like = [&](const carried<Real>& t) {
    return t.given() ? carried<Real>{{t.S.extent(0), size.H, size.Dk, size.Dv}, {t.S.extent(0), size.H, size.Dk, 1}, {}}
                     : carried<Real>{};
  };
  learned<T> to{};
  to.y = {size.B, size.H, size.L, size.Dv};
  to.row_sum = {size.B, size.H, size.L, 1};
  to.final_forward = state_like(x.by_forward), to.final_backward = state_like(x.by_backward);
  return to;
}

/// The forward pass into `to`; x.by_forward and x.by_backward say which final states are wanted.
template <class T>
bool forward(const any_form& form, const lesson<T>& x, learned<T>& to, const manner& how = {}) {
  image memory(how.shift);
  const bila::inputs<T> inputs = in(memory, x.inputs());
  const any_mask mask = in(memory, x.x.mask());
  const bila::outputs<T> outputs{memory.out(to.y.view()), memory.out(to.row_sum.view()), out(memory, to.final_forward.view()),
                                 out(memory, to.final_backward.view())};
  memory.upload();
  return run(memory, workspace_bytes<T>(form, mask, x.x.norm, inputs, outputs), how,
             [&](const on& at) { attend<T>(at, form, mask, x.x.norm, inputs, outputs); });
}

/// The backward pass: from the y and row sum in `kept` and any dy to what is wanted.
template <class T>
bool backward(const any_form& form, const lesson<T>& x, const learned<T>& kept, const bila::tensor_view<const T>& dy,
              const bila::gradients<T>& wanted, const manner& how = {}) {
  image memory(how.shift);
  const bila::inputs<T> inputs = in(memory, x.inputs());
  const any_mask mask = in(memory, x.x.mask());
  const bila::saved<T> saved{memory.in(kept.y.view()), memory.in(kept.row_sum.view())};
  const bila::output_gradients<T> given{memory.in(dy), in(memory, x.by_forward.view()), in(memory, x.by_backward.view())};
  const bila::gradients<T> to = out(memory, wanted);
  memory.upload();
  return run(memory, gradient_workspace_bytes<T>(form, mask, x.x.norm, inputs, saved, given, to), how,
             [&](const on& at) { gradient<T>(at, form, mask, x.x.norm, inputs, saved, given, to); });
}

template <class T>
struct outcome {
  learned<T> to;
  bool intact;
};

template <class T>
outcome<T> evaluate(const any_form& form, const lesson<T>& x, const manner& how = {}) {
  learned<T> to = room_for_outputs(x);
  const bool intact = forward(form, x, to, how);
  return {std::move(to), intact};
}

/// The same for a call without states.
template <class T>
outcome<T> evaluate(const any_form& form, const problem<T>& x, const manner& how = {}) {
  return evaluate(form, lesson<T>{x, {}}, how);
}

/// A whole step.
template <class T>
outcome<T> learn(const any_form& form, const lesson<T>& x, const manner& how = {}) {
  learned<T> to = room_for(x);
  bool intact = forward(form, x, to, how);
  const learned<T> kept = to;
  bila::gradients<T> wanted = gradients_of(to);
  if (x.x.scale == 0) wanted.scale = nullptr;  // refused: its gradient needs N
  intact = backward(form, x, kept, x.dy.view(), wanted, how) && intact;
  return {std::move(to), intact};
}

}  // namespace test::device
