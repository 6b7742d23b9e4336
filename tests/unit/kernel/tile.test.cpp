// SPDX-License-Identifier: Apache-2.0
// Tokens on their way into tiles and out of them.
#include "support/catch.hpp"

#include <bila/kernel/packets.hpp>
#include <bila/kernel/reference.hpp>
#include <bila/kernel/tile.hpp>
#include <bila/view/storage.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

using bila::index_t;
using Kernel = bila::kernel::eigen;

template <class Real>
constexpr index_t lanes = Kernel::lanes<Real>;

}  // namespace

TEST_CASE("a vector is a tile of one row, and what is not wanted one of none") {
  const std::vector<float> x(7);
  const auto row = bila::kernel::one_row(x.data(), 7);
  CHECK((row.data == x.data() && row.rows == 1 && row.columns == 7));
  CHECK(bila::kernel::one_row(static_cast<const float*>(nullptr), 7).rows == 0);
  CHECK((bila::kernel::no_tile<float>.data == nullptr && bila::kernel::no_tile<float>.rows == 0));
}

TEST_CASE("clear sets the padding too") {
  std::vector<float> memory(24, 7);
  bila::kernel::clear(bila::kernel::tile<float>{memory.data(), 2, 5, 8});
  CHECK(std::count(memory.begin(), memory.begin() + 16, 0.0f) == 16);
  CHECK(std::count(memory.begin() + 16, memory.end(), 7.0f) == 8);
}

TEST_CASE("tokens go into a padded tile and back, whatever their strides") {
  std::vector<double> memory(60);
  for (std::size_t n = 0; n < memory.size(); ++n) memory[n] = static_cast<double>(n);
  for (const bila::rows<double>& tokens :
       {bila::rows<double>{memory.data(), 3, 5, 5, 1}, bila::rows<double>{memory.data(), 3, 5, 1, 7},
        bila::rows<double>{memory.data() + 59, 3, 5, -11, -2}, bila::rows<double>{memory.data() + 9, 3, 5, 0, 0}}) {
    std::vector<double> room(32, std::numeric_limits<double>::quiet_NaN());
    const bila::kernel::tile<double> to{room.data(), 3, 5, 8};
    bila::kernel::load(to, bila::rows<const double>(tokens));
    for (index_t i = 0; i < 3; ++i)
      for (index_t d = 0; d < 8; ++d) CHECK(to.row(i)[d] == (d < 5 ? tokens(i, d) : 0));
    CHECK(std::all_of(room.begin() + 24, room.end(), [](double x) { return std::isnan(x); }));

    if (tokens.row_stride == 0) continue;
    std::vector<double> expected = memory;
    for (index_t i = 0; i < 3; ++i)
      for (index_t d = 0; d < 5; ++d) {
        to.row(i)[d] += 1000;
        expected[static_cast<std::size_t>(&tokens(i, d) - memory.data())] += 1000;
      }
    bila::kernel::store(tokens, to);
    CHECK(memory == expected);
  }
}

TEST_CASE("16-bit tokens are widened on the way in and rounded on the way out") {
  std::vector<bila::bf16> memory{bila::bf16(1.5f), bila::bf16(-2), bila::bf16(0.25f), bila::bf16(3)};
  std::vector<float> room(16, 7);
  const bila::kernel::tile<float> to{room.data(), 2, 2, 8};
  bila::kernel::load(to, bila::rows<const bila::bf16>{memory.data(), 2, 2, 2, 1});
  CHECK((to.row(0)[0] == 1.5f && to.row(0)[1] == -2 && to.row(1)[0] == 0.25f && to.row(1)[1] == 3 && to.row(1)[7] == 0));
  CHECK(bila::kernel::whole_packets<bila::kernel::reference>(bila::rows<const bila::bf16>{memory.data(), 2, 2, 2, 1}, to).data ==
        room.data());
  CHECK(bila::kernel::results<bila::kernel::reference>(bila::rows<bila::bf16>{memory.data(), 2, 2, 2, 1}, to).data == room.data());
  to.row(0)[0] = 1 + 0x1p-8f + 0x1p-20f;  // just above the middle between two numbers of 8 bits
  bila::kernel::store(bila::rows<bila::bf16>{memory.data(), 2, 2, 2, 1}, to);
  CHECK(static_cast<float>(memory[0]) == 1 + 0x1p-7f);
  CHECK(static_cast<float>(memory[3]) == 3);
}

TEST_CASE("the user's memory is used in place where a verb can read whole packets, else copied") {
  std::vector<float> memory(400, 1), room(400, std::numeric_limits<float>::quiet_NaN());
  const bila::kernel::tile<float> space{room.data(), 6, 16, 16};  // for more tokens than there are
  const auto untouched = [&room](index_t first) {
    return std::all_of(room.begin() + first, room.end(), [](float x) { return std::isnan(x); });
  };
  const bila::rows<const float> whole{memory.data() + 1, 4, 16, 20, 1}, backwards{memory.data() + 99, 4, 16, -17, 1};
  for (const auto& from : {whole, backwards}) {
    const auto in_place = bila::kernel::whole_packets<Kernel>(from, space);
    CHECK((in_place.data == from.data && in_place.stride == from.row_stride && in_place.rows == 4 && in_place.columns == 16));
  }
  CHECK(untouched(0));
  const bila::rows<const float> adjacent{memory.data() + 1, 4, 5, 7, 1}, columns{memory.data() + 1, 4, 16, 1, 4};
  const auto read_alone = bila::kernel::whole_packets<bila::kernel::reference>(adjacent, space);
  CHECK((read_alone.data == memory.data() + 1 && read_alone.stride == 7 && read_alone.rows == 4 && read_alone.columns == 5));
  CHECK(untouched(0));

  const auto gathered = bila::kernel::whole_packets<Kernel>(columns, space);
  CHECK((gathered.data == room.data() && gathered.rows == 4 && gathered.columns == 16 && gathered.stride == 16));
  CHECK(std::count(room.begin(), room.end(), 1.0f) == 4 * 16);
  CHECK(untouched(4 * 16));
  if (lanes < float >> 1) {
    std::fill(room.begin(), room.end(), std::numeric_limits<float>::quiet_NaN());
    const auto copied = bila::kernel::whole_packets<Kernel>(adjacent, bila::kernel::tile<float>{room.data(), 6, 5, 16});
    CHECK((copied.data == room.data() && copied.rows == 4 && copied.columns == 5));
    for (index_t i = 0; i < 4; ++i)
      for (index_t d = 0; d < 16; ++d) CHECK(copied.row(i)[d] == (d < 5 ? 1.0f : 0.0f));
    CHECK(untouched(4 * 16));
  }
}

TEST_CASE("results go to the user's memory where a verb can write whole packets, else into scratch and then to their place") {
  std::vector<float> memory(400, 1), room(400, 2);
  const bila::kernel::tile<float> space{room.data(), 6, 16, 16};
  const bila::rows<float> whole{memory.data() + 1, 4, 16, 20, 1}, columns{memory.data() + 1, 4, 16, 1, 4},
      adjacent{memory.data() + 1, 4, 5, 7, 1};
  const auto in_place = bila::kernel::results<Kernel>(whole, space);
  CHECK((in_place.data == memory.data() + 1 && in_place.stride == 20 && in_place.rows == 4 && in_place.columns == 16));
  CHECK(bila::kernel::results<bila::kernel::reference>(adjacent, space).data == memory.data() + 1);
  const auto apart = bila::kernel::results<Kernel>(columns, space);
  CHECK((apart.data == room.data() && apart.rows == 4 && apart.columns == 16 && apart.stride == 16));
  if (lanes < float >> 1) CHECK(bila::kernel::results<Kernel>(adjacent, space).data == room.data());
  CHECK(std::count(memory.begin(), memory.end(), 1.0f) == 400);
  CHECK(std::count(room.begin(), room.end(), 2.0f) == 400);

  // What is in its place already is not copied; what is not, is.
  in_place.row(3)[15] = 7;
  const std::vector<float> before = memory;
  bila::kernel::store(whole, in_place);
  CHECK(memory == before);
  bila::kernel::store(columns, apart);
  CHECK(std::count(memory.begin() + 1, memory.begin() + 1 + 64, 2.0f) == 64);
}
