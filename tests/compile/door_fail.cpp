// SPDX-License-Identifier: Apache-2.0
// Misuses that bila::attend and bila::gradient refuse while compiling, each with one plain sentence.
#include <bila/bila.hpp>

namespace {

struct window {
  double weight(bila::index_t, bila::index_t, bila::index_t i, bila::index_t j) const { return i == j ? 1 : 0; }
};
struct no_mask {};
struct no_slope {
  static constexpr bool uses_row_sum = false;
  template <class Real>
  bila::quotient<Real> operator()(Real, Real scale) const {
    return {scale, Real(1)};
  }
};

[[maybe_unused]] void misuse(const bila::inputs<float>& in, bila::tensor_view<float> y) {
  bila::attend(bila::form::full{}, window{}, bila::norm::none{}, in, y);
  bila::attend(bila::form::automatic{}, window{}, bila::norm::none{}, in, y);
#if BILA_CASE == 1
  // expect: bila::attend: this mask offers weights of pairs but no gaps, so only form::full and form::automatic accept it
  bila::attend(bila::form::recurrent{}, window{}, bila::norm::none{}, in, y);
#elif BILA_CASE == 2
  // expect: bila::attend: this mask offers weights of pairs but no gaps, so only form::full and form::automatic accept it
  bila::attend(bila::form::chunkwise{}, window{}, bila::norm::none{}, in, y);
#elif BILA_CASE == 3
  // expect: bila::attend: this type is no mask, it offers neither weight() nor gaps (see bila/mask/concepts.hpp)
  bila::attend(bila::form::full{}, no_mask{}, bila::norm::none{}, in, y);
#elif BILA_CASE == 4
  // expect: bila::attend: this type is no norm (see bila/norm/none.hpp)
  bila::attend(bila::form::full{}, bila::mask::all_ones{}, no_mask{}, in, y);
#elif BILA_CASE == 5
  // expect: constraints not satisfied
  bila::attend(bila::form::full{}, bila::mask::all_ones{}, bila::norm::none{}, bila::inputs<int>{}, bila::tensor_view<int>{});
#elif BILA_CASE == 6
  // expect: bila::gradient: this form does not accept this mask (see bila/form/README.md)
  bila::gradient(bila::form::chunkwise{}, window{}, bila::norm::none{}, in, {}, {}, {});
#elif BILA_CASE == 7
  // expect: bila::gradient: this norm has no slope() (see bila/norm/none.hpp)
  bila::gradient(bila::form::full{}, bila::mask::all_ones{}, no_slope{}, in, {}, {}, {});
#endif
}

}  // namespace
