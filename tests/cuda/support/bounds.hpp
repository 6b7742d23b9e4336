// SPDX-License-Identifier: Apache-2.0
// How far the device may be from the definition. All tolerances of tests/cuda are here.
//
// With `spread` the sum of the absolute values of all terms (see answer and slope), u half the distance from 1 to the next number:
//
//     float    1e-5 spread, whatever the length: what the backend promises. Its products are made of tf32 parts (2^-21 each), and
//              sums over blocks of a few hundred terms at most, 2^-24 sqrt(n) apart, leave room for that.
//     16 bits  what is multiplied has been rounded: q, k or a score times decays, a state; of a gradient also dN and the scores'
//              gradient. At most `steps` of them lie on the way of one term, which makes u steps spread; the result is rounded once
//              more, u |x|. They are of both signs, so over many elements their root mean square is below half of u (|x| + spread),
//              and below 3/4 of it for a gradient, whose terms pass more of them.
//     f16      has an end below, too: what is under 2^-24 of the largest term is lost, and rounds in units of 2^-24.
#pragma once

#include "cuda/support/gradient_definition.hpp"
#include "support/oracle.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

namespace test {

template <class T>
struct precision;

template <>
struct precision<float> {
  static constexpr const char* name = "float";
  static constexpr double spread = 1e-5, result = 0, lost = 0, mean = 0;  // mean: u for the root mean square; 0: not looked at
};

template <>
struct precision<bila::bf16> {
  static constexpr const char* name = "bf16";
  static constexpr double spread = 0x1p-8, result = 0x1p-8, lost = 0, mean = 0x1p-8;
};

template <>
struct precision<bila::f16> {
  static constexpr const char* name = "f16";
  static constexpr double spread = 0x1p-11, result = 0x1p-11, lost = 0x1p-24, mean = 0x1p-11;
};

/// The largest difference in units of what is allowed, and the root mean square in its own; at most 1 for a correct evaluation.
class verdict {
 public:
  /// steps: roundings on the way of one term (counts for 16 bits only); mean: the share of u that the root mean square may have.
  verdict(double steps, double mean) : steps_(steps), mean_(mean) {}

  /// floor: what is allowed in any case.
  template <class T>
  void look(double found, double exact, double spread, double floor) {
    using p = precision<T>;
    const double difference = std::fabs(found - exact);
    if (difference == 0) {
      ++count_;
      return;
    }
    const double allowed = (p::result == 0 ? p::spread : steps_ * p::spread) * spread + p::result * std::fabs(exact) + floor;
    const double units = difference / allowed;
    worst_ = std::isnan(units) ? std::numeric_limits<double>::infinity() : std::fmax(worst_, units);
    if (p::mean == 0) return;
    const double share = difference / (mean_ * p::mean * (std::fabs(exact) + spread) + floor);
    sum_ += share * share;
    ++count_;
  }

  double worst() const { return worst_; }
  /// Of at least a thousand elements; few prove nothing.
  double mean() const { return count_ < 1000 ? 0 : std::sqrt(sum_ / count_); }
  bool good() const { return worst() <= 1 && mean() <= 1; }
  std::string words() const {
    return "largest " + std::to_string(worst()) + ", mean " + std::to_string(mean()) + " of what is allowed";
  }

 private:
  double steps_, mean_, worst_ = 0, sum_ = 0, count_ = 0;
};

/// y against the definition.
template <class T>
verdict judge(const tensor<T>& y, const answer& exact) {
  verdict result(4, 0.5);
  y.for_each([&](const T& x, index_t b, index_t h, index_t l, index_t d) {
    const std::size_t at = exact.place(b, h, l, d);
    const double floor = precision<T>::lost * static_cast<double>(1 + exact.flushed[at]) +
                         1e3 * std::numeric_limits<float>::min() * static_cast<double>(exact.flushed[at]);
    result.look<T>(static_cast<double>(x), static_cast<double>(exact.y[at]), static_cast<double>(exact.spread[at]), floor);
  });
  return result;
}

/// A gradient, a row sum or a state, computed from tensors of T and stored in U, against the definition.
template <class T, class U>
verdict judge(const tensor<U>& found, const slope& exact) {
  verdict result(6, 0.75);
  double largest = 0;
  for (const double spread : exact.spread) largest = std::fmax(largest, spread);
  const double floor = 4 * precision<T>::lost * largest + 1e3 * std::numeric_limits<float>::min();
  std::size_t at = 0;
  found.for_each([&](const U& x, index_t, index_t, index_t, index_t) {
    result.look<T>(static_cast<double>(x), exact.value[at], exact.spread[at], floor);
    ++at;
  });
  return result;
}

}  // namespace test
