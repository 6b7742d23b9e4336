// SPDX-License-Identifier: Apache-2.0
// What calls plan to do, without a device: the algorithm, the grids, the arrays in the workspace. Arrays are aligned, lie apart
// from each other and within the bytes that are asked for; sizes whose bytes no integer holds are refused.
#include <bila/cuda.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using bila::index_t;

struct one_width : bila::cuda::tuned {
  static constexpr int narrowest = 64, widest = 64;
};

int wrong = 0;
std::uintptr_t next_address = std::uintptr_t{1} << 32;

template <class T>
bila::tensor_view<T> nowhere(index_t B, index_t H, index_t L, index_t D) {
  return bila::bhld(reinterpret_cast<T*>(next_address += std::uintptr_t{1} << 28), B, H, L, D);
}

namespace detail = bila::cuda::detail;

struct range {
  std::size_t first, end;
};

template <class... X>
void list(std::vector<range>& to, const detail::region<X>&... regions) {
  const auto add = [&](const auto& x) {
    if (x.used) to.push_back({x.offset, x.offset + x.bytes});
  };
  (add(regions), ...);
}

template <class T>
void list(std::vector<range>& to, const detail::gap_plan<T>& x) {
  list(to, x.weights, x.sums, x.block_sums);
}

template <class T>
void list(std::vector<range>& to, const detail::state_plan<T>& x) {
  list(to, x.S, x.z, x.unit, x.weight, x.total);
}

void check_ranges(const char* what, std::vector<range> x, std::size_t bytes) {
  std::sort(x.begin(), x.end(),
            [](const range& a, const range& b) { return a.first < b.first || (a.first == b.first && a.end < b.end); });
  std::size_t end = 0;
  bool good = true;
  for (const range& array : x) {
    good = good && array.first % 256 == 0 && array.first >= end;
    end = array.end;
  }
  good = good && (end == 0 || end + 256 <= bytes);  // a workspace may start up to 255 bytes before an aligned address
  if (good) return;
  std::printf("%s: arrays overlap, are not aligned, or pass the end of the %zu bytes\n", what, bytes);
  ++wrong;
}

template <class T>
std::vector<range> arrays_of(const detail::attend_plan<T>& plan) {
  std::vector<range> x;
  list(x, plan.rows.table, plan.partial_rows, plan.initial_z[0], plan.initial_z[1], plan.decays, plan.right_states, plan.result);
  list(x, plan.gaps);
  list(x, plan.states);
  return x;
}

template <class T>
std::vector<range> arrays_of(const detail::gradient_plan<T>& plan) {
  std::vector<range> x;
  list(x, plan.rows.table, plan.dN, plan.dZ, plan.parts, plan.numerators, plan.right_states, plan.left_states,
       plan.adjoint_right_states, plan.dots_q, plan.dots_k, plan.cross_tile_terms, plan.gaps_forward, plan.gaps_backward,
       plan.gaps_borders, plan.gap_sums, plan.heads_q, plan.heads_k, plan.heads_v);
  list(x, plan.gaps);
  list(x, plan.swapped);
  list(x, plan.states);
  list(x, plan.adjoints);
  return x;
}

template <class T, class Form, class Mask>
void check(const char* what, const Form& form, const Mask& mask, const bila::inputs<T>& in, bool states) {
  const bila::norm::row_sum norm{1e-6};
  const bila::cuda::on anywhere{};
  const index_t B = in.q.batches(), H = 4, L = in.q.length(), Dk = in.q.features(), Dv = in.v.features();
  bila::inputs<T> call = in;
  bila::outputs<T> out{nowhere<T>(B, H, L, Dv), nowhere<float>(B, H, L, 1)};
  bila::gradients<T> to;
  to.q = nowhere<T>(B, in.q.heads(), L, Dk);
  to.k = nowhere<T>(B, in.k.heads(), L, Dk);
  to.v = nowhere<T>(B, in.v.heads(), L, Dv);
  to.log_forward = nowhere<float>(B, H, L, 1);
  const index_t n = in.offsets.empty() ? B : static_cast<index_t>(in.offsets.size()) - 1;
  if (states) {
    call.initial_forward = {nowhere<float>(n, H, Dk, Dv), nowhere<float>(n, H, Dk, 1), nowhere<float>(n, H, 1, 1)};
    out.final_backward = {nowhere<float>(n, H, Dk, Dv), nowhere<float>(n, H, Dk, 1)};
  }
  const std::size_t bytes = bila::workspace_bytes<one_width>(anywhere, form, mask, norm, call, out);
  check_ranges(what, arrays_of(detail::plan_attend<one_width>(form, mask, norm, call, out)), bytes);
  const bila::saved<T> kept{out.y, out.row_sum};
  const bila::output_gradients<T> dy{nowhere<const T>(B, H, L, Dv)};
  const std::size_t of_gradient = bila::gradient_workspace_bytes<one_width>(anywhere, form, mask, norm, call, kept, dy, to);
  check_ranges(what, arrays_of(detail::plan_gradient<one_width>(form, mask, norm, call, kept, dy, to)), of_gradient);
}

void expect(const char* what, long long found, long long wanted) {
  if (found == wanted) return;
  std::printf("%s is %lld, not %lld\n", what, found, wanted);
  ++wrong;
}

/// What a call with one query and key, of 256 features, for so many heads is refused with.
template <class Form>
std::string refusal_of(const Form& form, index_t heads, index_t keys) {
  const auto broadcast = [&](index_t L, index_t D) {
    return bila::tensor_view<const bila::bf16>{nowhere<const bila::bf16>(1, 1, 1, 1).data, {1, 1, L, D}, {0, 0, 0, 0}};
  };
  const bila::inputs<bila::bf16> in{broadcast(1, 256), broadcast(keys, 256), broadcast(keys, 1)};
  const auto y = nowhere<bila::bf16>(1, heads, 1, 1);
  try {
    bila::workspace_bytes(bila::cuda::on{}, form, bila::mask::all_ones{}, bila::norm::none{}, in, y);
  } catch (const std::invalid_argument& refused) {
    return refused.what();
  }
  return {};
}

void check_refusal(const std::string& found, const char* wanted) {
  if (found.empty() == (*wanted == 0) && found.find(wanted) != found.npos) return;
  std::printf("\"%s\" is refused with \"%s\"\n", wanted, found.c_str());
  ++wrong;
}

/// 2 sequences of 4 heads, head size 64, in bf16, with tiles as they are tuned.
struct example {
  using T = bila::bf16;
  static constexpr index_t B = 2, H = 4, D = 64;
  index_t L;
  bila::mask::selective_decay<float> selective{bila::bhl(nowhere<const float>(B, H, 1 << 14, 1).data, B, H, L), bila::gate::later};
  bila::mask::all_ones ones{};
  bila::norm::row_sum norm{1e-6};
  bila::inputs<T> in{nowhere<const T>(B, H, L, D), nowhere<const T>(B, H, L, D), nowhere<const T>(B, H, L, D)};
  bila::outputs<T> out{nowhere<T>(B, H, L, D), nowhere<float>(B, H, L, 1)};

  template <class Form, class Mask>
  detail::attend_plan<T> plan(const Form& form, const Mask& mask) const {
    return detail::plan_attend<bila::cuda::tuned>(form, mask, norm, in, out);
  }
  template <class Form, class Mask>
  detail::gradient_plan<T> gradient(const Form& form, const Mask& mask, bool gates) const {
    bila::gradients<T> to;
    to.q = nowhere<T>(B, H, L, D);
    if (gates) to.log_forward = nowhere<float>(B, H, L, 1);
    return detail::plan_gradient<bila::cuda::tuned>(form, mask, norm, in, bila::saved<T>{out.y, out.row_sum},
                                                    bila::output_gradients<T>{out.y}, to);
  }
};

template <class Change>
std::string refusal_after(const Change& change) {
  example call{64};
  call.out.row_sum = {};
  change(call);
  try {
    bila::workspace_bytes(bila::cuda::on{}, bila::form::chunkwise{}, call.ones, bila::norm::none{}, call.in, call.out);
  } catch (const std::invalid_argument& refused) {
    return refused.what();
  }
  return {};
}

/// What a GPU takes as a CPU does, and what it does not.
void check_refusals() {
  check_refusal(refusal_after([](example&) {}), "");
  check_refusal(refusal_after([](example& call) { call.out.add = true; }), "");
  const bila::state<bila::bf16> narrow{nowhere<bila::bf16>(example::B, example::H, example::D, example::D), {}};
  check_refusal(refusal_after([&](example& call) { call.in.initial_forward = narrow; }), "initial_forward is stored in 16 bits");
  check_refusal(refusal_after([&](example& call) { call.out.final_backward = narrow; }), "final_backward is stored in 16 bits");
}

void check_sizes() {
  check_refusal(refusal_of(bila::form::chunkwise{}, 1, 1), "");
  check_refusal(refusal_of(bila::form::chunkwise{}, index_t{1} << 44, 1), "2^40 tokens");
  check_refusal(refusal_of(bila::form::full{}, 1, index_t{1} << 33), "form::full");
  check_refusal(refusal_of(bila::form::automatic{}, 1, index_t{1} << 33), "");
}

void check_choices() {
  using detail::algorithm;
  const auto same = [](const char* what, algorithm found, algorithm wanted) {
    expect(what, static_cast<int>(found), static_cast<int>(wanted));
  };
  const bila::form::automatic automatic;
  const example shorter{197}, longer{8192};
  same("automatic, 197 tokens", shorter.plan(automatic, shorter.selective).chosen.algorithm, algorithm::full);
  same("automatic, 8192 tokens", longer.plan(automatic, longer.selective).chosen.algorithm, algorithm::chunkwise);
  same("automatic, all ones", shorter.plan(automatic, shorter.ones).chosen.algorithm, algorithm::global_state);
  same("chunkwise, all ones", shorter.plan(bila::form::chunkwise{}, shorter.ones).chosen.algorithm, algorithm::global_state);
  same("full, all ones", longer.plan(bila::form::full{}, longer.ones).chosen.algorithm, algorithm::full);
  same("recurrent", longer.plan(bila::form::recurrent{}, longer.selective).chosen.algorithm, algorithm::recurrent);
  same("gradient of recurrent", longer.gradient(bila::form::recurrent{}, longer.selective, true).chosen.algorithm,
       algorithm::chunkwise);
  same("gradient of all ones", longer.gradient(automatic, longer.ones, false).chosen.algorithm, algorithm::global_state);
  same("gradient of all ones by gaps", longer.gradient(automatic, longer.ones, true).chosen.algorithm, algorithm::chunkwise);
  expect("chunk", longer.plan(bila::form::chunkwise{.size = 300}, longer.selective).chosen.chunk, 384);
  expect("largest chunk", longer.plan(bila::form::chunkwise{.size = 5000}, longer.selective).chosen.chunk, 2048);
}

void check_grids() {
  const example shorter{197}, longer{8192};
  const auto full = shorter.plan(bila::form::full{}, shorter.selective);
  expect("full: blocks", full.output.blocks, 8 * 2);  // of 128 rows
  expect("full: threads", full.output.threads, 256);
  expect("full: gap weights", full.gap_weights.blocks, 8 * 13 / 16 + 1);
  expect("full: chunk states", full.chunk_states.blocks, 0);
  const auto chunks = longer.plan(bila::form::chunkwise{.size = 1024}, longer.selective);
  expect("chunkwise: blocks", chunks.output.blocks, 8 * 8);
  expect("chunkwise: chunk states", chunks.chunk_states.blocks, 8 * 8);
  expect("chunkwise: scan", chunks.scan_states.blocks, 8 * 2 * (64 * 64 + 64) / 8 / 128);
  expect("one chunk: chunk states", shorter.plan(bila::form::chunkwise{}, shorter.selective).chunk_states.blocks, 0);
  const auto global = longer.plan(bila::form::automatic{}, longer.ones);
  expect("global state: blocks", global.output.blocks, 8 * 16);  // of 512 rows
  expect("global state: chunk states", global.chunk_states.blocks, 8 * 16);
  expect("global state: gap weights", global.gap_weights.blocks, 0);
  const auto recurrent = longer.plan(bila::form::recurrent{}, longer.selective);
  expect("recurrent: blocks", recurrent.output.blocks, 8 * 2);  // of 32 columns
  expect("recurrent: threads", recurrent.output.threads, 288);
  const auto gradient = longer.gradient(bila::form::automatic{}, longer.selective, true);
  expect("gradient: blocks", gradient.output.blocks, 8 * 4);
  expect("gradient: dual blocks", gradient.dual_output.blocks, 8 * 4);
  expect("gradient: gates", gradient.gate_gradient_scan.blocks, 8 * 128 * 32 / 256);
}

void check_bytes() {
  const example shorter{197}, longer{8192};
  expect("all ones, short: bytes", static_cast<long long>(shorter.plan(bila::form::automatic{}, shorter.ones).bytes), 0);
  const long long entries = 8 * 208, blocks = entries / 16;
  expect("full: bytes", static_cast<long long>(shorter.plan(bila::form::full{}, shorter.selective).bytes),
         4 * 4 * entries + 8 * entries + (8 * blocks + 255) / 256 * 256 + 256);
  const long long rows = 8 * 8192;
  expect("recurrent: bytes", static_cast<long long>(longer.plan(bila::form::recurrent{}, longer.selective).bytes),
         rows * 65 * 4 + rows * 8 + 256);
}

template <class T>
void check_all() {
  for (const index_t L : {1, 17, 331, 2000}) {
    const std::vector<index_t> lengths{L, 0, L / 2, 1}, offsets{0, 0, L / 3, L / 3, L / 2, L};
    for (const char* what : {"dense", "ragged", "packed"}) {
      bila::inputs<T> in{nowhere<const T>(*what == 'p' ? 1 : 4, 4, L, 40), nowhere<const T>(*what == 'p' ? 1 : 4, 2, L, 40),
                         nowhere<const T>(*what == 'p' ? 1 : 4, 1, L, 33)};
      if (*what == 'r') in.lengths = lengths;
      if (*what == 'p') in.offsets = offsets;
      const bila::mask::fixed_decay<float> fixed{bila::vec<const float>(nowhere<const float>(1, 4, 1, 1).data, 4)};
      check(what, bila::form::full{}, fixed, in, false);
      for (const bool states : {false, true}) {
        for (const index_t size : {index_t{24}, index_t{300}, index_t{500}, index_t{5000}, std::numeric_limits<index_t>::max()})
          check(what, bila::form::chunkwise{.size = size}, fixed, in, states);
        check(what, bila::form::automatic{}, fixed, in, states);
        check(what, bila::form::recurrent{}, fixed, in, states);
        check(what, bila::form::chunkwise{}, bila::mask::all_ones{}, in, states);
        check(what, bila::form::chunkwise{}, fixed, in, states);
      }
    }
  }
}

}  // namespace

int main() {
  check_all<float>();
  check_all<bila::bf16>();
  check_sizes();
  check_refusals();
  check_choices();
  check_grids();
  check_bytes();
  return wrong == 0 ? 0 : 1;
}
