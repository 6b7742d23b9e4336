// SPDX-License-Identifier: Apache-2.0
// Faults that users of linear attention have met elsewhere, kept out by a test each: sizes, strides and addresses that break.
#include "faults/faults.hpp"
#include "support/refusal.hpp"

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

using namespace faults;

namespace {

/// Every input in another layout, with another poison in the holes and behind the ends.
test::problem<float> laid_out(test::problem<float> x, test::layout where, float poison) {
  for (auto* input : {&x.q, &x.k, &x.v}) *input = input->laid_out(where, poison);
  for (auto* gates : {&x.gates, &x.other_gates}) *gates = gates->laid_out(where, static_cast<double>(poison));
  return x;
}

}  // namespace

TEST_CASE("S2: what lies behind a tensor does not enter the result", "[shape]") {
  for (const index_t D : {13, 17, 60, 80}) {
    const auto clean = sample({.H = 2, .L = 37, .Dk = D, .Dv = D});
    for (const test::any_form& form : test::all_forms) {
      const tensor<float> y = run(form, laid_out(clean, test::layout::bhld, 0));
      for (const float poison : {1e30f, test::not_a_number<float>})
        for (const test::layout where : {test::layout::bhld, test::layout::packed})
          CHECK(same_bits(run(form, laid_out(clean, where, poison)), y));
    }
  }
}

TEST_CASE("S3: every pair of key and value widths works", "[shape]") {
  for (const index_t Dk : {1, 3, 8, 17, 80, 192, 256})
    for (const index_t Dv : {1, 3, 8, 17, 80, 192, 256}) {
      const auto x = sample({.L = 26, .Dk = Dk, .Dv = Dv});
      const test::answer exact = x.exact();
      for (const test::any_form& form : test::all_forms) check_against_definition(form, x, exact);
    }
}

TEST_CASE("S5: the cut of wide values among threads does not show (forward)", "[shape]") {
  const auto x = sample({.L = 200, .Dk = 16, .Dv = 128});
  for (const test::any_form& form : test::all_forms) {
    const tensor<float> alone = run(form, x);
    for (const int threads : {2, 3, 8}) CHECK(same_bits(run(form, x, {.threads = threads}), alone));
  }
}

#if defined(__linux__)
namespace {

/// Address space without memory behind it until it is touched: the tensors of S7 need 17 GB each, a few pages of them.
class sparse_memory {
 public:
  explicit sparse_memory(std::size_t bytes) : bytes_(bytes) {
    void* const start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) throw std::runtime_error("no address space of " + std::to_string(bytes) + " bytes");
    start_ = start;
  }
  ~sparse_memory() { munmap(start_, bytes_); }
  sparse_memory(const sparse_memory&) = delete;

  /// A tensor of which one axis has an enormous stride.
  template <class T>
  bila::tensor_view<T> view(const bila::per_axis& extents, std::size_t far_axis, index_t stride) {
    bila::per_axis strides{extents[1] * extents[2] * extents[3], extents[2] * extents[3], extents[3], 1};
    strides[far_axis] = stride;
    return {static_cast<T*>(start_), extents, strides};
  }

 private:
  std::size_t bytes_;
  void* start_;
};

template <class T>
void copy(const bila::tensor_view<T>& to, const tensor<T>& from) {
  from.for_each([&](const T& value, index_t b, index_t h, index_t l, index_t d) { to(b, h, l, d) = value; });
}

}  // namespace

TEST_CASE("S7: offsets beyond 2^31 elements, along the batch, the heads and the sequence", "[shape]") {
  const index_t beyond = (index_t(1) << 31) + 8;
  for (std::size_t far_axis = 0; far_axis < 3; ++far_axis) {
    const auto x = sample({.B = 3, .H = 3, .L = 3, .Dk = 4, .Dv = 4});
    const std::size_t elements = static_cast<std::size_t>(2 * beyond) + 1024;
    sparse_memory q(elements * sizeof(float)), k(elements * sizeof(float)), v(elements * sizeof(float)),
        y(elements * sizeof(float)), gates(elements * sizeof(double));
    const auto far_q = q.view<float>({3, 3, 3, 4}, far_axis, beyond), far_k = k.view<float>({3, 3, 3, 4}, far_axis, beyond);
    const auto far_v = v.view<float>({3, 3, 3, 4}, far_axis, beyond), far_y = y.view<float>({3, 3, 3, 4}, far_axis, beyond);
    const auto far_gates = gates.view<double>({3, 3, 3, 1}, far_axis, beyond);
    copy(far_q, x.q), copy(far_k, x.k), copy(far_v, x.v), copy(far_gates, x.gates);

    for (const test::any_form& form : test::all_forms) {
      CAPTURE(far_axis, test::name_of(form));
      const tensor<float> near_y = run(form, x);
      test::attend<float>(bila::cpu{}, form, bila::mask::selective_decay<double>{far_gates, bila::gate::source}, x.norm,
                          {far_q, far_k, far_v}, far_y);
      bool same = true;
      near_y.for_each([&](float value, index_t b, index_t h, index_t l, index_t d) { same = same && far_y(b, h, l, d) == value; });
      CHECK(same);
    }
  }
}
#endif

TEST_CASE("S9: unit axes are axes", "[shape]") {
  for (const mask_kind kind : test::all_masks)
    for (const auto& [b, h, l] : std::vector<std::array<index_t, 3>>{{1, 1, 1}, {2, 1, 5}, {1, 3, 1}})
      for (const test::any_form& form : test::all_forms) {
        auto x = sample({.B = b, .H = h, .L = l, .Dk = 4, .Dv = 3}, kind, bila::norm::row_sum{});
        check_against_definition(form, x, x.exact());
        const float few_roundings = 8 * std::numeric_limits<float>::epsilon();
        if (l == 1)
          run(form, x).for_each(
              [&](float y, index_t B, index_t H, index_t, index_t d) { CHECK(std::fabs(y - x.v(B, H, 0, d)) <= few_roundings); });

        x.norm = bila::norm::none{};
        check_against_definition(form, x, x.exact());
        if (l == 1)
          run(form, x).for_each([&](float y, index_t B, index_t H, index_t, index_t d) {
            double score = 0;
            for (index_t c = 0; c < 4; ++c) score += double(x.q(B, H, 0, c)) * x.k(B, H, 0, c);
            CHECK(std::fabs(y - score * x.v(B, H, 0, d)) <= score * few_roundings);
          });
      }
}

TEST_CASE("S10: a sequence shorter than the chunk", "[shape]") {
  for (const mask_kind kind : test::all_masks) {
    const auto x = sample({.L = 5, .Dk = 8, .Dv = 8}, kind);
    check_against_definition(bila::form::chunkwise{.size = 64}, x, x.exact());
  }
}

TEST_CASE("S11, S17: one form object and one workspace for every length, in any order", "[shape]") {
  const bila::form::chunkwise chunkwise{};
  std::vector<std::byte> memory;
  bila::cpu backend;
  for (const index_t L : {625, 600, 37, 1024, 10000, 600, 625}) {
    auto x = row_sums(mask_kind::fixed, L);
    x.gates.fill(-.01);
    const test::answer exact = test::long_definition(x.inputs(), x.gaps(), x.rule());
    const std::size_t bytes = test::workspace_bytes<float>(bila::cpu{}, chunkwise, x.mask(), x.norm, x.inputs(), x.output().view());
    memory.resize(std::max(memory.size(), bytes));
    backend.workspace = memory;
    const tensor<float> y = run(chunkwise, x, backend);
    CHECK(x.worst_error(y, exact) <= 1);
    for (const test::any_form& form : linear_forms) check_against_definition(form, x, exact);
  }
}

TEST_CASE("S12: offsets that do not fit are refused before anything runs, naming the entry", "[shape]") {
  auto x = sample({.L = 128, .Dk = 2, .Dv = 2});
  const auto sentence = [&] {
    tensor<float> y = x.output();
    const std::string words =
        test::refusal([&] { test::attend<float>({}, bila::form::recurrent{}, x.mask(), x.norm, x.inputs(), y.view()); });
    CHECK(same_bits(y, x.output()));
    return words;
  };
  x.offsets = {0, 12, 8, 16};
  CHECK(test::has_all(sentence(), {"offsets[2] = 8", "offsets[1] = 12"}));
  x.offsets = {0, 8, 12, 16};
  CHECK(test::has_all(sentence(), {"offsets[3] = 16", "128"}));
  x = sample({.B = 2, .L = 16, .Dk = 2, .Dv = 2});
  x.offsets = {0, 8, 12, 16};
  CHECK(test::has_all(sentence(), {"offsets", "batch size of 1, it is 2"}));
}

TEST_CASE("S14: slices of a packed projection, at any address", "[shape]") {
  const index_t B = 2, H = 3, L = 45, D = 20, row = 3 * H * D + 5;
  const auto x = sample({.B = B, .H = H, .L = L, .Dk = D, .Dv = D});
  std::vector<float> packed(static_cast<std::size_t>(B * L * row + 1), 1e30f);
  const auto slice = [&](index_t which) {
    return bila::tensor_view<float>{packed.data() + 1 + which * H * D, {B, H, L, D}, {L * row, D, row, 1}};
  };
  const auto q = slice(0), k = slice(1), v = slice(2);
  const auto fill = [](const auto& to, const tensor<float>& from) {
    from.for_each([&](float value, index_t b, index_t h, index_t l, index_t d) { to(b, h, l, d) = value; });
  };
  fill(q, x.q), fill(k, x.k), fill(v, x.v);
  for (const test::any_form& form : test::all_forms) {
    tensor<float> y = x.output(test::layout::packed);
    test::attend<float>(bila::cpu{}, form, x.mask(), x.norm, {q, k, v}, y.view());
    CHECK(y.intact());
    CHECK(same_bits(y, run(form, x)));
  }
}

TEST_CASE("S15: transposed, reversed, strided and broadcast views give the bits of their dense copies", "[shape]") {
  const auto dense = sample({.B = 2, .H = 3, .L = 45, .Dk = 9, .Dv = 16});
  for (const test::any_form& form : test::all_forms) {
    const tensor<float> y = run(form, dense);
    for (const test::layout where : test::all_layouts) {
      CAPTURE(test::name_of(form), test::name_of(where));
      CHECK(same_bits(run(form, laid_out(dense, where, 1e30f)), y));
      CHECK(same_bits(test::evaluate(form, dense, {}, where).y, y));
    }

    // One token, one head and one batch row for all, by strides of zero.
    auto repeated = dense;
    repeated.k.for_each([&](float& k, index_t, index_t, index_t, index_t d) { k = dense.k(0, 0, 0, d); });
    repeated.v.for_each([&](float& v, index_t, index_t, index_t, index_t) { v = .5f; });
    repeated.gates.for_each([&](double& gate, index_t, index_t, index_t l, index_t) { gate = dense.gates(0, 0, l); });
    const float one_value = .5f;
    const bila::tensor_view<const float> k{dense.k.view().data, {2, 3, 45, 9}, {0, 0, 0, 1}},
        v{&one_value, {2, 3, 45, 16}, {0, 0, 0, 0}};
    const bila::tensor_view<const double> gates{dense.gates.view().data, {2, 3, 45, 1}, {0, 0, 1, 0}};
    tensor<float> broadcast = dense.output();
    test::attend<float>(bila::cpu{}, form, bila::mask::selective_decay<double>{gates, bila::gate::source}, dense.norm,
                        {dense.q.view(), k, v}, broadcast.view());
    CHECK(same_bits(broadcast, run(form, repeated)));
  }
}

TEST_CASE("S16: chunks and lengths that are multiples of nothing", "[shape]") {
  for (const mask_kind kind : {mask_kind::fixed, mask_kind::source})
    for (const index_t L : {100, 192, 384}) {
      const auto x = sample({.L = L, .Dk = 12, .Dv = 20}, kind);
      const test::answer exact = x.exact();
      check_against_definition(bila::form::full{}, x, exact);
      for (const index_t C : {16, 32, 48, 96}) check_against_definition(bila::form::chunkwise{.size = C}, x, exact);
    }
}

TEST_CASE("S18, G6: any number of heads, each with its own gates, each as if alone", "[shape]") {
  for (const index_t H : {1, 3, 5, 12}) {
    auto x = sample({.H = H, .L = 40, .Dk = 6, .Dv = 6}, mask_kind::fixed);
    for (index_t h = 0; h < H; ++h) x.gates(0, h, 0) = std::log(std::array{.1, .5, .99}[static_cast<std::size_t>(h % 3)]);
    for (const test::any_form& form : test::all_forms) {
      const tensor<float> y = run(form, x);
      for (index_t h = 0; h < H; ++h) CHECK(as_if_alone(form, x, y, {.h = h, .L = 40}));
    }
  }
}

TEST_CASE("S19: keys of another length are attended to by the mask without order, and refused by the others", "[shape]") {
  for (const test::any_norm& norm : test::all_norms) {
    const auto x = sample({.B = 2, .H = 2, .L = 3, .Dk = 4, .Dv = 4, .Lk = 5}, mask_kind::all_ones, norm);
    const test::answer exact = x.exact();
    for (const test::any_form& form : test::all_forms) check_against_definition(form, x, exact);
  }
  for (const mask_kind kind :
       {mask_kind::fixed, mask_kind::later, mask_kind::source, mask_kind::target, mask_kind::earlier, mask_kind::two_sided}) {
    const auto x = sample({.L = 3, .Dk = 4, .Dv = 4, .Lk = 5}, kind);
    for (const test::any_form& form : test::all_forms) CHECK_THROWS_AS(test::evaluate(form, x), std::invalid_argument);
  }
}
