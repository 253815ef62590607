// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tools/check_golden/golden_case.h"
#include "tools/check_golden/golden_checks.h"

namespace moegrad::tools {

/// The largest of several errors; a NaN is larger than all.
class Worst {
 public:
  /// `what`, such as the name of a tensor, says what has this error.
  void include(double error, const std::string& what = {});
  double error() const { return error_; }
  GoldenCheck check(std::string quantity, double limit) const;

 private:
  double error_ = 0;
  std::string what_;
};

/// max_i |value_i - expected_i|, in float64. ShapeError unless the shapes agree.
double max_difference(const Tensor& value, const Tensor& expected);

/// ||value - expected|| and ||expected||, in float64. ShapeError unless the shapes agree.
struct GoldenNorms {
  double difference = 0;
  double expected = 0;
};
GoldenNorms norms_of(const Tensor& value, const Tensor& expected);

GoldenStats stats_of(const Tensor& tensor);

/// The error of each figure of a tensor of n elements. The figures are scaled so that no error is
/// larger than the norm of the tensor's own difference d: |sum d_i| and |sum d_i cos(i)| are at
/// most sqrt(n) ||d||.
std::array<double, 4> differences(const GoldenStats& value, const GoldenStats& expected,
                                  std::int64_t n);

/// The tensor that the folder expects; ValueError if the model has none of that name.
const Tensor& golden_tensor(const NamedTensors& tensors, const std::string& name);

/// "what (3 tensors)"
std::string counted(const std::string& what, std::size_t count);

}  // namespace moegrad::tools
