// SPDX-License-Identifier: Apache-2.0
// Lists of offsets and lengths, 32 or 64 bits wide.
#pragma once

#include <bila/view/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace bila {
inline namespace v0_1 {

namespace detail {
inline namespace BILA_UNIT {

template <class List, class Number>
inline constexpr bool lists = std::is_constructible_v<std::span<const Number>, std::remove_reference_t<List>&>;

}  // namespace BILA_UNIT
}  // namespace detail

/// A non-owning list of std::int32_t or std::int64_t, made from a std::span, or from a container or array that is not a temporary.
class index_list {
 public:
  constexpr index_list() = default;

  template <class List>
  requires(detail::lists<List, std::int32_t> || detail::lists<List, std::int64_t>) BILA_ALWAYS_INLINE
      constexpr index_list(List&& list) {
    static_assert(std::is_lvalue_reference_v<List> || std::ranges::enable_borrowed_range<std::remove_cvref_t<List>>,
                  "bila::index_list does not own memory: a temporary container would dangle, give it a name first");
    if constexpr (detail::lists<List, std::int64_t>) {
      const std::span<const std::int64_t> numbers(list);
      wide_ = numbers.data(), size_ = numbers.size();
    } else {
      const std::span<const std::int32_t> numbers(list);
      narrow_ = numbers.data(), size_ = numbers.size();
    }
  }

  BILA_SHARED constexpr bool empty() const { return size_ == 0; }
  BILA_SHARED constexpr std::size_t size() const { return size_; }
  BILA_SHARED constexpr index_t operator[](std::size_t i) const { return wide_ != nullptr ? wide_[i] : narrow_[i]; }

 private:
  const std::int64_t* wide_ = nullptr;
  const std::int32_t* narrow_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace v0_1
}  // namespace bila
