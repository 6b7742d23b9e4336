// SPDX-License-Identifier: Apache-2.0
// Sequences of different lengths: packed end to end, padded to a batch, or one by one. The same bits each time.
#include <bila/bila.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

constexpr bila::index_t D = 16;
using buffer = std::vector<float>;

// q, k and v are one buffer here, to keep the example short.
void attend(const buffer& x, const buffer& gates, buffer& y, bila::index_t B, bila::index_t L,
            std::span<const bila::index_t> offsets = {}, std::span<const bila::index_t> lengths = {}) {
  const auto tokens = bila::bhld(x.data(), B, 1, L, D);
  bila::inputs<float> in{tokens, tokens, tokens};
  in.offsets = offsets;
  in.lengths = lengths;
  bila::attend(bila::form::chunkwise{.size = 8}, bila::mask::selective_decay{bila::bhl(gates.data(), B, 1, L), bila::gate::later},
               bila::norm::row_sum{1e-6}, in, bila::bhld(y.data(), B, 1, L, D));
}

int main() {
  const std::vector<bila::index_t> lengths{11, 40, 23}, offsets{0, 11, 51, 74};
  const bila::index_t total = offsets.back(), longest = 40;

  buffer packed(static_cast<std::size_t>(total * D)), packed_gates(static_cast<std::size_t>(total)), packed_y(packed.size());
  for (std::size_t n = 0; n < packed.size(); ++n) packed[n] = 1.2f + std::sin(0.9f * static_cast<float>(n));
  for (std::size_t n = 0; n < packed_gates.size(); ++n) packed_gates[n] = -0.1f * static_cast<float>(n % 4);

  // Packed: a border is a fact about the data. A gate of zero would not do, it cuts only one of the two directions.
  attend(packed, packed_gates, packed_y, 1, total, offsets);

  // Padded: rows past a length are never read, so any garbage may be there, and y is zero there.
  buffer padded(static_cast<std::size_t>(3 * longest * D), NAN), padded_gates(static_cast<std::size_t>(3 * longest), NAN),
      padded_y(padded.size());
  for (std::size_t s = 0; s < 3; ++s) {
    const auto row = static_cast<std::ptrdiff_t>(s) * longest;
    std::copy(packed.begin() + offsets[s] * D, packed.begin() + offsets[s + 1] * D, padded.begin() + row * D);
    std::copy(packed_gates.begin() + offsets[s], packed_gates.begin() + offsets[s + 1], padded_gates.begin() + row);
  }
  attend(padded, padded_gates, padded_y, 3, longest, {}, lengths);

  bool same = true;
  for (std::size_t s = 0; s < 3; ++s) {
    const auto tokens = lengths[s], first = offsets[s], row = static_cast<bila::index_t>(s) * longest;
    const buffer x(packed.begin() + first * D, packed.begin() + (first + tokens) * D);
    const buffer gates(packed_gates.begin() + first, packed_gates.begin() + first + tokens);
    buffer alone(x.size());
    attend(x, gates, alone, 1, tokens);
    const bool as_packed = std::equal(alone.begin(), alone.end(), packed_y.begin() + first * D);
    const bool as_padded = std::equal(alone.begin(), alone.end(), padded_y.begin() + row * D);
    std::printf("sequence of %2d tokens: alone %.7f ...  packed %s  padded %s\n", static_cast<int>(tokens), alone[0],
                as_packed ? "same bits" : "DIFFERS", as_padded ? "same bits" : "DIFFERS");
    same = same && as_packed && as_padded;
  }
  return same ? 0 : 1;
}
