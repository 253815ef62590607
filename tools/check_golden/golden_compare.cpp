// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_compare.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"

namespace moegrad::tools {
namespace {

/// Calls visit(value, expected) for each element, in float64.
template <class Visit>
void for_each_pair(const Tensor& value, const Tensor& expected, const Visit& visit) {
  check<ShapeError>(value.shape() == expected.shape(), "the folder expects ", expected.shape(),
                    " where its model gives ", value.shape());
  const Tensor a = to_dtype(value.detach(), Dtype::kFloat64);
  const Tensor b = to_dtype(expected, Dtype::kFloat64);
  const auto x = a.data<double>(), y = b.data<double>();
  for (std::size_t i = 0; i < y.size(); ++i) visit(x[i], y[i]);
}

/// An L2 norm that is zero only for zeros.
class Norm {
 public:
  void add(double value) {
    squares_ += value * value;
    largest_ = std::max(largest_, std::abs(value));
  }
  double value() const { return squares_ == 0.0 ? largest_ : std::sqrt(squares_); }

 private:
  double squares_ = 0, largest_ = 0;
};

}  // namespace

void Worst::include(double error, const std::string& what) {
  if (std::isnan(error_) || error <= error_) return;
  error_ = error;
  what_ = what;
}

GoldenCheck Worst::check(std::string quantity, double limit) const {
  return {.quantity = std::move(quantity), .error = error_, .limit = limit, .worst = what_};
}

double max_difference(const Tensor& value, const Tensor& expected) {
  Worst worst;
  for_each_pair(value, expected, [&](double x, double y) { worst.include(std::abs(x - y)); });
  return worst.error();
}

GoldenNorms norms_of(const Tensor& value, const Tensor& expected) {
  Norm difference, norm;
  for_each_pair(value, expected, [&](double x, double y) {
    difference.add(x - y);
    norm.add(y);
  });
  return {.difference = difference.value(), .expected = norm.value()};
}

GoldenStats stats_of(const Tensor& tensor) {
  const Tensor values = to_dtype(tensor.detach(), Dtype::kFloat64);
  GoldenStats stats;
  Norm norm;
  double i = 0;
  for (const double value : values.data<double>()) {
    norm.add(value);
    stats.sum += value;
    stats.max_abs = std::max(stats.max_abs, std::abs(value));
    stats.dot_cos += value * std::cos(i++);
  }
  stats.l2 = norm.value();
  return stats;
}

std::array<double, 4> differences(const GoldenStats& value, const GoldenStats& expected,
                                  std::int64_t n) {
  const double root = std::sqrt(static_cast<double>(n));
  return {std::abs(value.l2 - expected.l2), std::abs(value.max_abs - expected.max_abs),
          std::abs(value.sum - expected.sum) / root,
          std::abs(value.dot_cos - expected.dot_cos) / root};
}

const Tensor& golden_tensor(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  check<ValueError>(found != tensors.end(), "the folder expects something of '", name,
                    "', which its model does not have");
  return found->tensor;
}

std::string counted(const std::string& what, std::size_t count) {
  return what + " (" + std::to_string(count) + (count == 1 ? " tensor)" : " tensors)");
}

}  // namespace moegrad::tools
