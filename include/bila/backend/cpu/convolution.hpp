// SPDX-License-Identifier: Apache-2.0
// The depthwise convolution over whole tensors, and its gradients with respect to the tokens, the weights and the bias.
#pragma once

#include <bila/backend/cpu/threads.hpp>
#include <bila/call/inputs.hpp>
#include <bila/call/overlap.hpp>
#include <bila/call/segments.hpp>
#include <bila/config.hpp>
#include <bila/error.hpp>
#include <bila/feature/convolution.hpp>
#include <bila/view/shape.hpp>
#include <bila/view/storage.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <type_traits>

namespace bila {
inline namespace v0_1 {

namespace detail {
inline namespace BILA_UNIT {

/// Checks a convolution by itself, and against the shape of its tokens.
template <class W>
error_message check_convolution(const feature::convolution<W>& layer, const per_axis& tokens) {
  const tensor_view<const W>& weights = layer.weights;
  constexpr index_t widest = feature::detail::widest_convolution;
  if (error_message wrong = check_view("weights", weights); !wrong.empty()) return wrong;
  if (weights.batches() != 1) return message("weights has shape ", shape_in_words(weights), ", its batch size must be 1");
  if (layer.width() < 1 || layer.width() > widest)
    return message("weights has shape ", shape_in_words(weights), ", its third number is the width of the kernel, 1 to ", widest);
  if (layer.direction == direction::both && layer.width() % 2 == 0)
    return message("weights has shape ", shape_in_words(weights), ", a centred kernel needs an odd width");
  if (error_message wrong = check_divides("weights", weights.heads(), tokens[1]); !wrong.empty()) return wrong;
  if (weights.features() != tokens[3] && weights.features() != 1)
    return message("weights has shape ", shape_in_words(weights), ", its width must be that of x, ", tokens[3], ", or 1");
  return check_extents("bias", layer.bias, {1, weights.heads(), 1, weights.features()});
}

template <class T, class W>
error_message check_segments(const feature::convolution<W>& layer, const per_axis& tokens) {
  if (!layer.offsets.empty() && !layer.lengths.empty())
    return message("lengths: both offsets and lengths are given, a call takes one of them");
  if (layer.offsets.empty()) return check_lengths("lengths", layer.lengths, tokens[0], tokens[2]);
  inputs<T> packed;
  packed.offsets = layer.offsets;
  return check_offsets(packed, tokens[0], tokens[2]);
}

/// Checks the layer, x, and `other`, which must have the shape of x (y or dy). Does not check for overlaps.
template <class W, class T, class U>
error_message check_tokens(const feature::convolution<W>& layer, const tensor_view<const T>& x, const char* name,
                           const tensor_view<U>& other) {
  if (error_message wrong = check_view("x", x); !wrong.empty()) return wrong;
  if (error_message wrong = check_view(name, other); !wrong.empty()) return wrong;
  if (error_message wrong = check_convolution(layer, x.extents); !wrong.empty()) return wrong;
  if (other.extents != x.extents)
    return message(name, " has shape ", shape_in_words(other), ", it must be ", numbers_in_words(x.extents));
  return check_segments<T>(layer, x.extents);
}

/// The number of blocks of features into which tasks divide a head.
inline index_t feature_blocks(index_t D) {
  return (D + feature::detail::convolution_features - 1) / feature::detail::convolution_features;
}

template <class Real>
struct convolution_scratch {
  struct one_number {  // a kernel layer of one lane: the scratch is not read in packets
    template <class>
    static constexpr index_t lanes = 1;
  };
  static constexpr index_t features = feature::detail::convolution_features, tokens = feature::detail::convolution_tokens,
                           widest = feature::detail::widest_convolution;

  explicit convolution_scratch(kernel::arena& memory)
      : window(memory.zeros<one_number, Real>((tokens + widest - 1) * features)),
        block(memory.zeros<one_number, Real>(tokens * features)),
        weights(memory.zeros<one_number, Real>(widest * features)),
        bias(memory.zeros<one_number, Real>(features)),
        by_weights(memory.zeros<one_number, double>(widest * features)),
        by_bias(memory.zeros<one_number, double>(features)) {}

  static std::size_t bytes() {
    kernel::arena counter;
    convolution_scratch{counter};
    return counter.used();
  }

  Real *window, *block;          // (tokens + widest - 1, features) (tokens, features); features past the tensor's last stay zero
  Real *weights, *bias;          // (widest, features) (features)
  double *by_weights, *by_bias;  // (widest, features) (features)
};

/// Columns [first, first + count) of a head's segment.
template <class T>
rows<T> block_of(const tensor_view<T>& x, index_t b, index_t h, const segment& piece, index_t first) {
  const index_t count = (std::min)(feature::detail::convolution_features, x.features() - first);
  return head_rows(x, b, h, piece.first, piece.count).columns(first, count);
}

/// Convolves a block of features of head h. transposed: the adjoint, with the kernel reversed and no bias; x and y are dy and dx.
template <class T, class W>
void convolve_block(const feature::convolution<W>& layer, bool transposed, const tensor_view<const T>& x, const tensor_view<T>& y,
                    index_t b, index_t h, index_t first, kernel::arena memory) {
  using Real = real_of<T>;
  convolution_scratch<Real> w(memory);
  const index_t width = layer.width(), head = h / (x.heads() / layer.weights.heads());
  const index_t count = (std::min)(w.features, x.features() - first);
  const auto column = [&](index_t c) { return layer.weights.features() == 1 ? 0 : first + c; };
  for (index_t m = 0; m < width; ++m)
    for (index_t c = 0; c < count; ++c)
      w.weights[m * w.features + c] = static_cast<Real>(layer.weights(0, head, transposed ? width - 1 - m : m, column(c)));
  if (!transposed && layer.bias.data != nullptr)
    for (index_t c = 0; c < count; ++c) w.bias[c] = static_cast<Real>(layer.bias(0, head, 0, column(c)));
  const segments pieces{layer.offsets, layer.lengths, x.length()};
  for (index_t n = 0; n < pieces.count(); ++n) {
    const segment piece = pieces(b, n);
    feature::detail::convolve_segment(block_of(x, b, h, piece, first), w.bias, w.weights, width,
                                      transposed ? width - 1 - layer.before() : layer.before(), w.window, w.block,
                                      block_of(y, b, h, piece, first));
  }
  if (layer.lengths.empty()) return;
  for (index_t l = pieces(b, 0).count; l < y.length(); ++l)
    for (index_t c = 0; c < count; ++c) y(b, h, l, first + c) = T(0);
}

/// Computes the gradients of the weights and the bias of head `head` in the blocks of features [first_block, last_block), over all
/// batch rows and all heads that share them.
template <class T, class W>
void convolve_weights_gradient(const feature::convolution<W>& layer, const tensor_view<const T>& x, const tensor_view<const T>& dy,
                               const feature::convolution_gradients<T>& to, index_t head, index_t first_block, index_t last_block,
                               kernel::arena memory) {
  using Real = real_of<T>;
  convolution_scratch<Real> w(memory);
  const index_t width = layer.width(), sharing = x.heads() / layer.weights.heads();
  const segments pieces{layer.offsets, layer.lengths, x.length()};
  for (index_t block = first_block; block < last_block; ++block)
    for (index_t b = 0; b < x.batches(); ++b)
      for (index_t h = head * sharing; h < (head + 1) * sharing; ++h)
        for (index_t n = 0; n < pieces.count(); ++n) {
          const auto in = [&](const tensor_view<const T>& tokens) {
            return block_of(tokens, b, h, pieces(b, n), block * w.features);
          };
          feature::detail::convolve_segment_gradient(in(x), in(dy), width, layer.before(), w.window, w.block, w.by_weights,
                                                     w.by_bias);
        }
  const auto write = [&](const tensor_view<Real>& out, index_t m, const double* sums) {
    if (out.data == nullptr) return;
    if (layer.weights.features() == 1)
      out(0, head, m, 0) = static_cast<Real>(std::accumulate(sums, sums + w.features, 0.0));
    else
      for (index_t c = first_block * w.features; c < (std::min)(last_block * w.features, out.features()); ++c)
        out(0, head, m, c) = static_cast<Real>(sums[c - first_block * w.features]);
  };
  for (index_t m = 0; m < width; ++m) write(to.weights, m, w.by_weights + m * w.features);
  write(to.bias, 0, w.by_bias);
}

}  // namespace BILA_UNIT
}  // namespace detail

inline namespace BILA_UNIT {

/// Computes y = layer(x), a depthwise convolution over the tokens of each head, in float (in double for double), and rounds once.
///
/// Shapes: x and y [B, H, L, D]; see feature::convolution for the layer. y may be x itself. y is zero past the valid tokens of a
/// row, and what x has there is not read. Throws std::invalid_argument if the layer cannot be computed, the shapes disagree, or y
/// overlaps x in any other way.
template <class W, storage T>
void convolve(const cpu& backend, const feature::convolution<W>& layer, const std::type_identity_t<tensor_view<const T>>& x,
              const tensor_view<T>& y) {
  error_message wrong = detail::check_tokens(layer, x, "y", y);
  const detail::named_tensor written[] = {{"y", detail::footprint(y)}};
  const detail::named_tensor read[] = {
      {"x", detail::footprint(x), "y"}, {"weights", detail::footprint(layer.weights)}, {"bias", detail::footprint(layer.bias)}};
  if (wrong.empty()) wrong = detail::check_overlaps(written, read);
  if (wrong.empty()) wrong = detail::validate(backend);
  if (!wrong.empty()) raise(wrong);
  const index_t blocks = detail::feature_blocks(x.features());
  const auto s = detail::schedule_of(backend, x.batches() * x.heads() * blocks, detail::convolution_scratch<real_of<T>>::bytes());
  if (wrong = detail::check_workspace(backend, s); !wrong.empty()) raise(wrong);
  const detail::call_memory memory(backend.workspace, s.bytes());
  detail::run_tasks(backend, s, memory, [&](index_t task, kernel::arena own, std::byte*) {
    detail::convolve_block(layer, false, x, y, task / blocks / x.heads(), task / blocks % x.heads(),
                           task % blocks * feature::detail::convolution_features, own);
  });
}

/// Computes the gradients of sum(dy o y), y = layer(x), with respect to x, the weights and the bias: those not null in `to`.
///
///     dx_j = sum_m weights_m dy_{j-m+before},   dweights_m = sum_i dy_i x_{i+m-before},   dbias = sum_i dy_i
///
/// The sums run over the tokens of a segment; dweights and dbias are also summed over all segments, and over heads and features
/// that share a weight, in blocks of tokens that are added up in double. Shapes: x and dy [B, H, L, D]. to.x is zero past the
/// valid tokens of a row, and may be x or dy itself. Throws what convolve throws.
template <class W, storage T>
void convolve_gradient(const cpu& backend, const feature::convolution<W>& layer,
                       const std::type_identity_t<tensor_view<const T>>& x, const std::type_identity_t<tensor_view<const T>>& dy,
                       const feature::convolution_gradients<T>& to) {
  error_message wrong = detail::check_tokens(layer, x, "dy", dy);
  const per_axis kernels = layer.weights.extents;
  for (const error_message& of_one :
       {detail::check_extents("gradients.x", to.x, x.extents), detail::check_extents("gradients.weights", to.weights, kernels),
        detail::check_extents("gradients.bias", to.bias, {1, kernels[1], 1, kernels[3]})})
    if (wrong.empty()) wrong = of_one;
  const detail::named_tensor written[] = {{"gradients.x", detail::footprint(to.x)},
                                          {"gradients.weights", detail::footprint(to.weights)},
                                          {"gradients.bias", detail::footprint(to.bias)}};
  const detail::named_tensor read[] = {{"x", detail::footprint(x), "gradients.x"},
                                       {"dy", detail::footprint(dy), "gradients.x"},
                                       {"weights", detail::footprint(layer.weights)},
                                       {"bias", detail::footprint(layer.bias)}};
  if (wrong.empty()) wrong = detail::check_overlaps(written, read);
  if (wrong.empty()) wrong = detail::validate(backend);
  if (!wrong.empty()) raise(wrong);

  const std::size_t scratch = detail::convolution_scratch<real_of<T>>::bytes();
  const index_t blocks = detail::feature_blocks(x.features()), heads = kernels[1];
  const index_t together = kernels[3] == 1 ? blocks : 1;  // blocks of features that share a kernel
  const index_t parts = kernels[3] == 1 ? 1 : blocks;
  const bool of_weights = to.weights.data != nullptr || to.bias.data != nullptr;
  const auto first = detail::schedule_of(backend, of_weights ? heads * parts : 0, scratch);
  const auto second = detail::schedule_of(backend, to.x.data == nullptr ? 0 : x.batches() * x.heads() * blocks, scratch);
  for (const auto* s : {&first, &second})
    if (wrong = detail::check_workspace(backend, *s); !wrong.empty()) raise(wrong);
  const detail::call_memory memory(backend.workspace, (std::max)(first.bytes(), second.bytes()));
  detail::run_tasks(backend, first, memory, [&](index_t task, kernel::arena own, std::byte*) {
    const index_t block = task % parts;
    detail::convolve_weights_gradient(layer, x, dy, to, task / parts, block, block + together, own);
  });
  detail::run_tasks(backend, second, memory, [&](index_t task, kernel::arena own, std::byte*) {  // last, as it may overwrite x
    detail::convolve_block(layer, true, dy, to.x, task / blocks / x.heads(), task / blocks % x.heads(),
                           task % blocks * feature::detail::convolution_features, own);
  });
}

}  // namespace BILA_UNIT

}  // namespace v0_1
}  // namespace bila
