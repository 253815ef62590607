// SPDX-License-Identifier: Apache-2.0
#pragma once

// Internal to Module: a call of a module that has extensions.

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/refers_to_others.h"
#include "nn/module_extension.h"
#include "nn/tensor_arguments.h"

namespace moegrad::nn::detail {

using moegrad::detail::kRefersToOthers;

/// Whether a copy of a T is another T that means the same, for as long as it lives: not where it
/// refers to others or would lose a derived class, nor for containers of what cannot be copied,
/// which claim that they can. What a struct has inside is not seen.
template <class T>
constexpr bool can_be_kept() {
  if constexpr (kRefersToOthers<T>) {
    return false;
  } else if constexpr (requires { typename T::value_type; }) {
    return std::is_copy_constructible_v<T> && can_be_kept<typename T::value_type>();
  } else if constexpr (Tuple<T>::value) {
    return []<std::size_t... i>(std::index_sequence<i...>) {
      return (can_be_kept<std::decay_t<std::tuple_element_t<i, T>>>() && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return std::is_copy_constructible_v<T> && (!std::is_polymorphic_v<T> || std::is_final_v<T>);
  }
}

/// Puts `tensors` in the place of the defined tensors in the values. Error for another number.
template <class... Values>
void replace_tensors(const char* what, const TensorList& tensors, Values&... values) {
  std::size_t count = 0;
  const auto put = [&](Tensor& tensor) {
    if (!tensor.defined()) return;
    if (count < tensors.size()) tensor = tensors[count];
    ++count;
  };
  visit_tensors(put, values...);
  check(count == tensors.size(), "module extension: ", what, " must be ", count, " tensors, got ",
        tensors.size());
}

/// Puts an empty tensor in the place of each defined one.
template <class... Values>
void drop_tensors(Values&... values) {
  const Tensor empty = Tensor::zeros({0});
  visit_tensors(
      [&](Tensor& tensor) {
        if (tensor.defined()) tensor = empty;
      },
      values...);
}

/// What a body has returned.
template <class Result>
struct Outcome {
  std::optional<Result> result;
  bool is_wanted = true;  // by the caller, who has not returned yet
};

/// body(arguments...) as extensions see it.
template <class Result, class... Arguments>
class BodyCall final : public ForwardCall {
 public:
  using Body = std::function<Result(Arguments&&...)>;

  /// `check_module` is called before the body runs again; it throws if the module is gone.
  BodyCall(const Body& body, std::function<void()> check_module, Arguments&&... arguments)
      : body_(body),
        check_module_(std::move(check_module)),
        held_(std::forward<Arguments>(arguments)...) {}

  TensorList inputs() {
    return std::apply([](auto&... values) { return tensors_in(values...); }, held_);
  }

  TensorList run(const TensorList& inputs) override { return run(body_, held_, inputs, *outcome_); }

  Function repeatable() override {
    check(holds_tensors<Result>(),
          "module extension: the module's result must be tensors, or declare them with "
          "for_each_tensor, so that they get gradients when the module runs again");
    if constexpr ((can_be_kept<std::decay_t<Arguments>>() && ...)) {
      auto kept = std::apply(
          [](auto&... values) { return std::tuple<std::decay_t<Arguments>...>(values...); }, held_);
      // What it is given takes the place of these, which would only keep bytes alive.
      std::apply([](auto&... values) { drop_tensors(values...); }, kept);
      return [body = body_, check_module = check_module_, kept = std::move(kept),
              outcome = outcome_](const TensorList& inputs) {
        check_module();
        auto arguments = kept;
        return run(body, arguments, inputs, *outcome);
      };
    } else {
      throw Error(
          "module extension: an argument of the module cannot be copied, or points to what may be "
          "gone by then, so the module cannot run again");
    }
  }

  /// The result, with `outputs` in the place of its tensors.
  Result take(const TensorList& outputs) {
    outcome_->is_wanted = false;
    check(outcome_->result.has_value(), "module extension: must run the call, got no result");
    auto result = std::move(*outcome_->result);
    outcome_->result.reset();
    replace_tensors("the result", outputs, result);
    return result;
  }

 private:
  // An argument that holds tensors is copied, so the caller's own stays as it is.
  template <class Argument>
  using Held = std::conditional_t<holds_tensors<std::remove_cvref_t<Argument>>(),
                                  std::remove_cvref_t<Argument>, Argument&&>;

  template <class Values>
  static TensorList run(const Body& body, Values& values, const TensorList& inputs,
                        Outcome<Result>& outcome) {
    return std::apply(
        [&](auto&... each) {
          replace_tensors("the arguments", inputs, each...);
          Result result = body(passed<Arguments>(each)...);
          TensorList outputs = tensors_in(result);
          if (outcome.is_wanted) outcome.result.emplace(std::move(result));
          return outputs;
        },
        values);
  }

  // The value as an argument of the original category.
  template <class Argument, class Value>
  static decltype(auto) passed(Value& value) {
    if constexpr (std::is_lvalue_reference_v<Argument>) {
      return (value);
    } else {
      return std::move(value);
    }
  }

  const Body& body_;
  std::function<void()> check_module_;
  std::tuple<Held<Arguments>...> held_;
  std::shared_ptr<Outcome<Result>> outcome_ = std::make_shared<Outcome<Result>>();
};

}  // namespace moegrad::nn::detail
