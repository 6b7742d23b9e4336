// SPDX-License-Identifier: Apache-2.0
// Scratch memory that is counted first and laid out afterwards, by the same code.
#include "support/catch.hpp"

#include <bila/kernel/arena.hpp>
#include <bila/kernel/packets.hpp>
#include <bila/kernel/reference.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

using bila::index_t;
using bila::kernel::arena;
using Kernel = bila::kernel::eigen;

template <class Real>
constexpr index_t lanes = Kernel::lanes<Real>;

struct layout {
  explicit layout(arena& memory)
      : a(memory.padded<Kernel, float>(3, 5)),
        b(memory.numbers<Kernel, double>(7)),
        c(memory.padded<Kernel, double>(2, 9)),
        d(memory.numbers<Kernel, float>(0)) {}
  bila::kernel::tile<float> a;
  double* b;
  bila::kernel::tile<double> c;
  float* d;
};

template <class T>
std::uintptr_t address(const T* x) {
  return reinterpret_cast<std::uintptr_t>(x);
}

}  // namespace

TEST_CASE("counting and laying out agree; pieces are aligned, padded and apart") {
  arena counter;
  const layout nowhere(counter);
  CHECK((nowhere.a.data == nullptr && nowhere.b == nullptr && nowhere.c.data == nullptr));

  std::vector<std::byte> memory(counter.used() + arena::alignment);
  std::byte* const base = memory.data() + (arena::alignment - address(memory.data()) % arena::alignment) % arena::alignment;
  arena real(base);
  const layout here(real);
  CHECK(real.used() == counter.used());

  CHECK((here.a.rows == 3 && here.a.columns == 5 && here.a.stride % lanes<float> == 0 && here.a.stride >= 5 &&
         here.a.stride < 5 + lanes<float>));
  CHECK((here.c.rows == 2 && here.c.columns == 9 && here.c.stride % lanes<double> == 0));
  for (const auto start : {address(here.a.data), address(here.b), address(here.c.data)}) CHECK(start % arena::alignment == 0);
  CHECK(address(here.a.data) + static_cast<std::size_t>(3 * here.a.stride) * sizeof(float) <= address(here.b));
  CHECK(address(here.b) + static_cast<std::size_t>(bila::kernel::round_up(7, lanes<double>)) * sizeof(double) <=
        address(here.c.data));
  CHECK(address(here.c.data) + static_cast<std::size_t>(2 * here.c.stride) * sizeof(double) <= address(base) + real.used());
}

TEMPLATE_TEST_CASE("rows of padded tiles are whole packets, as few as can be, and never a multiple of 512 bytes apart", "", float,
                   double) {
  const auto check = []<class Layer>(Layer) {
    constexpr index_t width = Layer::template lanes<TestType>;
    for (index_t columns = 1; columns <= 600; ++columns) {
      arena counter;
      const auto x = counter.padded<Layer, TestType>(3, columns);
      const index_t fewest = bila::kernel::round_up(columns, width);
      INFO(columns << " columns, " << x.stride << " apart");
      CHECK((x.rows == 3 && x.columns == columns && x.stride % width == 0));
      CHECK(x.stride * static_cast<index_t>(sizeof(TestType)) % 512 != 0);
      CHECK((x.stride == fewest || (x.stride == fewest + width && fewest * static_cast<index_t>(sizeof(TestType)) % 512 == 0)));
      CHECK(counter.used() >= static_cast<std::size_t>(3 * x.stride) * sizeof(TestType));
    }
  };
  check(Kernel());
  check(bila::kernel::reference());
}

TEST_CASE("bytes are taken in order") {
  std::vector<std::byte> memory(1024);
  arena all(memory.data());
  CHECK(all.take(128) == memory.data());
  CHECK(all.take(0) == memory.data() + 128);
  CHECK(all.take(64) == memory.data() + 128);
  CHECK(all.used() == 192);
  arena counter;
  counter.take(128);
  counter.take(64);
  CHECK(counter.used() == all.used());
}
