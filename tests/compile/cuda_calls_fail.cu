// SPDX-License-Identifier: Apache-2.0
// The same misuses of a call on a GPU, and what a GPU does not take: each one plain sentence.
#include <bila/cuda.hpp>
#include <bila/mask/channel_decay.hpp>
#include <bila/mask/log_linear.hpp>
#include <bila/mask/weighed_keys.hpp>
#include <bila/rule/delta.hpp>

namespace {

using bila::form::full, bila::form::recurrent;
using bila::mask::all_ones;
using bila::norm::none;

struct window {
  double weight(bila::index_t, bila::index_t, bila::index_t i, bila::index_t j) const { return i == j ? 1 : 0; }
};

[[maybe_unused]] void misuse(const bila::inputs<float>& in, bila::tensor_view<float> y, const bila::cuda::on& gpu) {
  [[maybe_unused]] const bila::tensor_view<const float> numbers;
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
#elif BILA_CASE == 10
  // expect: bila: this form does not compute this mask or rule: the README's table of models says which forms do, and which models a GPU takes
  bila::attend(gpu, full{}, bila::mask::channel_decay{numbers, bila::gate::target}, none{}, in, y);
#elif BILA_CASE == 11
  // expect: bila: this form does not compute this mask or rule: the README's table of models says which forms do, and which models a GPU takes
  bila::attend(gpu, recurrent{}, bila::rule::delta{all_ones{}, numbers}, none{}, in, y);
#elif BILA_CASE == 12
  // expect: bila: this form does not compute this mask or rule: the README's table of models says which forms do, and which models a GPU takes
  bila::attend(gpu, full{}, bila::mask::weighed_keys{all_ones{}, numbers}, none{}, in, y);
#elif BILA_CASE == 13
  // expect: bila: this form does not compute this mask or rule: the README's table of models says which forms do, and which models a GPU takes
  bila::attend(gpu, full{}, bila::mask::log_linear{all_ones{}, numbers, numbers}, none{}, in, y);
#endif
}

}  // namespace
