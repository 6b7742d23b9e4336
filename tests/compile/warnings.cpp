// SPDX-License-Identifier: Apache-2.0
// Every form, mask, norm and type, compiled with the warnings that strict projects turn on (CMakeLists.txt): bila is not a system
// include, so a warning here is one in theirs. Compiling this file is the test.
#include <bila/backend/cpu/features.hpp>
#include <bila/bila.hpp>
#include <bila/feature/maps.hpp>
#include <bila/mask/gates.hpp>
#include <bila/view/eigen.hpp>

#include <Eigen/Core>

namespace {

struct window {
  double weight(bila::index_t, bila::index_t, bila::index_t i, bila::index_t j) const { return i - j < 4 && j - i < 4 ? 1 : 0; }
};

template <class Form, class Mask, class Norm, class T>
void step(const Form& form, const Mask& mask, const Norm& norm, const bila::inputs<T>& in, const bila::tensor_view<T>& y) {
  using Real = bila::real_of<T>;
  const bila::outputs<T> out{y, {}, {}, {}};
  bila::attend(form, mask, norm, in, out);
  static_cast<void>(bila::workspace_bytes(bila::cpu{}, form, mask, norm, in, out));
  bila::gradient(form, mask, norm, in, bila::saved<T>{y, {}}, bila::output_gradients<T>{y, {}, {}},
                 bila::gradients<T>{y, y, y, bila::tensor_view<Real>{}, {}, {}, nullptr, nullptr, {}, {}});
  static_cast<void>(bila::gradient_workspace_bytes(bila::cpu{}, form, in, bila::tensor_view<const T>(y)));
}

template <class T>
void all(T* x, bila::real_of<T>* gates) {
  const bila::tensor_view<T> y = bila::bhld(x, 1, 1, 1, 1);
  const bila::inputs<T> in{y, y, y};
  const bila::norm::row_sum row_sum{1e-6};
  const bila::mask::selective_decay selective{bila::bhl(gates, 1, 1, 1), bila::gate::source};
  step(bila::form::full{}, selective, row_sum, in, y);
  step(bila::form::recurrent{}, selective, row_sum, in, y);
  step(bila::form::chunkwise{}, selective, row_sum, in, y);
  step(bila::form::automatic{}, selective, row_sum, in, y);
  step(bila::form::full{}, bila::mask::all_ones{}, bila::norm::none{}, in, y);
  step(bila::form::full{}, bila::mask::fixed_decay{bila::vec(gates, 1)}, bila::norm::max_one{}, in, y);
  step(bila::form::full{}, bila::mask::two_sided{bila::bhl(gates, 1, 1, 1), bila::bhl(gates, 1, 1, 1)}, row_sum, in, y);
  step(bila::form::full{}, window{}, row_sum, in, y);
}

template <class Map, class T>
void map_of(const Map& map, const bila::tensor_view<T>& x) {
  bila::features(bila::cpu{}, map, x, x);
  bila::features_gradient(bila::cpu{}, map, x, x, x);
}

template <class T>
void all_maps(T* x, bila::real_of<T>* numbers) {
  const bila::tensor_view<T> view = bila::bhld(x, 1, 1, 1, 1);
  map_of(bila::feature::relu{}, view);
  map_of(bila::feature::elu_plus_one{}, view);
  map_of(bila::feature::silu_norm{}, view);
  map_of(bila::feature::l2_norm{}, view);
  map_of(bila::feature::taylor{}, view);
  map_of(bila::feature::taylor_packed{}, view);
  map_of(bila::feature::softmax{}, view);
  map_of(bila::feature::hedgehog{}, view);
  const bila::feature::convolution layer{bila::vec(numbers, 1), bila::direction::both, bila::vec(numbers, 1)};
  bila::convolve(bila::cpu{}, layer, view, view);
  bila::convolve_gradient(bila::cpu{}, layer, view, view, bila::feature::convolution_gradients<T>{view, {}, {}});
  const bila::tensor_view<bila::real_of<T>> raw = bila::bhl(numbers, 1, 1, 1);
  const auto gate = [&raw](const auto& by) {
    bila::gates::log_decays(by, raw, raw);
    bila::gates::pull_back(by, raw, raw, raw);
  };
  gate(bila::gates::log_sigmoid{});
  gate(bila::gates::log_one_minus_sigmoid{});
  gate(bila::gates::double_exponential{});
  gate(bila::gates::mamba{bila::vec(numbers, 1)});
  bila::gates::pull_back_rate(bila::gates::mamba{bila::vec(numbers, 1)}, raw, raw, bila::vec(numbers, 1));
}

}  // namespace

void every_type(float* f, double* d, bila::bf16* b, bila::f16* h);
void every_type(float* f, double* d, bila::bf16* b, bila::f16* h) {
  all(f, f);
  all(d, d);
  all(b, f);
  all(h, f);
  all_maps(f, f);
  all_maps(d, d);
  all_maps(b, f);
  all_maps(h, f);
  Eigen::MatrixXf x(1, 1);
  static_cast<void>(bila::matrix(x));
}
