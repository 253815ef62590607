// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/tensor/tensor.h"

// Note [Tensors in arguments and results]
// An extension may replace what goes into a module and what comes out of it, as a cast does, so the
// tensors in there must be found: in a Tensor, in vectors, arrays, optionals, pairs and tuples of
// what holds some, and in a struct for which its namespace declares
//
//     void for_each_tensor(Output& output, const nn::TensorVisitor& visit);
//
// A module with extensions gets a copy of such an lvalue argument, so what forward writes to such
// an argument the caller does not see. Anything else holds none as far as a module is concerned,
// and passes as it is.

namespace moegrad::nn {

using TensorVisitor = std::function<void(Tensor&)>;

namespace detail {

template <class T>
concept DeclaresItsTensors = requires(T& value, const TensorVisitor& visit) {
  for_each_tensor(value, visit);
};

template <class T>
struct Sequence : std::false_type {};
template <class T, class Allocator>
struct Sequence<std::vector<T, Allocator>> : std::true_type {};
template <class T, std::size_t kSize>
struct Sequence<std::array<T, kSize>> : std::true_type {};

template <class T>
struct Optional : std::false_type {};
template <class T>
struct Optional<std::optional<T>> : std::true_type {};

template <class T>
struct Tuple : std::false_type {};
template <class... Elements>
struct Tuple<std::tuple<Elements...>> : std::true_type {};
template <class First, class Second>
struct Tuple<std::pair<First, Second>> : std::true_type {};

}  // namespace detail

/// Whether a T is searched for tensors.
template <class T>
constexpr bool holds_tensors() {
  if constexpr (std::is_same_v<T, Tensor> || detail::DeclaresItsTensors<T>) {
    return true;
  } else if constexpr (detail::Sequence<T>::value || detail::Optional<T>::value) {
    return holds_tensors<typename T::value_type>();
  } else if constexpr (detail::Tuple<T>::value) {
    return []<std::size_t... i>(std::index_sequence<i...>) {
      return (holds_tensors<std::tuple_element_t<i, T>>() || ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return false;
  }
}

/// Calls visit(tensor) for each tensor in the values, from left to right, undefined ones included.
template <class... Values>
void visit_tensors(const TensorVisitor& visit, Values&... values) {
  [[maybe_unused]] const auto visit_one = [&visit]<class T>(T& value) {
    if constexpr (std::is_same_v<T, Tensor>) {
      visit(value);
    } else if constexpr (detail::DeclaresItsTensors<T>) {
      for_each_tensor(value, visit);
    } else if constexpr (!holds_tensors<T>()) {
      return;
    } else if constexpr (detail::Tuple<T>::value) {
      std::apply([&visit](auto&... elements) { visit_tensors(visit, elements...); }, value);
    } else if constexpr (detail::Optional<T>::value) {
      if (value) visit_tensors(visit, *value);
    } else {
      for (auto& element : value) visit_tensors(visit, element);
    }
  };
  (visit_one(values), ...);
}

namespace detail {

/// The defined tensors in the values, from left to right.
template <class... Values>
TensorList tensors_in(const Values&... values) {
  TensorList tensors;
  [[maybe_unused]] const auto collect = [&]<class T>(const T& value) {
    if constexpr (holds_tensors<T>()) {
      const auto keep = [&](const Tensor& tensor) {
        if (tensor.defined()) tensors.push_back(tensor);
      };
      visit_tensors(keep, const_cast<T&>(value));  // a visitor may write, but this one does not
    }
  };
  (collect(values), ...);
  return tensors;
}

}  // namespace detail

}  // namespace moegrad::nn
