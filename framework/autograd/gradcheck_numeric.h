// SPDX-License-Identifier: Apache-2.0
#pragma once

// Internal to gradcheck: derivatives by central differences.

#include <cstdint>
#include <functional>
#include <vector>

#include "framework/autograd/gradcheck_inputs.h"

namespace moegrad::detail {

class CentralDifferences {
 public:
  /// `outputs` is what f returned for the inputs as they are.
  CentralDifferences(const std::function<TensorList(const TensorList&)>& f,
                     const CheckedInputs& inputs, const std::vector<Slot>& outputs, double eps)
      : f_(f), inputs_(inputs), outputs_(outputs), eps_(eps) {}

  /// Derivatives of all output elements by one element of an input.
  std::vector<double> by_element(const Slot& input, std::size_t element) const;
  /// Derivatives of all output elements when the input moves along `direction`. `direction` becomes
  /// the step that was taken, after rounding to the input's dtype.
  std::vector<double> along(const Slot& input, std::vector<double>& direction) const;

 private:
  std::vector<double> call(const Slot& moved) const;
  /// Moves only the elements from `first`, as many as `direction` has.
  std::vector<double> along(const Slot& input, std::size_t first,
                            std::vector<double>& direction) const;

  const std::function<TensorList(const TensorList&)>& f_;
  const CheckedInputs& inputs_;
  const std::vector<Slot>& outputs_;
  double eps_;
};

}  // namespace moegrad::detail
