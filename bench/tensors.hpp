// SPDX-License-Identifier: Apache-2.0
// The tensors that are compared, as they lie in memory: from .npy files, or from a picture's patches (patches.hpp).
#pragma once

#include "npy.hpp"

#include <bila/view/tensor_view.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace bench {

using bila::index_t;

// A contiguous [batch, head, length, feature] tensor and the views of its first tokens.
// Aligned as PyTorch and Eigen align: memory that starts 16 bytes into a cache line makes every packet straddle two.
template <class T>
using aligned_vector = std::vector<T, Eigen::aligned_allocator<T>>;

template <class T>
struct tensor {
  aligned_vector<T> values;
  bila::per_axis extents{};

  tensor() = default;
  explicit tensor(bila::per_axis shape) : extents(shape) {
    index_t count = 1;
    for (const index_t extent : shape) count *= extent;
    values.resize(static_cast<std::size_t>(count));
  }

  bool empty() const { return values.empty(); }

  bila::tensor_view<const T> prefix(index_t L) const {
    auto view = bila::bhld(values.data(), extents[0], extents[1], extents[2], extents[3]);
    view.extents[2] = L;
    return view;
  }

  T* row(index_t b, index_t h, index_t l) { return values.data() + ((b * extents[1] + h) * extents[2] + l) * extents[3]; }
};

template <class T>
struct problem {
  tensor<T> q, k, v;
  tensor<T> token_log_decay;      // [B, H, L, 1], or empty: there is no selective mask
  std::vector<T> head_log_decay;  // [H], or empty: there is no fixed decay

  index_t batches() const { return q.extents[0]; }
  index_t heads() const { return std::max({q.extents[1], k.extents[1], v.extents[1]}); }
  index_t length() const { return q.extents[2]; }
};

inline std::string words(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

// q, k or v: [L, D], [H, L, D] or [B, H, L, D].
template <class T>
tensor<T> as_tensor(const npy_array& file, const std::string& path) {
  const auto fail = [&](const std::string& what) { throw std::runtime_error(path + ": " + what); };
  const std::size_t rank = file.shape.size();
  if (file.type == npy_type::uint8) fail("has dtype uint8, which only --patches takes");
  if (rank < 2 || rank > 4) fail("has shape " + words(file.shape) + ", it must be [L, D], [H, L, D] or [B, H, L, D]");
  tensor<T> x;
  x.extents = {1, 1, 1, 1};
  for (std::size_t axis = 0; axis < rank; ++axis) x.extents[4 - rank + axis] = file.shape[axis];
  const std::vector<T> read = file.as<T>();
  x.values.assign(read.begin(), read.end());
  if (x.empty()) fail("has shape " + words(file.shape) + ", it must not be empty");
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    if (!std::isfinite(x.values[i])) fail("element " + std::to_string(i) + " is not finite");
  }
  return x;
}

// Log decays: [H] per head, or [L] (one head), [H, L] or [B, H, L] per token.
template <class T>
void add_log_decay(problem<T>& p, const npy_array& file, const std::string& path) {
  const auto& shape = file.shape;
  const index_t B = p.batches(), H = p.heads(), L = p.length();
  const std::array<index_t, 3> wanted{B, H, L};
  if (shape == std::vector<index_t>{H} && !(H == 1 && L == 1)) {
    p.head_log_decay = file.as<T>();
    return;
  }
  std::array<index_t, 3> full{1, 1, 1};
  if (shape.size() < 4) std::copy(shape.begin(), shape.end(), full.end() - static_cast<std::ptrdiff_t>(shape.size()));
  if (shape.empty() || shape.size() > 3 || full != wanted) {
    throw std::runtime_error(path + ": has shape " + words(shape) + ", it must be " + words({H}) + " (per head) or " +
                             words({B, H, L}) + " (per token)");
  }
  p.token_log_decay.extents = {B, H, L, 1};
  const std::vector<T> read = file.as<T>();
  p.token_log_decay.values.assign(read.begin(), read.end());
}

// The files agree with each other; what else the operator asks of its inputs, the library checks.
template <class T>
problem<T> read_problem(const std::string& q, const std::string& k, const std::string& v, const std::string& log_decay) {
  problem<T> p;
  p.q = as_tensor<T>(read_npy(q), q);
  p.k = as_tensor<T>(read_npy(k), k);
  p.v = as_tensor<T>(read_npy(v), v);
  const std::initializer_list<std::pair<const std::string*, const tensor<T>*>> others{{&k, &p.k}, {&v, &p.v}};
  for (const auto& [path, x] : others) {
    if (x->extents[0] != p.batches() || x->extents[2] != p.length()) {
      throw std::runtime_error(*path + ": has B = " + std::to_string(x->extents[0]) + ", L = " + std::to_string(x->extents[2]) +
                               ", but " + q + " has B = " + std::to_string(p.batches()) + ", L = " + std::to_string(p.length()));
    }
  }
  if (p.k.extents[3] != p.q.extents[3]) {
    throw std::runtime_error(k + ": has D = " + std::to_string(p.k.extents[3]) + ", but " + q +
                             " has D = " + std::to_string(p.q.extents[3]));
  }
  if (!log_decay.empty()) add_log_decay(p, read_npy(log_decay), log_decay);
  return p;
}

}  // namespace bench
