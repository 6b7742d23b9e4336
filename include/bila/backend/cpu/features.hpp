// SPDX-License-Identifier: Apache-2.0
// Feature maps over whole tensors: phi(x), and the gradient with respect to x from the gradient with respect to phi(x).
#pragma once

#include <bila/backend/cpu/threads.hpp>
#include <bila/call/overlap.hpp>
#include <bila/feature/maps.hpp>
#include <bila/view/storage.hpp>

#include <type_traits>
#include <utility>

namespace bila {
inline namespace v0_1 {

namespace detail {
inline namespace BILA_UNIT {

/// A kernel layer of one lane, for scratch memory that is not read in packets.
struct number_by_number {
  template <class>
  static constexpr index_t lanes = 1;
};

template <class Map, class T, class U>
error_message check_map(const Map& map, const char* from_name, const tensor_view<T>& x, const char* to_name,
                        const tensor_view<U>& phi) {
  for (const error_message& wrong : {check_view(from_name, x), check_view(to_name, phi)})
    if (!wrong.empty()) return wrong;
  if (x.features() > index_t{1} << 30) return message(from_name, " has width ", x.features(), ", more than 2^30");
  const per_axis wanted{x.batches(), x.heads(), x.length(), map.width(x.features())};
  if (phi.extents == wanted) return {};
  return message(to_name, " has shape ", shape_in_words(phi), ", it must be [", wanted[0], ", ", wanted[1], ", ", wanted[2], ", ",
                 wanted[3], "]");
}

/// Runs work(b, h, l, arena) for every token; a task is one head. Returns what is wrong with the backend; empty if nothing is.
template <class T, class Work>
error_message for_each_row(const cpu& backend, const tensor_view<T>& x, std::size_t scratch, const Work& work) {
  if (error_message wrong = validate(backend); !wrong.empty()) return wrong;
  const schedule s = schedule_of(backend, x.batches() * x.heads(), scratch);
  if (error_message wrong = check_workspace(backend, s); !wrong.empty()) return wrong;
  const call_memory memory(backend.workspace, s.bytes());
  run_tasks(backend, s, memory, [&](index_t task, kernel::arena own, std::byte*) {
    for (index_t l = 0; l < x.length(); ++l) work(task / x.heads(), task % x.heads(), l, own);
  });
  return {};
}

}  // namespace BILA_UNIT
}  // namespace detail

inline namespace BILA_UNIT {

/// Computes phi = map(x) row by row, in float (in double for double), and rounds once.
///
/// Shapes: x [B, H, L, d], phi [B, H, L, map.width(d)]. phi may be x itself if the widths are equal. Throws std::invalid_argument
/// if the shapes disagree, or if phi and x overlap in any other way.
template <feature::map Map, class T>
void features(const cpu& backend, const Map& map, const std::type_identity_t<tensor_view<const T>>& x, const tensor_view<T>& phi) {
  using Real = real_of<T>;
  error_message wrong = detail::check_map(map, "x", x, "phi", phi);
  const detail::named_tensor written[] = {{"phi", detail::footprint(phi)}}, read[] = {{"x", detail::footprint(x), "phi"}};
  if (wrong.empty()) wrong = detail::check_overlaps(written, read);
  if (!wrong.empty()) raise(wrong);
  const auto lay_out = [d = x.features(), width = phi.features()](kernel::arena& memory) {
    return std::pair(memory.numbers<detail::number_by_number, Real>(d), memory.numbers<detail::number_by_number, Real>(width));
  };
  kernel::arena counter;
  lay_out(counter);
  wrong = detail::for_each_row(backend, x, counter.used(), [&](index_t b, index_t h, index_t l, kernel::arena memory) {
    const auto [row, out] = lay_out(memory);
    for (index_t d = 0; d < x.features(); ++d) row[d] = static_cast<Real>(x(b, h, l, d));
    map.map(static_cast<const Real*>(row), x.features(), out);
    for (index_t d = 0; d < phi.features(); ++d) phi(b, h, l, d) = static_cast<T>(out[d]);
  });
  if (!wrong.empty()) raise(wrong);
}

/// Computes dx = (d phi / dx)^T dphi row by row. Shapes: x and dx [B, H, L, d], dphi [B, H, L, map.width(d)]. dx is overwritten. dx
/// may be x itself, or dphi if the widths are equal. Throws std::invalid_argument if the shapes disagree, or if dx overlaps x or
/// dphi in any other way.
template <feature::map Map, class T>
void features_gradient(const cpu& backend, const Map& map, const std::type_identity_t<tensor_view<const T>>& x,
                       const std::type_identity_t<tensor_view<const T>>& dphi, const tensor_view<T>& dx) {
  using Real = real_of<T>;
  error_message wrong = detail::check_map(map, "x", x, "dphi", dphi);
  if (wrong.empty()) wrong = detail::check_map(feature::identity{}, "x", x, "dx", dx);
  const detail::named_tensor written[] = {{"dx", detail::footprint(dx)}};
  const detail::named_tensor read[] = {{"x", detail::footprint(x), "dx"}, {"dphi", detail::footprint(dphi), "dx"}};
  if (wrong.empty()) wrong = detail::check_overlaps(written, read);
  if (!wrong.empty()) raise(wrong);
  struct rows {
    Real *x, *phi, *g, *dx;
  };
  const auto lay_out = [d = x.features(), width = dphi.features()](kernel::arena& memory) {
    const auto room = [&](index_t n) { return memory.numbers<detail::number_by_number, Real>(n); };
    return rows{room(d), room(width), room(width), room(d)};
  };
  kernel::arena counter;
  lay_out(counter);
  wrong = detail::for_each_row(backend, x, counter.used(), [&](index_t b, index_t h, index_t l, kernel::arena memory) {
    const rows r = lay_out(memory);
    for (index_t d = 0; d < x.features(); ++d) r.x[d] = static_cast<Real>(x(b, h, l, d));
    for (index_t d = 0; d < dphi.features(); ++d) r.g[d] = static_cast<Real>(dphi(b, h, l, d));
    map.map(static_cast<const Real*>(r.x), x.features(), r.phi);
    map.pull_back(static_cast<const Real*>(r.x), static_cast<const Real*>(r.phi), static_cast<const Real*>(r.g), x.features(),
                  r.dx);
    for (index_t d = 0; d < dx.features(); ++d) dx(b, h, l, d) = static_cast<T>(r.dx[d]);
  });
  if (!wrong.empty()) raise(wrong);
}

}  // namespace BILA_UNIT

}  // namespace v0_1
}  // namespace bila
