// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "framework/tensor/tensor.h"

namespace moegrad {

struct GradcheckOptions {
  double eps = 1e-6;   // step of the central difference
  double atol = 1e-7;  // |analytic - numeric| <= atol + rtol * |numeric|
  double rtol = 1e-5;
  std::uint64_t seed = 0;  // of the cotangent
};

struct GradcheckResult {
  bool ok = true;
  std::string message;  // what disagreed, and where
  explicit operator bool() const { return ok; }
};

/// Compares the gradients that backward computes with central differences of
///
///     L(inputs) = sum over outputs i of <c_i, f(inputs)_i>
///
/// for a random cotangent c, at every element of every float64 input that requires a gradient
/// (inputs that require none are left alone). A constant cotangent would pass a softmax whose
/// backward returns zeros. Inputs must be leaves; they come back unchanged and without gradients.
GradcheckResult gradcheck(const std::function<TensorList(const TensorList&)>& f,
                          const TensorList& inputs, const GradcheckOptions& options = {});

}  // namespace moegrad
