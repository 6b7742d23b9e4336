// SPDX-License-Identifier: Apache-2.0
// What a form computes on: the tokens of one segment of one head, its mask and its states; and how a form normalises rows. A form
// sees no batch, head or thread, and does not know which mask it has.
#pragma once

#include <bila/call/inputs.hpp>
#include <bila/config.hpp>
#include <bila/form/views.hpp>
#include <bila/kernel/arena.hpp>
#include <bila/kernel/contract.hpp>
#include <bila/kernel/tile.hpp>
#include <bila/norm/quotient.hpp>
#include <bila/view/number.hpp>
#include <bila/view/storage.hpp>
#include <bila/view/tensor_view.hpp>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace bila {
inline namespace v0_1 {
namespace form {
inline namespace BILA_UNIT {

constexpr direction other(direction way) { return way == direction::forward ? direction::backward : direction::forward; }

/// One head's part of a `state`: S (Dk, Dv) and z (Dk, 1). An initial state enters through a gap, with one decay, or with decays
/// per channel whose logs are `log_decays` (1, Dk) and which the first chunk applies. A final state is multiplied by `decay` before
/// it is written.
template <class Real>
struct head_state {
  rows<Real> S, z;
  double decay = 1;
  double log_decay = 0, log_scale = 0;  // of an initial state, read only if the mask weighs keys
  Real* scale_to = nullptr;             // where the log scale of a final state is written
  rows<const std::remove_const_t<Real>> log_decays = {};

  bool given() const { return S.data != nullptr || z.data != nullptr; }
};

/// One segment of one head. Its tensors are stored in T and computed in Real.
template <class T>
struct head {
  using Real = real_of<T>;

  rows<const T> q, k, v;  // (L, Dk) (L, Dk) (L, Dv)
  rows<T> y;              // (L, Dv)
  rows<Real> row_sum;     // (L, 1); data is null if not wanted
  head_mask<real_of<T>> mask;
  double scale, diagonal;
  bila::direction direction;
  head_state<const Real> initial_forward, initial_backward;
  head_state<Real> final_forward, final_backward;

  bool has_states() const {
    return initial_forward.given() || initial_backward.given() || final_forward.given() || final_backward.given();
  }

  const auto& initial(bila::direction way) const { return way == bila::direction::forward ? initial_forward : initial_backward; }
  const auto& final(bila::direction way) const { return way == bila::direction::forward ? final_forward : final_backward; }
};

/// The sizes of one head, or the largest sizes of all heads of a call.
struct head_size {
  index_t L, Dk, Dv;
};

/// A two-sided sweep has two passes. Each pass can compute the two halves of a head at the same time. The second pass over a half
/// starts from the state with which the first pass over the other half ended.
enum class sweep_pass { both, first, second };

/// One of several equal parts of a head's work that can run at the same time.
struct split {
  index_t index = 0, count = 1;
  sweep_pass at = sweep_pass::both;
  index_t half = 0;  // 0 or 1; without meaning if `at` is both

  bool has_half(index_t n) const { return at == sweep_pass::both || half == n; }
};

/// A recurrent or chunkwise head is split into blocks of this many value features, because the columns of a state are independent.
/// The number is a multiple of the size of every packet.
inline constexpr index_t split_columns = 16;

inline index_t column_blocks(index_t Dv) { return std::max<index_t>(1, kernel::round_up(Dv, split_columns) / split_columns); }

inline index_t splits_by_column(index_t Dv, index_t wanted) {
  return std::clamp<index_t>(wanted, 1, std::max<index_t>(1, Dv / split_columns));
}

/// Whether this split has no work: a call may have more splits than a head has blocks of columns. The first split always has work,
/// because it computes the row sums even if there are no columns.
inline bool is_idle(index_t Dv, split part) { return part.index >= column_blocks(Dv); }

/// The head `x` restricted to the value features of one split. The split must not be idle.
template <class T>
BILA_NOINLINE head<T> columns_of(head<T> x, split part) {
  const index_t blocks = column_blocks(x.v.width), count = (std::min)(part.count, blocks);
  const index_t first = (std::min)(blocks * part.index / count * split_columns, x.v.width);
  const index_t last = (std::min)(blocks * (part.index + 1) / count * split_columns, x.v.width);
  const auto narrow = [&](auto& view) { view = view.columns(first, last - first); };
  narrow(x.v);
  narrow(x.y);
  narrow(x.initial_forward.S);
  narrow(x.initial_backward.S);
  narrow(x.final_forward.S);
  narrow(x.final_backward.S);
  if (part.index == 0) return x;
  x.row_sum.data = nullptr;  // every split computes the row sums, but only the first writes them
  x.final_forward.z.data = x.final_backward.z.data = nullptr;
  x.final_forward.scale_to = x.final_backward.scale_to = nullptr;
  return x;
}

/// Whether numbers are rounded when they are stored in T.
template <class T>
inline constexpr bool is_narrow = !std::is_same_v<T, real_of<T>>;

/// Loads the state from which a sweep starts: the given state, or zero.
template <class Kernel, class Real>
BILA_NOINLINE void load_initial_state(kernel::tile<Real> S, Real* s, const head_state<const Real>& from) {
  std::fill_n(s, kernel::round_up(S.rows, Kernel::template lanes<Real>), Real(0));
  if (from.S.data == nullptr)
    kernel::clear(S);
  else
    kernel::load(S, from.S);
  for (index_t c = 0; c < S.rows; ++c) s[c] = from.z.data == nullptr ? Real(0) : from.z(c, 0);
}

/// Multiplies S and the first `sums` numbers of s, the state's column for row sums, by lambda. s may be null if `sums` is 0.
template <class Real>
BILA_NOINLINE void decay(kernel::tile<Real> S, Real* s, index_t sums, double lambda) {
  const Real factor = static_cast<Real>(lambda);
  for (index_t n = 0; n < S.rows * S.stride; ++n) S.data[n] *= factor;
  for (index_t c = 0; c < sums; ++c) s[c] *= factor;
}

/// Lets an initial state cross the gap between the state and the sequence, if the gap has one decay.
template <class Real>
BILA_NOINLINE void decay_initial_state(kernel::tile<Real> S, Real* s, const head_state<const Real>& from) {
  if (from.given()) decay(S, s, S.rows, from.decay);
}

/// Stores the final state, `pending` times S and s, if the caller wants it. s is null if the norm has no row sum. S is overwritten.
template <class Real>
BILA_NOINLINE void store_final_state(const head_state<Real>& to, kernel::tile<Real> S, const Real* s, double pending) {
  pending *= to.decay;
  const Real factor = static_cast<Real>(pending);
  if (to.S.data != nullptr) {
    decay<Real>(S, nullptr, 0, pending);
    kernel::store(to.S, S);
  }
  if (to.z.data != nullptr && s != nullptr)
    for (index_t c = 0; c < S.rows; ++c) to.z(c, 0) = factor * s[c];
}

template <class Kernel, class Real>
BILA_NOINLINE void divide_exceptional_rows(kernel::tile<Real> N, const Real* z, const norm_view<Real>& norm, double scale,
                                           const Real* unit) {
  for (index_t i = 0; i < N.rows; ++i) {
    const quotient<Real> row = norm.quotient_of(norm.uses_row_sum ? z[i] : Real(0), scale, unit == nullptr ? unit : unit + i);
    if (detail::is_exactly(row.divisor, 0))
      std::fill_n(N.row(i), N.columns, Real(0));
    else if (!norm::has_row_scale(row))
      Kernel::divide(N.row(i), N.columns, row.factor, row.divisor);
  }
}

/// The units of the rows from token `first` on (see relative_normaliser); null if the mask does not weigh keys.
template <class T>
const real_of<T>* units_of(const head<T>& x, index_t first) {
  return x.mask.ends == nullptr ? nullptr : x.mask.ends->unit + first;
}

/// Normalises and stores rows [first, first + N.rows). write() is called when out_i holds the factor of row i, and must set N_i to
/// out_i times the row's sum.
template <class Kernel, class T, class Real, class Write>
void finish(const head<T>& x, index_t first, kernel::tile<Real> N, const Real* z, Real* out, const norm_view<Real>& norm,
            const Write& write) {
  const Real* const unit = units_of(x, first);
  const bool all = norm.row_scales(out, z, N.rows, x.scale, unit);
  write();
  if (!all) divide_exceptional_rows<Kernel>(N, z, norm, x.scale, unit);
  if (norm.uses_row_sum && x.row_sum.data != nullptr)
    for (index_t i = 0; i < N.rows; ++i) x.row_sum(first + i, 0) = z[i];
  kernel::store(x.y.slice(first, N.rows), N);
}

}  // namespace BILA_UNIT
}  // namespace form
}  // namespace v0_1
}  // namespace bila
