// SPDX-License-Identifier: Apache-2.0
// gradient on a GPU. With dN_i, dZ_i what passes the norm, the gradient is three masked products (MATH.md 4.3):
//
//     dq = op([dN, dZ], [v, 1], k; f, b)    dk = op([v, 1], [dN, dZ], q; b, f)    dv = op(k, q, dN; b, f)
//
// of which the last two are mirrors of each other, and had at once where there are registers for both.
#pragma once

#include <bila/backend/cuda/attend.hpp>
#include <bila/backend/cuda/gradient_parts.hpp>
#include <bila/call/gradients.hpp>

namespace bila::inline v0_1 {

namespace cuda::detail {
inline namespace BILA_CUDA_ARCHITECTURES {

template <class Tiles, class Form, class Mask, class Norm, class T>
complaint check_gradient(const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in, const saved<T>& kept,
                         const output_gradients<T>& dy, const gradients<T>& to) {
  const bila::detail::state_rules rules{form::engine_of<Form, form::memory_of<Mask>>::carries_states, gapped<Mask>, Norm::uses_row_sum,
                                        in.direction};
  const geometry size = geometry_of(in, kept.y);
  complaint wrong = bila::detail::check_itself(form);
  if (wrong.empty()) wrong = bila::detail::check_itself(norm);
  if (wrong.empty() && !in.key_lengths.empty()) return "key_lengths is given, but on a GPU cross attention has no gradient";
  if (wrong.empty() && size.L != size.Lk)
    return sentence("k has length ", size.Lk, " but q has ", size.L, ": on a GPU the gradient needs them equal");
  if (wrong.empty()) wrong = bila::detail::check_gradient_tensors(rules, in, kept, dy, to);
  if (wrong.empty()) wrong = bila::detail::check_gradient_mask(mask, in, to, size);
  if (wrong.empty()) wrong = check_sizes<Tiles, Form>(size);
  if (!wrong.empty()) return wrong;
  if (to.log_decay.data != nullptr && !pulls_back_tokens<Mask> && !pulls_back_heads<Mask>)
    return "gradients.log_decay is given, but this mask has no gradient_of() for a kernel: ask for log_forward and log_backward";
  return {};
}

template <class Tiles, class Form, class Mask, class Norm, class T>
void run_gradient(launcher* launch, workspace& memory, const Form& form, const Mask& mask, const Norm& norm, const inputs<T>& in,
                  const saved<T>& kept, const output_gradients<T>& dy, const gradients<T>& to) {
  const geometry size = geometry_of(in, kept.y);
  if (size.B == 0 || size.H == 0) {
    double* const sums[] = {to.scale, to.diagonal};
    for (double* const sum : sums)
      if (launch != nullptr && sum != nullptr)
        (*launch)("add_up", add_up<>, 1, 32, 0, static_cast<const float*>(nullptr), index_t{0}, sum);
    const tensor_view<T> unread[] = {to.q, to.k, to.v};  // where no head of y reads their heads
    for (const tensor_view<T>& x : unread)
      if (launch != nullptr && x.data != nullptr)
        (*launch)("clear_view", clear_view<T>, blocks_for(x.batches() * x.heads() * x.length() * x.features()), threads_of_small, 0,
                  x);
    return;
  }
  const bool has_states = in.initial_forward.given() || in.initial_backward.given() || dy.final_forward.given() ||
                          dy.final_backward.given() || to.initial_forward.given() || to.initial_backward.given();
  const bool of_gaps = to.log_decay.data != nullptr || to.log_forward.data != nullptr || to.log_backward.data != nullptr ||
                       to.initial_forward.log_decay.data != nullptr || to.initial_backward.log_decay.data != nullptr;
  working work = work_of<Tiles, Mask>(form, in, size, has_states, of_gaps);
  if (work.way == way_of_working::recurrent) work = {way_of_working::chunks, chunk_of(Tiles::chunk)};
  const sequence_plan s = plan_sequences(in, size, memory);
  const index_t entries = s.entries(size.H), D = padded_width<Tiles>((std::max)(size.Dk, size.Dv)), W = (size.Dv + 7) / 8 * 8;
  const bool walks = work.way == way_of_working::chunks, summed = sums_chunks(work, in, size, has_states);
  const stored_plan stored =
      walks ? plan_stored<Tiles, T, as_it_is>(D) : stored_plan{(std::max)(longest(in, size), index_t{1}), 1, 0};
  const index_t panels = s.units(stored.panel) * size.H;  // of what gaps are local to

  const tensor_view<T> dN{
      memory.take<T>(size.B * size.H * size.L * W), {size.B, size.H, size.L, size.Dv}, {size.H * size.L * W, size.L * W, W, 1}};
  float* const dZ = memory.take<float>(entries);
  float* const parts = to.scale != nullptr || to.diagonal != nullptr ? memory.take<float>(entries) : nullptr;
  float* const numerators = to.diagonal != nullptr ? memory.take<float>(entries) : nullptr;
  gap_table<exponent<T>> gaps{}, swapped{};
  const border_gaps borders{in.initial_forward.log_decay, in.initial_backward.log_decay};
  const bool weighs = Mask::gaps != gap::none || borders.given() || walks;
  if (weighs) {
    gaps = plan_gaps<T>(s, size.H, memory);
    swapped = plan_gaps<T>(s, size.H, memory);
  }
  state_table<T> states{}, adjoints{};
  if (summed) {
    const index_t chunks = s.units(work.chunk) * size.H;
    states = plan_states<T>(chunks, D, memory);
    adjoints = plan_states<T>(chunks, D, memory);
  }
  // The states that enter panels, of the adjoint too, which is multiplied with them for the gates.
  const bool jumping = walks && of_gaps;
  const index_t stored_bytes = panels * stored.slices * stored.bytes, parts_of_jumps = stored.slices * stored.panel / block;
  std::byte* const behind = walks ? memory.take<std::byte>(stored_bytes) : nullptr;
  std::byte* const before = jumping ? memory.take<std::byte>(stored_bytes) : nullptr;
  std::byte* const adjoints_behind = jumping ? memory.take<std::byte>(stored_bytes) : behind;
  float* const by_q = of_gaps ? memory.take<float>(3 * entries * stored.slices) : nullptr;
  float* const by_k = of_gaps ? memory.take<float>(3 * entries * stored.slices) : nullptr;
  float* const jumps = jumping ? memory.take<float>(2 * panels * parts_of_jumps) : nullptr;
  gap_gradients at_gaps{};
  if (of_gaps)
    at_gaps = {memory.take<float>(entries), memory.take<float>(entries), memory.take<float>(2 * s.on_device.count * size.H)};
  const index_t parts_of_gaps = s.units(gaps_per_part) * size.H;
  double* const gap_sums =
      pulls_back_heads<Mask> && to.log_decay.data != nullptr ? memory.take<double>(2 * parts_of_gaps) : nullptr;
  const auto room = [&](const tensor_view<T>& x) {  // where heads are yet to be added up
    if (x.data == nullptr || x.heads() == size.H) return tensor_view<float>{};
    return bhld(memory.take<float>(size.B * size.H * size.L * x.features()), size.B, size.H, size.L, x.features());
  };
  const tensor_view<float> sum_q = room(to.q), sum_k = room(to.k), sum_v = room(to.v);
  if (launch == nullptr) return;

  send_table(*launch, s, segments_of(in, size));
  const operand<T> q = operand_of(in.q, size.H), k = operand_of(in.k, size.H), v = operand_of(in.v, size.H);
  const operand<T> slopes = operand_of(tensor_view<const T>(dN), size.H);
  const bool forward = in.direction != direction::backward, backward = in.direction != direction::forward;
  const bool biased = Norm::uses_row_sum;

  norm_call<T> through{s.on_device,
                       size.H,
                       kept.y,
                       dy.y,
                       has_fast_rows(kept.y) && has_fast_rows(dy.y) && size.Dv % 8 == 0,
                       kept.row_sum,
                       static_cast<float>(in.scale),
                       dN,
                       dZ,
                       to.scale != nullptr ? parts : nullptr,
                       numerators};
  (*launch)("pass_norm", pass_norm<T, Norm>, blocks_for(entries / tokens_per_group * lanes_per_token), threads_of_small, 0, through,
            norm, entries);
  if (to.scale != nullptr) (*launch)("add_up", add_up<>, 1, 1024, 0, parts, entries, to.scale);
  if (to.diagonal != nullptr) {
    (*launch)("weigh_own", weigh_own<T>, blocks_for(entries * lanes_per_token), threads_of_small, 0, s.on_device, size.H, q, k, v,
              dy.y, numerators, dZ, parts, entries);
    (*launch)("add_up", add_up<>, 1, 1024, 0, parts, entries, to.diagonal);
  }
  if (weighs) launch_gaps(*launch, s, size.H, mask, borders, gaps, swapped);

  with_width<Tiles>(D, [&](auto width) {
    constexpr int D = width.value;
    if (summed) {
      const bool one = !walks;
      launch_summary<D, Tiles>(*launch, s, summary_call<T>{s.on_device, size.H, work.chunk, k, v, gaps, nullptr, states, one});
      launch_summary<D, Tiles>(*launch, s, summary_call<T>{s.on_device, size.H, work.chunk, q, slopes, swapped, dZ, adjoints, one});
      scan_call<T> scan{s.on_device, size.H, work.chunk, states, {}, {}, one};
      scan.initial[0] = end_of<Norm>(in.initial_forward);
      scan.initial[1] = end_of<Norm>(in.initial_backward);
      launch_scan<D>(*launch, scan, longest(in, size));
      scan_call<T> back{s.on_device, size.H, work.chunk, adjoints, {}, {}, one};
      back.initial[0] = end_of<Norm>(dy.final_backward);  // what reads the state at the first token comes in from before it
      back.initial[1] = end_of<Norm>(dy.final_forward);
      back.final[0] = end_of<Norm>(to.initial_backward);
      back.final[1] = end_of<Norm>(to.initial_forward);
      launch_scan<D>(*launch, back, longest(in, size));
    }
    const auto product = [&](const operand<T>& rows, const operand<T>& keys, const operand<T>& values, bool swap) {
      product_call<T> call{};
      call.s = s.on_device;
      call.H = size.H;
      call.chunk = work.chunk;
      call.keys = -1;
      call.q = rows;
      call.k = keys;
      call.v = values;
      call.gaps = swap ? swapped : gaps;
      call.left = swap ? backward : forward;
      call.right = swap ? forward : backward;
      call.diagonal = static_cast<float>(in.diagonal);
      call.entries = entries;
      return call;
    };
    const auto complete = [&](const tensor_view<T>& out, const tensor_view<float>& sum) {
      if (sum.data != nullptr)
        (*launch)("add_heads", add_heads<T>, blocks_for(out.batches() * out.heads() * out.length() * out.features()),
                  threads_of_small, 0, s.on_device, tensor_view<const float>(sum), out, !in.lengths.empty());
      else if (out.data != nullptr && !in.lengths.empty())
        (*launch)("clear_padding", clear_padding<T>, blocks_for(out.batches() * out.heads() * out.length() * out.features()),
                  threads_of_small, 0, s.on_device, out);
    };
    const auto compute = [&](product_call<T> call, const tensor_view<T>& out, const tensor_view<float>& sum, bool swap,
                             bool transposed, const auto& finish) {
      call.out = out;
      call.fast_out = has_fast_rows(out);
      call.sum = sum;
      const state_table<T>& entering = swap ? adjoints : states;
      const bool wanted = call.dots != nullptr;
      if (walks)
        launch_walk<D, Tiles>(*launch, s,
                              walk_call<T>{call, entering, transposed, swap ? adjoints_behind : behind,
                                           wanted && !swap ? before : nullptr, behind, before, wanted && swap ? jumps : nullptr},
                              finish);
      else if (work.way == way_of_working::one_state)
        launch_read<D, Tiles>(*launch, s, read_call<T>{call, entering, s.on_device, work.chunk, transposed}, finish);
      else
        launch_product<D, Tiles>(*launch, s, call, finish);
      complete(out, sum);
    };
    if (to.q.data != nullptr || of_gaps) {
      product_call<T> of_q = product(slopes, v, k, false);
      of_q.biased = biased;
      of_q.row_bias = dZ;
      of_q.partner = q;
      of_q.dots = by_q;
      compute(of_q, to.q, sum_q, false, true, as_it_is{});
    }
    product_call<T> of_k = product(v, slopes, q, true);
    of_k.biased = biased;
    of_k.column_bias = dZ;
    of_k.partner = k;
    of_k.dots = by_k;
    if constexpr (mirrors<T, D, Tiles>) {
      if (to.k.data == nullptr && to.v.data == nullptr && !of_gaps) return;
      compute(of_k, to.k, sum_k, true, true, with_mirror<T>{to.v, has_fast_rows(to.v), sum_v});
      complete(to.v, sum_v);
    } else {
      if (to.k.data != nullptr || of_gaps) compute(of_k, to.k, sum_k, true, true, as_it_is{});
      if (to.v.data != nullptr) compute(product(k, q, slopes, true), to.v, sum_v, true, false, as_it_is{});
    }
  });

  const auto through_border = [&](const state<float>& x, const tensor_view<const float>& log_decay) {
    const tensor_view<float> both[] = {x.S, Norm::uses_row_sum ? x.z : tensor_view<float>{}};
    for (const tensor_view<float>& part : both)
      if (part.data != nullptr && log_decay.data != nullptr)
        (*launch)("decay_state", decay_state<>, blocks_for(part.batches() * part.heads() * part.length() * part.features()),
                  threads_of_small, 0, s.on_device, part, log_decay);
  };
  through_border(to.initial_forward, in.initial_forward.log_decay);
  through_border(to.initial_backward, in.initial_backward.log_decay);
  if (!of_gaps) return;
  (*launch)("spread_gaps", spread_gaps<exponent<T>>, blocks_for(panels * 32), threads_of_small, 0, s.on_device, size.H,
            stored.panel, by_q, by_k, stored.slices, entries, panel_jumps<exponent<T>>{jumps, parts_of_jumps, gaps, swapped},
            forward, backward, at_gaps, panels);
  const tensor_view<float> at_ends[] = {to.initial_forward.log_decay, to.initial_backward.log_decay};
  for (const tensor_view<float>& x : at_ends)  // zero where nothing enters, or a sequence is empty
    if (x.data != nullptr) (*launch)("clear_view", clear_view<float>, blocks_for(x.batches() * x.heads()), threads_of_small, 0, x);
  const auto at_border = [](const state<const float>& enters, const state<float>& x) {
    const end_state<const float> read = end_of<Norm>(enters);
    return read.S.data != nullptr || read.z.data != nullptr ? x.log_decay : tensor_view<float>{};
  };
  (*launch)("write_gap_gradients", write_gap_gradients<Mask>, blocks_for(entries), threads_of_small, 0, s.on_device, size.H, mask,
            at_gaps, borders, to.log_forward, to.log_backward, to.log_decay, at_border(in.initial_forward, to.initial_forward),
            at_border(in.initial_backward, to.initial_backward), entries);
  if constexpr (pulls_back_heads<Mask>)
    if (to.log_decay.data != nullptr) {
      (*launch)("sum_gap_gradients", sum_gap_gradients<Mask>, parts_of_gaps, 256, 0, s.on_device, size.H, mask, at_gaps, gap_sums,
                parts_of_gaps);
      (*launch)("write_head_gradients", write_head_gradients<Mask>, size.H, 256, 0, s.on_device, size.H, mask, gap_sums,
                to.log_decay);
    }
  if (in.lengths.empty()) return;
  const tensor_view<float> per_token[] = {to.log_forward, to.log_backward,
                                          pulls_back_tokens<Mask> ? to.log_decay : tensor_view<float>{}};
  for (const tensor_view<float>& x : per_token)
    if (x.data != nullptr)
      (*launch)("clear_padding", clear_padding<float>, blocks_for(size.B * size.H * size.L), threads_of_small, 0, s.on_device, x);
}

}  // namespace BILA_CUDA_ARCHITECTURES
}  // namespace cuda::detail

}  // namespace bila::inline v0_1
