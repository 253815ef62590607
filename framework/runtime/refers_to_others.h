// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <ranges>
#include <type_traits>

namespace moegrad::detail {

/// Whether a T refers to what belongs to others: a pointer to an object, a span, a string_view, a
/// reference_wrapper.
template <class T>
inline constexpr bool kRefersToOthers = (std::is_pointer_v<T> &&
                                         !std::is_function_v<std::remove_pointer_t<T>>) ||
                                        std::ranges::enable_view<T> ||
                                        !std::is_same_v<std::unwrap_reference_t<T>, T>;
template <class T>
inline constexpr bool kRefersToOthers<std::initializer_list<T>> = true;

}  // namespace moegrad::detail
