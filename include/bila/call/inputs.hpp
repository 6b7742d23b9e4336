// SPDX-License-Identifier: Apache-2.0
// The inputs, options and outputs of a call, and their checks, which the entry point makes once.
#pragma once

#include <bila/call/overlap.hpp>
#include <bila/call/segments.hpp>
#include <bila/call/state.hpp>
#include <bila/error.hpp>
#include <bila/view/direction.hpp>
#include <bila/view/index_list.hpp>
#include <bila/view/number.hpp>
#include <bila/view/shape.hpp>
#include <bila/view/storage.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace bila {
inline namespace v0_1 {

/// The inputs of attention.
///
///     [N_i, Z_i] = sum_j (q_i . k_j) M_ij [v_j, 1],   y_i = s N_i / n(s Z_i),   s = scale,   M_ii = diagonal
///
/// Shapes: q [B, Hq, L, Dk], k [B, Hk, L, Dk], v [B, Hv, L, Dv]. A feature map has been applied to q and k already. With H the
/// heads of the output, Hq, Hk and Hv each divide H, and head h reads head h / (H / Hx) of x. A stride of zero broadcasts. Values
/// are not checked: NaN values in q, k or v give NaN.
/// Source: LION (arXiv 2502.16249), the masked form Y = norm((Q K^T) o M) V.
template <class T>
struct inputs {
  tensor_view<const T> q{}, k{}, v{};
  double scale = 1;     // factor of the scores
  double diagonal = 1;  // weight of a token on itself: 1 as in LION, 0 to leave it out, 2 as in a sum of two causal calls
  bila::direction direction = bila::direction::both;
  index_list offsets = {};                        // packed segments [offsets[n], offsets[n+1]) of the one batch row
  index_list lengths = {};                        // valid tokens of each batch row; later tokens are never read, and get y = 0
  state<const real_of<T>> initial_forward = {};   // state before the first token of each sequence
  state<const real_of<T>> initial_backward = {};  // state after the last token of each sequence
  index_list key_lengths = {};                    // cross attention: valid keys of each batch row; lengths then counts queries
};

template <class T, class U, class V>
inputs(tensor_view<T>, tensor_view<U>, tensor_view<V>) -> inputs<std::remove_const_t<T>>;

/// The outputs of attention. A null view is not written. Without y, a final state is required. Then the call computes only states
/// and reads only k and v, q may be left out, and L is the length of the keys.
///
/// row_sum: [B, H, L, 1], the unscaled Z; not written if the norm uses no row sum (norm::none). A gradient needs only y and the row
/// sum saved. final_forward is the state after each sequence's last token, final_backward the state before its first token. If a
/// sequence is computed in pieces, final_forward is the next piece's initial_forward, final_backward the previous piece's
/// initial_backward.
///
/// add: y += result, for norms that use no row sum. The result and the sum are each rounded once. So the results of one-way
/// calls, or of calls over several orders of the tokens, can be summed in y. Padding is not changed. On a CPU the work of one head
/// is then not divided between threads.
template <class T>
struct outputs {
  tensor_view<T> y = {};  // [B, H, L, Dv]
  tensor_view<real_of<T>> row_sum = {};
  state<real_of<T>> final_forward = {};
  state<real_of<T>> final_backward = {};
  bool add = false;
};

inline namespace BILA_UNIT {

/// Whether a call computes final states only: y is absent and a final state is given.
template <class T, class Real>
bool only_states(const tensor_view<T>& y, const state<Real>& final_forward, const state<Real>& final_backward) {
  return y.data == nullptr && y.extents == per_axis{} && (final_forward.given() || final_backward.given());
}

template <class T>
bool only_states(const outputs<T>& out) {
  return only_states(out.y, out.final_forward, out.final_backward);
}

/// The sizes of one call, taken from the output, k and v.
struct geometry {
  index_t B, H, L, Lk, Dk, Dv;  // Lk, the length of k and v, differs from L in cross attention only
};

template <class T, class Out>
geometry geometry_of(const inputs<T>& in, const tensor_view<Out>& y) {
  return {y.batches(), y.heads(), y.length(), in.k.length(), in.k.features(), in.v.features()};
}

/// The sizes of a call without y, taken from the keys and a final state.
template <class T, class Real>
geometry geometry_of(const inputs<T>& in, const state<Real>& final) {
  const index_t H = final.S.data != nullptr ? final.S.heads() : final.z.heads();
  return {in.k.batches(), H, in.k.length(), in.k.length(), in.k.features(), in.v.features()};
}

template <class T>
geometry geometry_of(const inputs<T>& in, const outputs<T>& out) {
  if (!only_states(out)) return geometry_of(in, out.y);
  return geometry_of(in, out.final_forward.given() ? out.final_forward : out.final_backward);
}

/// Whether keys are not the queries' own tokens (cross attention). Masks that depend on the order of tokens do not allow this.
template <class T>
bool is_cross(const inputs<T>& in, const geometry& size) {
  return size.Lk != size.L || !in.key_lengths.empty();
}

/// The keys that a segment of queries sees: the segment's own tokens, or in cross attention all valid keys of the batch row.
template <class T>
segment keys_of(const inputs<T>& in, const geometry& size, index_t b, const segment& queries) {
  if (!in.key_lengths.empty()) return {0, in.key_lengths[static_cast<std::size_t>(b)]};
  return size.Lk == size.L ? queries : segment{0, size.Lk};
}

/// The number of sequences that have states of their own: batch rows, or packed segments.
template <class T>
index_t sequences_of(const inputs<T>& in, const geometry& size) {
  return in.offsets.empty() ? size.B : static_cast<index_t>(in.offsets.size()) - 1;
}

}  // namespace BILA_UNIT

namespace detail {
inline namespace BILA_UNIT {

/// For states that must not have 16 bits: checks that a state is stored in the type of the computation.
template <class T>
error_message check_state_storage(const char* name, const state<T>& x) {
  if (x.stored == state_storage::computed) return {};
  return message(name, " is stored in 16 bits, it must be ", std::is_same_v<std::remove_const_t<T>, double> ? "double" : "float");
}

/// Checks the shapes of a state, except for the width of log_decay, which the mask decides: see check_state_use. `name` is the name
/// of the state; errors append the name of the part.
template <class T>
error_message check_state(const char* name, const state<T>& x, index_t sequences, const geometry& size) {
  if (!x.given()) return {};
  if constexpr (std::is_same_v<std::remove_const_t<T>, double>)
    if (error_message wrong = check_state_storage(name, x); !wrong.empty()) return wrong;
  for (const error_message& wrong :
       {check_extents(".S", x.S, {sequences, size.H, size.Dk, size.Dv}), check_extents(".z", x.z, {sequences, size.H, size.Dk, 1}),
        check_extents(".log_decay", x.log_decay, {sequences, size.H, 1, x.log_decay.features()}),
        check_extents(".log_scale", x.log_scale, {sequences, size.H, 1, 1})})
    if (!wrong.empty()) return name + wrong;
  return {};
}

inline error_message check_divides(const char* name, index_t heads, index_t H) {
  if (heads == H || (heads > 0 && H % heads == 0)) return {};
  return message(name, " has ", heads, " heads, which do not divide the ", H, " heads of the output");
}

inline error_message check_equal(const char* name, const char* axis, index_t found, const char* other, index_t wanted) {
  if (found == wanted) return {};
  return message(name, " has ", axis, " ", found, " but ", other, " has ", wanted);
}

/// The checks of a call without y and q.
template <class T>
error_message check_keys(const inputs<T>& in, const geometry& size) {
  for (const error_message& wrong : {
           check_view("k", in.k),
           check_view("v", in.v),
           check_equal("v", "batch size", in.v.batches(), "k", size.B),
           check_divides("k", in.k.heads(), size.H),
           check_divides("v", in.v.heads(), size.H),
           check_equal("v", "length", in.v.length(), "k", size.L),
       })
    if (!wrong.empty()) return wrong;
  return {};
}

template <class T, class Out>
error_message check_shapes(const inputs<T>& in, const tensor_view<Out>& y) {
  const index_t B = y.batches(), H = y.heads(), L = y.length();
  for (const error_message& wrong : {
           check_equal("q", "batch size", in.q.batches(), "y", B),
           check_equal("k", "batch size", in.k.batches(), "y", B),
           check_equal("v", "batch size", in.v.batches(), "y", B),
           check_divides("q", in.q.heads(), H),
           check_divides("k", in.k.heads(), H),
           check_divides("v", in.v.heads(), H),
           check_equal("q", "length", in.q.length(), "y", L),
           check_equal("v", "length", in.v.length(), "k", in.k.length()),
           check_equal("k", "width", in.k.features(), "q", in.q.features()),
           check_equal("y", "width", y.features(), "v", in.v.features()),
       })
    if (!wrong.empty()) return wrong;
  return {};
}

/// Checks that scale or diagonal is finite in real_of<T>, the type of the computation.
template <class T>
error_message check_number(const char* name, double x) {
  if (is_finite(x) && std::abs(x) <= static_cast<double>((std::numeric_limits<real_of<T>>::max)())) return {};
  return message(name, " = ", x, ", it must be finite", is_finite(x) ? " in float" : "");
}

template <class T>
error_message check_offsets(const inputs<T>& in, index_t B, index_t L) {
  const auto& offsets = in.offsets;
  if (B != 1) return message("offsets: packed segments need a batch size of 1, it is ", B);
  if (offsets.size() < 2) return message("offsets: needs at least 2 entries, it has ", offsets.size());
  if (offsets[0] != 0) return message("offsets[0] = ", offsets[0], ", it must be 0");
  for (std::size_t n = 1; n < offsets.size(); ++n)
    if (offsets[n] < offsets[n - 1])
      return message("offsets[", n, "] = ", offsets[n], " is below offsets[", n - 1, "] = ", offsets[n - 1],
                     ": they must not decrease");
  const std::size_t last = offsets.size() - 1;
  if (offsets[last] != L) return message("offsets[", last, "] = ", offsets[last], ", the last one must be the length ", L);
  return {};
}

/// Checks that lengths or key_lengths has an entry for each batch row, between 0 and L.
inline error_message check_lengths(const char* name, const index_list& lengths, index_t B, index_t L) {
  if (lengths.empty()) return {};
  if (static_cast<index_t>(lengths.size()) != B)
    return message(name, ": has ", lengths.size(), " entries but the batch size is ", B);
  for (std::size_t b = 0; b < lengths.size(); ++b)
    if (lengths[b] < 0 || lengths[b] > L) return message(name, "[", b, "] = ", lengths[b], " is outside 0..", L);
  return {};
}

template <class T>
error_message check_all_lengths(const inputs<T>& in, index_t B, index_t L) {
  const index_t Lk = in.k.length();
  if (!in.lengths.empty() && !in.offsets.empty())
    return message("lengths: both offsets and lengths are given, a call takes one of them");
  if (!in.lengths.empty() && in.key_lengths.empty() && Lk != L)
    return message("lengths: k has length ", Lk, " but q has ", L, ": lengths counts queries, and needs key_lengths beside it");
  error_message wrong = check_lengths("lengths", in.lengths, B, L);
  return wrong.empty() ? check_lengths("key_lengths", in.key_lengths, B, Lk) : wrong;
}

/// Checks that B H L Dk Dv is at most 2^52, so that counts of operations and bytes do not overflow.
inline error_message check_work(const geometry& size) {
  const auto at_least_1 = [](index_t n) { return (std::max)(static_cast<double>(n), 1.0); };
  const double work =
      at_least_1(size.B) * at_least_1(size.H) * at_least_1((std::max)(size.L, size.Lk)) * at_least_1(size.Dk) * at_least_1(size.Dv);
  if (work <= 0x1p52) return {};
  return message("y has shape [", size.B, ", ", size.H, ", ", size.L, ", ", size.Dv, "] and k has length ", size.Lk, " and width ",
                 size.Dk, ": their product is above 2^52");
}

/// Checks the options: scale, diagonal, lengths, offsets, initial states.
template <class T>
error_message check_options(const inputs<T>& in, const geometry& size) {
  for (const error_message& wrong :
       {check_work(size), check_number<T>("scale", in.scale), check_number<T>("diagonal", in.diagonal)})
    if (!wrong.empty()) return wrong;
  if (const error_message wrong = check_all_lengths(in, size.B, size.L); !wrong.empty()) return wrong;
  if (!in.offsets.empty())
    if (const error_message wrong = check_offsets(in, size.B, size.L); !wrong.empty()) return wrong;
  for (const error_message& wrong : {check_state("initial_forward", in.initial_forward, sequences_of(in, size), size),
                                     check_state("initial_backward", in.initial_backward, sequences_of(in, size), size)})
    if (!wrong.empty()) return wrong;
  return {};
}

/// The names and memory of all tensors that a call writes.
template <class T>
std::array<named_tensor, 8> written_to(const outputs<T>& out) {
  return {{{"y", footprint(out.y)},
           {"row_sum", footprint(out.row_sum)},
           {"final_forward.S", footprint(out.final_forward.S, out.final_forward.bytes())},
           {"final_forward.z", footprint(out.final_forward.z, out.final_forward.bytes())},
           {"final_forward.log_scale", footprint(out.final_forward.log_scale)},
           {"final_backward.S", footprint(out.final_backward.S, out.final_backward.bytes())},
           {"final_backward.z", footprint(out.final_backward.z, out.final_backward.bytes())},
           {"final_backward.log_scale", footprint(out.final_backward.log_scale)}}};
}

template <class T>
std::array<named_tensor, 3> read_by(const inputs<T>& in) {
  return {{{"q", footprint(in.q)}, {"k", footprint(in.k)}, {"v", footprint(in.v)}}};
}

/// The names and memory of both initial states. A final state may overwrite the initial state of its direction.
template <class T>
std::array<named_tensor, 8> initial_states_of(const inputs<T>& in) {
  const auto &f = in.initial_forward, &b = in.initial_backward;
  return {{{"initial_forward.S", footprint(f.S, f.bytes()), "final_forward.S"},
           {"initial_forward.z", footprint(f.z, f.bytes()), "final_forward.z"},
           {"initial_forward.log_decay", footprint(f.log_decay)},
           {"initial_forward.log_scale", footprint(f.log_scale), "final_forward.log_scale"},
           {"initial_backward.S", footprint(b.S, b.bytes()), "final_backward.S"},
           {"initial_backward.z", footprint(b.z, b.bytes()), "final_backward.z"},
           {"initial_backward.log_decay", footprint(b.log_decay)},
           {"initial_backward.log_scale", footprint(b.log_scale), "final_backward.log_scale"}}};
}

}  // namespace BILA_UNIT
}  // namespace detail

inline namespace BILA_UNIT {

/// Checks q, k, v, the options and the shape of y, simple errors first. Returns the first error; empty if there is none.
template <class T, class Out>
error_message validate(const inputs<T>& in, const tensor_view<Out>& y) {
  for (const error_message& wrong :
       {detail::check_view("q", in.q), detail::check_view("k", in.k), detail::check_view("v", in.v), detail::check_view("y", y)})
    if (!wrong.empty()) return wrong;
  if (const error_message wrong = detail::check_shapes(in, y); !wrong.empty()) return wrong;
  return detail::check_options(in, geometry_of(in, y));
}

/// Checks what validate(in, y) checks, and all other outputs.
template <class T>
error_message validate(const inputs<T>& in, const outputs<T>& out) {
  const geometry size = geometry_of(in, out);
  if (only_states(out)) {
    if (error_message wrong = detail::check_keys(in, size); !wrong.empty()) return wrong;
    if (error_message wrong = detail::check_options(in, size); !wrong.empty()) return wrong;
    if (out.row_sum.data != nullptr) return "row_sum is given, but without y no row is computed";
    if (out.add) return "outputs.add is set, but there is no y to add to";
  } else if (error_message wrong = validate(in, out.y); !wrong.empty()) {
    return wrong;
  }
  for (const error_message& wrong : {
           detail::check_extents("row_sum", out.row_sum, {size.B, size.H, size.L, 1}),
           detail::check_state("final_forward", out.final_forward, sequences_of(in, size), size),
           detail::check_state("final_backward", out.final_backward, sequences_of(in, size), size),
       })
    if (!wrong.empty()) return wrong;
  const auto written = detail::written_to(out);
  error_message wrong = detail::check_overlaps(written, detail::read_by(in));
  return wrong.empty() ? detail::check_apart(written, detail::initial_states_of(in)) : wrong;
}

/// The segments of a call's batch rows: packed segments, valid prefixes, or whole rows.
template <class T>
segments segments_of(const inputs<T>& in, const geometry& size) {
  return {in.offsets, in.lengths, size.L};
}

}  // namespace BILA_UNIT

}  // namespace v0_1
}  // namespace bila
