// SPDX-License-Identifier: Apache-2.0
// The calls of attend.hpp on a GPU.
#pragma once

#include <bila/backend/cuda/attend.hpp>
#include <bila/backend/cuda/gradient.hpp>
#include <bila/call/backend.hpp>

#include <stdexcept>
#include <type_traits>

namespace bila {
inline namespace v0_1 {

namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

/// The members of backend_of<cuda::on>. A base class holds them, because nvcc 13 misreads the pragmas of kernels that members of a
/// specialisation launch.
struct calls {
  template <class Tuning>
  using tiles_of = std::conditional_t<std::is_void_v<Tuning>, cuda::tuned, Tuning>;

  template <class Form, class Mask, class T>
  static consteval bool accepts() {
    static_assert(!std::is_same_v<T, double>, "bila: on a GPU q, k, v and y are float, bila::bf16 or bila::f16");
    static_assert(gapped<Mask>, "bila: on a GPU a mask must offer gaps (see bila/mask/concepts.hpp)");
    return !std::is_same_v<T, double> && gapped<Mask>;
  }

  template <class Tuning, class... Arguments>
  static std::size_t workspace_bytes(const cuda::on&, const Arguments&... arguments) {
    return checked_plan<Tuning>(arguments...).bytes;
  }

  template <class Tuning, class... Arguments>
  static void attend(const cuda::on& backend, const Arguments&... arguments) {
    const auto plan = checked_plan<Tuning>(arguments...);
    launch_checked(backend, plan.bytes, [&](launcher& launch, std::byte* workspace) {
      launch_attend<tiles_of<Tuning>>(launch, plan, workspace, arguments...);
    });
  }

  template <class Tuning, class... Arguments>
  static std::size_t gradient_workspace_bytes(const cuda::on&, const Arguments&... arguments) {
    return checked_gradient_plan<Tuning>(arguments...).bytes;
  }

  template <class Tuning, class... Arguments>
  static void gradient(const cuda::on& backend, const Arguments&... arguments) {
    const auto plan = checked_gradient_plan<Tuning>(arguments...);
    launch_checked(backend, plan.bytes, [&](launcher& launch, std::byte* workspace) {
      launch_gradient<tiles_of<Tuning>>(launch, plan, workspace, arguments...);
    });
  }

 private:
  template <class Tuning, class... Arguments>
  static auto checked_plan(const Arguments&... arguments) {
    if (const error_message wrong = check_call<tiles_of<Tuning>>(arguments...); !wrong.empty()) raise(wrong);
    return plan_attend<tiles_of<Tuning>>(arguments...);
  }

  template <class Tuning, class... Arguments>
  static auto checked_gradient_plan(const Arguments&... arguments) {
    if (const error_message wrong = check_gradient<tiles_of<Tuning>>(arguments...); !wrong.empty()) raise(wrong);
    return plan_gradient<tiles_of<Tuning>>(arguments...);
  }

  template <class Launch>
  static void launch_checked(const cuda::on& backend, std::size_t needed, const Launch& launch_planned) {
    if (const error_message wrong = check_workspace(backend, needed); !wrong.empty()) raise(wrong);
    if (const error_message wrong = check_device(); !wrong.empty()) raise<std::runtime_error>(wrong);
    launcher launch(backend.stream);
    launch_planned(launch, aligned(backend.workspace.data()));
    if (!launch.wrong().empty()) raise<std::runtime_error>(launch.wrong());
  }
};

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail

template <>
struct detail::backend_of<cuda::on> : cuda::detail::calls {};

}  // namespace v0_1
}  // namespace bila
