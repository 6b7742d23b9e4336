// SPDX-License-Identifier: Apache-2.0
// Everything that can be wrong with q, k, v and y, and the words for it.
#include "support/catch.hpp"
#include "support/refusal.hpp"

#include <bila/call/inputs.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

namespace {

using bila::index_t;

constexpr index_t B = 2, H = 4, L = 6, Dk = 3, Dv = 5;

/// A call in which everything is right, for a test to spoil one thing.
struct call {
  std::vector<float> q_memory = std::vector<float>(B * H * L * Dk), k_memory = q_memory,
                     v_memory = std::vector<float>(B * H * L * Dv), y_memory = v_memory;
  bila::inputs<float> in{bila::bhld(q_memory.data(), B, H, L, Dk), bila::bhld(k_memory.data(), B, H, L, Dk),
                         bila::bhld(v_memory.data(), B, H, L, Dv)};
  bila::tensor_view<float> y = bila::bhld(y_memory.data(), B, H, L, Dv), row_sum{};
  bila::state<float> final_forward{}, final_backward{};

  std::string error() const { return bila::validate(in, bila::outputs<float>{y, row_sum, final_forward, final_backward}); }
};

std::string after(const std::function<void(call&)>& spoil) {
  call x;
  spoil(x);
  return x.error();
}

}  // namespace

TEST_CASE("a call in which everything is right has no error") {
  CHECK(call().error().empty());
  static_assert(std::is_aggregate_v<bila::inputs<float>>);
  static_assert(
      std::is_same_v<decltype(bila::inputs{bila::tensor_view<float>{}, bila::tensor_view<float>{}, bila::tensor_view<float>{}}),
                     bila::inputs<float>>);
  static_assert(std::is_same_v<decltype(bila::inputs{bila::tensor_view<const double>{}, bila::tensor_view<const double>{},
                                                     bila::tensor_view<const double>{}}),
                               bila::inputs<double>>);
}

TEST_CASE("the defaults are scale 1, diagonal 1, both directions, one segment") {
  const bila::inputs<float> in{};
  CHECK((in.scale == 1 && in.diagonal == 1 && in.direction == bila::direction::both && in.offsets.empty() && in.lengths.empty()));
}

TEST_CASE("the geometry of a call") {
  const call x;
  const auto size = bila::geometry_of(x.in, x.y);
  CHECK((size.B == B && size.H == H && size.L == L && size.Lk == L && size.Dk == Dk && size.Dv == Dv));
}

TEST_CASE("negative extents and null pointers are named") {
  using test::has_all;
  CHECK(has_all(after([](call& x) { x.in.q.extents[0] = -1; }), {"q", "batch", "-1"}));
  CHECK(has_all(after([](call& x) { x.in.k.extents[1] = -2; }), {"k", "head", "-2"}));
  CHECK(has_all(after([](call& x) { x.in.v.extents[2] = -3; }), {"v", "length", "-3"}));
  CHECK(has_all(after([](call& x) { x.y.extents[3] = -4; }), {"y", "feature", "-4"}));
  CHECK(has_all(after([](call& x) { x.in.q.data = nullptr; }), {"q", "null", "[2, 4, 6, 3]"}));
  CHECK(has_all(after([](call& x) { x.in.k.data = nullptr; }), {"k", "null", "[2, 4, 6, 3]"}));
  CHECK(has_all(after([](call& x) { x.in.v.data = nullptr; }), {"v", "null", "[2, 4, 6, 5]"}));
  CHECK(has_all(after([](call& x) { x.y.data = nullptr; }), {"y", "null", "[2, 4, 6, 5]"}));
  CHECK(after([](call& x) {
          for (auto* view : {&x.in.q, &x.in.k, &x.in.v}) view->data = nullptr, view->extents[2] = 0;
          x.y.data = nullptr, x.y.extents[2] = 0;
        }).empty());
}

TEST_CASE("shapes that disagree are named with both numbers") {
  using test::has_all;
  CHECK(has_all(after([](call& x) { x.in.q.extents[0] = 1; }), {"q", "batch", "1", "y", "2"}));
  CHECK(has_all(after([](call& x) { x.in.k.extents[0] = 1; }), {"k", "batch", "1", "y", "2"}));
  CHECK(has_all(after([](call& x) { x.in.v.extents[0] = 1; }), {"v", "batch", "1", "y", "2"}));
  CHECK(has_all(after([](call& x) { x.in.q.extents[2] = 5; }), {"q", "length", "5", "y", "6"}));
  CHECK(has_all(after([](call& x) { x.in.v.extents[2] = 5; }), {"v", "length", "5", "k", "6"}));
  CHECK(has_all(after([](call& x) { x.in.k.extents[3] = 2; }), {"k", "width", "2", "q", "3"}));
  CHECK(has_all(after([](call& x) { x.y.extents[3] = 4; }), {"y", "width", "4", "v", "5"}));
}

TEST_CASE("heads must divide the heads of y") {
  using test::has_all;
  CHECK(has_all(after([](call& x) { x.in.q.extents[1] = 3; }), {"q", "3 heads", "divide", "4"}));
  CHECK(has_all(after([](call& x) { x.in.k.extents[1] = 0; }), {"k", "0 heads", "divide", "4"}));
  CHECK(has_all(after([](call& x) { x.in.v.extents[1] = 8; }), {"v", "8 heads", "divide", "4"}));
  for (const index_t heads : {1, 2, 4}) CHECK(after([heads](call& x) { x.in.q.extents[1] = heads; }).empty());
  CHECK(after([](call& x) { x.in.k.extents[1] = 2, x.in.v.extents[1] = 1; }).empty());
}

TEST_CASE("scale and diagonal are finite") {
  using test::has_all;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(has_all(after([](call& x) { x.in.scale = infinity; }), {"scale", "inf"}));
  CHECK(has_all(after([](call& x) { x.in.scale = std::nan(""); }), {"scale", "nan"}));
  CHECK(has_all(after([](call& x) { x.in.diagonal = -infinity; }), {"diagonal", "-inf"}));
  CHECK(has_all(after([](call& x) { x.in.diagonal = std::nan(""); }), {"diagonal", "nan"}));
  CHECK(after([](call& x) { x.in.scale = 0, x.in.diagonal = -3; }).empty());
}

TEST_CASE("offsets start at 0, do not decrease, end at the length, and belong to one batch row") {
  using test::has_all;
  const auto packed = [](std::vector<index_t> offsets, index_t batches = 1) {
    return after([&](call& x) {
      for (auto* view : {&x.in.q, &x.in.k, &x.in.v}) view->extents[0] = batches;
      x.y.extents[0] = batches;
      x.in.offsets = offsets;
    });
  };
  CHECK(packed({0, 6}).empty());
  CHECK(packed({0, 0, 2, 2, 6, 6}).empty());
  CHECK(has_all(packed({0, 6}, 2), {"offsets", "batch", "2"}));
  CHECK(has_all(packed({0}), {"offsets", "1"}));
  CHECK(has_all(packed({1, 6}), {"offsets[0] = 1", "0"}));
  CHECK(has_all(packed({0, 4, 3, 6}), {"offsets[2] = 3", "offsets[1] = 4"}));
  CHECK(has_all(packed({0, -1, 6}), {"offsets[1] = -1", "offsets[0] = 0"}));
  CHECK(has_all(packed({0, 4, 5}), {"offsets[2] = 5", "6"}));
  CHECK(has_all(packed({0, 7}), {"offsets[1] = 7", "6"}));
  CHECK(has_all(packed({0, 12, 8, 6}), {"offsets[2] = 8", "offsets[1] = 12"}));
}

TEST_CASE("lengths are one per batch row, from 0 to the length, and exclude offsets") {
  using test::has_all;
  const auto padded = [](std::vector<index_t> lengths) { return after([&](call& x) { x.in.lengths = lengths; }); };
  CHECK(padded({0, 6}).empty());
  CHECK(has_all(padded({6}), {"lengths", "1", "2"}));
  CHECK(has_all(padded({6, 6, 6}), {"lengths", "3", "2"}));
  CHECK(has_all(padded({6, 7}), {"lengths[1] = 7", "0..6"}));
  CHECK(has_all(padded({-1, 6}), {"lengths[0] = -1", "0..6"}));
  const std::vector<std::int32_t> narrow{6, 7};
  CHECK(has_all(after([&](call& x) { x.in.lengths = narrow; }), {"lengths[1] = 7", "0..6"}));
  const std::vector<index_t> of_keys{10, 10};  // in cross attention they would be right for neither (U41)
  CHECK(has_all(after([&](call& x) { x.in.k.extents[2] = x.in.v.extents[2] = 10, x.in.lengths = of_keys; }),
                {"lengths", "k has length 10", "q has 6"}));
  const std::vector<index_t> lengths{6, 6}, offsets{0, 6};
  CHECK(has_all(after([&](call& x) { x.in.lengths = lengths, x.in.offsets = offsets; }), {"lengths", "offsets", "both"}));
}

TEST_CASE("y shares memory with no input and not with itself") {
  using test::has_all;
  CHECK(has_all(after([](call& x) { x.y.data = x.v_memory.data(); }), {"y overlaps v"}));
  CHECK(has_all(after([](call& x) { x.y.strides[0] = 0; }), {"y", "share memory", "[0, 30, 5, 1]"}));
  const auto square = [](float* call_memory, auto spoil) {
    call x;
    x.in = {bila::bhld(call_memory, 1, 1, 4, 4), bila::bhld(call_memory + 16, 1, 1, 4, 4),
            bila::bhld(call_memory + 32, 1, 1, 4, 4)};
    x.y = bila::bhld(call_memory + 48, 1, 1, 4, 4);
    spoil(x);
    return x.error();
  };
  std::vector<float> memory(64);
  CHECK(square(memory.data(), [](call&) {}).empty());
  CHECK(has_all(square(memory.data(), [&](call& x) { x.y.data = memory.data(); }), {"y overlaps q"}));
  CHECK(has_all(square(memory.data(), [&](call& x) { x.y.data = memory.data() + 16; }), {"y overlaps k"}));
  CHECK(has_all(square(memory.data(), [&](call& x) { x.y.data = memory.data() + 47; }), {"y overlaps v"}));
}

TEST_CASE("row sums and states have the shapes of the call") {
  using test::has_all;
  std::vector<float> memory(2 * H * Dk * Dv), other(memory);
  const auto S = bila::bhld(memory.data(), B, H, Dk, Dv), z = bila::bhld(other.data(), B, H, Dk, 1);
  CHECK(after([&](call& x) { x.in.initial_forward = x.in.initial_backward = {S, z}; }).empty());
  CHECK(after([&](call& x) { x.final_forward = {S, z}; }).empty());
  CHECK(has_all(after([&](call& x) {
                  x.in.initial_forward = {bila::bhld(memory.data(), B, H, Dk, Dv - 1), z};
                }),
                {"initial_forward.S", "[2, 4, 3, 4]", "[2, 4, 3, 5]"}));
  CHECK(has_all(after([&](call& x) {
                  x.in.initial_backward = {S, bila::bhld(other.data(), 1, H, Dk, 1)};
                }),
                {"initial_backward.z", "[1, 4, 3, 1]", "[2, 4, 3, 1]"}));
  CHECK(has_all(after([&](call& x) {
                  x.in.initial_forward = {S, z, bila::bhld(other.data(), B, 1, 1, 1)};
                }),
                {"initial_forward.log_decay", "[2, 1, 1, 1]", "[2, 4, 1, 1]"}));
  CHECK(has_all(after([&](call& x) {
                  x.final_forward = {bila::bhld(memory.data(), 1, H, Dk, Dv), z};
                }),
                {"final_forward.S", "[1, 4, 3, 5]", "[2, 4, 3, 5]"}));
  CHECK(has_all(after([&](call& x) {
                  x.final_backward = {S, bila::bhld(other.data(), B, H, Dk - 1, 1)};
                }),
                {"final_backward.z", "[2, 4, 2, 1]", "[2, 4, 3, 1]"}));
  CHECK(has_all(after([&](call& x) { x.row_sum = bila::bhld(memory.data(), B, H, L - 1, 1); }),
                {"row_sum", "[2, 4, 5, 1]", "[2, 4, 6, 1]"}));
  const std::vector<index_t> offsets{0, 2, 6};  // one state for each segment
  CHECK(has_all(after([&](call& x) {
                  for (auto* view : {&x.in.q, &x.in.k, &x.in.v}) view->extents[0] = 1;
                  x.y.extents[0] = 1;
                  x.in.offsets = offsets;
                  x.in.initial_forward = {bila::bhld(memory.data(), 1, H, Dk, Dv), z};
                }),
                {"initial_forward.S", "[1, 4, 3, 5]", "[2, 4, 3, 5]"}));
}

TEST_CASE("what is written shares memory with nothing else that is") {
  using test::has_all;
  std::vector<float> memory(2 * H * Dk * Dv), other(memory);
  const auto S = bila::bhld(memory.data(), B, H, Dk, Dv), z = bila::bhld(other.data(), B, H, Dk, 1);
  CHECK(has_all(after([&](call& x) {
                  x.final_forward = {S, z}, x.final_backward = {S, bila::bhld(other.data() + 60, B, H, Dk, 1)};
                }),
                {"final_backward.S overlaps final_forward.S"}));
  CHECK(has_all(after([&](call& x) {
                  x.final_forward = {S, z}, x.row_sum = bila::bhld(other.data(), B, H, L, 1);
                }),
                {"final_forward.z overlaps row_sum"}));
  CHECK(has_all(after([&](call& x) { x.row_sum = bila::bhld(x.k_memory.data(), B, H, L, 1); }), {"row_sum overlaps k"}));
}

TEST_CASE("a final state takes the initial one's very place, and no other that overlaps it (F4)") {
  using test::has_all;
  std::vector<float> memory(3 * B * H * Dk * Dv), sums(memory);
  const auto S = bila::bhld(memory.data(), B, H, Dk, Dv), z = bila::bhld(sums.data(), B, H, Dk, 1);
  const auto replaced_by = [&](const bila::state<float>& final) {
    return after([&](call& x) { x.in.initial_forward = {S, z}, x.final_forward = final; });
  };
  CHECK(replaced_by({S, z}).empty());
  auto other = S;
  other.strides[0] = 12345, other.extents[0] = 1;  // a stride that is never walked
  CHECK(after([&](call& x) {
          for (auto* view : {&x.in.q, &x.in.k, &x.in.v}) view->extents[0] = 1;
          x.y.extents[0] = 1;
          x.in.initial_backward.S = bila::bhld(memory.data(), 1, H, Dk, Dv), x.final_backward.S = other;
        }).empty());
  for (const index_t by : {index_t{1}, Dv, Dk * Dv, H * Dk * Dv})  // a number, a row, a head, a sequence further on
    CHECK(has_all(replaced_by({bila::bhld(memory.data() + by, B, H, Dk, Dv), z}), {"final_forward.S overlaps initial_forward.S"}));
  CHECK(has_all(replaced_by({{memory.data(), {B, H, Dk, Dv}, {H * Dk * Dv, Dk * Dv, 1, Dk}}, z}), {"final_forward.S overlaps"}));
  CHECK(has_all(replaced_by({S, bila::bhld(sums.data() + Dk, B, H, Dk, 1)}), {"final_forward.z overlaps initial_forward.z"}));
  CHECK(has_all(replaced_by({bila::bhld(sums.data(), B, H, Dk, Dv), bila::bhld(memory.data(), B, H, Dk, 1)}),
                {"final_forward.S overlaps initial_forward.z"}));
  CHECK(has_all(replaced_by({S, bila::bhld(memory.data(), B, H, Dk, 1)}), {"final_forward.z overlaps final_forward.S"}));
  CHECK(has_all(after([&](call& x) {
                  x.in.initial_forward = {S, z}, x.final_backward = {S, z};
                }),
                {"final_backward.S overlaps initial_forward.S"}));
  auto decays = bila::state<float>{S, z, bila::bhld(sums.data() + 100, B, H, 1, 1)};
  CHECK(has_all(after([&](call& x) {
                  x.in.initial_forward = decays, x.final_forward = {S, bila::bhld(sums.data() + 100, B, H, Dk, 1)};
                }),
                {"final_forward.z overlaps initial_forward.log_decay"}));
}

TEST_CASE("sizes that no memory can hold are refused, however they broadcast, and name the tensor (F5)") {
  using test::has_all;
  constexpr index_t far = index_t{1} << 62, long_ = index_t{1} << 40, most = std::numeric_limits<index_t>::max();
  const auto spoil = [](auto change) {
    return after([&](call& x) {
      for (auto* view : {&x.in.q, &x.in.k, &x.in.v}) change(view->extents, view->strides = {});
      change(x.y.extents, x.y.strides = {});
    });
  };
  for (std::size_t axis = 0; axis < 4; ++axis) {
    const auto all = [axis](index_t extent) { return [=](bila::per_axis& extents, bila::per_axis&) { extents[axis] = extent; }; };
    for (const index_t extent : {far, most, index_t{1} << 48}) CHECK(has_all(spoil(all(extent)), {"q has shape", "2^48 numbers"}));
  }
  CHECK(has_all(spoil([](auto& extents, auto&) { extents[0] = extents[2] = long_; }), {"q has shape", "2^48"}));
  CHECK(has_all(spoil([](auto& extents, auto&) { extents[2] = 0, extents[0] = extents[1] = long_; }), {"q has shape", "2^48"}));
  CHECK(has_all(after([](call& x) { x.in.k.strides[2] = far; }), {"k has strides", "4611686018427387904", "2^48"}));
  CHECK(has_all(after([](call& x) { x.in.v.strides[1] = -far; }), {"v has strides", "-4611686018427387904", "2^48"}));
  for (const index_t stride : {most, std::numeric_limits<index_t>::min()})
    CHECK(has_all(after([stride](call& x) { x.y.strides[3] = stride; }), {"y has strides", "2^48"}));
  CHECK(after([](call& x) {
          for (auto* view : {&x.in.q, &x.in.k, &x.in.v}) view->extents[0] = 1, view->strides[0] = most;
          x.y.extents[0] = 1, x.y.strides[0] = std::numeric_limits<index_t>::min();  // strides that are never walked
        }).empty());

  std::vector<float> memory(2 * H * Dk * Dv);
  const auto S = bila::bhld(memory.data(), B, H, Dk, Dv), z = bila::bhld(memory.data() + 60, B, H, Dk, 1);
  const auto bent = [](auto x) { return x.strides[2] = far, x; };
  CHECK(has_all(after([&](call& x) { x.row_sum = bent(bila::bhl(memory.data(), B, H, L)); }), {"row_sum has strides"}));
  CHECK(has_all(after([&](call& x) { x.final_forward = {bent(S), z}; }), {"final_forward.S has strides"}));
  CHECK(has_all(after([&](call& x) { x.in.initial_backward = {S, bent(z)}; }), {"initial_backward.z has strides"}));
  // Each tensor alone can be had, but not a state of a head.
  CHECK(has_all(after([](call& x) {
                  for (auto* view : {&x.in.q, &x.in.k, &x.in.v}) view->strides = {}, view->extents = {1, 1, 0, long_};
                  x.y.strides = {}, x.y.extents = {1, 1, 0, long_};
                }),
                {"y has shape [1, 1, 0, 1099511627776]", "width 1099511627776", "2^52"}));
  // The builders may be asked for such shapes too.
  CHECK(has_all(after([](call& x) { x.in.q = bila::bhld(x.q_memory.data(), long_, long_, long_, far); }), {"q has shape", "2^48"}));
  CHECK(has_all(after([](call& x) { x.in.q = bila::blhd(x.q_memory.data(), long_, long_, long_, far); }), {"q has shape", "2^48"}));
}

TEST_CASE("inputs may share memory among themselves") {
  CHECK(after([](call& x) { x.in.k = x.in.q; }).empty());
  CHECK(after([](call& x) { x.in.q.strides = x.in.k.strides = {0, 0, 0, 0}; }).empty());
}
