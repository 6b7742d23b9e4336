// SPDX-License-Identifier: Apache-2.0
// The operator as it is defined, one query at a time, in double and with nothing of the library but its views:
//
//     N_i = sum_j (q_i . k_j) M_ij v_j     Z_i = sum_j (q_i . k_j) M_ij     y_i = N_i / n(Z_i)
//     n(Z): row_sum Z (y_i = 0 where Z_i = 0), max_one max(|Z|, 1), none 1
//     M_ii = 1,  M_ij = the decays of the gaps between i and j, multiplied one after the other, starting at i
#pragma once

#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

using bila::index_t;

// Decay of the gap between tokens t-1 and t, crossed forwards (to later tokens) and backwards; element 0 is not used.
struct gap_decays {
  std::vector<double> forward, backward;
};

struct defined_row {
  std::vector<double> y;
  // What rounding can do to each element: 1 would be a relative error of one in every product of the sums.
  std::vector<double> sensitivity;
};

template <class T>
defined_row define_row(bila::tensor_view<const T> q, bila::tensor_view<const T> k, bila::tensor_view<const T> v,
                       const gap_decays& decay, const std::string& norm, index_t H, index_t b, index_t h, index_t i) {
  const index_t hq = h / (H / q.heads()), hk = h / (H / k.heads()), hv = h / (H / v.heads());
  const index_t L = q.length(), Dk = q.features(), Dv = v.features();
  defined_row row{std::vector<double>(static_cast<std::size_t>(Dv), 0.0), std::vector<double>(static_cast<std::size_t>(Dv), 0.0)};
  double Z = 0, Z_absolute = 0;

  const auto add = [&](index_t j, double M) {
    double score = 0, absolute = 0;
    for (index_t d = 0; d < Dk; ++d) {
      const double product = static_cast<double>(q(b, hq, i, d)) * static_cast<double>(k(b, hk, j, d));
      score += product;
      absolute += std::abs(product);
    }
    Z += score * M;
    Z_absolute += absolute * M;
    for (index_t d = 0; d < Dv; ++d) {
      const double value = static_cast<double>(v(b, hv, j, d));
      row.y[static_cast<std::size_t>(d)] += score * M * value;
      row.sensitivity[static_cast<std::size_t>(d)] += absolute * M * std::abs(value);
    }
  };
  add(i, 1.0);
  double M = 1;
  for (index_t j = i - 1; j >= 0; --j) add(j, M *= decay.forward[static_cast<std::size_t>(j + 1)]);
  M = 1;
  for (index_t j = i + 1; j < L; ++j) add(j, M *= decay.backward[static_cast<std::size_t>(j)]);

  if (norm == "none") return row;
  const double divisor = norm == "max_one" ? std::max(std::abs(Z), 1.0) : Z;
  for (std::size_t d = 0; d < row.y.size(); ++d) {
    row.y[d] = divisor == 0 ? 0.0 : row.y[d] / divisor;
    row.sensitivity[d] = divisor == 0 ? 0.0 : (row.sensitivity[d] + std::abs(row.y[d]) * Z_absolute) / std::abs(divisor);
  }
  return row;
}

// The queries that are compared: all of a short sequence; of a longer one 64, spread evenly, the first and the last among them.
inline std::vector<index_t> compared_rows(index_t L) {
  constexpr index_t all = 256, some = 64;
  std::vector<index_t> rows;
  const index_t n = L <= all ? L : some;
  for (index_t r = 0; r < n; ++r) rows.push_back(n == L ? r : r * (L - 1) / (some - 1));
  return rows;
}

}  // namespace bench
