// SPDX-License-Identifier: Apache-2.0
// Built with -ffast-math, which lets a compiler take it that no number is NaN or infinite: NaN is refused all the same, and a log
// decay of -inf cuts. Exits with the number of the check that fails.
#include <bila/bila.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace {

constexpr bila::index_t L = 40, D = 3;
constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();

struct call {
  std::array<float, L * D> q, v, y{}, dy, dv{};
  std::array<float, L> row_sum{}, da{};
  std::array<double, L> gates;
  std::array<double, 1> head_gate{-0.5};
  bila::inputs<float> in;

  call() {
    q.fill(0.5f);
    dy.fill(1);
    gates.fill(0);
    for (std::size_t n = 0; n < v.size(); ++n) v[n] = static_cast<float>(n / D % 7);
    const auto x = bila::bhld<const float>(q.data(), 1, 1, L, D);
    in = {x, x, bila::bhld<const float>(v.data(), 1, 1, L, D)};
  }

  auto selective() const { return bila::mask::selective_decay{bila::bhl(gates.data(), 1, 1, L), bila::gate::later}; }

  template <class Form, class Mask>
  void run(const Form& form, const Mask& mask, double eps = 0) {
    bila::attend(form, mask, bila::norm::row_sum{eps}, in,
                 bila::outputs<float>{bila::bhld(y.data(), 1, 1, L, D), bila::bhl(row_sum.data(), 1, 1, L), {}, {}});
  }

  template <class Form>
  void step(const Form& form) {
    run(form, selective());
    bila::gradients<float> to;
    to.v = bila::bhld(dv.data(), 1, 1, L, D);
    to.log_decay = bila::bhl(da.data(), 1, 1, L);
    bila::gradient(
        form, selective(), bila::norm::row_sum{}, in,
        bila::saved<float>{bila::bhld<const float>(y.data(), 1, 1, L, D), bila::bhl<const float>(row_sum.data(), 1, 1, L)},
        bila::output_gradients<float>{bila::bhld<const float>(dy.data(), 1, 1, L, D), {}, {}}, to);
  }
};

template <class Function>
bool refused(const Function& f) {
  try {
    f();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

/// Both finite and close; told by the bits.
bool close(float x, float y) {
  return bila::detail::is_finite(static_cast<double>(x)) && std::fabs(x - y) <= 1e-5f * std::fabs(y) + 1e-6f;
}

/// Gates of zero before tokens 10 and 30 make three sequences of tokens that weigh alike.
template <class Form>
bool cuts(const Form& form) {
  call x;
  x.gates[10] = x.gates[30] = -infinity;
  x.step(form);
  constexpr std::array<std::size_t, 4> borders{0, 10, 30, L};
  for (std::size_t n = 0; n < 3; ++n) {
    float sum = 0;
    const auto count = static_cast<float>(borders[n + 1] - borders[n]);
    for (std::size_t t = borders[n]; t < borders[n + 1]; ++t) sum += x.v[t * D];
    for (std::size_t i = borders[n] * D; i < borders[n + 1] * D; ++i)
      if (!close(x.y[i], sum / count) || !close(x.dv[i], 1)) return false;
  }
  for (const float g : x.da)
    if (!bila::detail::is_finite(static_cast<double>(g))) return false;
  return !(std::fabs(x.da[10]) > 0) && !(std::fabs(x.da[30]) > 0);
}

template <class Form>
bool refuses(const Form& form) {
  for (const double bad : {nan, -nan}) {
    call gate, head, scale, diagonal, eps, state;
    gate.gates[17] = bad;
    head.head_gate[0] = bad;
    scale.in.scale = bad;
    diagonal.in.diagonal = bad;
    if (!refused([&] { gate.run(form, gate.selective()); }) || !refused([&] { gate.step(form); }) ||
        !refused([&] { head.run(form, bila::mask::fixed_decay{bila::vec(head.head_gate.data(), 1)}); }) ||
        !refused([&] { scale.step(form); }) || !refused([&] { diagonal.step(form); }) ||
        !refused([&] { eps.run(form, eps.selective(), bad); }))
      return false;
  }
  call scale;
  scale.in.scale = infinity;
  return refused([&] { scale.step(form); });
}

bool refuses_state_decay() {
  call x;
  const std::array<float, D * D + D> numbers{};
  const std::array<float, 1> decay{static_cast<float>(nan)};
  x.in.initial_forward = {bila::bhld(numbers.data(), 1, 1, D, D), bila::bhld(numbers.data(), 1, 1, D, 1),
                          bila::vec(decay.data(), 1)};
  return refused([&] { x.run(bila::form::chunkwise{}, x.selective()); });
}

}  // namespace

int main() {
  if (!refuses(bila::form::full{})) return 1;
  if (!refuses(bila::form::recurrent{})) return 2;
  if (!refuses(bila::form::chunkwise{.size = 8})) return 3;
  if (!refuses_state_decay()) return 4;
  if (!cuts(bila::form::full{})) return 5;
  if (!cuts(bila::form::recurrent{})) return 6;
  if (!cuts(bila::form::chunkwise{.size = 8})) return 7;
  return 0;
}
