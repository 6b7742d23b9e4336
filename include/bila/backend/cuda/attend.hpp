// SPDX-License-Identifier: Apache-2.0
// attend on a GPU: the checks, then the kernels of a call.
#pragma once

#include <bila/backend/cuda/plan.hpp>
#include <bila/call/checks.hpp>
#include <bila/form/automatic.hpp>
#include <bila/form/engine.hpp>
#include <bila/form/recurrent.hpp>

namespace bila::inline v0_1 {

namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class T>
index_t longest(const inputs<T>& in, const geometry& size) {
  const segments pieces = segments_of(in, size);
  index_t result = 0;
  for (index_t b = 0; b < (in.lengths.empty() ? 1 : size.B); ++b)
    for (index_t n = 0; n < pieces.count(); ++n) result = (std::max)(result, pieces(b, n).count);
  return result;
}

/// What a form does for these inputs. `has_states`: some state is given or asked for; `of_gaps`: the
/// gaps' too.
template <class Tiles, class Mask, class Form, class T>
working work_of(const Form& form, const inputs<T>& in, const geometry& size, bool has_states, bool of_gaps = false) {
  if (size.Lk != size.L && size.Lk == 0) return {way_of_working::full, 0};  // no keys, no state
  const bool alike = Mask::gaps == gap::none && in.direction == direction::both && in.diagonal == 1 && !has_states && !of_gaps;
  if constexpr (std::is_same_v<Form, form::full>) {
    return {way_of_working::full, 0};
  } else if constexpr (std::is_same_v<Form, form::recurrent>) {
    return alike ? working{way_of_working::one_state, one_state_chunk} : working{way_of_working::recurrent, 0};
  } else if constexpr (std::is_same_v<Form, form::chunkwise>) {
    return alike ? working{way_of_working::one_state, one_state_chunk}
                 : working{way_of_working::chunks, chunk_of(form.size > 0 ? form.size : Tiles::chunk)};
  } else {
    const index_t L = (std::max)(longest(in, size), size.Lk);
    if (!has_states && L < (alike ? Tiles::shortest_one_state : Tiles::shortest_linear)) return {way_of_working::full, 0};
    return alike ? working{way_of_working::one_state, one_state_chunk} : working{way_of_working::chunks, chunk_of(Tiles::chunk)};
  }
}

/// Whether chunks are summed up on their own first: a single one with nothing at its ends needs no sum.
template <class T>
bool sums_chunks(const working& work, const inputs<T>& in, const geometry& size, bool has_states) {
  if (work.way != way_of_working::chunks && work.way != way_of_working::one_state) return false;
  return has_states || (std::max)(longest(in, size), size.Lk) > work.chunk;
}

template <class T>
bool has_states(const inputs<T>& in, const outputs<T>& out) {
  return in.initial_forward.given() || in.initial_backward.given() || out.final_forward.given() || out.final_backward.given();
}

/// Head sizes that there are kernels for, and no more tokens than leave bytes and positions within what their integers hold.
template <class Tiles, class Form>
complaint check_sizes(const geometry& size) {
  const index_t L = (std::max)({size.L, size.Lk, index_t{1}});
  if (static_cast<double>(size.B) * static_cast<double>(size.H) * static_cast<double>(L) > 0x1p40)
    return sentence("y has ", size.B, " x ", size.H, " heads of up to ", L, " tokens, a GPU takes up to 2^40 tokens in all");
  if (std::is_same_v<Form, form::full> && L >= index_t{1} << 30)
    return sentence("form::full is given ", L, " tokens, on a GPU it takes fewer than 2^30");
  const auto check_width = [](const char* name, index_t width) {
    return width >= 1 && width <= Tiles::widest
               ? complaint()
               : sentence(name, " has width ", width, ", it must be in 1..", Tiles::widest, " on a GPU");
  };
  complaint wrong = check_width("q", size.Dk);
  return wrong.empty() ? check_width("v", size.Dv) : wrong;
}

inline complaint check_workspace(const on& backend, std::size_t needed) {
  if (needed == 0 || (backend.workspace.data() != nullptr && backend.workspace.size() >= needed)) return {};
  return sentence("cuda::on.workspace has ", backend.workspace.data() == nullptr ? 0 : backend.workspace.size(),
                  " bytes, this call needs ", needed);
}

/// All that can be wrong with a call, but for the numbers in its tensors, which are the device's.
template <class Tiles, class Form, class Mask, class Norm, class T>
complaint check_call(const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const outputs<T>& out) {
  const bila::detail::state_rules rules{form::engine_of<Form, form::memory_of<Mask>>::carries_states, gapped<Mask>, Norm::uses_row_sum,
                                        in.direction};
  complaint wrong = bila::detail::check_itself(form);
  if (wrong.empty()) wrong = bila::detail::check_itself(norm);
  if (only_states(out)) return "y is missing: on a GPU there is no call for states alone";
  if (wrong.empty()) wrong = validate(in, out);
  if (wrong.empty()) wrong = bila::detail::check_states(in, out, rules);
  const geometry size = geometry_of(in, out.y);
  if (wrong.empty()) wrong = bila::detail::check_mask_shape(mask, in, size);
  if (wrong.empty()) wrong = bila::detail::check_gates_apart(bila::detail::written_to(out), mask);
  if (wrong.empty() && !in.key_lengths.empty()) return "key_lengths is given, but a GPU's cross attention sees every key";
  if (wrong.empty() && size.Lk != size.L && has_states(in, out))
    return sentence("k has length ", size.Lk, " but q has ", size.L, ": on a GPU states need them equal");
  return wrong.empty() ? check_sizes<Tiles, Form>(size) : wrong;
}

/// A norm that uses no row sum neither reads nor writes z.
template <class Norm, class Real>
end_state<Real> end_of(const state<Real>& x) {
  return {x.S, Norm::uses_row_sum ? x.z : tensor_view<Real>{}};
}

/// Lays a call out and, unless it is only asked how much memory that takes, launches it.
template <class Tiles, class Form, class Mask, class Norm, class T>
void run(launcher* launch, workspace& memory, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in,
         const outputs<T>& out) {
  const geometry size = geometry_of(in, out.y);
  if (size.B == 0 || size.H == 0 || (size.L == 0 && !out.final_forward.given() && !out.final_backward.given())) return;
  const working work = work_of<Tiles, Mask>(form, in, size, has_states(in, out));
  const sequence_plan s = plan_sequences(in, size, memory);
  sequence_plan keys = s;
  keys.on_device.L = size.Lk;
  if (launch != nullptr) send_table(*launch, s, segments_of(in, size));

  const operand<T> q = operand_of(in.q, size.H), k = operand_of(in.k, size.H), v = operand_of(in.v, size.H);
  const border_gaps borders{in.initial_forward.log_decay, in.initial_backward.log_decay};
  const bool walks = work.way == way_of_working::chunks;
  const bool weighs = Mask::gaps != gap::none || borders.given() || walks;
  if (work.way == way_of_working::recurrent) {
    const bool both = in.direction == direction::both, sums = Norm::uses_row_sum;
    float* const partial = both ? memory.take<float>(size.B * size.H * size.L * (size.Dv + 1)) : nullptr;
    float* const z[2] = {
        sums && in.initial_forward.z.data != nullptr ? memory.take<float>(s.on_device.count * size.H * size.Dk) : nullptr,
        sums && in.initial_backward.z.data != nullptr ? memory.take<float>(s.on_device.count * size.H * size.Dk) : nullptr};
    const index_t entries = s.entries(size.H);
    double* const decays = weighs ? memory.take<double>(entries) : nullptr;
    if (launch == nullptr) return;
    with_width<Tiles>((std::max)(size.Dk, size.Dv), [&](auto width) {
      for (const bool forward : {false, true}) {
        if (!both && forward != (in.direction == direction::forward)) continue;
        sweep_call<T> call{s.on_device,
                           size.H,
                           q,
                           k,
                           v,
                           decays,
                           end_of<Norm>(forward ? in.initial_forward : in.initial_backward),
                           end_of<Norm>(forward ? out.final_forward : out.final_backward),
                           partial,
                           forward,
                           both && forward,
                           !both || forward,
                           static_cast<float>(in.diagonal),
                           static_cast<float>(in.scale),
                           out.y,
                           sums ? out.row_sum : tensor_view<float>{}};
        if (float* const copy = z[forward ? 0 : 1]; copy != nullptr) {  // the final z may take its place while it is still read
          const index_t n = s.on_device.count * size.H * size.Dk;
          (*launch)("gather_view", gather_view<>, blocks_for(n), threads_of_small, 0, call.initial.z, copy);
          call.initial.z = bhld<const float>(copy, s.on_device.count, size.H, size.Dk, 1);
        }
        const index_t slices = (size.Dv + 31) / 32, tasks = s.on_device.count * size.H * slices;
        if (weighs)
          (*launch)("write_decays", write_decays<Mask>, blocks_for(entries), threads_of_small, 0, s.on_device, size.H, mask,
                    borders, forward, decays, entries);
        (*launch)("sweep", sweep<T, width.value, Norm>, tasks, 288, 0, call, norm, slices, tasks);
      }
    });
  } else {
    product_call<T> call{};
    call.s = s.on_device;
    call.H = size.H;
    call.chunk = work.chunk;
    call.keys = size.Lk == size.L ? -1 : size.Lk;
    call.q = q;
    call.k = k;
    call.v = v;
    call.left = in.direction != direction::backward;
    call.right = in.direction != direction::forward;
    call.diagonal = static_cast<float>(in.diagonal);
    call.out = out.y;
    call.fast_out = has_fast_rows(out.y);
    if (Norm::uses_row_sum) call.row_sum = out.row_sum;
    if (weighs) {
      call.gaps = plan_gaps<T>(s, size.H, memory);
      if (launch != nullptr) launch_gaps(*launch, s, size.H, mask, borders, call.gaps, {});
    }
    const index_t width = (std::max)(size.Dk, size.Dv);
    const bool summed = sums_chunks(work, in, size, has_states(in, out));
    state_table<T> states{};
    if (summed) states = plan_states<T>(keys.units(work.chunk) * size.H, padded_width<Tiles>(width), memory);
    std::byte* behind = nullptr;
    if (walks) {
      const stored_plan stored = plan_stored<Tiles, T, normalised<Norm>>(width);
      behind = memory.take<std::byte>(s.units(stored.panel) * size.H * stored.slices * stored.bytes);
    }
    if (launch == nullptr) return;
    with_width<Tiles>(width, [&](auto padded) {
      constexpr int D = padded.value;
      if (summed) {
        launch_summary<D, Tiles>(*launch, keys,
                                 summary_call<T>{keys.on_device, size.H, work.chunk, k, v, call.gaps, nullptr, states, !walks});
        scan_call<T> scan{keys.on_device, size.H, work.chunk, states, {}, {}, !walks};
        scan.initial[0] = end_of<Norm>(in.initial_forward);
        scan.initial[1] = end_of<Norm>(in.initial_backward);
        scan.final[0] = end_of<Norm>(out.final_forward);
        scan.final[1] = end_of<Norm>(out.final_backward);
        launch_scan<D>(*launch, scan, (std::max)(longest(in, size), size.Lk));
      }
      const normalised<Norm> finish{norm, static_cast<float>(in.scale)};
      if (walks)
        launch_walk<D, Tiles>(*launch, s, walk_call<T>{call, states, false, behind, nullptr, nullptr, nullptr, nullptr}, finish);
      else if (work.way == way_of_working::one_state)
        launch_read<D, Tiles>(*launch, s, read_call<T>{call, states, keys.on_device, work.chunk, false}, finish);
      else
        launch_product<D, Tiles>(*launch, s, call, finish);
    });
  }
  if (in.lengths.empty()) return;
  (*launch)("clear_padding", clear_padding<T>, blocks_for(size.B * size.H * size.L * size.Dv), threads_of_small, 0, s.on_device,
            out.y);
  if (Norm::uses_row_sum && out.row_sum.data != nullptr)
    (*launch)("clear_padding", clear_padding<float>, blocks_for(size.B * size.H * size.L), threads_of_small, 0, s.on_device,
              out.row_sum);
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail

}  // namespace bila::inline v0_1
