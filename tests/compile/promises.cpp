// SPDX-License-Identifier: Apache-2.0
// What the types promise. Compiling this file is the test.
#include <bila/bila.hpp>

#include <Eigen/Core>

#include <concepts>
#include <type_traits>

namespace {

template <class T>
using view = bila::tensor_view<T>;

// Views are plain values that add const and never drop it.
static_assert(std::is_trivially_copyable_v<view<float>> && std::is_trivially_copyable_v<view<const double>>);
static_assert(std::is_aggregate_v<view<float>>);
static_assert(std::is_convertible_v<view<float>, view<const float>>);
static_assert(!std::is_convertible_v<view<const float>, view<float>>);
static_assert(!std::is_convertible_v<view<float>, view<const double>>);
static_assert(std::same_as<bila::index_t, std::int64_t>);

// A view of an Eigen matrix is as writable as the matrix.
static_assert(std::same_as<decltype(bila::matrix(std::declval<Eigen::MatrixXf&>())), view<float>>);
static_assert(std::same_as<decltype(bila::matrix(std::declval<const Eigen::MatrixXf&>())), view<const float>>);
static_assert(std::same_as<decltype(bila::matrix(std::declval<Eigen::Map<Eigen::MatrixXd>>())), view<double>>);
static_assert(std::same_as<decltype(bila::matrix(std::declval<Eigen::Map<const Eigen::MatrixXd>>())), view<const double>>);

// 16-bit numbers are two bytes of storage, and are computed in float.
static_assert(bila::storage<float> && bila::storage<double> && bila::storage<bila::bf16> && bila::storage<bila::f16>);
static_assert(!bila::storage<int> && !bila::storage<long double>);
static_assert(sizeof(bila::bf16) == 2 && sizeof(bila::f16) == 2);
static_assert(std::is_trivially_copyable_v<bila::bf16> && std::is_trivially_copyable_v<bila::f16>);
static_assert(std::same_as<bila::real_of<bila::bf16>, float> && std::same_as<bila::real_of<double>, double>);
static_assert(!std::is_convertible_v<float, bila::bf16> && !std::is_convertible_v<float, bila::f16>);  // rounding is asked for

// The four masks give gaps.
using ones = bila::mask::all_ones;
using fixed = decltype(bila::mask::fixed_decay{std::declval<view<float>>()});
using selective = decltype(bila::mask::selective_decay{std::declval<view<const double>>(), bila::gate::later});
using two_sided = decltype(bila::mask::two_sided{std::declval<view<float>>(), std::declval<view<float>>()});
static_assert(bila::gapped<ones> && bila::gapped<fixed> && bila::gapped<selective> && bila::gapped<two_sided>);
static_assert(ones::gaps == bila::gap::none && fixed::gaps == bila::gap::per_head);
static_assert(selective::gaps == bila::gap::per_token && two_sided::gaps == bila::gap::per_token);

// So does anybody's type with these members; one with weights only is pairwise; a type without either is no mask.
struct window {
  double weight(bila::index_t, bila::index_t, bila::index_t i, bila::index_t j) const { return i - j < 4 && j - i < 4 ? 1 : 0; }
};
struct clock_decay {
  static constexpr bila::gap gaps = bila::gap::per_token;
  double log_forward(bila::index_t, bila::index_t, bila::index_t t) const { return -0.1 * static_cast<double>(t); }
  double log_backward(bila::index_t, bila::index_t, bila::index_t) const { return 0; }
};
struct half_a_mask {
  static constexpr bila::gap gaps = bila::gap::per_head;
  double log_forward(bila::index_t, bila::index_t, bila::index_t) const { return 0; }
};
static_assert(bila::pairwise<window> && !bila::gapped<window>);
static_assert(bila::gapped<clock_decay> && !bila::pairwise<clock_decay>);
static_assert(!bila::pairwise<half_a_mask> && !bila::gapped<half_a_mask>);
static_assert(!bila::pairwise<int> && !bila::gapped<int>);

// Each form with each kind of memory has an engine, or is refused (calls_fail.cpp has the sentences).
using bila::form::has_engine, bila::form::memory;
static_assert(bila::form::memory_of<ones> == memory::gaps && bila::form::memory_of<clock_decay> == memory::gaps);
static_assert(bila::form::memory_of<window> == memory::pairs);
static_assert(has_engine<bila::form::full, memory::pairs> && has_engine<bila::form::full, memory::gaps>);
static_assert(has_engine<bila::form::automatic, memory::pairs> && has_engine<bila::form::automatic, memory::gaps>);
static_assert(!has_engine<bila::form::recurrent, memory::pairs> && has_engine<bila::form::recurrent, memory::gaps>);
static_assert(!has_engine<bila::form::chunkwise, memory::pairs> && has_engine<bila::form::chunkwise, memory::gaps>);
static_assert(has_engine<bila::form::full, memory::channels> && has_engine<bila::form::full, memory::exclusive_channels>);
static_assert(!bila::form::engine_of<bila::form::full, memory::channels>::carries_states);
static_assert(!has_engine<bila::form::full, memory::delta> && !has_engine<bila::form::full, memory::channel_delta>);
static_assert(!bila::form::any<bila::norm::row_sum> && !bila::form::any<ones> && !bila::form::any<int>);

// Whose gate a crossing uses is never assumed.
static_assert(std::is_constructible_v<selective, view<const double>, bila::gate>);
static_assert(!std::is_constructible_v<selective, view<const double>>);
static_assert(!std::is_default_constructible_v<selective>);

// Options have the documented defaults.
static_assert(bila::form::chunkwise{}.size == 0 && bila::cpu{}.threads == 1);
static_assert(bila::inputs<float>{}.scale == 1 && bila::inputs<float>{}.diagonal == 1);
static_assert(bila::inputs<float>{}.direction == bila::direction::both);
static_assert(bila::norm::row_sum{}.eps == 0);

// A gate of another precision than the tokens is fine: the mask keeps its own.
static_assert(std::same_as<decltype(selective::log_decay), view<const double>>);

// A backend, and what is written, may be given in braces.
[[maybe_unused]] std::size_t in_braces(const bila::inputs<float>& in, view<float> y) {
  bila::attend({.threads = 2}, bila::form::full{}, ones{}, bila::norm::none{}, in, y);
  bila::attend({.threads = 2}, bila::form::full{}, ones{}, bila::norm::none{}, in, {y});
  return bila::workspace_bytes({}, bila::form::full{}, ones{}, bila::norm::none{}, in, y);
}

}  // namespace
