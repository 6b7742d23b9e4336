// SPDX-License-Identifier: Apache-2.0
// The definition, in long double, and how far from it a correct evaluation may end.
//
//     [N_i, Z_i] = sum_j s (q_i . k_j) M_ij [v_j, 1]
//     M_ij = exp(f_{j+1} + ... + f_i) below the diagonal, delta on it, exp(b_{i+1} + ... + b_j) above it,
//            0 where the direction or a segment hides j from i
//     y = N,  or (N / s) / (Z / s + eps),  or N / max(|Z|, 1);  0 where the divisor is 0
//
// Nothing of the library but its plain structs (views, inputs) is used; elements are read by their strides.
#pragma once

#include "support/tensor.hpp"

#include <bila/call/inputs.hpp>

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace test {

using wide = long double;

/// Log decays f_t, b_t of gap t (between tokens t-1 and t), [B, H, L] each; entry 0 is not used. Empty: a mask of ones.
struct gap_logs {
  std::vector<double> forward, backward;
};

enum class divisor { one, row_sum, max_one };

struct normalisation {
  divisor by = divisor::one;
  double eps = 0;
};

/// The result of the definition, [B, H, L, Dv] in logical order, and what an error bound needs.
///
/// spread: the condition of y_id, (sum_j |s| |q_i|.|k_j| |M_ij| |v_jd| + |y_id| sum_j |s| |q_i|.|k_j| |M_ij|) / |n_i|. Changing
/// every number of the definition by a relative u changes y_id by at most u times this.
/// flushed: how much y_id changes when every product of its terms loses one unit; the unit is the smallest normal number.
struct answer {
  index_t H = 0, L = 0, Dv = 0;
  std::vector<wide> y, spread, flushed;

  std::size_t place(index_t b, index_t h, index_t i, index_t d) const {
    return static_cast<std::size_t>(((b * H + h) * L + i) * Dv + d);
  }
};

namespace detail {

template <class T>
wide element(const bila::tensor_view<T>& x, index_t b, index_t h, index_t l, index_t d) {
  return x.data[b * x.strides[0] + h * x.strides[1] + l * x.strides[2] + d * x.strides[3]];
}

/// The decays of one head; log decays just above zero count as zero.
inline std::vector<wide> decays(const std::vector<double>& logs, index_t head, index_t L) {
  std::vector<wide> result(static_cast<std::size_t>(L), wide(1));
  for (index_t t = 1; t < L && !logs.empty(); ++t)
    result[static_cast<std::size_t>(t)] = std::exp(wide(std::fmin(logs[static_cast<std::size_t>(head * L + t)], 0.0)));
  return result;
}

/// What one query has gathered: N and Z of the definition without the scale, the same with absolute values, and without the mask.
struct gathered {
  std::vector<wide> N, size_N;  // (Dv)
  wide Z = 0, size_Z = 0, reach = 0;
};

inline void leave(answer& to, std::size_t first, const gathered& row, wide s, const normalisation& norm) {
  wide factor = s, n = 1, Z_counts = 1;
  if (norm.by == divisor::row_sum) {
    factor = 1;
    n = row.Z + norm.eps;
  } else if (norm.by == divisor::max_one) {
    n = std::fmax(std::fabs(s * row.Z), wide(1));
    Z_counts = std::fabs(s);
  } else {
    Z_counts = 0;
  }
  for (std::size_t d = 0; d < row.N.size(); ++d) {
    const wide y = n == 0 ? wide(0) : factor * row.N[d] / n;
    to.y[first + d] = y;
    to.spread[first + d] =
        n == 0 ? wide(0) : (std::fabs(factor) * row.size_N[d] + std::fabs(y) * Z_counts * row.size_Z) / std::fabs(n);
    to.flushed[first + d] = n == 0 ? wide(0) : (1 + std::fabs(factor) + std::fabs(y) * Z_counts) * row.reach / std::fabs(n);
  }
}

/// Largest sum of absolute values among rows [first, last); NaN, of a row that nobody reads, is passed over.
template <class T>
wide largest_row(const bila::tensor_view<T>& x, index_t b, index_t h, index_t first, index_t last) {
  wide largest = 0;
  for (index_t l = first; l < last; ++l) {
    wide sum = 0;
    for (index_t d = 0; d < x.extents[3]; ++d) sum += std::fabs(element(x, b, h, l, d));
    largest = std::fmax(largest, sum);
  }
  return largest;
}

/// Tokens [first, last) that see token i of batch row b; i is hidden (a pad) when the range is empty.
template <class T>
std::pair<index_t, index_t> segment_around(const bila::inputs<T>& in, index_t b, index_t i, index_t L) {
  for (std::size_t n = 1; n < in.offsets.size(); ++n)
    if (in.offsets[n - 1] <= i && i < in.offsets[n]) return {in.offsets[n - 1], in.offsets[n]};
  if (!in.lengths.empty()) return {0, i < in.lengths[static_cast<std::size_t>(b)] ? in.lengths[static_cast<std::size_t>(b)] : 0};
  return {0, L};
}

}  // namespace detail

/// O(L^2), running products away from the diagonal. H is the number of heads of the output.
template <class T>
answer definition(const bila::inputs<T>& in, index_t H, const gap_logs& gaps, const normalisation& norm) {
  using detail::element;
  const index_t B = in.q.extents[0], L = in.q.extents[2], Lk = in.k.extents[2], Dk = in.q.extents[3], Dv = in.v.extents[3];
  const auto count = static_cast<std::size_t>(B * H * L * Dv);
  answer result{H, L, Dv, std::vector<wide>(count), std::vector<wide>(count), std::vector<wide>(count)};
  const bool same_tokens = L == Lk;

  for (index_t b = 0; b < B; ++b)
    for (index_t h = 0; h < H; ++h) {
      const index_t hq = h / (H / in.q.extents[1]), hk = h / (H / in.k.extents[1]), hv = h / (H / in.v.extents[1]);
      const std::vector<wide> forward = detail::decays(gaps.forward, b * H + h, L),
                              backward = detail::decays(gaps.backward, b * H + h, L);
      const wide largest_k = 1 + detail::largest_row(in.k, b, hk, 0, Lk), largest_v = 1 + detail::largest_row(in.v, b, hv, 0, Lk);
      for (index_t i = 0; i < L; ++i) {
        detail::gathered row{std::vector<wide>(static_cast<std::size_t>(Dv)), std::vector<wide>(static_cast<std::size_t>(Dv))};
        row.reach = wide(Lk) * (1 + detail::largest_row(in.q, b, hq, i, i + 1)) * largest_k * largest_v;
        const auto gather = [&](index_t j, wide M) {
          wide score = 0, size = 0;
          for (index_t c = 0; c < Dk; ++c) {
            const wide product = element(in.q, b, hq, i, c) * element(in.k, b, hk, j, c);
            score += product;
            size += std::fabs(product);
          }
          row.Z += score *= M;
          row.size_Z += size *= std::fabs(M);
          for (index_t d = 0; d < Dv; ++d) {
            const wide v = element(in.v, b, hv, j, d);
            row.N[static_cast<std::size_t>(d)] += score * v;
            row.size_N[static_cast<std::size_t>(d)] += size * std::fabs(v);
          }
        };
        if (!same_tokens) {
          for (index_t j = 0; j < Lk; ++j) gather(j, 1);
        } else {
          const auto [first, last] = detail::segment_around(in, b, i, L);
          if (last > first) gather(i, in.diagonal);
          if (in.direction != bila::direction::backward) {
            wide M = 1;
            for (index_t j = i - 1; j >= first && last > first; --j) gather(j, M *= forward[static_cast<std::size_t>(j + 1)]);
          }
          if (in.direction != bila::direction::forward) {
            wide M = 1;
            for (index_t j = i + 1; j < last; ++j) gather(j, M *= backward[static_cast<std::size_t>(j)]);
          }
        }
        detail::leave(result, result.place(b, h, i, 0), row, in.scale, norm);
      }
    }
  return result;
}

/// The same numbers in O(L Dk Dv), for sequences that are too long for O(L^2): two scans in long double. B = H = 1, no segments.
template <class T>
answer long_definition(const bila::inputs<T>& in, const gap_logs& gaps, const normalisation& norm) {
  using detail::element;
  const index_t L = in.q.extents[2], Dk = in.q.extents[3], Dv = in.v.extents[3], columns = Dv + 1;
  const auto count = static_cast<std::size_t>(L * Dv);
  answer result{1, L, Dv, std::vector<wide>(count), std::vector<wide>(count), std::vector<wide>(count)};
  std::vector<detail::gathered> rows(static_cast<std::size_t>(L));

  const auto value = [&](index_t j, index_t d) { return d == Dv ? wide(1) : element(in.v, 0, 0, j, d); };
  const wide largest_k = 1 + detail::largest_row(in.k, 0, 0, 0, L), largest_v = 1 + detail::largest_row(in.v, 0, 0, 0, L);
  for (index_t i = 0; i < L; ++i) {
    auto& row = rows[static_cast<std::size_t>(i)];
    row.N.resize(static_cast<std::size_t>(Dv));
    row.size_N.resize(static_cast<std::size_t>(Dv));
    wide score = 0, size = 0;
    for (index_t c = 0; c < Dk; ++c) {
      const wide product = element(in.q, 0, 0, i, c) * element(in.k, 0, 0, i, c);
      score += product;
      size += std::fabs(product);
    }
    row.Z = in.diagonal * score;
    row.size_Z = std::fabs(wide(in.diagonal)) * size;
    for (index_t d = 0; d < Dv; ++d) {
      row.N[static_cast<std::size_t>(d)] = row.Z * value(i, d);
      row.size_N[static_cast<std::size_t>(d)] = row.size_Z * std::fabs(value(i, d));
    }
    row.reach = wide(L) * (1 + detail::largest_row(in.q, 0, 0, i, i + 1)) * largest_k * largest_v;
  }

  const auto sweep = [&](index_t from, index_t step, const std::vector<double>& logs) {
    const std::vector<wide> lambda = detail::decays(logs, 0, L);
    std::vector<wide> S(static_cast<std::size_t>(Dk * columns)), size_S(S.size());
    for (index_t n = 0, i = from; n < L; ++n, i += step) {
      auto& row = rows[static_cast<std::size_t>(i)];
      const index_t gap = step > 0 ? i + 1 : i;  // the one by which the state leaves token i
      const wide decay = n + 1 == L ? wide(1) : lambda[static_cast<std::size_t>(gap)];
      for (index_t c = 0; c < Dk; ++c) {
        const wide q = element(in.q, 0, 0, i, c), k = element(in.k, 0, 0, i, c);
        for (index_t d = 0; d < columns; ++d) {
          const auto at = static_cast<std::size_t>(c * columns + d);
          (d == Dv ? row.Z : row.N[static_cast<std::size_t>(d)]) += q * S[at];
          (d == Dv ? row.size_Z : row.size_N[static_cast<std::size_t>(d)]) += std::fabs(q) * size_S[at];
          S[at] = decay * (S[at] + k * value(i, d));
          size_S[at] = decay * (size_S[at] + std::fabs(k * value(i, d)));
        }
      }
    }
  };
  if (in.direction != bila::direction::backward) sweep(0, 1, gaps.forward);
  if (in.direction != bila::direction::forward) sweep(L - 1, -1, gaps.backward);
  for (index_t i = 0; i < L; ++i)
    detail::leave(result, result.place(0, 0, i, 0), rows[static_cast<std::size_t>(i)], in.scale, norm);
  return result;
}

/// How many roundings lie between the inputs and an element of y, whatever the form.
///
/// Each term (q_i . k_j) M_ij v_jd passes Dk additions of its score, and per key at most two roundings of its own (a decay of the
/// state and an addition to it; the same bounds a sum in order). In double a mask weight is itself a product of decays: exp is off
/// by at most two roundings and the product by one, per gap; for float they are made in double and count for nothing.
/// Sixteen more are there once per row: the weight, its two factors, their product and the decays between blocks, the product with
/// the score and with v, the sums of both sweeps, of the diagonal and of the block, the diagonal's weight, the scale, eps, the
/// scale times N and times Z, the quotient.
template <class T>
wide roundings(index_t keys, index_t Dk) {
  return static_cast<wide>(Dk + 2 * keys + (std::is_same_v<T, double> ? 3 * keys : 0) + 16);
}

/// n roundings of u each, in units of u: n in the worst case, and, errors being of both signs, beyond 7 sqrt(n) with a probability
/// below 2 exp(-49/2) = 5e-11 (Higham and Mary 2019, theorem 2.4), so once in a thousand runs over 2e7 compared elements.
inline wide grown(wide n) { return std::fmin(n, 7 * std::sqrt(n)); }

/// What an element may differ from the definition.
template <class T>
wide bound(const answer& exact, std::size_t at, index_t keys, index_t Dk) {
  const wide u = std::numeric_limits<T>::epsilon() / 2, n = roundings<T>(keys, Dk);
  return u * grown(n) * exact.spread[at] + n * std::numeric_limits<T>::min() * exact.flushed[at];
}

/// The largest |y - exact| in units of what is allowed: at most 1 for a correct evaluation, infinite if y is NaN.
template <class T>
wide worst(const tensor<T>& y, const answer& exact, index_t keys, index_t Dk) {
  wide result = 0;
  y.for_each([&](const T& x, index_t b, index_t h, index_t l, index_t d) {
    const std::size_t at = exact.place(b, h, l, d);
    const wide difference = std::fabs(wide(x) - exact.y[at]), allowed = bound<T>(exact, at, keys, Dk);
    if (difference == 0) return;
    const wide units = difference / allowed;
    result = std::isnan(units) ? std::numeric_limits<wide>::infinity() : std::fmax(result, units);
  });
  return result;
}

}  // namespace test
