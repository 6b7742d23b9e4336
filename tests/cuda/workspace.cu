// SPDX-License-Identifier: Apache-2.0
// The workspace that a call says it needs is what it takes, and sizes whose bytes no integer holds are refused. Without a device
// every launch is refused, and so the layout alone is walked through, on addresses that nobody touches; where there is a device,
// the guards of the other tests see the same.
#include <bila/cuda.hpp>

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

/// A workspace may start anywhere: `offset` bytes behind an aligned address.
template <class Run>
void compare(const char* what, std::size_t needed, const Run& run) {
  for (const std::uintptr_t offset : {0, 1, 255}) {
    const auto start = (std::uintptr_t{1} << 44) + offset;
    bila::cuda::detail::workspace memory(reinterpret_cast<std::byte*>(start));
    bila::cuda::detail::launcher launch(nullptr);
    run(launch, memory);
    const std::size_t used = reinterpret_cast<std::uintptr_t>(memory.take<char>(0)) - start;
    if (used <= (needed == 0 ? offset == 0 ? 0 : 256 - offset : needed)) continue;  // none: up to the first aligned byte
    std::printf("%s: %zu bytes are asked for and %zu used\n", what, needed, used);
    ++wrong;
  }
}

template <class T, class Form, class Mask>
void check(const char* what, const Form& form, const Mask& mask, const bila::inputs<T>& in, bool states) {
  namespace detail = bila::cuda::detail;
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
  compare(what, bila::workspace_bytes<one_width>(anywhere, form, mask, norm, call, out),
          [&](auto& launch, auto& memory) { detail::run<one_width>(&launch, memory, form, mask, norm, call, out); });
  const bila::saved<T> kept{out.y, out.row_sum};
  const bila::output_gradients<T> dy{nowhere<const T>(B, H, L, Dv)};
  compare(
      what, bila::gradient_workspace_bytes<one_width>(anywhere, form, mask, norm, call, kept, dy, to),
      [&](auto& launch, auto& memory) { detail::run_gradient<one_width>(&launch, memory, form, mask, norm, call, kept, dy, to); });
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

void check_sizes() {
  check_refusal(refusal_of(bila::form::chunkwise{}, 1, 1), "");
  check_refusal(refusal_of(bila::form::chunkwise{}, index_t{1} << 44, 1), "2^40 tokens");
  check_refusal(refusal_of(bila::form::full{}, 1, index_t{1} << 33), "form::full");
  check_refusal(refusal_of(bila::form::automatic{}, 1, index_t{1} << 33), "");
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
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    std::puts("skipped: there is a device, which would be sent to addresses that are none");
    return 77;
  }
  check_all<float>();
  check_all<bila::bf16>();
  check_sizes();
  return wrong == 0 ? 0 : 1;
}
