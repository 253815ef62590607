// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.h"
#include "tests/ops/op_table_elementwise.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

constexpr auto* kTensors = "Tensor, Tensor";
constexpr auto* kNumberLast = "Tensor, double";
constexpr auto* kNumberFirst = "double, Tensor";

OpEntry negation() {
  OpEntry entry{.op = "operator-", .parameters = "Tensor"};
  entry.saved_by = "neg";
  entry.run = [](const TensorList& in, const Json&) { return TensorList{-in[0]}; };
  entry.reference = [](const Arrays& in, const Json&) {
    Array y = in[0];
    for (auto& value : y.values) value = -value;
    return Arrays{y};
  };
  entry.samples = {{.what = "odd sizes", .inputs = {{.shape = {3, 5}}}},
                   {.what = "a scalar", .inputs = {{.shape = {}}}},
                   {.what = "nothing", .inputs = {{.shape = {2, 0}}}},
                   {.what = "several pieces",
                    .inputs = {{.shape = {130, 257}}},
                    .differences = Differences::kOneDirection}};
  entry.errors = {{"integers", [] { -Tensor::zeros({2}, Dtype::kInt64); }, "DtypeError",
                   "neg: needs float32 or float64, got int64"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> operator_entries() {
  return {
      binary_entry(
          "operator+", kTensors, "add", [](const Tensor& a, const Tensor& b) { return a + b; },
          [](double a, double b) { return a + b; }, false),
      binary_entry(
          "operator-", kTensors, "sub", [](const Tensor& a, const Tensor& b) { return a - b; },
          [](double a, double b) { return a - b; }, false),
      binary_entry(
          "operator*", kTensors, "mul", [](const Tensor& a, const Tensor& b) { return a * b; },
          [](double a, double b) { return a * b; }, true),
      binary_entry(
          "operator/", kTensors, "div", [](const Tensor& a, const Tensor& b) { return a / b; },
          [](double a, double b) { return a / b; }, true),
      number_entry(
          "operator+", kNumberLast, "add", [](const Tensor& a, double b) { return a + b; },
          [](double a, double b) { return a + b; }, false),
      number_entry(
          "operator-", kNumberLast, "add", [](const Tensor& a, double b) { return a - b; },
          [](double a, double b) { return a - b; }, false),
      number_entry(
          "operator*", kNumberLast, "mul", [](const Tensor& a, double b) { return a * b; },
          [](double a, double b) { return a * b; }, false),
      number_entry(
          "operator/", kNumberLast, "div", [](const Tensor& a, double b) { return a / b; },
          [](double a, double b) { return a / b; }, false),
      number_entry(
          "operator+", kNumberFirst, "add", [](const Tensor& a, double b) { return b + a; },
          [](double a, double b) { return b + a; }, false),
      number_entry(
          "operator-", kNumberFirst, "neg", [](const Tensor& a, double b) { return b - a; },
          [](double a, double b) { return b - a; }, false),
      number_entry(
          "operator*", kNumberFirst, "mul", [](const Tensor& a, double b) { return b * a; },
          [](double a, double b) { return b * a; }, false),
      number_entry(
          "operator/", kNumberFirst, "div", [](const Tensor& a, double b) { return b / a; },
          [](double a, double b) { return b / a; }, true),
      negation(),
  };
}

}  // namespace moegrad::test
