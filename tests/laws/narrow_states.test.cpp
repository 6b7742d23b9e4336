// SPDX-License-Identifier: Apache-2.0
// States in 16 bits: a call gives, bit for bit, what it gives for float states of the same numbers, and rounds final states once.
#include "support/catch.hpp"
#include "support/refusal.hpp"

#include <bila/bila.hpp>

#include <cmath>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

namespace {

using bila::index_t;

constexpr index_t H = 3, L = 37, Dk = 6, Dv = 5, n = 3;
const std::vector<index_t> offsets{0, 20, 20, L};  // the sequence in the middle is empty

template <class T>
std::vector<T> numbers(index_t count, double low, double high, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> any(static_cast<float>(low), static_cast<float>(high));
  std::vector<T> x(static_cast<std::size_t>(count));
  for (T& one : x) one = T(any(random));
  return x;
}

/// Memory of states in both directions, and the views of it.
template <class T>
struct states {
  std::vector<T> S[2], z[2];

  explicit states(unsigned seed) {
    for (unsigned way : {0u, 1u}) {
      S[way] = numbers<T>(n * H * Dk * Dv, -1, 1, seed + way);
      z[way] = numbers<T>(n * H * Dk, 0, 1, seed + 2 + way);
    }
  }

  template <class U>
  explicit states(const states<U>& from) {
    for (int way : {0, 1}) {
      for (const U x : from.S[way]) S[way].push_back(T(static_cast<float>(x)));
      for (const U x : from.z[way]) z[way].push_back(T(static_cast<float>(x)));
    }
  }

  bila::state<T> view(int way) { return {bila::bhld(S[way].data(), n, H, Dk, Dv), bila::bhld(z[way].data(), n, H, Dk, 1)}; }
};

template <class T>
bool same_bits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

template <class T>
bool same_bits(const states<T>& x, const states<T>& y) {
  return same_bits(x.S[0], y.S[0]) && same_bits(x.S[1], y.S[1]) && same_bits(x.z[0], y.z[0]) && same_bits(x.z[1], y.z[1]);
}

template <class T>
struct call {
  std::vector<T> q = numbers<T>(H * L * Dk, 0, 1, 1), k = numbers<T>(H * L * Dk, 0, 1, 2), v = numbers<T>(H * L * Dv, -1, 1, 3);
  std::vector<T> y = std::vector<T>(static_cast<std::size_t>(H * L * Dv)), dq = q, dk = k, dv = v;
  std::vector<float> gates = numbers<float>(H * L, -0.3, 0, 4), row_sum = gates, decays = numbers<float>(n * H, -1, 0, 5);
  bila::mask::selective_decay<float> mask{bila::bhl(gates.data(), 1, H, L), bila::gate::source};

  /// The same call with states that hold numbers of type N.
  template <class N>
  bila::inputs<T> inputs(states<N>& initial) {
    bila::inputs<T> in{bila::bhld(q.data(), 1, H, L, Dk), bila::bhld(k.data(), 1, H, L, Dk), bila::bhld(v.data(), 1, H, L, Dv)};
    in.offsets = offsets;
    auto enters = initial.view(0);
    enters.log_decay = bila::bhl(decays.data(), n, H, 1);
    in.initial_forward = enters;
    in.initial_backward = initial.view(1);
    return in;
  }

  template <class N>
  bila::outputs<T> outputs(states<N>& final, bool with_y) {
    bila::outputs<T> out;
    if (with_y) out = {bila::bhld(y.data(), 1, H, L, Dv), bila::bhl(row_sum.data(), 1, H, L)};
    out.final_forward = final.view(0);
    out.final_backward = final.view(1);
    return out;
  }
};

template <class T, class N, class Form, class Norm>
void check(const Form& form, const Norm& norm, int threads, bool with_y) {
  call<T> narrow, wide;
  states<N> initial(10), final(20);
  states<float> initial_wide(initial), final_wide(final);
  const states<N> given = initial;
  bila::attend(bila::cpu{.threads = threads}, form, narrow.mask, norm, narrow.inputs(initial), narrow.outputs(final, with_y));
  bila::attend(bila::cpu{.threads = threads}, form, wide.mask, norm, wide.inputs(initial_wide), wide.outputs(final_wide, with_y));
  CHECK(same_bits(narrow.y, wide.y));
  CHECK(same_bits(narrow.row_sum, wide.row_sum));
  CHECK(same_bits(initial, given));
  CHECK(same_bits(final, states<N>(final_wide)));  // z under norm::none stays as it was
  bila::attend(bila::cpu{.threads = threads}, form, narrow.mask, norm, narrow.inputs(initial), narrow.outputs(initial, with_y));
  CHECK(same_bits(initial.S[0], final.S[0]));  // in place
  CHECK(same_bits(initial.S[1], final.S[1]));
}

}  // namespace

TEMPLATE_TEST_CASE("states in 16 bits are float states, rounded once", "", bila::bf16, bila::f16) {
  for (const int threads : {1, 3})
    for (const bool with_y : {true, false}) {
      check<float, TestType>(bila::form::chunkwise{8}, bila::norm::row_sum{1e-6}, threads, with_y);
      check<bila::bf16, TestType>(bila::form::recurrent{}, bila::norm::none{}, threads, with_y);
    }
}

TEMPLATE_TEST_CASE("gradients read initial states in 16 bits", "", bila::bf16, bila::f16) {
  call<float> narrow, wide;
  states<TestType> initial(10);
  states<float> initial_wide(initial);
  std::vector<float> S[2] = {std::vector<float>(n * H * Dk * Dv), std::vector<float>(n * H * Dk * Dv)};
  const bila::form::chunkwise form{8};
  const bila::norm::row_sum norm{1e-6};
  std::vector<std::byte> memory(100);
  const auto learn = [&](auto& x, auto& from, std::vector<float>& dS) {
    const auto in = x.inputs(from);
    const bila::outputs<float> out{bila::bhld(x.y.data(), 1, H, L, Dv), bila::bhl(x.row_sum.data(), 1, H, L)};
    bila::attend(form, x.mask, norm, in, out);
    bila::gradients<float> to;
    to.q = bila::bhld(x.dq.data(), 1, H, L, Dk);
    to.k = bila::bhld(x.dk.data(), 1, H, L, Dk);
    to.v = bila::bhld(x.dv.data(), 1, H, L, Dv);
    to.initial_forward.S = bila::bhld(dS.data(), n, H, Dk, Dv);
    to.initial_forward.z = {};
    std::vector<float> dz(n * H * Dk);
    to.initial_forward.z = bila::bhld(dz.data(), n, H, Dk, 1);
    memory.resize(bila::gradient_workspace_bytes(bila::cpu{}, form, in, bila::tensor_view<const float>(out.y)));
    bila::gradient(bila::cpu{.workspace = memory}, form, x.mask, norm, in, bila::saved<float>{out.y, out.row_sum},
                   bila::output_gradients<float>{bila::bhld(x.v.data(), 1, H, L, Dv)}, to);
  };
  learn(narrow, initial, S[0]);
  learn(wide, initial_wide, S[1]);
  CHECK(same_bits(narrow.dq, wide.dq));
  CHECK(same_bits(narrow.dk, wide.dk));
  CHECK(same_bits(narrow.dv, wide.dv));
  CHECK(same_bits(S[0], S[1]));
}

TEST_CASE("what states in 16 bits may not do is refused") {
  call<float> x;
  states<bila::bf16> initial(10);
  const bila::norm::row_sum norm{1e-6};
  const auto in = x.inputs(initial);
  const auto words = [](const auto& what) { return test::refusal(what); };

  bila::outputs<float> out = x.outputs(initial, true);
  out.final_forward.S.data += 1;  // two of its numbers, which are 16 bits, further on
  CHECK(test::has_all(words([&] { bila::attend(bila::form::chunkwise{8}, x.mask, norm, in, out); }),
                      {"final_forward.S", "overlaps"}));

  bila::gradients<float> to;
  to.initial_forward = initial.view(0);
  const bila::saved<float> kept{bila::bhld(x.y.data(), 1, H, L, Dv), bila::bhl(x.row_sum.data(), 1, H, L)};
  CHECK(test::has_all(words([&] {
                        bila::gradient(bila::form::chunkwise{8}, x.mask, norm, in, kept,
                                       bila::output_gradients<float>{bila::bhld(x.v.data(), 1, H, L, Dv)}, to);
                      }),
                      {"gradients.initial_forward", "16 bits"}));
}
