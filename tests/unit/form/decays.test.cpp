// SPDX-License-Identifier: Apache-2.0
// Which gaps a chunk reads, and the block of weights inside it.
#include "support/catch.hpp"
#include "support/oracle.hpp"

#include <bila/form/decays.hpp>
#include <bila/kernel/packets.hpp>
#include <bila/kernel/reference.hpp>

#include <cmath>
#include <limits>
#include <set>
#include <type_traits>
#include <vector>

namespace {

using bila::direction;
using bila::index_t;

/// Notes what it is asked. Forward decays are 2^-t, backward ones 3^-t.
struct noting_mask {
  static constexpr bila::gap gaps = bila::gap::per_token;
  std::set<index_t>* asked;

  double log_forward(index_t b, index_t h, index_t t) const {
    CHECK((b == 4 && h == 5));
    asked->insert(t);
    return -static_cast<double>(t) * std::log(2.0);
  }
  double log_backward(index_t, index_t, index_t t) const {
    asked->insert(t);
    return -static_cast<double>(t) * std::log(3.0);
  }
};

struct barely_positive {
  static constexpr bila::gap gaps = bila::gap::per_token;
  double log_forward(index_t, index_t, index_t) const { return 9e-7; }
  double log_backward(index_t, index_t, index_t) const { return -std::numeric_limits<double>::infinity(); }
};

struct one_decay {
  static constexpr bila::gap gaps = bila::gap::per_head;
  double log_forward(index_t, index_t, index_t) const { return std::log(0.5); }
  double log_backward(index_t, index_t, index_t) const { return std::log(0.25); }
};

template <class Mask>
bila::form::head<double> head_of(const Mask& mask, index_t L, index_t first = 0) {
  bila::form::head<double> x{};
  x.q.count = x.k.count = x.v.count = x.y.count = L;
  x.mask = {bila::form::view_of_mask<double>(mask), 4, 5, first};
  x.diagonal = 7;
  x.direction = direction::both;
  x.initial_forward.decay = 0.75;
  x.initial_backward.decay = 0.625;
  return x;
}

bool near(double x, double exact) { return std::fabs(x - exact) <= 16 * std::numeric_limits<double>::epsilon() * std::fabs(exact); }

}  // namespace

TEMPLATE_TEST_CASE("gaps 0 and L of a segment are never asked for, all between are; nothing decays there", "",
                   bila::kernel::reference, bila::kernel::eigen) {
  std::set<index_t> asked;
  const noting_mask mask{&asked};
  for (const index_t first : {0, 10}) {  // where the segment begins
    const auto x = head_of(mask, 6, first);
    std::vector<double> lambda(8, std::numeric_limits<double>::quiet_NaN());
    for (const bool backwards : {false, true}) {
      asked.clear();
      if (backwards)
        bila::form::fill_decays<TestType>(x, direction::backward, 0, 6, lambda.data());
      else
        bila::form::fill_decays<TestType>(x, direction::forward, 0, 6, lambda.data());
      CHECK(asked == std::set<index_t>{first + 1, first + 2, first + 3, first + 4, first + 5});
      CHECK((lambda[0] == 1 && lambda[6] == 1));
      for (index_t t = 1; t < 6; ++t)
        CHECK(near(lambda[static_cast<std::size_t>(t)], std::pow(backwards ? 3.0 : 2.0, -static_cast<double>(first + t))));
      CHECK(std::isnan(lambda[7]));
    }
  }
}

TEMPLATE_TEST_CASE("a chunk reads the gaps at both of its borders, if they are not the segment's", "", bila::kernel::reference,
                   bila::kernel::eigen) {
  std::set<index_t> asked;
  const noting_mask mask{&asked};
  const auto x = head_of(mask, 9);
  for (const index_t first : {0, 3, 6}) {
    std::vector<double> lambda(5, std::numeric_limits<double>::quiet_NaN());
    asked.clear();
    bila::form::fill_decays<TestType>(x, direction::forward, first, 3, lambda.data());
    std::set<index_t> expected{first, first + 1, first + 2, first + 3};
    expected.erase(0);
    expected.erase(9);
    CHECK(asked == expected);
    for (index_t m = 0; m < 4; ++m) {
      const bool outside = first + m == 0 || first + m == 9;
      CHECK(near(lambda[static_cast<std::size_t>(m)], outside ? 1 : std::pow(2.0, -static_cast<double>(first + m))));
    }
    CHECK(std::isnan(lambda[4]));
  }
  std::vector<double> lambda(2);
  const auto token = head_of(mask, 1);  // no gap of its own
  asked.clear();
  bila::form::fill_decays<TestType>(token, direction::backward, 0, 1, lambda.data());
  CHECK((asked.empty() && lambda == std::vector<double>{1, 1}));
}

TEMPLATE_TEST_CASE("one decay a head fills every gap but those at the ends", "", bila::kernel::reference, bila::kernel::eigen) {
  const one_decay mask;
  const auto x = head_of(mask, 9);
  for (const index_t first : {0, 3, 6}) {
    std::vector<double> lambda(5, std::numeric_limits<double>::quiet_NaN());
    bila::form::fill_decays<TestType>(x, direction::backward, first, 3, lambda.data());
    for (index_t m = 0; m < 4; ++m)
      CHECK(lambda[static_cast<std::size_t>(m)] == (first + m == 0 || first + m == 9 ? 1 : std::exp(std::log(0.25))));
    CHECK(std::isnan(lambda[4]));
  }
}

TEMPLATE_TEST_CASE("a log decay just above zero counts as zero, one of minus infinity cuts", "", bila::kernel::reference,
                   bila::kernel::eigen) {
  const barely_positive mask;
  const auto x = head_of(mask, 5);
  CHECK(x.mask.decay(direction::forward, 2) == 1);
  CHECK(x.mask.decay(direction::backward, 2) == 0);
  std::vector<double> forward(6), backward(6);
  bila::form::fill_decays<TestType>(x, direction::forward, 0, 5, forward.data());
  bila::form::fill_decays<TestType>(x, direction::backward, 0, 5, backward.data());
  CHECK(forward == std::vector<double>{1, 1, 1, 1, 1, 1});
  CHECK(backward == std::vector<double>{1, 0, 0, 0, 0, 1});
}

TEST_CASE("either way's decays have a place of their own, for the gaps at both borders too") {
  using bila::kernel::reference;
  bila::kernel::arena counter;
  const bila::form::gap_decays nowhere(counter, 7, std::type_identity<reference>());
  CHECK((nowhere.forward == nullptr && nowhere.backward == nullptr && counter.used() >= 2 * 8 * sizeof(double)));
  alignas(bila::kernel::arena::alignment) std::byte memory[256];
  REQUIRE(counter.used() <= sizeof(memory));
  bila::kernel::arena arena(memory);
  const bila::form::gap_decays here(arena, 7, std::type_identity<reference>());
  CHECK((here.way(direction::forward) == here.forward && here.way(direction::backward) == here.backward));
  CHECK((here.backward - here.forward >= 8 || here.forward - here.backward >= 8));
}

TEMPLATE_TEST_CASE("what crosses a chunk's borders is taken from the decays of its way", "", float, double) {
  bila::kernel::arena counter;
  bila::form::gap_decays decays(counter, 3, std::type_identity<bila::kernel::reference>());
  std::vector<double> forward{0.5, 0.25, 0.125, 0.0625}, backward{0.5, 0.5, 0.25, 0.25};
  decays.forward = forward.data();
  decays.backward = backward.data();
  std::vector<TestType> read(3), write(3);
  bila::kernel::border_weights<TestType> border{read.data(), write.data()};
  const bila::form::head<TestType> x{};
  bila::form::scan_border(x, direction::forward, 0, decays, 3, border);
  CHECK(read == std::vector<TestType>{TestType(0x1p-1), TestType(0x1p-3), TestType(0x1p-6)});
  CHECK(write == std::vector<TestType>{TestType(0x1p-5), TestType(0x1p-3), 1});
  CHECK(border.total == 0x1p-6);
  bila::form::scan_border(x, direction::backward, 0, decays, 3, border);
  CHECK(read == std::vector<TestType>{TestType(0x1p-5), TestType(0x1p-4), TestType(0x1p-2)});
  CHECK(write == std::vector<TestType>{1, TestType(0x1p-1), TestType(0x1p-3)});
  CHECK(border.total == 0x1p-5);
}

TEMPLATE_TEST_CASE("the block of a chunk: keys in rows, zero where the direction does not look and in the padding", "",
                   bila::kernel::reference, bila::kernel::eigen) {
  const one_decay mask;
  auto x = head_of(mask, 20);
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr index_t lanes = TestType::template lanes<double>;
  for (const direction way : {direction::both, direction::forward, direction::backward})
    for (const index_t n : {1, 4, 8, 11})
      for (const double diagonal : {7.0, 1.0, 0.0}) {
        x.direction = way;
        // A way that the call does not look has no decays at hand.
        std::vector<double> forward(static_cast<std::size_t>(n + 1), way == direction::backward ? nan : 0.5),
            backward(static_cast<std::size_t>(n + 1), way == direction::forward ? nan : 0.25);
        bila::kernel::arena counter;
        bila::form::gap_decays decays(counter, n, std::type_identity<TestType>());
        decays.forward = forward.data();
        decays.backward = backward.data();
        std::vector<double> memory(static_cast<std::size_t>(n * 16), nan);
        const bila::kernel::tile<double> M{memory.data(), n, n, 16};
        bila::form::scan_block<TestType>(x, 0, M, decays, diagonal);
        const index_t written = bila::kernel::round_up(n, lanes);
        for (index_t j = 0; j < n; ++j)
          for (index_t i = 0; i < 16; ++i) {
            const auto apart = static_cast<double>(std::abs(i - j));
            const double expected = i >= n                                ? 0
                                    : i == j                              ? diagonal
                                    : i > j && way != direction::backward ? std::pow(0.5, apart)
                                    : i < j && way != direction::forward  ? std::pow(0.25, apart)
                                                                          : 0;
            CHECK((i < written ? near(M.row(j)[i], expected) : std::isnan(M.row(j)[i])));
          }
      }
}
