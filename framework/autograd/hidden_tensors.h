// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which arguments of Function::apply() hold tensors that it does not see. They would get no
// gradient.

#include <concepts>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "framework/tensor/named_tensor.h"
#include "framework/tensor/tensor.h"

namespace moegrad::detail {

template <class T>
struct ConvertsTo {
  operator T() const;
};
struct ConvertsToNoAggregate {
  template <class T>
  requires(!std::is_aggregate_v<T>) operator T() const;
};

/// Whether field `Before...` of an aggregate is a T, or takes one: whether braces take a T after
/// that many other values. Those convert to no aggregate, so that fields of fields count as fields.
template <class Aggregate, class T, class Before>
inline constexpr bool kTakes = false;
template <class Aggregate, class T, std::size_t... Before>
requires requires {
  Aggregate{(static_cast<void>(Before), ConvertsToNoAggregate{})..., ConvertsTo<T>{}};
}
inline constexpr bool kTakes<Aggregate, T, std::index_sequence<Before...>> = true;

template <class Aggregate, class T, std::size_t... I>
constexpr bool takes_somewhere(std::index_sequence<I...> /*fields*/) {
  return (kTakes<Aggregate, T, std::make_index_sequence<I>> || ...);
}

/// Looks at the first 32 fields.
template <class Aggregate>
constexpr bool has_tensor_field() {
  constexpr std::make_index_sequence<32> kFields;
  return takes_somewhere<Aggregate, Tensor>(kFields) ||
         takes_somewhere<Aggregate, TensorList>(kFields) ||
         takes_somewhere<Aggregate, NamedTensors>(kFields);
}

template <class Argument>
inline constexpr bool kHidesTensors = false;
template <class Argument>
requires std::is_aggregate_v<Argument>
inline constexpr bool kHidesTensors<Argument> = has_tensor_field<Argument>();
template <class Argument>
requires(!std::is_aggregate_v<Argument> && !std::is_same_v<Argument, TensorList> &&
         requires(const Argument& a) {
           requires std::is_base_of_v<Tensor, std::remove_cvref_t<decltype(*a.begin())>> ||
               std::is_base_of_v<NamedTensor, std::remove_cvref_t<decltype(*a.begin())>>;
         }) inline constexpr bool kHidesTensors<Argument> = true;
template <>
inline constexpr bool kHidesTensors<std::optional<Tensor>> = true;
template <class... Parts>
inline constexpr bool kHidesTensors<std::tuple<Parts...>> = (std::is_same_v<Parts, Tensor> || ...);
template <class A, class B>
inline constexpr bool kHidesTensors<std::pair<A, B>> =
    std::is_same_v<A, Tensor> || std::is_same_v<B, Tensor>;

}  // namespace moegrad::detail
