// SPDX-License-Identifier: Apache-2.0
// The calls of the library, for every backend: attend, gradient, and the bytes of workspace that they need. bila.hpp includes the
// CPU backend, cuda.hpp the GPU backend.
#pragma once

#include <bila/call/backend.hpp>
#include <bila/call/gradients.hpp>
#include <bila/call/inputs.hpp>
#include <bila/config.hpp>
#include <bila/form/engine.hpp>
#include <bila/mask/concepts.hpp>
#include <bila/norm/concepts.hpp>
#include <bila/view/storage.hpp>
#include <bila/view/tensor_view.hpp>

#include <concepts>
#include <cstddef>

namespace bila {
inline namespace v0_1 {

struct cpu;

namespace detail {
inline namespace BILA_UNIT {
inline namespace BILA_DEVICES {

/// Whether the types of a call's arguments are valid. A wrong argument fails exactly one static_assert.
template <class Backend, class Form, class Mask, class Norm, class T>
consteval bool compiles() {
  if constexpr (!backend<Backend>) {
    static_assert(backend<Backend>,
                  "bila: the first argument is no backend: give a bila::cpu, or include bila/cuda.hpp for bila::cuda::on");
  } else if constexpr (!form::any<Form>) {
    static_assert(form::any<Form>,
                  "bila: this type is no form: give form::full, form::recurrent, form::chunkwise or form::automatic");
  } else if constexpr (!any_mask<Mask>) {
    static_assert(any_mask<Mask>, "bila: this type is no mask, it offers neither weight() nor gaps (see bila/mask/concepts.hpp)");
  } else if constexpr (banded<Mask> && form::memory_of<Mask> != form::memory::pairs) {
    static_assert(form::memory_of<Mask> == form::memory::pairs,
                  "bila: this mask offers gaps and a reach, but only weights of pairs are cut off by a reach");
  } else if constexpr (!form::has_engine<Form, form::memory_of<Mask>> && form::memory_of<Mask> != form::memory::pairs) {
    static_assert(form::has_engine<Form, form::memory_of<Mask>>,
                  "bila: this form does not compute this mask or rule: the README's table of models says which forms do, and which "
                  "models a GPU takes");
  } else if constexpr (!form::has_engine<Form, form::memory_of<Mask>>) {
    static_assert(form::has_engine<Form, form::memory_of<Mask>>,
                  "bila: this mask offers weights of pairs but no gaps, so only form::full and form::automatic accept it");
  } else if constexpr (!normaliser<Norm>) {
    static_assert(normaliser<Norm>, "bila: this type is no norm (see bila/norm/concepts.hpp)");
  } else if constexpr (form::memory_of<Mask> == form::memory::weighed_gaps && !relative_normaliser<Norm>) {
    static_assert(relative_normaliser<Norm>,
                  "bila: this mask weighs keys, so the norm needs norm(Z, scale, unit) (see bila/norm/concepts.hpp)");
  } else if constexpr (!storage<T>) {
    static_assert(storage<T>, "bila: q, k, v and y are float, double, bila::bf16 or bila::f16");
  } else {
    return backend_of<Backend>::template accepts<Form, Mask, T>();
  }
  return false;
}

template <class Mask, class Norm>
consteval bool has_slope() {
  if constexpr (form::memory_of<Mask> == form::memory::weighed_gaps && differentiable_normaliser<Norm>) {
    static_assert(
        differentiable_relative_normaliser<Norm>,
        "bila::gradient: this mask weighs keys, so the norm needs slope(Z, scale, dy_y, unit) (see bila/norm/concepts.hpp)");
    return differentiable_relative_normaliser<Norm>;
  }
  static_assert(differentiable_normaliser<Norm>, "bila::gradient: this norm has no slope() (see bila/norm/concepts.hpp)");
  return differentiable_normaliser<Norm>;
}

template <class Form, class Mask>
consteval bool has_gradient() {
  constexpr bool has = form::has_gradient<Form, form::memory_of<Mask>>;
  static_assert(has, "bila::gradient: this form computes no gradient for this mask or rule");
  return has;
}

template <class T, class Out>
consteval bool is_output() {
  static_assert(std::same_as<Out, tensor_view<T>>, "bila: y is a tensor_view of what q is stored in, or bila::outputs");
  return std::same_as<Out, tensor_view<T>>;
}

}  // namespace BILA_DEVICES
}  // namespace BILA_UNIT
}  // namespace detail

inline namespace BILA_UNIT {
inline namespace BILA_DEVICES {

/// Bidirectional linear attention: y = norm((q k^T) o M) v, computed in the given form.
///
///     [N_i, Z_i] = sum_j (q_i . k_j) M_ij [v_j, 1],   y_i = s N_i / n(s Z_i),   s = scale
///
///     bila::attend(bila::cpu{.threads = 0}, bila::form::automatic{}, mask, bila::norm::row_sum{1e-6}, in, y);
///
/// Shapes: see `inputs` and `outputs`. All forms give the same numbers up to rounding. 16-bit tensors are computed in float and
/// rounded once. Inputs are not changed, and y must not overlap them. Nothing is allocated once the workspace has grown to the
/// largest call. Without a backend, the call runs on one thread of the CPU. `Tuning` selects another kernel layer on a CPU
/// (kernel::reference) or other tiles on a GPU (cuda::tuned); void selects the backend's own.
///
/// Determinism: a form gives the same bits for every number of threads, place in the batch, memory layout and repetition.
///
/// On a GPU (`cuda::on`) the call is put on a stream, with these differences. T is float, bila::bf16 or bila::f16, and head sizes
/// are at most 256. All tensors, gates and states lie in device memory. offsets and lengths lie in host memory, and are copied
/// before the call returns. Values of gates are not checked; a log decay above 0 counts as 0. A mask is any trivially copyable type
/// whose log_forward and log_backward a device may call. In f16 every weighted score and every number of an initial state must fit
/// f16. Each chunk is processed by thread blocks of its own. Chunk sizes are rounded up to multiples of 128 tokens, 2048 at most;
/// `automatic` and `chunkwise{}` take 2048. For 16-bit tensors each weighted score is rounded to T, row sums add the rounded
/// scores, and products are summed in float. For float tensors each product is three tf32 products. The call allocates nothing and
/// waits for nothing, and a CUDA graph may capture the call.
///
/// Throws std::invalid_argument, which names the argument, the place and the value, before anything is written; on a GPU also
/// std::runtime_error with CUDA's message. Source: LION (arXiv 2502.16249).
template <class Tuning = void, class Backend = cpu, class Form, class Mask, class Norm, class T>
void attend(const Backend& backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in,
            const outputs<T>& out) {
  if constexpr (detail::compiles<Backend, Form, Mask, Norm, T>())
    detail::backend_of<Backend>::template attend<Tuning>(backend, form, mask, norm, in, out);
}

/// Runs attend and writes only y.
template <class Tuning = void, class Backend = cpu, class Form, class Mask, class Norm, class T, class Out>
void attend(const Backend& backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const Out& y) {
  if constexpr (detail::is_output<T, Out>()) bila::attend<Tuning>(backend, form, mask, norm, in, outputs<T>{y});
}

/// Runs attend on one thread of the CPU.
template <class Tuning = void, class Form, class Mask, class Norm, class T, class Out, class Backend = cpu>
void attend(const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const Out& out) {
  static_assert(detail::backend<Backend>, "bila: a call without a backend runs on a CPU: include bila/bila.hpp");
  if constexpr (detail::backend<Backend>) bila::attend<Tuning>(Backend{}, form, mask, norm, in, out);
}

/// The bytes of the backend's `workspace` that `attend` needs with these arguments. Throws what attend would throw.
template <class Tuning = void, class Backend = cpu, class Form, class Mask, class Norm, class T>
std::size_t workspace_bytes(const Backend& backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in,
                            const outputs<T>& out) {
  if constexpr (detail::compiles<Backend, Form, Mask, Norm, T>())
    return detail::backend_of<Backend>::template workspace_bytes<Tuning>(backend, form, mask, norm, in, out);
  else
    return 0;
}

template <class Tuning = void, class Backend = cpu, class Form, class Mask, class Norm, class T, class Out>
std::size_t workspace_bytes(const Backend& backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in,
                            const Out& y) {
  if constexpr (detail::is_output<T, Out>())
    return bila::workspace_bytes<Tuning>(backend, form, mask, norm, in, outputs<T>{y});
  else
    return 0;
}

/// Computes the gradient of a loss with respect to everything that `attend` read. `dy` holds the gradients of the loss with respect
/// to y and to the final states.
///
/// The gradient is the forward operator with its arguments permuted, at the cost of the given form. The gradient of the norm needs
/// `kept`, the y and the row sum of the forward call, which may have used another form. Every wanted gradient is overwritten. The
/// gradients of padding and of a log decay of -inf are exactly zero.
///
/// Determinism: the gradient has the same bits for every number of threads. On a GPU no atomics are used.
///
/// On a GPU gradients.scale and gradients.diagonal lie in device memory, and the recurrent form uses the chunkwise gradient. In
/// f16, scale the loss so that dy / n(Z), which is stored in f16, stays above 6e-5.
///
/// Throws what attend throws. Source: the transposed masked form of LION (arXiv 2502.16249); gradients of gates as in Mamba-2
/// (arXiv 2405.21060), but by sums that end with the chunk.
template <class Tuning = void, class Backend = cpu, class Form, class Mask, class Norm, class T>
void gradient(const Backend& backend, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in,
              const saved<T>& kept, const output_gradients<T>& dy, const gradients<T>& to) {
  if constexpr (detail::compiles<Backend, Form, Mask, Norm, T>())
    if constexpr (detail::has_gradient<Form, Mask>() && detail::has_slope<Mask, Norm>())
      detail::backend_of<Backend>::template gradient<Tuning>(backend, form, mask, norm, in, kept, dy, to);
}

/// Runs gradient on one thread of the CPU.
template <class Tuning = void, class Form, class Mask, class Norm, class T, class Backend = cpu>
void gradient(const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const saved<T>& kept,
              const output_gradients<T>& dy, const gradients<T>& to) {
  static_assert(detail::backend<Backend>, "bila: a call without a backend runs on a CPU: include bila/bila.hpp");
  if constexpr (detail::backend<Backend>) bila::gradient<Tuning>(Backend{}, form, mask, norm, in, kept, dy, to);
}

/// The bytes of the backend's `workspace` that `gradient` needs with these arguments. Throws what gradient would throw.
template <class Tuning = void, class Backend = cpu, class Form, class Mask, class Norm, class T>
std::size_t gradient_workspace_bytes(const Backend& backend, const Form& form, const Mask& mask, const Norm& norm,
                                     const inputs<T>& in, const saved<T>& kept, const output_gradients<T>& dy,
                                     const gradients<T>& to) {
  if constexpr (detail::compiles<Backend, Form, Mask, Norm, T>())
    if constexpr (detail::has_gradient<Form, Mask>() && detail::has_slope<Mask, Norm>())
      return detail::backend_of<Backend>::template gradient_workspace_bytes<Tuning>(backend, form, mask, norm, in, kept, dy, to);
  return 0;
}

/// For a CPU: bytes that are enough for any choice of wanted gradients. The bytes depend on the backend, the form, and the inputs'
/// shapes, segments and storage of states. y_like has the shape of y.
template <class Tuning = void, class Backend = cpu, class Form, class T>
std::size_t gradient_workspace_bytes(const Backend& backend, const Form& form, const inputs<T>& in,
                                     const tensor_view<const T>& y_like) {
  constexpr bool on_cpu = std::same_as<Backend, cpu> && form::any<Form> && storage<T>;
  static_assert(on_cpu,
                "bila: gradient_workspace_bytes needs all arguments of gradient, but for a bila::cpu, a form and its inputs");
  if constexpr (on_cpu)
    return detail::backend_of<Backend>::template gradient_workspace_bytes<Tuning>(backend, form, in, y_like);
  else
    return 0;
}

}  // namespace BILA_DEVICES
}  // namespace BILA_UNIT

}  // namespace v0_1
}  // namespace bila
