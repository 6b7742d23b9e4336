// SPDX-License-Identifier: Apache-2.0
// Tiles that nobody would choose, for one type, BILA_TEST_TYPE: what a GPU with less shared memory, or a later table, may bring.
#include "cuda/support/foreign.hpp"

#include <bila/cuda.hpp>

#include <variant>

namespace test::device {

/// One warp, one block of keys at a time, the shortest chunks, thin slices.
struct smallest {
  static constexpr int narrowest = 64, widest = 128;
  static constexpr bila::cuda::attention_tile full_attention(int, int, bila::cuda::result) { return {1, 16, 2, 1}; }
  static constexpr bila::cuda::state_tile chunk_output(int, int) { return {16, 2, 1, 16}; }
  static constexpr bila::cuda::state_tile global_state(int, int) { return {16, 2, 1, 16}; }
  static constexpr bila::cuda::state_tile chunk_states(int, int) { return {16, 2, 1, 16}; }
  static constexpr bila::index_t shortest_linear = 1, shortest_global_state = 1, chunk = 128;
};

/// Nearly all of the shared memory of an sm_90.
struct large {
  static constexpr int narrowest = 128, widest = 256;
  static constexpr bila::cuda::attention_tile full_attention(int bytes, int D, bila::cuda::result) {
    if (bytes == 4) return {2, D <= 128 ? 128 : 64, 1, 1};
    return {4, 128, D == 128 ? 2 : 1, 1};
  }
  static constexpr bila::cuda::state_tile chunk_output(int bytes, int D) {
    if (bytes == 4) return D == 128 ? bila::cuda::state_tile{64, 1, 1, 64} : bila::cuda::state_tile{32, 1, 1, 32};
    return D == 128 ? bila::cuda::state_tile{128, 1, 1, 128} : bila::cuda::state_tile{64, 1, 1, 64};
  }
  static constexpr bila::cuda::state_tile global_state(int bytes, int D) {
    if (bytes == 4) return D == 128 ? bila::cuda::state_tile{64, 1, 1, 64} : bila::cuda::state_tile{32, 1, 1, 32};
    return D == 128 ? bila::cuda::state_tile{128, 1, 1, 128} : bila::cuda::state_tile{64, 3, 1, 64};
  }
  static constexpr bila::cuda::state_tile chunk_states(int bytes, int D) {
    if (bytes == 4) return D == 128 ? bila::cuda::state_tile{128, 1, 1, 64} : bila::cuda::state_tile{64, 1, 1, 32};
    return D == 128 ? bila::cuda::state_tile{128, 2, 1, 128} : bila::cuda::state_tile{128, 1, 1, 64};
  }
  static constexpr bila::index_t shortest_linear = 100000, shortest_global_state = 100000, chunk = 1024;
};

namespace {

constexpr bila::norm::row_sum norm{1e-6};

/// f(form, tiles)
template <class Function>
auto with(tile_choice tiles, const any_form& form, const Function& f) {
  return std::visit([&](const auto& chosen) { return tiles == tile_choice::smallest ? f(chosen, smallest{}) : f(chosen, large{}); },
                    form);
}

}  // namespace

template <class T>
void attend(const on& at, tile_choice tiles, const any_form& form, const gap_mask& mask, const bila::inputs<T>& in,
            const bila::outputs<T>& out) {
  with(tiles, form, [&](const auto& f, auto choice) {
    bila::attend<decltype(choice)>(bila::cuda::on{at.where, at.workspace}, f, mask, norm, in, out);
  });
}

template <class T>
std::size_t workspace_bytes(tile_choice tiles, const any_form& form, const gap_mask& mask, const bila::inputs<T>& in,
                            const bila::outputs<T>& out) {
  return with(tiles, form, [&](const auto& f, auto choice) {
    return bila::workspace_bytes<decltype(choice)>(bila::cuda::on{}, f, mask, norm, in, out);
  });
}

template <class T>
void gradient(const on& at, tile_choice tiles, const any_form& form, const gap_mask& mask, const bila::inputs<T>& in,
              const bila::saved<T>& kept, const bila::output_gradients<T>& dy, const bila::gradients<T>& to) {
  with(tiles, form, [&](const auto& f, auto choice) {
    bila::gradient<decltype(choice)>(bila::cuda::on{at.where, at.workspace}, f, mask, norm, in, kept, dy, to);
  });
}

template <class T>
std::size_t gradient_workspace_bytes(tile_choice tiles, const any_form& form, const gap_mask& mask, const bila::inputs<T>& in,
                                     const bila::saved<T>& kept, const bila::output_gradients<T>& dy,
                                     const bila::gradients<T>& to) {
  return with(tiles, form, [&](const auto& f, auto choice) {
    return bila::gradient_workspace_bytes<decltype(choice)>(bila::cuda::on{}, f, mask, norm, in, kept, dy, to);
  });
}

using T = BILA_TEST_TYPE;
template void attend(const on&, tile_choice, const any_form&, const gap_mask&, const bila::inputs<T>&, const bila::outputs<T>&);
template std::size_t workspace_bytes(tile_choice, const any_form&, const gap_mask&, const bila::inputs<T>&,
                                     const bila::outputs<T>&);
template void gradient(const on&, tile_choice, const any_form&, const gap_mask&, const bila::inputs<T>&, const bila::saved<T>&,
                       const bila::output_gradients<T>&, const bila::gradients<T>&);
template std::size_t gradient_workspace_bytes(tile_choice, const any_form&, const gap_mask&, const bila::inputs<T>&,
                                              const bila::saved<T>&, const bila::output_gradients<T>&, const bila::gradients<T>&);

}  // namespace test::device
