// SPDX-License-Identifier: Apache-2.0
// The same misuses of a call on a GPU, and what a GPU does not take: each one plain sentence.
#include <bila/cuda.hpp>

namespace {

using bila::form::full, bila::form::recurrent;
using bila::mask::all_ones;
using bila::norm::none;

struct window {
  double weight(bila::index_t, bila::index_t, bila::index_t i, bila::index_t j) const { return i == j ? 1 : 0; }
};

[[maybe_unused]] void misuse(const bila::inputs<float>& in, bila::tensor_view<float> y, const bila::cuda::on& gpu) {
#if BILA_CASE == 1
  // expect: bila: this type is no form: give form::full, form::recurrent, form::chunkwise or form::automatic
  bila::attend(gpu, none{}, all_ones{}, none{}, in, y);
#elif BILA_CASE == 2
  // expect: bila: this type is no form: give form::full, form::recurrent, form::chunkwise or form::automatic
  bila::attend(gpu, 42, all_ones{}, none{}, in, y);
#elif BILA_CASE == 3
  // expect: bila: this type is no mask, it offers neither weight() nor gaps (see bila/mask/concepts.hpp)
  bila::attend(gpu, full{}, none{}, all_ones{}, in, y);
#elif BILA_CASE == 4
  // expect: bila: on a GPU a mask must offer gaps (see bila/mask/concepts.hpp)
  bila::attend(gpu, full{}, window{}, none{}, in, y);
#elif BILA_CASE == 5
  // expect: bila: this mask offers weights of pairs but no gaps, so only form::full and form::automatic accept it
  bila::attend(gpu, recurrent{}, window{}, none{}, in, y);
#elif BILA_CASE == 6
  // expect: bila: y is a tensor_view of what q is stored in, or bila::outputs
  bila::attend(gpu, full{}, all_ones{}, none{}, in, bila::tensor_view<double>{});
#elif BILA_CASE == 7
  // expect: bila: on a GPU q, k, v and y are float, bila::bf16 or bila::f16
  bila::attend(gpu, full{}, all_ones{}, none{}, bila::inputs<double>{}, bila::tensor_view<double>{});
#elif BILA_CASE == 8
  // expect: bila: q, k, v and y are float, double, bila::bf16 or bila::f16
  bila::attend(gpu, full{}, all_ones{}, none{}, bila::inputs<int>{}, bila::tensor_view<int>{});
#elif BILA_CASE == 9
  // expect: bila: this type is no form: give form::full, form::recurrent, form::chunkwise or form::automatic
  bila::gradient(gpu, all_ones{}, all_ones{}, none{}, in, {}, {}, {});
#endif
}

}  // namespace
