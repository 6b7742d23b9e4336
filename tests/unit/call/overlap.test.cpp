// SPDX-License-Identifier: Apache-2.0
// Which tensors may be an output beside which inputs: whatever shares no byte with them, if that can be seen from the strides.
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/refusal.hpp"

#include <bila/call/overlap.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

using bila::index_t;
using bila::tensor_view;
using bila::detail::footprint;

template <class T, class U>
bool may_overlap(const tensor_view<T>& x, const tensor_view<U>& y) {
  return bila::detail::may_overlap(footprint(x), footprint(y));
}

bool shares_memory_with_itself(const tensor_view<float>& x) { return bila::detail::shares_memory_with_itself(footprint(x)); }

/// Addresses of all bytes, by counting, in order.
template <class T>
std::vector<std::uintptr_t> bytes_of(const tensor_view<T>& x) {
  std::vector<std::uintptr_t> found;
  for (index_t b = 0; b < x.extents[0]; ++b)
    for (index_t h = 0; h < x.extents[1]; ++h)
      for (index_t l = 0; l < x.extents[2]; ++l)
        for (index_t d = 0; d < x.extents[3]; ++d)
          for (std::size_t byte = 0; byte < sizeof(T); ++byte)
            found.push_back(reinterpret_cast<std::uintptr_t>(&x(b, h, l, d)) + byte);
  std::sort(found.begin(), found.end());
  return found;
}

template <class T, class U>
bool really_overlap(const tensor_view<T>& x, const tensor_view<U>& y) {
  const auto a = bytes_of(x), b = bytes_of(y);
  for (const auto address : a)
    if (std::binary_search(b.begin(), b.end(), address)) return true;
  return false;
}

bool really_shares(const tensor_view<float>& x) {
  const auto all = bytes_of(x);
  return std::adjacent_find(all.begin(), all.end()) != all.end();
}

}  // namespace

TEST_CASE("q, k, v and y interleaved in one packed buffer do not overlap") {
  constexpr index_t B = 2, H = 3, L = 5, D = 4;
  std::vector<float> memory(static_cast<std::size_t>(B * L * 4 * H * D));
  const auto slice = [&](index_t n, index_t width) {  // token rows hold q, k, v and y, each of all heads
    return tensor_view<float>{memory.data() + n * H * D, {B, H, L, width}, {L * 4 * H * D, D, 4 * H * D, 1}};
  };
  for (index_t n = 0; n < 4; ++n)
    for (index_t m = 0; m < 4; ++m) CHECK(may_overlap(slice(n, D), slice(m, D)) == (n == m));

  const auto by_head = [&](index_t n) {  // each head holds q, k, v and y
    return tensor_view<float>{memory.data() + n * D, {B, H, L, D}, {L * 4 * H * D, 4 * D, 4 * H * D, 1}};
  };
  for (index_t n = 0; n < 4; ++n)
    for (index_t m = 0; m < 4; ++m) CHECK(may_overlap(by_head(n), by_head(m)) == (n == m));
}

TEST_CASE("a slice that reaches one element into the next one is found") {
  std::vector<float> memory(200);
  const tensor_view<float> x{memory.data(), {1, 1, 5, 4}, {0, 0, 12, 1}};
  for (index_t first = -3; first <= 15; ++first) {
    const tensor_view<float> y{memory.data() + 24 + first, {1, 1, 5, 4}, {0, 0, 12, 1}};
    CHECK(may_overlap(x, y) == really_overlap(x, y));
    CHECK(may_overlap(y, x) == really_overlap(x, y));
  }
}

TEST_CASE("tensors one behind the other do not overlap, empty ones never do") {
  std::vector<float> memory(40);
  const auto x = bila::bhld(memory.data(), 1, 1, 4, 5), y = bila::bhld(memory.data() + 20, 1, 1, 4, 5);
  CHECK_FALSE(may_overlap(x, y));
  CHECK(may_overlap(x, bila::bhld(memory.data() + 19, 1, 1, 4, 5)));
  CHECK_FALSE(may_overlap(x, bila::bhld(memory.data(), 1, 1, 0, 5)));
  const tensor_view<float> backwards{memory.data() + 39, {1, 1, 4, 5}, {0, 0, -5, -1}};
  CHECK_FALSE(may_overlap(x, backwards));
  CHECK(may_overlap(x, tensor_view<float>{memory.data() + 38, {1, 1, 4, 5}, {0, 0, -5, -1}}));
}

TEST_CASE("tensors of different types are compared byte by byte") {
  std::vector<double> memory(8);
  auto* const as_float = reinterpret_cast<float*>(memory.data());
  const auto x = bila::bhl(memory.data() + 2, 1, 1, 2);  // bytes 16 to 32
  CHECK_FALSE(may_overlap(x, bila::bhl(as_float, 1, 1, 4)));
  CHECK(may_overlap(x, bila::bhl(as_float, 1, 1, 5)));
  CHECK(may_overlap(x, bila::bhl(as_float + 7, 1, 1, 1)));
  CHECK_FALSE(may_overlap(x, bila::bhl(as_float + 8, 1, 1, 1)));
}

TEST_CASE("a tensor that is not given overlaps nothing") {
  std::vector<float> memory(20);
  const auto x = bila::bhld(memory.data(), 1, 1, 4, 5);
  const tensor_view<float> none{nullptr, {1, 1, 4, 5}, {0, 0, 5, 1}};
  CHECK_FALSE(may_overlap(x, none));
  CHECK_FALSE(may_overlap(none, none));
  CHECK_FALSE(shares_memory_with_itself(tensor_view<float>{nullptr, {1, 1, 4, 5}, {}}));
}

TEST_CASE("every output is held against itself, the inputs and the outputs before it") {
  using test::has_all;
  std::vector<float> memory(100);
  const auto at = [&](index_t first) { return footprint(bila::bhld(memory.data() + first, 1, 1, 4, 5)); };
  using bila::detail::check_overlaps;
  using list = std::vector<bila::detail::named_tensor>;
  CHECK(check_overlaps(list{{"y", at(0)}, {"z", at(20)}}, list{{"q", at(40)}, {"k", at(40)}}).empty());
  CHECK(has_all(check_overlaps(list{{"y", at(0)}, {"z", at(20)}}, list{{"q", at(60)}, {"k", at(39)}}), {"z overlaps k"}));
  CHECK(has_all(check_overlaps(list{{"y", at(0)}, {"z", at(19)}}, list{{"q", at(60)}}), {"z overlaps y"}));
  CHECK(check_overlaps(list{{"y", at(0)}}, list{{"q", at(0), "y"}}).empty());  // it takes the very place of q
  CHECK(has_all(check_overlaps(list{{"y", at(0)}}, list{{"q", at(0), "z"}}), {"y overlaps q"}));
  CHECK(has_all(check_overlaps(list{{"y", at(0)}}, list{{"q", at(5), "y"}}), {"y overlaps q"}));
  CHECK(has_all(check_overlaps(list{{"y", footprint(tensor_view<float>{memory.data(), {1, 1, 4, 5}, {0, 0, 1, 4}})}},
                               list{{"q", at(0), "y"}}),
                {"y overlaps q"}));
  CHECK(has_all(
      check_overlaps(list{{"y", at(0)}, {"z", footprint(tensor_view<float>{memory.data() + 40, {1, 1, 4, 5}, {}})}}, list{}),
      {"z", "share memory"}));
}

TEST_CASE("an output whose elements share memory is found") {
  std::vector<float> memory(100);
  const auto shares = [&](bila::per_axis extents, bila::per_axis strides) {
    return shares_memory_with_itself(tensor_view<float>{memory.data() + 50, extents, strides});
  };
  CHECK_FALSE(shares({2, 2, 3, 4}, {24, 12, 4, 1}));
  CHECK_FALSE(shares({2, 2, 3, 4}, {-24, 12, -4, 1}));
  CHECK_FALSE(shares({1, 1, 3, 4}, {0, 0, 4, 1}));  // strides of single axes do not count
  CHECK(shares({2, 1, 3, 4}, {0, 0, 4, 1}));
  CHECK(shares({1, 1, 3, 4}, {0, 0, 3, 1}));
  CHECK(shares({1, 1, 3, 4}, {0, 0, 4, 0}));
  CHECK(shares({1, 2, 3, 1}, {0, 4, 2, 1}));
}

TEST_CASE("features interleaved with other tensors do not overlap, wherever their tokens start") {
  constexpr index_t B = 2, H = 3, L = 5, D = 20;
  for (const index_t token : {4 * H * D, 4 * H * D + 3}) {
    std::vector<float> memory(static_cast<std::size_t>(B * L * token));
    const auto every_fourth = [&](index_t n) {
      return tensor_view<float>{memory.data() + n, {B, H, L, D}, {L * token, 4 * D, token, 4}};
    };
    for (index_t n = 0; n < 4; ++n)
      for (index_t m = 0; m < 4; ++m) CHECK(may_overlap(every_fourth(n), every_fourth(m)) == (n == m));
  }
}

TEST_CASE("two tensors of small strides may overlap if and only if they share a byte") {
  test::random_source random(301);
  std::vector<double> memory(2000);
  int overlaps = 0, shares = 0;
  const auto view = [&]<class T>(T* start) {
    tensor_view<T> x{start, {}, {}};
    for (std::size_t axis = 0; axis < 4; ++axis) {
      x.extents[axis] = 1 + random.below(4);
      x.strides[axis] = random.below(17) - 8;
    }
    x.data += random.below(41) - 20;
    return x;
  };
  for (int n = 0; n < 6000; ++n) {
    auto* const middle = reinterpret_cast<float*>(memory.data() + 1000);
    const auto x = view(middle);
    const auto compare = [&](const auto& y) {
      const bool really = really_overlap(x, y);
      overlaps += really ? 1 : 0;
      CHECK(may_overlap(x, y) == really);
      CHECK(may_overlap(y, x) == really);
    };
    if (n % 2 == 0)
      compare(view(middle));
    else
      compare(view(memory.data() + 1000));
    if (really_shares(x)) {
      ++shares;
      CHECK(shares_memory_with_itself(x));
    }
  }
  CHECK((overlaps > 1000 && overlaps < 5000));  // the examples were of both kinds
  CHECK(shares > 100);
}

TEST_CASE("long tensors are told apart without looking at their elements") {
  constexpr index_t L = 1000000, D = 64;
  auto* const memory = reinterpret_cast<float*>(std::uintptr_t{1} << 28);  // never touched
  const auto fourth = [&](index_t n) { return tensor_view<float>{memory + n, {1, 1, L, D}, {0, 0, 4 * D, 4}}; };
  const auto transposed = [&](index_t n) { return tensor_view<float>{memory + n, {1, 1, L, D}, {0, 0, 4, 4 * L}}; };
  CHECK_FALSE(may_overlap(fourth(0), fourth(1)));
  CHECK_FALSE(may_overlap(fourth(0), transposed(1)));
  CHECK(may_overlap(fourth(0), transposed(0)));
  CHECK(may_overlap(fourth(1), transposed(4 * D * L - 3)));  // the last element
  CHECK_FALSE(may_overlap(fourth(0), tensor_view<float>{memory + 2, {1, 1, L / 2, D}, {0, 0, 8 * D, 4}}));
}
