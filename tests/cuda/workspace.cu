// SPDX-License-Identifier: Apache-2.0
// The workspace that a call says it needs is what it takes. Without a device every launch is refused, and so the layout alone is
// walked through, on addresses that nobody touches; where there is a device, the guards of the other tests see the same.
#include <bila/cuda.hpp>

#include <cstdint>
#include <cstdio>
#include <limits>
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
  return wrong == 0 ? 0 : 1;
}
