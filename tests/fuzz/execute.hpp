// SPDX-License-Identifier: Apache-2.0
// A call made for one storage type; instantiated once for each, in execute_<type>.cpp.
#pragma once

#include "call.hpp"

#include <bila/bila.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <variant>

namespace fuzz {

namespace {  // each unit its own, compiled for its type

struct own_gaps {
  bila::tensor_view<const double> f, g;
  static constexpr bila::gap gaps = bila::gap::per_token;
  double log_forward(index_t b, index_t h, index_t t) const { return f(b, h, t, 0); }
  double log_backward(index_t b, index_t h, index_t t) const { return g(b, h, t, 0); }
};

struct own_pairs {
  double weight(index_t b, index_t h, index_t i, index_t j) const { return own_weight(b, h, i, j); }
};

using any_form = std::variant<bila::form::full, bila::form::recurrent, bila::form::chunkwise, bila::form::automatic>;
using any_mask = std::variant<bila::mask::all_ones, bila::mask::fixed_decay<float>, bila::mask::fixed_decay<double>,
                              bila::mask::selective_decay<float>, bila::mask::selective_decay<double>, bila::mask::two_sided<float>,
                              bila::mask::two_sided<double>, own_gaps, own_pairs>;
using any_norm = std::variant<bila::norm::none, bila::norm::row_sum, bila::norm::max_one>;

/// A thread for each task but one.
struct threads_executor : bila::executor {
  void run(index_t n, void (*task)(void*, index_t), void* context) override {
    std::vector<std::thread> others;
    for (index_t i = 1; i < n; ++i) others.emplace_back(task, context, i);
    task(context, 0);
    for (std::thread& other : others) other.join();
  }
};

struct shuffled_executor : bila::executor {
  explicit shuffled_executor(std::uint64_t order) : random(order) {}
  void run(index_t n, void (*task)(void*, index_t), void* context) override {
    std::vector<index_t> tasks(static_cast<std::size_t>(n));
    std::iota(tasks.begin(), tasks.end(), 0);
    for (std::size_t left = tasks.size(); left > 1; --left)
      std::swap(tasks[left - 1], tasks[static_cast<std::size_t>(random.below(static_cast<index_t>(left)))]);
    for (const index_t i : tasks) task(context, i);
  }
  random_source random;
};

/// An allocation of just the bytes of a memory, so that a sanitizer sees what lies beside it.
class allocation {
 public:
  explicit allocation(const memory& from) : size_(from.kind == number::f64 ? 8 : from.kind == number::f32 ? 4 : 2) {
    bytes_ = std::make_unique<std::byte[]>(size_ * (static_cast<std::size_t>(from.skew) + from.x.size()));
    first_ = bytes_.get() + size_ * static_cast<std::size_t>(from.skew);
    visit(from.kind, [&](auto zero) {
      for (std::size_t n = 0; n < from.x.size(); ++n) {
        if constexpr (std::is_same_v<decltype(zero), double>)
          zero = from.x[n];
        else
          zero = static_cast<decltype(zero)>(static_cast<float>(from.x[n]));
        std::memcpy(first_ + n * size_, &zero, size_);
      }
    });
  }

  void read_back(memory& to) const {
    visit(to.kind, [&](auto zero) {
      for (std::size_t n = 0; n < to.x.size(); ++n) {
        std::memcpy(&zero, first_ + n * size_, size_);
        to.x[n] = static_cast<double>(zero);
      }
    });
  }

  std::byte* first() const { return first_; }

 private:
  template <class Function>
  static void visit(number kind, const Function& f) {
    if (kind == number::f32) f(0.0f);
    if (kind == number::f64) f(0.0);
    if (kind == number::bf16) f(bila::bf16());
    if (kind == number::f16) f(bila::f16());
  }

  std::size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
  std::byte* first_;
};

template <class T>
class typed_call {
 public:
  using Real = bila::real_of<T>;

  explicit typed_call(call& c) : c_(c) {
    for (const memory& m : c.memories) allocations_.emplace_back(m);
    for (const auto& [wide, narrow] : {std::pair(&c.offsets, &narrow_offsets_), std::pair(&c.lengths, &narrow_lengths_),
                                       std::pair(&c.key_lengths, &narrow_key_lengths_)})
      for (const index_t n : *wide) narrow->push_back(static_cast<std::int32_t>(n));
  }

  void run(stage at) {
    threads_executor threads;
    shuffled_executor shuffled(c_.order);
    backend_.threads = c_.threads;
    if (c_.whose == threads_of::executor) backend_.executor = &threads;
    if (c_.whose == threads_of::shuffled) backend_.executor = &shuffled;
    if (c_.workspace == room::library) return dispatch(at, false);

    // A workspace starts at an odd address and ends before a few bytes that are not its own. All of it reads as NaN.
    constexpr std::size_t before = 3, after = 64;
    dispatch(at, true);
    std::vector<std::byte> bytes(before + needed_ + after, std::byte{0xff});
    backend_.workspace = {bytes.data() + before, c_.workspace == room::too_small ? needed_ - 1 : needed_};
    dispatch(at, false);
    if (!std::all_of(bytes.end() - after, bytes.end(), [](std::byte x) { return x == std::byte{0xff}; }))
      throw std::logic_error("wrote beyond the workspace");
  }

  void read_back() {
    for (std::size_t n = 0; n < allocations_.size(); ++n) allocations_[n].read_back(c_.memories[n]);
  }

 private:
  /// Runs the call, or finds out the size of its workspace.
  void dispatch(stage at, bool only_size) {
    const bila::inputs<T> in = inputs();
    const bila::outputs<T> out = outputs();
    const bila::saved<T> kept{out.y, out.row_sum};
    const bila::output_gradients<T> dy{place<T>(c_.dy), place_state<Real>(c_.by_forward), place_state<Real>(c_.by_backward)};
    const bila::gradients<T> to = gradients();
    const sizes size = c_.sizes(at);
    const bila::tensor_view<const T> y_like{nullptr, {size.B, size.H, size.L, size.Dv}, {}};
    std::visit(
        [&](const auto& form, const auto& mask, const auto& norm) {
          using Form = std::decay_t<decltype(form)>;
          constexpr bool any_form_will_do = bila::gapped<std::decay_t<decltype(mask)>>;
          if constexpr (any_form_will_do || std::is_same_v<Form, bila::form::full> || std::is_same_v<Form, bila::form::automatic>) {
            if (at == stage::gradient)
              only_size ? void(needed_ = bila::gradient_workspace_bytes<bila::kernel::eigen>(backend_, form, in, y_like))
                        : bila::gradient(backend_, form, mask, norm, in, kept, dy, to);
            else
              only_size ? void(needed_ = bila::workspace_bytes(backend_, form, mask, norm, in, out))
                        : bila::attend(backend_, form, mask, norm, in, out);
          } else {
            std::abort();
          }
        },
        form_of(at == stage::forward ? c_.forward_form : c_.gradient_form), mask_of(), norm_of());
  }

  bila::outputs<T> outputs() const {
    return {place<T>(c_.y), place<Real>(c_.row_sum), place_state<Real>(c_.final_forward), place_state<Real>(c_.final_backward),
            c_.add};
  }

  bila::gradients<T> gradients() const {
    bila::gradients<T> to;
    to.q = place<T>(c_.to.q);
    to.k = place<T>(c_.to.k);
    to.v = place<T>(c_.to.v);
    to.log_decay = place<Real>(c_.to.log_decay);
    to.log_forward = place<Real>(c_.to.log_forward);
    to.log_backward = place<Real>(c_.to.log_backward);
    to.weights = place<Real>(c_.to.weights);
    if (c_.to.scale) to.scale = &c_.scale_slope;
    if (c_.to.diagonal) to.diagonal = &c_.diagonal_slope;
    to.initial_forward = place_state<Real>(c_.to.initial_forward);
    to.initial_backward = place_state<Real>(c_.to.initial_backward);
    return to;
  }

  template <class U>
  bila::tensor_view<U> place(const view& x) const {
    U* const data = x.given() ? reinterpret_cast<U*>(allocations_[static_cast<std::size_t>(x.memory)].first()) + x.first : nullptr;
    return {data, x.extents, x.strides};
  }

  template <class U, class Number>
  bila::state<U> place_16_bits(const state& x) const {
    using stored = std::conditional_t<std::is_const_v<U>, const Number, Number>;
    return bila::state<stored>{place<stored>(x.S), place<stored>(x.z), place<U>(x.log_decay)};
  }

  template <class U>
  bila::state<U> place_state(const state& x) const {
    if constexpr (std::is_same_v<std::remove_const_t<U>, float>) {
      if (x.stored_in(c_) == number::bf16) return place_16_bits<U, bila::bf16>(x);
      if (x.stored_in(c_) == number::f16) return place_16_bits<U, bila::f16>(x);
    }
    return {place<U>(x.S), place<U>(x.z), place<U>(x.log_decay)};
  }

  bila::inputs<T> inputs() const {
    bila::inputs<T> in{place<T>(c_.q), place<T>(c_.k), place<T>(c_.v)};
    in.scale = c_.scale;
    in.diagonal = c_.diagonal;
    in.direction = c_.direction;
    if (c_.narrow_lists) {
      in.offsets = narrow_offsets_;
      in.lengths = narrow_lengths_;
      in.key_lengths = narrow_key_lengths_;
    } else {
      in.offsets = c_.offsets;
      in.lengths = c_.lengths;
      in.key_lengths = c_.key_lengths;
    }
    in.initial_forward = place_state<Real>(c_.initial_forward);
    in.initial_backward = place_state<Real>(c_.initial_backward);
    return in;
  }

  static any_form form_of(const form& x) {
    if (x.kind == form_kind::full) return bila::form::full{};
    if (x.kind == form_kind::recurrent) return bila::form::recurrent{};
    if (x.kind == form_kind::chunkwise) return bila::form::chunkwise{x.size, x.recompute};
    return bila::form::automatic{};
  }

  any_norm norm_of() const {
    if (c_.norm == norm_kind::none) return bila::norm::none{};
    if (c_.norm == norm_kind::row_sum) return bila::norm::row_sum{c_.eps};
    return bila::norm::max_one{};
  }

  template <class Gate>
  any_mask mask_with() const {
    const bila::tensor_view<const Gate> gates = place<Gate>(c_.gates), others = place<Gate>(c_.other_gates);
    if (c_.mask == mask_kind::fixed) return bila::mask::fixed_decay<Gate>{gates};
    if (c_.mask == mask_kind::selective) return bila::mask::selective_decay<Gate>{gates, c_.crossing};
    return bila::mask::two_sided<Gate>{gates, others};
  }

  any_mask mask_of() const {
    if (c_.mask == mask_kind::all_ones) return bila::mask::all_ones{};
    if (c_.mask == mask_kind::own_pairs) return own_pairs{};
    if (c_.mask == mask_kind::own_gaps) return own_gaps{place<double>(c_.gates), place<double>(c_.other_gates)};
    const view& x = c_.gates.given() ? c_.gates : c_.other_gates;
    const bool single = x.given() && c_.memories[static_cast<std::size_t>(x.memory)].kind == number::f32;
    return single ? mask_with<float>() : mask_with<double>();
  }

  call& c_;
  std::vector<allocation> allocations_;
  std::vector<std::int32_t> narrow_offsets_, narrow_lengths_, narrow_key_lengths_;
  bila::cpu backend_;
  std::size_t needed_ = 0;
};

template <class T>
outcome execute_as(call& c, stage at) {
  outcome result;
  typed_call<T> typed(c);
  try {
    typed.run(at);
  } catch (const std::invalid_argument& error) {
    result = {outcome::refused, error.what()};
  } catch (const std::exception& error) {
    result = {outcome::failed, error.what()};
  }
  typed.read_back();
  return result;
}

}  // namespace

}  // namespace fuzz
