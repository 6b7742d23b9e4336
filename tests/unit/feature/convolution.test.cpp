// SPDX-License-Identifier: Apache-2.0
// The depthwise convolution over tokens: its definition, its laws, and its gradients. Most numbers here are small integers, for
// which every order of summation gives the same sum, so the laws hold exactly.
#include "support/catch.hpp"
#include "support/refusal.hpp"
#include "support/tensor.hpp"

#include <bila/backend/cpu/convolution.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace {

using bila::direction;
using test::index_t;
using test::tensor;

constexpr std::array directions{direction::forward, direction::backward, direction::both};

template <class T>
tensor<T> integers(test::random_source& random, index_t B, index_t H, index_t L, index_t D) {
  tensor<T> x(B, H, L, D);
  x.for_each([&](T& value, index_t, index_t, index_t, index_t) { value = T(static_cast<bila::real_of<T>>(random.below(15) - 7)); });
  return x;
}

/// Weights, a bias and tokens, all integers.
template <class T>
struct sample {
  tensor<T> weights, bias, x;
  direction looks;
  std::vector<index_t> offsets{}, lengths{};

  bila::feature::convolution<T> layer() const {
    bila::feature::convolution<T> result{weights.view(), looks, bias.view()};
    result.offsets = offsets, result.lengths = lengths;
    return result;
  }

  index_t before() const {
    const index_t width = weights.extent(2);
    return looks == direction::forward ? width - 1 : looks == direction::backward ? 0 : (width - 1) / 2;
  }

  /// Whether token j is one that token i of batch row b may read.
  bool sees(index_t b, index_t i, index_t j) const {
    if (j < 0 || j >= x.extent(2)) return false;
    for (const index_t border : offsets)
      if ((i < border) != (j < border)) return false;
    return lengths.empty() || std::max(i, j) < lengths[static_cast<std::size_t>(b)];
  }

  bool is_padding(index_t b, index_t i) const { return !lengths.empty() && i >= lengths[static_cast<std::size_t>(b)]; }

  double definition(index_t b, index_t h, index_t i, index_t d) const {
    if (is_padding(b, i)) return 0;
    const index_t head = h / (x.extent(1) / weights.extent(1)), column = weights.extent(3) == 1 ? 0 : d;
    double sum = static_cast<double>(bias(0, head, 0, column));
    for (index_t m = 0; m < weights.extent(2); ++m)
      if (const index_t j = i + m - before(); sees(b, i, j))
        sum += static_cast<double>(weights(0, head, m, column)) * static_cast<double>(x(b, h, j, d));
    return sum;
  }
};

struct shape {
  index_t B = 1, H = 1, L = 1, D = 1, heads = 1, width = 1;
  bool shared = false;  // one weight for all features
};

template <class T>
sample<T> random_sample(test::random_source& random, const shape& s, direction looks) {
  const index_t columns = s.shared ? 1 : s.D;
  return {integers<T>(random, 1, s.heads, s.width, columns), integers<T>(random, 1, s.heads, 1, columns),
          integers<T>(random, s.B, s.H, s.L, s.D), looks};
}

template <class T>
tensor<T> convolved(const sample<T>& s, const bila::cpu& backend = {}, test::layout where = test::layout::bhld) {
  const auto from = s.x.laid_out(where);
  tensor<T> y(s.x.extent(0), s.x.extent(1), s.x.extent(2), s.x.extent(3), where);
  bila::convolve(backend, s.layer(), from.view(), y.view());
  CHECK(y.intact());
  return y;
}

/// Shapes with fewer tokens than taps, several blocks of tokens and of features, shared heads and shared weights.
const std::vector<shape> shapes{
    {.L = 1},
    {.B = 2, .H = 2, .L = 5, .D = 3, .heads = 2, .width = 3},
    {.B = 1, .H = 4, .L = 3, .D = 33, .heads = 2, .width = 7},
    {.B = 2, .H = 3, .L = 150, .D = 5, .heads = 1, .width = 63, .shared = true},
    {.B = 1, .H = 1, .L = 129, .D = 133, .heads = 1, .width = 5},
    {.B = 2, .H = 2, .L = 20, .D = 133, .heads = 2, .width = 7, .shared = true},
    {.B = 3, .H = 2, .L = 0, .D = 2, .heads = 1, .width = 3},
    {.B = 0, .H = 2, .L = 4, .D = 2, .heads = 2, .width = 3},
    {.B = 2, .H = 1, .L = 4, .D = 0, .heads = 1, .width = 3},
};

template <class T>
double dot(const tensor<T>& a, const tensor<T>& b) {
  double sum = 0;
  a.for_each([&](const T& value, index_t n, index_t h, index_t l, index_t d) {
    sum += static_cast<double>(value) * static_cast<double>(b(n, h, l, d));
  });
  return sum;
}

/// The gradients of sum(dy y), of every input.
template <class T>
struct slopes {
  tensor<T> x;
  tensor<bila::real_of<T>> weights, bias;

  slopes(const sample<T>& s, test::layout where = test::layout::bhld)
      : x(s.x.extent(0), s.x.extent(1), s.x.extent(2), s.x.extent(3), where),
        weights(1, s.weights.extent(1), s.weights.extent(2), s.weights.extent(3), where),
        bias(1, s.weights.extent(1), 1, s.weights.extent(3), where) {}

  bila::feature::convolution_gradients<T> all() { return {x.view(), weights.view(), bias.view()}; }

  friend bool same_bits(const slopes& a, const slopes& b) {
    return same_bits(a.x, b.x) && same_bits(a.weights, b.weights) && same_bits(a.bias, b.bias);
  }
};

template <class T>
slopes<T> gradient(const sample<T>& s, const tensor<T>& dy, const bila::cpu& backend = {},
                   test::layout where = test::layout::bhld) {
  slopes<T> to(s, where);
  const auto from = s.x.laid_out(where), by = dy.laid_out(where);
  bila::convolve_gradient(backend, s.layer(), from.view(), by.view(), to.all());
  CHECK((to.x.intact() && to.weights.intact() && to.bias.intact()));
  return to;
}

}  // namespace

TEMPLATE_TEST_CASE("the convolution is its definition, in every layout and number of threads", "", float, double, bila::bf16,
                   bila::f16) {
  test::random_source random(4301);
  for (const shape& s : shapes)
    for (const direction looks : directions) {
      const auto x = random_sample<TestType>(random, s, looks);
      tensor<TestType> expected(s.B, s.H, s.L, s.D);
      expected.for_each([&](TestType& value, index_t b, index_t h, index_t l, index_t d) {
        value = TestType(static_cast<bila::real_of<TestType>>(x.definition(b, h, l, d)));
      });
      for (const auto where : test::all_layouts)
        for (const int threads : {1, 3}) {
          INFO("L = " << s.L << ", D = " << s.D << ", width " << s.width << ", " << test::name_of(where) << ", " << threads);
          CHECK(same_bits(convolved(x, {.threads = threads}, where), expected));
        }
    }
}

TEMPLATE_TEST_CASE("for numbers that are no integers too, the bits do not depend on the layout and the threads", "", float, double,
                   bila::bf16) {
  test::random_source random(4302);
  auto x = random_sample<TestType>(random, {.B = 2, .H = 4, .L = 140, .D = 150, .heads = 2, .width = 9}, direction::both);
  for (auto* numbers : {&x.weights, &x.bias, &x.x})
    numbers->for_each([&](TestType& value, index_t, index_t, index_t, index_t) {
      value = TestType(static_cast<bila::real_of<TestType>>(random.uniform(-1, 1)));
    });
  const auto dy = random_sample<TestType>(random, {.B = 2, .H = 4, .L = 140, .D = 150}, direction::both).x;
  const auto y = convolved(x);
  const auto by = gradient(x, dy);
  for (const auto where : test::all_layouts)
    for (const int threads : {1, 3}) {
      CHECK(same_bits(convolved(x, {.threads = threads}, where), y));
      CHECK(same_bits(gradient(x, dy, {.threads = threads}, where), by));
    }
}

TEST_CASE("one tap of one is a shift") {
  test::random_source random(4303);
  constexpr index_t L = 70, D = 3;
  for (const direction looks : directions)
    for (const index_t width : {1, 5, 63}) {
      auto x = random_sample<float>(random, {.L = L, .D = D, .width = width, .shared = true}, looks);
      x.bias.fill(0);
      for (index_t tap = 0; tap < width; tap += 2) {
        x.weights.fill(0);
        x.weights(0, 0, tap, 0) = 1;
        const index_t from = looks == direction::forward ? tap - (width - 1) : looks == direction::backward ? tap : tap - width / 2;
        bool shifted = true;
        convolved(x).for_each([&](const float& value, index_t, index_t, index_t l, index_t d) {
          const index_t j = l + from;
          shifted = shifted && value == (j < 0 || j >= L ? 0.0f : x.x(0, 0, j, d));
        });
        INFO("width " << width << ", tap " << tap);
        CHECK(shifted);
      }
    }
}

TEST_CASE("forwards, a prefix has the bits of the whole, and what comes later is not read; backwards likewise") {
  test::random_source random(4304);
  for (const index_t L : {1, 3, 64, 100}) {
    auto x = random_sample<float>(random, {.B = 1, .H = 2, .L = 150, .D = 4, .heads = 2, .width = 4}, direction::forward);
    x.x.fill_uniform(random, -1, 1), x.weights.fill_uniform(random, -1, 1);
    auto prefix = x;
    prefix.x = tensor<float>(1, 2, L, 4);
    prefix.x.for_each([&](float& value, index_t b, index_t h, index_t l, index_t d) { value = x.x(b, h, l, d); });
    x.x.for_each([&](float& value, index_t, index_t, index_t l, index_t) {
      if (l >= L) value = test::not_a_number<float>;
    });
    const auto whole = convolved(x), first = convolved(prefix);
    bool same = true;
    first.for_each([&](const float& y, index_t b, index_t h, index_t l, index_t d) { same = same && y == whole(b, h, l, d); });
    CHECK(same);

    const auto reversed = [](const tensor<float>& t) {
      tensor<float> result(t.extent(0), t.extent(1), t.extent(2), t.extent(3));
      result.for_each([&](float& y, index_t b, index_t h, index_t l, index_t d) { y = t(b, h, t.extent(2) - 1 - l, d); });
      return result;
    };
    x.looks = direction::backward;
    x.x = reversed(x.x);
    x.weights = reversed(x.weights);
    const auto backwards = reversed(convolved(x));
    first.for_each([&](const float& y, index_t b, index_t h, index_t l, index_t d) {
      same = same && std::fabs(y - backwards(b, h, l, d)) < 1e-5f;  // |y| < 16, from ten roundings
    });
    CHECK(same);
  }
}

TEST_CASE("reversing the tokens and the taps reverses the result; forward and backward change places") {
  test::random_source random(4305);
  const auto reversed = [](const tensor<double>& t) {
    tensor<double> result(t.extent(0), t.extent(1), t.extent(2), t.extent(3));
    result.for_each([&](double& y, index_t b, index_t h, index_t l, index_t d) { y = t(b, h, t.extent(2) - 1 - l, d); });
    return result;
  };
  for (const index_t L : {1, 2, 6, 90})
    for (const direction looks : directions) {
      const auto x = random_sample<double>(random, {.B = 2, .H = 2, .L = L, .D = 3, .heads = 2, .width = 7}, looks);
      auto mirror = x;
      mirror.x = reversed(x.x), mirror.weights = reversed(x.weights);
      mirror.looks = looks == direction::both ? looks : looks == direction::forward ? direction::backward : direction::forward;
      CHECK(same_bits(reversed(convolved(mirror)), convolved(x)));
    }
}

TEST_CASE("packed segments and padded rows have the bits of each sequence alone, and padding is never read") {
  test::random_source random(4306);
  const std::vector<index_t> offsets{0, 2, 2, 80, 81, 200};
  for (const direction looks : directions) {
    auto packed = random_sample<float>(random, {.H = 2, .L = 200, .D = 5, .heads = 2, .width = 9}, looks);
    packed.x.fill_uniform(random, -1, 1), packed.weights.fill_uniform(random, -1, 1);
    packed.offsets = offsets;
    auto dy = packed.x;
    dy.fill_uniform(random, -1, 1);
    const auto y = convolved(packed);
    const auto by = gradient(packed, dy);
    for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
      const index_t first = offsets[n], count = offsets[n + 1] - first, L = count + 4;
      sample<float> alone{packed.weights, packed.bias, tensor<float>(1, 2, count, 5), looks};
      sample<float> padded{packed.weights, packed.bias, tensor<float>(1, 2, L, 5), looks, {}, {count}};
      tensor<float> dy_alone(1, 2, count, 5), dy_padded(1, 2, L, 5);  // NaN where it is not filled
      alone.x.for_each([&](float& value, index_t, index_t h, index_t l, index_t d) {
        value = padded.x(0, h, l, d) = packed.x(0, h, first + l, d);
        dy_alone(0, h, l, d) = dy_padded(0, h, l, d) = dy(0, h, first + l, d);
      });
      const auto y_alone = convolved(alone), y_padded = convolved(padded);
      const auto by_alone = gradient(alone, dy_alone), by_padded = gradient(padded, dy_padded);
      bool same = same_bits(by_alone.weights, by_padded.weights) && same_bits(by_alone.bias, by_padded.bias);
      for (index_t h = 0; h < 2; ++h)
        for (index_t l = 0; l < L; ++l)
          for (index_t d = 0; d < 5; ++d) {
            if (l < count) {
              same = same && y_alone(0, h, l, d) == y(0, h, first + l, d) && y_padded(0, h, l, d) == y(0, h, first + l, d);
              same = same && by_alone.x(0, h, l, d) == by.x(0, h, first + l, d);
              same = same && by_padded.x(0, h, l, d) == by.x(0, h, first + l, d);
            } else {
              same = same && y_padded(0, h, l, d) == 0 && by_padded.x(0, h, l, d) == 0;
            }
          }
      CHECK(same);
    }
  }
}

TEST_CASE("the gradients are the adjoints: sum(dy y) is bilinear in x and the weights") {
  test::random_source random(4307);
  for (const shape& s : shapes)
    for (const direction looks : directions)
      for (const int pieces : {0, 1, 2}) {
        if (pieces == 1 && s.B != 1) continue;
        auto x = random_sample<double>(random, s, looks);
        if (pieces == 1) x.offsets = {0, s.L / 3, s.L};
        if (pieces == 2) x.lengths.assign(static_cast<std::size_t>(s.B), s.L / 2);
        auto dy = integers<double>(random, s.B, s.H, s.L, s.D);
        const auto found = gradient(x, dy);
        dy.for_each([&](double& value, index_t b, index_t, index_t l, index_t) {
          if (x.is_padding(b, l)) value = 0;
        });
        const double loss = dot(dy, convolved(x)), of_bias = dot(found.bias, x.bias);
        INFO("L = " << s.L << ", D = " << s.D << ", width " << s.width << ", pieces " << pieces);
        CHECK(dot(found.x, x.x) + of_bias == loss);
        CHECK(dot(found.weights, x.weights) + of_bias == loss);
      }
}

TEST_CASE("the gradients are the differences, one number at a time") {
  test::random_source random(4308);
  for (const direction looks : directions)
    for (const bool shared : {false, true}) {
      auto x = random_sample<double>(random, {.B = 2, .H = 4, .L = 6, .D = 2, .heads = 2, .width = 3, .shared = shared}, looks);
      x.lengths = {6, 4};
      const auto dy = integers<double>(random, 2, 4, 6, 2);
      const auto loss = [&] { return dot(dy, convolved(x)); };
      const double before = loss();
      const auto found = gradient(x, dy);
      const auto check = [&](tensor<double>& numbers, const tensor<double>& slope) {
        bool right = true;
        slope.for_each([&](const double& g, index_t b, index_t h, index_t l, index_t d) {
          numbers(b, h, l, d) += 1;
          right = right && g == loss() - before;
          numbers(b, h, l, d) -= 1;
        });
        CHECK(right);
      };
      check(x.x, found.x);
      check(x.weights, found.weights);
      check(x.bias, found.bias);
    }
}

TEST_CASE("what is not wanted is not computed, and the rest is overwritten") {
  test::random_source random(4309);
  const auto x = random_sample<float>(random, {.B = 2, .H = 2, .L = 9, .D = 3, .heads = 1, .width = 3}, direction::both);
  const auto dy = integers<float>(random, 2, 2, 9, 3);
  const auto expected = gradient(x, dy);
  for (int wanted = 0; wanted < 8; ++wanted) {
    slopes<float> to(x), junk(x);
    for (auto* some : {&to.x, &to.weights, &to.bias}) some->fill(7);
    bila::feature::convolution_gradients<float> some;
    if (wanted & 1) some.x = to.x.view();
    if (wanted & 2) some.weights = to.weights.view();
    if (wanted & 4) some.bias = to.bias.view();
    bila::convolve_gradient(bila::cpu{}, x.layer(), x.x.view(), dy.view(), some);
    for (auto* all : {&junk.x, &junk.weights, &junk.bias}) all->fill(7);
    CHECK(same_bits(to.x, wanted & 1 ? expected.x : junk.x));
    CHECK(same_bits(to.weights, wanted & 2 ? expected.weights : junk.weights));
    CHECK(same_bits(to.bias, wanted & 4 ? expected.bias : junk.bias));
  }
}

TEMPLATE_TEST_CASE("in place the numbers are the same", "", float, bila::bf16) {
  test::random_source random(4310);
  for (const direction looks : directions) {
    const auto x = random_sample<TestType>(random, {.B = 2, .H = 2, .L = 200, .D = 40, .heads = 2, .width = 63}, looks);
    const auto dy = integers<TestType>(random, 2, 2, 200, 40);
    const auto y = convolved(x);
    const auto by = gradient(x, dy);
    using gradients = bila::feature::convolution_gradients<TestType>;
    for (const auto where : test::all_layouts)
      for (const int threads : {1, 3}) {
        const bila::cpu backend{.threads = threads};
        auto over = x.x.laid_out(where);
        bila::convolve(backend, x.layer(), over.view(), over.view());
        CHECK((same_bits(over, y) && over.intact()));
        auto over_x = x.x.laid_out(where), over_dy = dy.laid_out(where);
        slopes<TestType> to(x);
        bila::convolve_gradient(backend, x.layer(), over_x.view(), dy.view(),
                                gradients{over_x.view(), to.weights.view(), to.bias.view()});
        CHECK((same_bits(over_x, by.x) && same_bits(to.weights, by.weights)));
        bila::convolve_gradient(backend, x.layer(), x.x.view(), over_dy.view(), gradients{over_dy.view(), to.weights.view(), {}});
        CHECK((same_bits(over_dy, by.x) && same_bits(to.weights, by.weights)));
      }
  }
}

TEST_CASE("the gradient of the weights over a million equal tokens does not drift") {
  constexpr index_t L = 1'000'000;
  const std::vector<float> x(L, 0.1f), dy(L, 0.3f), weights{1, 1};
  std::vector<float> dw(2);
  const bila::feature::convolution layer{bila::bhld(weights.data(), 1, 1, 2, 1), direction::forward};
  bila::convolve_gradient(bila::cpu{}, layer, bila::bhld(x.data(), 1, 1, L, 1), bila::bhld(dy.data(), 1, 1, L, 1),
                          bila::feature::convolution_gradients<float>{{}, bila::bhld(dw.data(), 1, 1, 2, 1), {}});
  for (const float sum : dw) CHECK(sum == Approx(0.1 * 0.3 * L).epsilon(1e-5));
}

TEST_CASE("weights of another type than the tokens") {
  const std::vector<double> weights{0.25, 0.5};
  const std::vector<bila::bf16> x{bila::bf16(1.0f), bila::bf16(2.0f)};
  std::vector<bila::bf16> y(2);
  std::vector<float> dw(2);
  const bila::feature::convolution layer{bila::bhld(weights.data(), 1, 1, 2, 1), direction::forward};
  bila::convolve(bila::cpu{}, layer, bila::bhld(x.data(), 1, 1, 2, 1), bila::bhld(y.data(), 1, 1, 2, 1));
  CHECK((float(y[0]) == 0.5f && float(y[1]) == 1.25f));
  const auto dy = bila::bhld(x.data(), 1, 1, 2, 1);
  bila::convolve_gradient(bila::cpu{}, layer, bila::bhld(x.data(), 1, 1, 2, 1), dy,
                          bila::feature::convolution_gradients<bila::bf16>{{}, bila::bhld(dw.data(), 1, 1, 2, 1), {}});
  CHECK((dw[0] == 2 && dw[1] == 5));
}

TEST_CASE("a convolution refuses what it cannot compute, before it writes") {
  std::vector<double> numbers(1000), taps(1000), result(1000, 5.0);
  const auto x = bila::bhld<const double>(numbers.data(), 2, 4, 5, 3);
  const auto y = bila::bhld(result.data(), 2, 4, 5, 3);
  using layer = bila::feature::convolution<double>;
  const auto words = [&](const layer& c, bila::tensor_view<const double> from, bila::tensor_view<double> to,
                         const bila::cpu& backend = {}) { return test::refusal([&] { bila::convolve(backend, c, from, to); }); };
  const auto with = [&](index_t batches, index_t heads, index_t width, index_t features, direction looks = direction::forward) {
    return layer{bila::bhld<const double>(taps.data(), batches, heads, width, features), looks};
  };
  CHECK(test::has_all(words(with(1, 4, 0, 3), x, y), {"weights", "[1, 4, 0, 3]", "1 to 64"}));
  CHECK(test::has_all(words(with(1, 1, 65, 3), x, y), {"weights", "[1, 1, 65, 3]", "1 to 64"}));
  CHECK(test::has_all(words(with(1, 4, 4, 3, direction::both), x, y), {"weights", "[1, 4, 4, 3]", "odd"}));
  CHECK(test::has_all(words(with(2, 4, 3, 3), x, y), {"weights", "[2, 4, 3, 3]"}));
  CHECK(test::has_all(words(with(1, 3, 3, 3), x, y), {"weights", "3 heads", "4 heads"}));
  CHECK(test::has_all(words(with(1, 4, 3, 2), x, y), {"weights", "[1, 4, 3, 2]", "3"}));
  CHECK(test::has_all(words({{nullptr, {1, 4, 3, 3}, {36, 9, 3, 1}}, direction::forward}, x, y), {"weights", "null"}));
  CHECK(test::has_all(words(with(1, 4, 3, 3), x, bila::bhld(result.data(), 2, 4, 5, 2)), {"y", "[2, 4, 5, 2]", "[2, 4, 5, 3]"}));
  CHECK(test::has_all(words(with(1, 4, 3, 3), {nullptr, {2, 4, 5, 3}, {60, 15, 3, 1}}, y), {"x", "null"}));
  CHECK(test::has_all(words(with(1, 4, 3, 3), bila::bhld<const double>(result.data() + 1, 2, 4, 5, 3), y), {"y overlaps x"}));
  CHECK(test::has_all(words({bila::bhld<const double>(result.data(), 1, 4, 3, 3), direction::forward}, x, y), {"y", "weights"}));
  CHECK(test::has_all(words(with(1, 4, 3, 3), x, {result.data(), {2, 4, 5, 3}, {60, 15, 0, 1}}), {"y", "share memory"}));
  CHECK(test::has_all(words(with(1, 4, 3, 3), x, y, {.threads = -1}), {"threads", "-1"}));
  std::byte little[8];
  CHECK(test::has_all(words(with(1, 4, 3, 3), x, y, {.workspace = little}), {"workspace", "8 bytes"}));

  auto other = with(1, 4, 3, 3);
  other.bias = bila::bhld<const double>(taps.data(), 1, 4, 1, 1);
  CHECK(test::has_all(words(other, x, y), {"bias", "[1, 4, 1, 1]", "[1, 4, 1, 3]"}));
  const std::vector<index_t> offsets{0, 5}, short_lengths{1}, long_lengths{1, 6}, good_lengths{1, 5}, falling{0, 4, 3, 5};
  other = with(1, 4, 3, 3);
  other.offsets = offsets;
  CHECK(test::has_all(words(other, x, y), {"offsets", "batch size of 1", "2"}));
  CHECK(test::has_all(words(other, bila::bhld<const double>(numbers.data(), 1, 4, 6, 3), bila::bhld(result.data(), 1, 4, 6, 3)),
                      {"offsets[1] = 5", "6"}));
  other.offsets = falling;
  CHECK(test::has_all(words(other, bila::bhld<const double>(numbers.data(), 1, 4, 5, 3), bila::bhld(result.data(), 1, 4, 5, 3)),
                      {"offsets[2] = 3", "offsets[1] = 4"}));
  other.lengths = good_lengths;
  CHECK(test::has_all(words(other, x, y), {"both offsets and lengths"}));
  other.offsets = {};
  other.lengths = short_lengths;
  CHECK(test::has_all(words(other, x, y), {"lengths", "1 entries", "2"}));
  other.lengths = long_lengths;
  CHECK(test::has_all(words(other, x, y), {"lengths[1] = 6", "0..5"}));

  std::vector<double> slopes(1000, 5.0);
  const auto by = [&](const bila::feature::convolution_gradients<double>& to, const bila::cpu& backend = {}) {
    return test::refusal([&] { bila::convolve_gradient(backend, with(1, 4, 3, 3), x, bila::tensor_view<const double>(y), to); });
  };
  CHECK(test::has_all(by({bila::bhld(slopes.data(), 2, 4, 5, 2), {}, {}}), {"gradients.x", "[2, 4, 5, 2]", "[2, 4, 5, 3]"}));
  CHECK(test::has_all(by({{}, bila::bhld(slopes.data(), 1, 4, 3, 1), {}}), {"gradients.weights", "[1, 4, 3, 1]", "[1, 4, 3, 3]"}));
  CHECK(test::has_all(by({{}, {}, bila::bhld(slopes.data(), 1, 4, 3, 3)}), {"gradients.bias", "[1, 4, 3, 3]", "[1, 4, 1, 3]"}));
  CHECK(test::has_all(by({{}, bila::bhld(taps.data(), 1, 4, 3, 3), {}}), {"gradients.weights overlaps weights"}));
  CHECK(test::has_all(by({bila::bhld(slopes.data(), 2, 4, 5, 3), bila::bhld(slopes.data(), 1, 4, 3, 3), {}}),
                      {"gradients.weights overlaps gradients.x"}));
  CHECK(test::has_all(by({bila::bhld(slopes.data(), 2, 4, 5, 3), {}, {}}, {.workspace = little}), {"workspace"}));
  CHECK(std::all_of(result.begin(), result.end(), [](double value) { return value == 5; }));
  CHECK(std::all_of(slopes.begin(), slopes.end(), [](double value) { return value == 5; }));
}
