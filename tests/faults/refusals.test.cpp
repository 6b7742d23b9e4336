// SPDX-License-Identifier: Apache-2.0
// Bad input: each row of the table spoils one thing of a good call. The call must throw std::invalid_argument with a sentence that
// names the argument, the place and the value, and must not have touched the output. Then the good input closest to it.
#include "support/catch.hpp"
#include "support/refusal.hpp"
#include "support/run.hpp"
#include "support/tensor.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace masks = bila::mask;

using bila::gate;
using bila::index_t;
using test::tensor;

constexpr double no_number = test::not_a_number<double>, infinity = std::numeric_limits<double>::infinity();
constexpr index_t B = 2, H = 4, L = 6, Dk = 3, Dv = 5;

/// A good call with grouped heads, decays of every kind at hand, and an output that shows any write.
struct call {
  explicit call(index_t batches = B)
      : q(batches, H, L, Dk),
        k(batches, 2, L, Dk),
        v(batches, 1, L, Dv),
        y(batches, H, L, Dv),
        per_head(1, H, 1, 1),
        gates(batches, H, L, 1),
        more_gates(batches, H, L, 1) {
    test::random_source random(1);
    for (auto* x : {&q, &k, &v}) x->fill_uniform(random, 0.5, 1.5);
    for (auto* x : {&per_head, &gates, &more_gates}) x->fill_uniform(random, -1, 0);
    y.fill(7);
    in = {q.view(), k.view(), v.view()};
    out = y.view();
    use_ones();
  }
  call(const call&) = delete;

  void use_ones() { mask = bila::mask::all_ones{}; }
  void use_fixed() { mask = bila::mask::fixed_decay{bila::tensor_view<const double>(per_head.view())}; }
  void use_selective(gate convention = gate::later) {
    mask = bila::mask::selective_decay{bila::tensor_view<const double>(gates.view()), convention};
  }
  void use_two_sided() {
    mask = bila::mask::two_sided{bila::tensor_view<const double>(gates.view()), bila::tensor_view<const double>(more_gates.view())};
  }
  bila::tensor_view<const double> gates_of(index_t b, index_t h, index_t l) {
    return bila::bhl<const double>(gates.view().data, b, h, l);
  }
  void set_offsets(std::vector<index_t> x) { in.offsets = offsets = std::move(x); }
  void set_lengths(std::vector<index_t> x) { in.lengths = lengths = std::move(x); }

  std::size_t bytes() const { return test::workspace_bytes(backend, form, mask, norm, in, out); }
  void run() const { test::attend(backend, form, mask, norm, in, out); }

  tensor<float> q, k, v, y;
  tensor<double> per_head, gates, more_gates;
  std::vector<index_t> offsets, lengths;
  std::vector<std::byte> memory;
  bila::inputs<float> in;
  bila::tensor_view<float> out;
  test::any_form form = bila::form::chunkwise{.size = 4};
  test::any_mask mask;
  test::any_norm norm = bila::norm::row_sum{1e-6};
  bila::cpu backend;
};

struct refusal {
  index_t batches;
  void (*spoil)(call&);
  std::vector<const char*> words;
};

// One row, one line.
// clang-format off
const std::vector<refusal> shapes{
    {2, [](call& c) { c.in.q.extents[0] = -1; }, {"q", "axis batch", "-1"}},
    {2, [](call& c) { c.in.k.extents[1] = -2; }, {"k", "axis head", "-2"}},
    {2, [](call& c) { c.in.v.extents[2] = -3; }, {"v", "axis length", "-3"}},
    {2, [](call& c) { c.out.extents[3] = -4; }, {"y", "axis feature", "-4"}},
    {2, [](call& c) { c.in.q.data = nullptr; }, {"q", "null", "[2, 4, 6, 3]"}},
    {2, [](call& c) { c.in.k.data = nullptr; }, {"k", "null", "[2, 2, 6, 3]"}},
    {2, [](call& c) { c.in.v.data = nullptr; }, {"v", "null", "[2, 1, 6, 5]"}},
    {2, [](call& c) { c.out.data = nullptr; }, {"y", "null", "[2, 4, 6, 5]"}},
    {2, [](call& c) { c.in.q.extents[0] = 1; }, {"q has batch size 1", "y has 2"}},
    {2, [](call& c) { c.in.k.extents[0] = 1; }, {"k has batch size 1", "y has 2"}},
    {2, [](call& c) { c.in.v.extents[0] = 0; }, {"v has batch size 0", "y has 2"}},
    {2, [](call& c) { c.in.q.extents[1] = 3; }, {"q has 3 heads", "4 heads of the output"}},
    {2, [](call& c) { c.in.k.extents[1] = 0; }, {"k has 0 heads", "4 heads of the output"}},
    {2, [](call& c) { c.in.v.extents[1] = 8; }, {"v has 8 heads", "4 heads of the output"}},
    {2, [](call& c) { c.in.q.extents[2] = 5; }, {"q has length 5", "y has 6"}},
    {2, [](call& c) { c.in.v.extents[2] = 5; }, {"v has length 5", "k has 6"}},
    {2, [](call& c) { c.in.k.extents[3] = 2; }, {"k has width 2", "q has 3"}},
    {2, [](call& c) { c.out.extents[3] = 4; }, {"y has width 4", "v has 5"}},
};

void shorten_keys(call& c) { c.in.k.extents[2] = c.in.v.extents[2] = 5; }

const std::vector<refusal> keys_of_another_length{
    {2, [](call& c) { shorten_keys(c), c.use_fixed(); }, {"k has length 5", "q has 6", "mask with decay"}},
    {2, [](call& c) { shorten_keys(c), c.use_selective(); }, {"k has length 5", "q has 6", "mask with decay"}},
    {2, [](call& c) { shorten_keys(c), c.use_two_sided(); }, {"k has length 5", "q has 6", "mask with decay"}},
    {2, [](call& c) { shorten_keys(c), c.in.direction = bila::direction::forward; }, {"k has length 5", "q has 6", "direction"}},
    {2, [](call& c) { shorten_keys(c), c.in.direction = bila::direction::backward; }, {"k has length 5", "q has 6", "direction"}},
    {2, [](call& c) { shorten_keys(c), c.in.diagonal = 2; }, {"k has length 5", "q has 6", "diagonal"}},
    {1, [](call& c) { shorten_keys(c), c.set_offsets({0, 2, 6}); }, {"k has length 5", "q has 6", "offsets"}},
    {2, [](call& c) { shorten_keys(c), c.set_lengths({5, 5}); }, {"k has length 5", "q has 6", "lengths"}},
};

const std::vector<refusal> segments{
    {1, [](call& c) { c.set_offsets({1, 3, 6}); }, {"offsets[0] = 1", "0"}},
    {1, [](call& c) { c.set_offsets({-1, 3, 6}); }, {"offsets[0] = -1"}},
    {1, [](call& c) { c.set_offsets({0, 4, 3, 6}); }, {"offsets[2] = 3", "offsets[1] = 4"}},
    {1, [](call& c) { c.set_offsets({0, -1, 6}); }, {"offsets[1] = -1", "offsets[0] = 0"}},
    {1, [](call& c) { c.set_offsets({0, 3, 5}); }, {"offsets[2] = 5", "length 6"}},
    {1, [](call& c) { c.set_offsets({0, 3, 7}); }, {"offsets[2] = 7", "length 6"}},
    {1, [](call& c) { c.set_offsets({0}); }, {"offsets", "1"}},
    {2, [](call& c) { c.set_offsets({0, 3, 6}); }, {"offsets", "batch size of 1", "2"}},
    {2, [](call& c) { c.set_lengths({6}); }, {"lengths", "1 entries", "batch size is 2"}},
    {2, [](call& c) { c.set_lengths({6, 6, 6}); }, {"lengths", "3 entries", "batch size is 2"}},
    {2, [](call& c) { c.set_lengths({6, 7}); }, {"lengths[1] = 7", "0..6"}},
    {2, [](call& c) { c.set_lengths({-1, 6}); }, {"lengths[0] = -1", "0..6"}},
    {1, [](call& c) { c.set_offsets({0, 3, 6}), c.set_lengths({6}); }, {"both offsets and lengths"}},
};

const std::vector<refusal> overlaps{
    {2, [](call& c) { c.in.q = {c.out.data + 1, {B, H, L, Dk}, c.out.strides}; }, {"y overlaps q"}},
    {2, [](call& c) { c.in.k = {c.out.data + 2, {B, H, L, Dk}, c.out.strides}; }, {"y overlaps k"}},
    {2, [](call& c) { c.in.v = c.out; }, {"y overlaps v"}},
    {2, [](call& c) { c.out.strides[0] = 0; }, {"y", "share memory", "[0, 30, 5, 1]"}},
    {2, [](call& c) { c.out.strides[2] = 4; }, {"y", "share memory", "[120, 30, 4, 1]"}},
    {2, [](call& c) { c.out.strides[3] = 0; }, {"y", "share memory", "[120, 30, 5, 0]"}},
};

constexpr index_t far = index_t{1} << 62;

const std::vector<refusal> sizes{
    {2, [](call& c) { c.in.q.extents = {2, 4, 6, far}, c.in.q.strides = {}; }, {"q has shape", "2^48 numbers"}},
    {2, [](call& c) { for (auto* x : {&c.in.q, &c.in.k, &c.in.v}) x->extents[2] = far, x->strides = {}; c.out.extents[2] = far, c.out.strides = {}; }, {"q has shape", "2^48 numbers"}},
    {2, [](call& c) { for (auto* x : {&c.in.q, &c.in.k, &c.in.v}) x->extents[0] = far, x->strides = {}; c.out.extents[0] = far, c.out.strides = {}; }, {"q has shape", "2^48 numbers"}},
    {2, [](call& c) { c.in.k.extents[2] = c.in.v.extents[2] = far, c.in.k.strides = c.in.v.strides = {}; }, {"k has shape", "2^48 numbers"}},
    {2, [](call& c) { c.in.v.strides[2] = far; }, {"v has strides", "2^48 numbers"}},
    {2, [](call& c) { c.out.strides[2] = -far; }, {"y has strides", "2^48 numbers"}},
    {2, [](call& c) { auto x = c.gates_of(B, H, L); x.strides[2] = far, c.mask = masks::selective_decay{x, gate::later}; }, {"log_decay has strides", "2^48 numbers"}},
    {2, [](call& c) { auto x = c.gates_of(B, H, L); x.strides[0] = -far, c.mask = masks::two_sided{c.gates_of(B, H, L), x}; }, {"log_backward has strides", "2^48 numbers"}},
    {2, [](call& c) { auto x = bila::vec<const double>(c.per_head.view().data, H); x.strides[1] = far, c.mask = masks::fixed_decay{x}; }, {"log_decay has strides", "2^48 numbers"}},
};

const std::vector<refusal> gate_shapes{
    {2, [](call& c) { c.mask = masks::fixed_decay{bila::vec<const double>(nullptr, 3)}; }, {"log_decay", "[1, 3, 1, 1]", "[1, 4, 1, 1]"}},
    {2, [](call& c) { c.mask = masks::fixed_decay{bila::vec<const double>(nullptr, H)}; }, {"log_decay", "null"}},
    {2, [](call& c) { c.mask = masks::selective_decay{c.gates_of(1, H, L), gate::later}; }, {"log_decay", "[1, 4, 6, 1]", "[2, 4, 6, 1]"}},
    {2, [](call& c) { c.mask = masks::selective_decay{c.gates_of(B, 3, L), gate::later}; }, {"log_decay", "[2, 3, 6, 1]", "[2, 4, 6, 1]"}},
    {2, [](call& c) { c.mask = masks::selective_decay{c.gates_of(B, H, L - 1), gate::later}; }, {"log_decay", "[2, 4, 5, 1]", "[2, 4, 6, 1]"}},
    {2, [](call& c) { c.mask = masks::selective_decay{bila::bhl<const double>(nullptr, B, H, L), gate::later}; }, {"log_decay", "null"}},
    {2, [](call& c) { c.mask = masks::two_sided{c.gates_of(B, H, 1), c.gates_of(B, H, L)}; }, {"log_forward", "[2, 4, 1, 1]", "[2, 4, 6, 1]"}},
    {2, [](call& c) { c.mask = masks::two_sided{c.gates_of(B, H, L), c.gates_of(1, H, L)}; }, {"log_backward", "[1, 4, 6, 1]", "[2, 4, 6, 1]"}},
};

const std::vector<refusal> gate_values{
    {2, [](call& c) { c.use_fixed(), c.per_head(0, 3, 0) = 0.1; }, {"log_decay[h = 3] = 0.1", "<= 0"}},
    {2, [](call& c) { c.use_fixed(), c.per_head(0, 0, 0) = no_number; }, {"log_decay[h = 0] = nan"}},
    {2, [](call& c) { c.use_selective(gate::later), c.gates(1, 2, 3) = 0.1; }, {"log_decay[b = 1, h = 2, t = 3] = 0.1", "<= 0"}},
    {2, [](call& c) { c.use_selective(gate::source), c.gates(1, 2, 0) = 0.1; }, {"log_decay[b = 1, h = 2, t = 0] = 0.1"}},
    {2, [](call& c) { c.use_selective(gate::source), c.gates(0, 0, 5) = 2e-6; }, {"log_decay[b = 0, h = 0, t = 5] = 2e-06"}},
    {2, [](call& c) { c.use_selective(gate::target), c.gates(1, 3, 0) = infinity; }, {"log_decay[b = 1, h = 3, t = 0] = inf"}},
    {2, [](call& c) { c.use_selective(gate::target), c.gates(0, 1, 5) = no_number; }, {"log_decay[b = 0, h = 1, t = 5] = nan"}},
    {2, [](call& c) { c.use_selective(gate::earlier), c.gates(0, 1, 4) = 0.5; }, {"log_decay[b = 0, h = 1, t = 4] = 0.5"}},
    {2, [](call& c) { c.use_two_sided(), c.gates(1, 0, 1) = 0.25; }, {"log_forward[b = 1, h = 0, t = 1] = 0.25"}},
    {2, [](call& c) { c.use_two_sided(), c.more_gates(0, 3, 5) = no_number; }, {"log_backward[b = 0, h = 3, t = 5] = nan"}},
    {2, [](call& c) { c.use_two_sided(), c.set_lengths({6, 3}), c.gates(1, 2, 2) = 1; }, {"log_forward[b = 1, h = 2, t = 2] = 1"}},
    {1, [](call& c) { c.use_two_sided(), c.set_offsets({0, 3, 6}), c.more_gates(0, 0, 4) = 1; }, {"log_backward[b = 0, h = 0, t = 4] = 1"}},
};

const std::vector<refusal> options{
    {2, [](call& c) { c.form = bila::form::chunkwise{.size = -1}; }, {"chunkwise.size = -1", ">= 0"}},
    {2, [](call& c) { c.form = bila::form::chunkwise{.size = -64}; }, {"chunkwise.size = -64", ">= 0"}},
    {2, [](call& c) { c.backend.threads = -1; }, {"cpu.threads = -1", ">= 0"}},
    {2, [](call& c) { c.norm = bila::norm::row_sum{-1e-6}; }, {"eps = -1e-06", ">= 0"}},
    {2, [](call& c) { c.norm = bila::norm::row_sum{no_number}; }, {"eps = nan", "finite"}},
    {2, [](call& c) { c.norm = bila::norm::row_sum{infinity}; }, {"eps = inf", "finite"}},
    {2, [](call& c) { c.in.scale = no_number; }, {"scale = nan", "finite"}},
    {2, [](call& c) { c.in.scale = -infinity; }, {"scale = -inf", "finite"}},
    {2, [](call& c) { c.in.diagonal = no_number; }, {"diagonal = nan", "finite"}},
    {2, [](call& c) { c.in.diagonal = infinity; }, {"diagonal = inf", "finite"}},
};
// clang-format on

void check_refused(const call& c, const tensor<float>& before, const std::vector<const char*>& words) {
  const std::string sentence = test::refusal([&] { c.run(); });
  CAPTURE(sentence);
  REQUIRE_FALSE(sentence.empty());
  CHECK(sentence.rfind("bila: ", 0) == 0);
  for (const char* const word : words) {
    CAPTURE(word);
    CHECK(test::has_all(sentence, {word}));
  }
  CHECK(same_bits(c.y, before));
  CHECK(c.y.intact());
}

void check_refused(const std::vector<refusal>& table) {
  for (const refusal& row : table) {
    call c(row.batches);
    c.run();  // good before it is spoiled
    c.y.fill(7);
    row.spoil(c);
    const tensor<float> before = c.y;
    check_refused(c, before, row.words);
    CHECK(test::refusal([&] { c.bytes(); }) == test::refusal([&] { c.run(); }));
  }
}

/// The output of a call that must be accepted.
tensor<float> accepted(call& c) {
  c.y.fill(7);
  c.run();
  REQUIRE(c.y.intact());
  c.y.for_each([](float x, index_t, index_t, index_t, index_t) { REQUIRE(std::isfinite(x)); });
  return c.y;
}

}  // namespace

TEST_CASE("refused: shapes that disagree, negative extents, null data", "[refusals]") { check_refused(shapes); }
TEST_CASE("refused: keys of another length unless the mask has no order (S19)", "[refusals]") {
  check_refused(keys_of_another_length);
}
TEST_CASE("refused: offsets and lengths (S12, A5)", "[refusals]") { check_refused(segments); }
TEST_CASE("refused: an output that overlaps an input or itself (A12)", "[refusals]") { check_refused(overlaps); }
TEST_CASE("refused: sizes that no memory can hold (F5)", "[refusals]") { check_refused(sizes); }
TEST_CASE("refused: gates of the wrong shape", "[refusals]") { check_refused(gate_shapes); }
TEST_CASE("refused: log decays that are positive or NaN (A4)", "[refusals]") { check_refused(gate_values); }
TEST_CASE("refused: options out of their range", "[refusals]") { check_refused(options); }

TEST_CASE("refused: an output that overlaps the gates of the mask", "[refusals]") {
  tensor<double> x(1, 1, 4, 3), gates(1, 1, 4, 1);
  x.fill(1), gates.fill(-1);
  const bila::tensor_view<double> inside_the_gates{gates.view().data, {1, 1, 4, 1}, {4, 4, 1, 1}};
  const bila::inputs<double> in{x.view(), x.view(), bila::tensor_view<const double>{x.view().data, {1, 1, 4, 1}, x.view().strides}};
  const bila::tensor_view<const double> log_decay = gates.view();
  const tensor<double> before = gates;
  for (const test::any_mask& mask : {test::any_mask(bila::mask::selective_decay{log_decay, gate::source}),
                                     test::any_mask(bila::mask::two_sided{log_decay, log_decay})}) {
    const std::string sentence =
        test::refusal([&] { test::attend(bila::cpu{}, bila::form::recurrent{}, mask, bila::norm::none{}, in, inside_the_gates); });
    CHECK(sentence.find("y overlaps the gates") != std::string::npos);
    CHECK(same_bits(gates, before));
  }
}

TEST_CASE("refused: a workspace that is too small", "[refusals]") {
  for (const test::any_form& form : test::all_forms) {
    call c;
    c.form = form;
    const std::size_t bytes = c.bytes();
    c.memory.resize(bytes - 1);
    c.backend.workspace = c.memory;
    check_refused(c, c.y, {"cpu.workspace", std::to_string(bytes - 1).c_str(), std::to_string(bytes).c_str()});
    CHECK(c.bytes() == bytes);  // the question itself needs no workspace

    c.memory.resize(bytes);
    c.backend.workspace = c.memory;
    accepted(c);
  }
}

TEST_CASE("accepted: log decays up to 1e-6 count as 0", "[refusals]") {
  for (const double border : {1e-7, 1e-6})
    for (const auto use : {&call::use_fixed, &call::use_two_sided}) {
      call zero, above;
      (zero.*use)(), (above.*use)();
      for (auto* x : {&zero.per_head, &zero.gates, &zero.more_gates}) x->fill(0);
      for (auto* x : {&above.per_head, &above.gates, &above.more_gates}) x->fill(border);
      CHECK(same_bits(accepted(zero), accepted(above)));
    }
}

TEST_CASE("accepted: gates that no crossing uses may be anything", "[refusals]") {
  const auto unused_does_not_matter = [](index_t batches, void (*prepare)(call&), void (*spoil)(call&)) {
    for (const test::any_form& form : test::all_forms) {
      call clean(batches), spoiled(batches);
      clean.form = spoiled.form = form;
      prepare(clean), prepare(spoiled);
      spoil(spoiled);
      CHECK(same_bits(accepted(clean), accepted(spoiled)));
    }
  };
  // The first gate of each convention that has an unused one; gap 0.
  unused_does_not_matter(
      2, [](call& c) { c.use_selective(gate::later); }, [](call& c) { c.gates(1, 2, 0) = no_number; });
  unused_does_not_matter(
      2, [](call& c) { c.use_selective(gate::earlier); }, [](call& c) { c.gates(1, 2, L - 1) = no_number; });
  unused_does_not_matter(
      2, [](call& c) { c.use_two_sided(); }, [](call& c) { c.gates(0, 1, 0) = c.more_gates(1, 0, 0) = no_number; });
  // Pads, and the first of them, where a crossing of the border would end.
  unused_does_not_matter(
      2,
      [](call& c) {
        c.use_selective(gate::source), c.set_lengths({3, 0});
      },
      [](call& c) {
        for (index_t h = 0; h < H; ++h)
          for (index_t t = 0; t < L; ++t) c.gates(1, h, t) = c.gates(0, h, std::max<index_t>(t, 3)) = no_number;
      });
  // Borders of segments.
  unused_does_not_matter(
      1,
      [](call& c) {
        c.use_two_sided(), c.set_offsets({0, 2, 2, 5, 6});
      },
      [](call& c) {
        for (const index_t t : {0, 2, 5}) c.gates(0, 3, t) = c.more_gates(0, 1, t) = no_number;
      });
  unused_does_not_matter(
      1,
      [](call& c) {
        c.use_selective(gate::later), c.set_offsets({0, 2, 6});
      },
      [](call& c) { c.gates(0, 0, 2) = 5; });
}

TEST_CASE("accepted: empty tensors, with or without data", "[refusals]") {
  for (const test::any_form& form : test::all_forms)
    for (const auto& [b, h, l, dk, dv] :
         std::vector<std::array<index_t, 5>>{{0, 4, 6, 3, 5}, {2, 0, 6, 3, 5}, {2, 4, 0, 3, 5}, {2, 4, 6, 3, 0}, {0, 0, 0, 0, 0}}) {
      const auto null = [](index_t B_, index_t H_, index_t L_, index_t D_) {
        return bila::bhld<const float>(nullptr, B_, H_, L_, D_);
      };
      tensor<float> q(b, h, l, dk);
      q.fill(1);
      const auto q_view = q.view().empty() ? null(b, h, l, dk) : bila::tensor_view<const float>(q.view());
      const bila::inputs<float> in{q_view, q_view, null(b, h, l, dv)};
      CHECK_NOTHROW(test::attend(bila::cpu{.threads = 2}, form, bila::mask::all_ones{}, bila::norm::row_sum{}, in,
                                 bila::bhld<float>(nullptr, b, h, l, dv)));
      tensor<double> gates(b, h, l, 1);
      gates.fill(-1);
      const bila::mask::selective_decay mask{bila::tensor_view<const double>(gates.view()), gate::source};
      CHECK_NOTHROW(test::attend(bila::cpu{}, form, mask, bila::norm::none{}, in, bila::bhld<float>(nullptr, b, h, l, dv)));
    }
}

TEST_CASE("accepted: keys without features have score 0", "[refusals]") {
  for (const test::any_form& form : test::all_forms)
    for (const test::any_norm& norm :
         {test::any_norm(bila::norm::none{}), test::any_norm(bila::norm::row_sum{}), test::any_norm(bila::norm::max_one{})}) {
      call c;
      c.use_fixed();
      c.form = form, c.norm = norm;
      c.in.q = bila::bhld<const float>(nullptr, B, H, L, 0);
      c.in.k = bila::bhld<const float>(nullptr, B, 2, L, 0);
      accepted(c).for_each([](float x, index_t, index_t, index_t, index_t) { CHECK(x == 0); });
    }
}

TEST_CASE("accepted: chunks longer than the sequence, more threads than work, an offset workspace", "[refusals]") {
  call c;
  c.use_selective();
  c.form = bila::form::chunkwise{.size = L};
  const tensor<float> whole = accepted(c);
  c.form = bila::form::chunkwise{.size = std::numeric_limits<index_t>::max()};
  CHECK(same_bits(accepted(c), whole));
  for (const int threads : {0, 64}) {
    c.backend.threads = threads;
    CHECK(same_bits(accepted(c), whole));
  }
  c.backend.threads = 1;
  c.memory.resize(c.bytes() + 1);
  c.backend.workspace = std::span(c.memory).subspan(1);
  CHECK(same_bits(accepted(c), whole));
}
