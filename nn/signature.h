// SPDX-License-Identifier: Apache-2.0
#pragma once

// Internal to Callable: the parameters of a forward that is neither overloaded nor a template.

#include <cstddef>
#include <tuple>

namespace moegrad::nn::detail {

template <class Method>
struct Signature;
template <class Result, class Class, bool kNoexcept, class... Parameters>
struct Signature<Result (Class::*)(Parameters...) noexcept(kNoexcept)> {
  using Types = std::tuple<Parameters...>;
};
template <class Result, class Class, bool kNoexcept, class... Parameters>
struct Signature<Result (Class::*)(Parameters...) const noexcept(kNoexcept)> {
  using Types = std::tuple<Parameters...>;
};

/// Type of parameter i of M::forward. No type, so that an overload drops out, where M has several
/// forwards, a template, or fewer parameters.
template <class M, std::size_t i>
requires(i < std::tuple_size_v<typename Signature<decltype(&M::forward)>::Types>) using Parameter =
    std::tuple_element_t<i, typename Signature<decltype(&M::forward)>::Types>;

}  // namespace moegrad::nn::detail
