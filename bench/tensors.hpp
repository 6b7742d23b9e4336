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

// An array and what to call it in a message.
struct named_array {
  std::string path;
  npy_array array;

  explicit named_array(const std::string& file) : path(file), array(read_npy(file)) {}

  [[noreturn]] void fail(const std::string& what) const { throw std::runtime_error(path + ": " + what); }
};

// q, k or v: [L, D], [H, L, D] or [B, H, L, D].
template <class T>
tensor<T> as_tensor(const named_array& file) {
  const auto& shape = file.array.shape;
  const std::size_t rank = shape.size();
  if (rank < 2 || rank > 4) file.fail("has shape " + words(shape) + ", it must be [L, D], [H, L, D] or [B, H, L, D]");
  tensor<T> x;
  x.extents = {1, 1, 1, 1};
  for (std::size_t axis = 0; axis < rank; ++axis) x.extents[4 - rank + axis] = shape[axis];
  const std::vector<T> read = file.array.as<T>();
  x.values.assign(read.begin(), read.end());
  if (x.empty()) file.fail("has shape " + words(shape) + ", it must not be empty");
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    if (!std::isfinite(x.values[i]))
      file.fail("element " + std::to_string(i) + " is not finite" + (sizeof(T) < sizeof(double) ? " as a float" : ""));
  }
  return x;
}

// Log decays: [H] per head, or [L] (one head), [H, L] or [B, H, L] per token.
template <class T>
void add_log_decay(problem<T>& p, const named_array& file) {
  const auto& shape = file.array.shape;
  const index_t B = p.batches(), H = p.heads(), L = p.length();
  const std::array<index_t, 3> wanted{B, H, L};
  const bool per_head = shape == std::vector<index_t>{H} && !(H == 1 && L == 1);
  std::array<index_t, 3> whole{1, 1, 1};
  if (shape.size() < 4) std::copy(shape.begin(), shape.end(), whole.end() - static_cast<std::ptrdiff_t>(shape.size()));
  if (!per_head && (shape.empty() || shape.size() > 3 || whole != wanted)) {
    file.fail("has shape " + words(shape) + ", it must be " + words({H}) + " (per head) or " + words({B, H, L}) + " (per token)");
  }
  const std::vector<T> read = file.array.as<T>();
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (!(read[i] <= 0))
      file.fail("element " + std::to_string(i) + " is " + std::to_string(read[i]) + ", a log decay must be <= 0");
  }
  if (per_head) {
    p.head_log_decay = read;
  } else {
    p.token_log_decay.extents = {B, H, L, 1};
    p.token_log_decay.values.assign(read.begin(), read.end());
  }
}

// Files that agree with each other; what else the operator asks of its inputs, the library checks.
template <class T>
problem<T> as_problem(const named_array& q, const named_array& k, const named_array& v) {
  problem<T> p;
  p.q = as_tensor<T>(q);
  p.k = as_tensor<T>(k);
  p.v = as_tensor<T>(v);
  for (const auto& [file, x] : {std::pair(&k, &p.k), std::pair(&v, &p.v)}) {
    if (x->extents[0] != p.batches() || x->extents[2] != p.length()) {
      file->fail("has B = " + std::to_string(x->extents[0]) + ", L = " + std::to_string(x->extents[2]) + ", but " + q.path +
                 " has B = " + std::to_string(p.batches()) + ", L = " + std::to_string(p.length()));
    }
  }
  if (p.k.extents[3] != p.q.extents[3]) {
    k.fail("has D = " + std::to_string(p.k.extents[3]) + ", but " + q.path + " has D = " + std::to_string(p.q.extents[3]));
  }
  for (const auto& [file, x] : {std::pair(&q, &p.q), std::pair(&k, &p.k), std::pair(&v, &p.v)}) {
    if (p.heads() % x->extents[1] != 0) {
      file->fail("has " + std::to_string(x->extents[1]) + " heads, which do not divide the " + std::to_string(p.heads()) +
                 " heads of another file");
    }
  }
  return p;
}

}  // namespace bench
