// SPDX-License-Identifier: Apache-2.0
// Where the elements of a view lie.
#include "support/catch.hpp"

#include <bila/view/tensor_view.hpp>

#include <numeric>
#include <type_traits>
#include <vector>

namespace {

using bila::index_t;

std::vector<int> counting(index_t n) {
  std::vector<int> x(static_cast<std::size_t>(n));
  std::iota(x.begin(), x.end(), 0);
  return x;
}

constexpr index_t B = 2, H = 3, L = 4, D = 5;

}  // namespace

TEST_CASE("bhld and blhd name the same axes over different memory") {
  auto memory = counting(B * H * L * D);
  const auto x = bila::bhld(memory.data(), B, H, L, D);
  const auto y = bila::blhd(memory.data(), B, L, H, D);
  CHECK((x.batches() == B && x.heads() == H && x.length() == L && x.features() == D));
  CHECK(y.extents == x.extents);
  for (index_t b = 0; b < B; ++b)
    for (index_t h = 0; h < H; ++h)
      for (index_t l = 0; l < L; ++l)
        for (index_t d = 0; d < D; ++d) {
          CHECK(x(b, h, l, d) == ((b * H + h) * L + l) * D + d);
          CHECK(y(b, h, l, d) == ((b * L + l) * H + h) * D + d);
        }
}

TEST_CASE("bhl and blh have one number per token, vec one per head") {
  auto memory = counting(B * H * L);
  const auto gates = bila::bhl(memory.data(), B, H, L);
  CHECK(gates.extents == bila::per_axis{B, H, L, 1});
  CHECK(gates(1, 2, 3, 0) == (1 * H + 2) * L + 3);
  const auto by_token = bila::blh(memory.data(), B, L, H);
  CHECK(by_token.extents == gates.extents);
  CHECK(by_token(1, 2, 3, 0) == (1 * L + 3) * H + 2);
  const auto heads = bila::vec(memory.data(), H);
  CHECK(heads.extents == bila::per_axis{1, H, 1, 1});
  for (index_t h = 0; h < H; ++h) CHECK(heads(0, h, 0, 0) == h);
}

TEST_CASE("strides may be negative or zero, and reach beyond 32 bits") {
  auto memory = counting(10);
  const bila::tensor_view<int> backwards{memory.data() + 9, {1, 1, 5, 2}, {0, 0, -2, -1}};
  CHECK(backwards(0, 0, 0, 0) == 9);
  CHECK(backwards(0, 0, 4, 1) == 0);
  const bila::tensor_view<int> broadcast{memory.data() + 3, {4, 4, 4, 4}, {0, 0, 0, 0}};
  CHECK(broadcast(3, 2, 1, 0) == 3);

  constexpr index_t far = (index_t(1) << 32) + 8;
  const auto large = bila::bhld(static_cast<int*>(nullptr), 3, 64, 131072, 256);
  CHECK(large.strides[0] == index_t(64) * 131072 * 256);
  const bila::tensor_view<int> distant{memory.data() + 1, {2, 1, 2, 1}, {far, 0, 1 - far, 1}};
  CHECK(distant(1, 0, 1, 0) == 2);
}

TEST_CASE("a view is empty when an axis is") {
  CHECK(bila::tensor_view<int>{}.empty());
  for (std::size_t axis = 0; axis < 4; ++axis) {
    bila::tensor_view<int> x{nullptr, {1, 1, 1, 1}, {}};
    CHECK_FALSE(x.empty());
    x.extents[axis] = 0;
    CHECK(x.empty());
  }
}

TEST_CASE("a writable view becomes a read-only one, and not back") {
  static_assert(std::is_convertible_v<bila::tensor_view<int>, bila::tensor_view<const int>>);
  static_assert(!std::is_convertible_v<bila::tensor_view<const int>, bila::tensor_view<int>>);
  static_assert(std::is_aggregate_v<bila::tensor_view<int>> && std::is_trivially_copyable_v<bila::tensor_view<int>>);
  static_assert(std::is_convertible_v<bila::rows<int>, bila::rows<const int>>);
  static_assert(!std::is_convertible_v<bila::rows<const int>, bila::rows<int>>);
  auto memory = counting(4);
  const auto x = bila::bhld(memory.data(), 1, 1, 2, 2);
  const bila::tensor_view<const int> read = x;
  x(0, 0, 1, 0) = 70;
  CHECK(read(0, 0, 1, 0) == 70);
}

TEST_CASE("the rows of a head are its tokens") {
  auto memory = counting(B * H * L * D);
  const auto x = bila::blhd(memory.data(), B, L, H, D);
  const auto rows = bila::head_rows(x, 1, 2, 1, 3);
  CHECK((rows.count == 3 && rows.width == D));
  for (index_t i = 0; i < 3; ++i)
    for (index_t d = 0; d < D; ++d) CHECK(rows(i, d) == x(1, 2, 1 + i, d));

  const auto part = rows.slice(1, 2).columns(2, 3);
  CHECK((part.count == 2 && part.width == 3));
  for (index_t i = 0; i < 2; ++i)
    for (index_t d = 0; d < 3; ++d) CHECK(part(i, d) == rows(1 + i, 2 + d));

  const auto nothing = bila::head_rows(bila::tensor_view<int>{nullptr, {1, 1, 0, D}, {}}, 0, 0, 0, 0);
  CHECK((nothing.data == nullptr && nothing.count == 0 && nothing.width == D));
}
