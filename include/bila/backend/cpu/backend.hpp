// SPDX-License-Identifier: Apache-2.0
// The CPU backend of the calls in attend.hpp.
#pragma once

#include <bila/backend/cpu/attend.hpp>
#include <bila/backend/cpu/gradient.hpp>
#include <bila/backend/cpu/threads.hpp>
#include <bila/call/backend.hpp>
#include <bila/form/engine.hpp>
#include <bila/kernel/contract.hpp>

namespace bila {
inline namespace v0_1 {

namespace detail {
inline namespace BILA_UNIT {
inline namespace BILA_DEVICES {

template <>
struct backend_of<cpu> {
  template <class Tuning>
  using kernel_of = typename kernel::chosen<Tuning>::type;

  template <class Kernel, class T, class Mask, class Norm>
  static views<T> views_of(const Mask& mask, const Norm& norm) {
    return {form::view_of_mask<real_of<T>>(mask), form::view_of_norm<real_of<T>, weighs_keys<Mask>>(norm)};
  }

  template <class Form, class Mask, class T>
  static consteval bool accepts() {
    return true;
  }

  template <class Tuning, class Form, class Mask, class Norm, class T>
  static void attend(const cpu& backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in,
                     const outputs<T>& out) {
    using engine = form::engine_of<Form, form::memory_of<Mask>>;
    using Kernel = kernel_of<Tuning>;
    const error_message wrong =
        run_checked<Kernel>(backend, engine::of(form), engine::carries_states, views_of<Kernel, T>(mask, norm), in, out);
    if (!wrong.empty()) raise(wrong);
  }

  template <class Tuning, class Form, class Mask, class Norm, class T>
  static std::size_t workspace_bytes(const cpu& backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in,
                                     const outputs<T>& out) {
    using engine = form::engine_of<Form, form::memory_of<Mask>>;
    using Kernel = kernel_of<Tuning>;
    const error_message wrong =
        check_call(backend, engine::of(form), engine::carries_states, views_of<Kernel, T>(mask, norm), in, out);
    if (!wrong.empty()) raise(wrong);
    return plan<Kernel>(backend, engine::of(form), in, out).bytes();
  }

  template <class Tuning, class Form, class Mask, class Norm, class T>
  static void gradient(const cpu& backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in,
                       const saved<T>& kept, const output_gradients<T>& dy, const gradients<T>& to) {
    using engine = form::engine_of<Form, form::memory_of<Mask>>;
    using Kernel = kernel_of<Tuning>;
    const views<T> with{form::view_with_pull_back<real_of<T>>(mask), form::view_with_slopes<real_of<T>, weighs_keys<Mask>>(norm)};
    const error_message wrong =
        run_gradient_checked<Kernel>(backend, engine::of(form), engine::carries_states, with, in, kept, dy, to);
    if (!wrong.empty()) raise(wrong);
  }

  template <class Tuning, class Form, class Mask, class Norm, class T>
  static std::size_t gradient_workspace_bytes(const cpu& backend, const Form& form, const Mask& mask, const Norm& norm,
                                              const inputs<T>& in, const saved<T>& kept, const output_gradients<T>& dy,
                                              const gradients<T>& to) {
    using engine = form::engine_of<Form, form::memory_of<Mask>>;
    using Kernel = kernel_of<Tuning>;
    const views<T> with{form::view_with_pull_back<real_of<T>>(mask), form::view_with_slopes<real_of<T>, weighs_keys<Mask>>(norm)};
    std::size_t bytes = 0;
    const error_message wrong = plan_checked<Kernel>(backend, engine::of(form), engine::carries_states, with, in, kept, dy, to,
                                                     [&](const auto&, const schedule& s) {
                                                       bytes = s.bytes();
                                                       return error_message();
                                                     });
    if (!wrong.empty()) raise(wrong);
    return bytes;
  }

  template <class Tuning, class Form, class T>
  static std::size_t gradient_workspace_bytes(const cpu& backend, const Form& form, const inputs<T>& in,
                                              const tensor_view<const T>& y_like) {
    using engine = form::engine_of<Form, form::memory::gaps>;
    const geometry size = geometry_of(in, y_like);
    if (const error_message wrong = check_options(in, size); !wrong.empty()) raise(wrong);
    return plan_gradient<kernel_of<Tuning>>(backend, engine::of(form), in, size, 0).bytes();
  }
};

}  // namespace BILA_DEVICES
}  // namespace BILA_UNIT
}  // namespace detail

}  // namespace v0_1
}  // namespace bila
