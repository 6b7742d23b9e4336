// SPDX-License-Identifier: Apache-2.0
// Misuses that bila::attend and bila::gradient refuse while compiling, each with one plain sentence.
#include <bila/bila.hpp>

namespace {

using bila::form::automatic, bila::form::chunkwise, bila::form::full, bila::form::recurrent;
using bila::mask::all_ones;
using bila::norm::none, bila::norm::row_sum;

struct window {
  double weight(bila::index_t, bila::index_t, bila::index_t i, bila::index_t j) const { return i == j ? 1 : 0; }
};
struct window_of_gaps : all_ones {
  bila::index_t reach(bila::index_t, bila::index_t) const { return 4; }
};
struct nothing {};
struct no_slope {
  static constexpr bool uses_row_sum = false;
  template <class Real>
  bila::quotient<Real> operator()(Real, Real scale) const {
    return {scale, Real(1)};
  }
};

[[maybe_unused]] void misuse(const bila::inputs<float>& in, bila::tensor_view<float> y) {
  bila::attend(full{}, window{}, none{}, in, y);
  bila::attend(automatic{}, window{}, none{}, in, y);
  [[maybe_unused]] const bila::tensor_view<const float> numbers;
  [[maybe_unused]] const bila::mask::channel_decay channels{numbers, bila::gate::target};
#if BILA_CASE == 1
  // expect: bila: this mask offers weights of pairs but no gaps, so only form::full and form::automatic accept it
  bila::attend(recurrent{}, window{}, none{}, in, y);
#elif BILA_CASE == 2
  // expect: bila: this mask offers weights of pairs but no gaps, so only form::full and form::automatic accept it
  bila::attend(chunkwise{}, window{}, none{}, in, y);
#elif BILA_CASE == 3
  // expect: bila: this type is no mask, it offers neither weight() nor gaps (see bila/mask/concepts.hpp)
  bila::attend(full{}, nothing{}, none{}, in, y);
#elif BILA_CASE == 4
  // expect: bila: this type is no norm (see bila/norm/concepts.hpp)
  bila::attend(full{}, all_ones{}, nothing{}, in, y);
#elif BILA_CASE == 5
  // expect: bila: q, k, v and y are float, double, bila::bf16 or bila::f16
  bila::attend(full{}, all_ones{}, none{}, bila::inputs<int>{}, bila::tensor_view<int>{});
#elif BILA_CASE == 6
  // expect: bila: this mask offers weights of pairs but no gaps, so only form::full and form::automatic accept it
  bila::gradient(chunkwise{}, window{}, none{}, in, {}, {}, {});
#elif BILA_CASE == 7
  // expect: bila::gradient: this norm has no slope() (see bila/norm/concepts.hpp)
  bila::gradient(full{}, all_ones{}, no_slope{}, in, {}, {}, {});
#elif BILA_CASE == 8
  // expect: bila: this type is no form: give form::full, form::recurrent, form::chunkwise or form::automatic
  bila::attend(row_sum{}, all_ones{}, none{}, in, y);
#elif BILA_CASE == 9
  // expect: bila: this type is no form: give form::full, form::recurrent, form::chunkwise or form::automatic
  bila::attend(bila::cpu{}, 42, all_ones{}, none{}, in, y);
#elif BILA_CASE == 10
  // expect: bila: this type is no mask, it offers neither weight() nor gaps (see bila/mask/concepts.hpp)
  bila::attend(full{}, none{}, all_ones{}, in, y);
#elif BILA_CASE == 11
  // expect: bila: y is a tensor_view of what q is stored in, or bila::outputs
  bila::attend(full{}, all_ones{}, none{}, in, bila::tensor_view<double>{});
#elif BILA_CASE == 12
  // expect: bila: the first argument is no backend: give a bila::cpu, or include bila/cuda.hpp for bila::cuda::on
  bila::attend(4, full{}, all_ones{}, none{}, in, y);
#elif BILA_CASE == 13
  // expect: bila::mask::fixed_decay: give a tensor with a log decay for each head, such as bila::vec(log_decay, H)
  bila::attend(full{}, bila::mask::fixed_decay{-0.1f}, none{}, in, y);
#elif BILA_CASE == 14
  // expect: bila: this type is no form: give form::full, form::recurrent, form::chunkwise or form::automatic
  bila::gradient(none{}, all_ones{}, none{}, in, {}, {}, {});
#elif BILA_CASE == 15
  // expect: bila: this type is no mask, it offers neither weight() nor gaps (see bila/mask/concepts.hpp)
  bila::workspace_bytes(bila::cpu{}, full{}, nothing{}, none{}, in, y);
#elif BILA_CASE == 16
  // expect: bila: gradient_workspace_bytes needs all arguments of gradient, but for a bila::cpu, a form and its inputs
  bila::gradient_workspace_bytes(42, full{}, in, bila::tensor_view<const float>(y));
#elif BILA_CASE == 17
  // expect: bila: this mask offers gaps and a reach, but only weights of pairs are cut off by a reach
  bila::attend(full{}, window_of_gaps{}, none{}, in, y);
#elif BILA_CASE == 18
  // expect: bila: this form does not compute this mask or rule: the README's table of models says which forms do, and which models a GPU takes
  bila::attend(full{}, bila::rule::delta{all_ones{}, numbers}, none{}, in, y);
#elif BILA_CASE == 19
  // expect: bila::mask::exclusive_read: the first argument is a mask with decays per channel
  bila::attend(chunkwise{}, bila::mask::exclusive_read{all_ones{}, numbers}, none{}, in, y);
#elif BILA_CASE == 20
  // expect: bila::mask::weighed_keys: the first argument is a mask with gaps
  bila::attend(chunkwise{}, bila::mask::weighed_keys{channels, numbers}, none{}, in, y);
#elif BILA_CASE == 21
  // expect: bila::mask::log_linear: the first argument is a mask with gaps
  bila::attend(chunkwise{}, bila::mask::log_linear{channels, numbers, numbers}, none{}, in, y);
#elif BILA_CASE == 22
  // expect: bila: this mask weighs keys, so the norm needs norm(Z, scale, unit) (see bila/norm/concepts.hpp)
  bila::attend(chunkwise{}, bila::mask::weighed_keys{all_ones{}, numbers}, no_slope{}, in, y);
#elif BILA_CASE == 23
  // expect: bila::rule: betas are float or double
  bila::attend(chunkwise{}, bila::rule::delta{all_ones{}, bila::tensor_view<const bila::bf16>{}}, none{}, in, y);
#elif BILA_CASE == 24
  // expect: bila::rule::delta: the first argument is a mask with gaps
  bila::attend(chunkwise{}, bila::rule::delta{window{}, numbers}, none{}, in, y);
#endif
}

}  // namespace
