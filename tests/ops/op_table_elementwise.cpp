// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/op_table_elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/elementwise.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }

double gelu_tanh(double x) {
  const double inner = std::sqrt(8 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return x / (1 + std::exp(-inner));  // (1 + tanh(z)) / 2 is the sigmoid of 2 z
}

enum class Saves { kNothing, kInput, kResult };

OpEntry unary(const std::string& op, Tensor (*function)(const Tensor&),
              std::function<double(double)> formula, Draw draw, Saves saves,
              std::vector<double> special) {
  const auto input = [&](const Shape& shape) {
    return Input{.shape = shape, .draw = draw, .saved = saves == Saves::kInput};
  };
  auto wide = input({std::ssize(special)});
  wide.given = std::move(special);
  OpEntry entry{.op = op};
  entry.run = [function](const TensorList& in, const Json&) { return TensorList{function(in[0])}; };
  entry.reference = [formula](const Arrays& in, const Json&) {
    Array y = in[0];
    std::ranges::transform(y.values, y.values.begin(), formula);
    return Arrays{y};
  };
  entry.samples = {{.what = "odd sizes", .inputs = {input({3, 5})}},
                   {.what = "a scalar", .inputs = {input({})}},
                   {.what = "sizes of one", .inputs = {input({2, 1, 3, 1, 7})}},
                   {.what = "nothing", .inputs = {input({0, 4})}},
                   {.what = "far from zero", .inputs = {wide}},
                   {.what = "several pieces",
                    .inputs = {input({130, 257})},
                    .differences = Differences::kOneDirection}};
  entry.errors = {{"integers", [function] { function(Tensor::zeros({2}, Dtype::kInt64)); },
                   "DtypeError", op + ": needs " + taken_by(op) + ", got int64"}};
  if (saves == Saves::kResult) entry.saved_outputs = {0};
  return entry;
}

double sum_of(double a, double b) { return a + b; }
double difference_of(double a, double b) { return a - b; }
double product_of(double a, double b) { return a * b; }
double quotient_of(double a, double b) { return a / b; }
double larger_of(double a, double b) { return a > b ? a : b; }
double smaller_of(double a, double b) { return a < b ? a : b; }
double power_of(double a, double b) { return std::pow(a, b); }

// Draws positive bases, which have a derivative by the exponent.
OpEntry of_positive_bases(OpEntry entry) {
  for (auto& sample : entry.samples) sample.inputs[0].draw = Draw::kPositive;
  return entry;
}

OpEntry clamp_op() {
  OpEntry entry{.op = "clamp"};
  const auto limit = [](const Json& value) {
    return value.is_number() ? value.get<double>()
                             : (value == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
  };
  entry.run = [limit](const TensorList& in, const Json& args) {
    return TensorList{ops::clamp(in[0], limit(args["least"]), limit(args["most"]))};
  };
  entry.reference = [limit](const Arrays& in, const Json& args) {
    Array y = in[0];
    for (auto& value : y.values) {
      value = std::min(std::max(value, limit(args["least"])), limit(args["most"]));
    }
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, const Json& least,
                         const Json& most, bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .draw = Draw::kAwayFromZero, .saved = true}},
                    .args = {{"least", least}, {"most", most}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("both sides", {3, 7}, -0.75, 0.8125),
                   sample("from below", {9}, 0.25, "inf"),
                   sample("from above", {9}, "-inf", 0.25),
                   sample("to one number", {5}, 0.125, 0.125),
                   sample("a scalar", {}, -1, 1),
                   sample("nothing", {0, 3}, -1, 1),
                   sample("several pieces", {130, 257}, -0.75, 0.75, true)};
  entry.errors = {{"limits the wrong way round", [] { ops::clamp(randn({2}), 1, -1); },
                   "ValueError", "clamp: the least must not be above the most, got 1 and -1"},
                  {"integers", [] { ops::clamp(Tensor::zeros({2}, Dtype::kInt64), 0, 1); },
                   "DtypeError", "clamp: needs float32 or float64, got int64"}};
  return entry;
}

}  // namespace

std::string taken_by(const std::string& function_name) {
  const bool narrow = function_name == "add" || function_name == "mul" || function_name == "silu";
  return narrow ? "float32, float64 or bfloat16" : "float32 or float64";
}

OpEntry binary_entry(const std::string& op, const std::string& parameters,
                     const std::string& function_name, BinaryFunction function, Formula formula,
                     bool saves) {
  const auto input = [&](const Shape& shape) {
    return Input{.shape = shape, .draw = Draw::kAwayFromZero, .saved = saves};
  };
  OpEntry entry{.op = op, .parameters = parameters};
  entry.saved_by = function_name;
  entry.run = [function](const TensorList& in, const Json&) {
    return TensorList{function(in[0], in[1])};
  };
  entry.reference = [formula](const Arrays& in, const Json&) {
    // The shape that both repeat to, by PyTorch's rule.
    Shape shape;
    const auto ndim = std::max(in[0].shape.ndim(), in[1].shape.ndim());
    for (auto i = -ndim; i < 0; ++i) {
      const auto a = i < -in[0].shape.ndim() ? 1 : in[0].shape[i];
      const auto b = i < -in[1].shape.ndim() ? 1 : in[1].shape[i];
      shape.push_back(a == 1 ? b : a);
    }
    Array y(shape);
    for_each_index(shape, [&](const Shape& i) {
      y[i] = formula(broadcast_at(in[0], i), broadcast_at(in[1], i));
    });
    return Arrays{y};
  };
  entry.samples = {
      {.what = "one shape", .inputs = {input({3, 5}), input({3, 5})}},
      {.what = "both repeat", .inputs = {input({2, 1, 5}), input({3, 1})}},
      {.what = "a scalar on the left", .inputs = {input({}), input({2, 3})}},
      {.what = "a scalar on the right", .inputs = {input({1, 4, 1}), input({})}},
      {.what = "repeated in the middle", .inputs = {input({2, 3, 2, 5}), input({2, 1, 1, 5})}},
      {.what = "size one", .inputs = {input({1}), input({1})}},
      {.what = "nothing", .inputs = {input({0, 3}), input({3})}},
      {.what = "one repeated zero times", .inputs = {input({2, 1}), input({2, 0})}},
      {.what = "several pieces",
       .inputs = {input({130, 257}), input({257})},
       .differences = Differences::kOneDirection}};
  entry.errors = {
      {"shapes that do not broadcast",
       [function] {
         function(randn({2, 3}), randn({2, 4}));
       },
       "ShapeError", function_name + ": shapes [2, 3] and [2, 4] do not broadcast"},
      {"mixed dtypes", [function] { function(randn({2}), randn({2}, 1, Dtype::kFloat32)); },
       "DtypeError", function_name + ": dtypes must agree, got float64 and float32"},
      {"integers", [function] { function(Tensor::zeros({2}, Dtype::kInt64), randn({2})); },
       "DtypeError", function_name + ": needs " + taken_by(function_name) + ", got int64"}};
  return entry;
}

OpEntry number_entry(const std::string& op, const std::string& parameters,
                     const std::string& function_name, NumberFunction function, Formula formula,
                     bool saves) {
  const auto sample = [&](const std::string& what, const Shape& shape, double number,
                          bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .draw = Draw::kAwayFromZero, .saved = saves}},
                    .args = {{"number", number}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  OpEntry entry{.op = op, .parameters = parameters};
  entry.saved_by = function_name;
  entry.run = [function](const TensorList& in, const Json& args) {
    return TensorList{function(in[0], args["number"].get<double>())};
  };
  entry.reference = [formula](const Arrays& in, const Json& args) {
    Array y = in[0];
    for (auto& value : y.values) value = formula(value, args["number"].get<double>());
    return Arrays{y};
  };
  entry.samples = {sample("odd sizes", {3, 5}, -1.5), sample("a scalar", {}, 0.75),
                   sample("nothing", {3, 0}, 2), sample("a large number", {7}, 1e4),
                   sample("several pieces", {130, 257}, -0.5, true)};
  entry.errors = {{"integers", [function] { function(Tensor::zeros({2}, Dtype::kInt64), 2); },
                   "DtypeError",
                   function_name + ": needs " + taken_by(function_name) + ", got int64"}};
  return entry;
}

std::vector<OpEntry> elementwise_entries() {
  const std::vector<double> any{-30, -8, -1, 0.25, 3, 9, 31};
  std::vector<OpEntry> entries{
      unary(
          "neg", ops::neg, [](double x) { return -x; }, Draw::kNormal, Saves::kNothing, any),
      unary("exp", ops::exp, [](double x) { return std::exp(x); }, Draw::kNormal, Saves::kResult,
            {-30, -8, -1, 0, 3, 6}),
      unary("log", ops::log, [](double x) { return std::log(x); }, Draw::kPositive, Saves::kInput,
            {0.01, 0.1, 9, 4e5}),
      unary("sqrt", ops::sqrt, [](double x) { return std::sqrt(x); }, Draw::kPositive,
            Saves::kResult, {0.01, 0.1, 9, 4e5}),
      unary("rsqrt", ops::rsqrt, [](double x) { return 1 / std::sqrt(x); }, Draw::kPositive,
            Saves::kResult, {0.1, 9, 4e5}),
      unary(
          "square", ops::square, [](double x) { return x * x; }, Draw::kNormal, Saves::kInput, any),
      unary("sigmoid", ops::sigmoid, sigmoid, Draw::kNormal, Saves::kResult, any),
      unary(
          "tanh", ops::tanh, [](double x) { return std::tanh(x); }, Draw::kNormal, Saves::kResult,
          any),
      unary(
          "silu", ops::silu, [](double x) { return x * sigmoid(x); }, Draw::kNormal, Saves::kInput,
          any),
      unary(
          "abs", ops::abs, [](double x) { return std::abs(x); }, Draw::kAwayFromZero, Saves::kInput,
          any),
      unary("log1p", ops::log1p, [](double x) { return std::log1p(x); }, Draw::kPositive,
            Saves::kInput, {-0.5, -0.1, 0, 1e-3, 9, 4e5}),
      unary(
          "sin", ops::sin, [](double x) { return std::sin(x); }, Draw::kNormal, Saves::kInput, any),
      unary(
          "cos", ops::cos, [](double x) { return std::cos(x); }, Draw::kNormal, Saves::kInput, any),
      unary("gelu", ops::gelu, gelu, Draw::kNormal, Saves::kInput, any),
      unary(
          "softplus", ops::softplus,
          [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); },
          Draw::kNormal, Saves::kInput, any),
      unary("gelu_tanh", ops::gelu_tanh, gelu_tanh, Draw::kNormal, Saves::kInput, any),
      unary(
          "relu", ops::relu, [](double x) { return std::max(x, 0.0); }, Draw::kAwayFromZero,
          Saves::kInput, any)};
  const BinaryFunction add = ops::add, mul = ops::mul;
  const NumberFunction add_number = ops::add, mul_number = ops::mul;
  entries.push_back(binary_entry("add", "Tensor, Tensor", "add", add, sum_of, false));
  entries.push_back(binary_entry("sub", "", "sub", ops::sub, difference_of, false));
  entries.push_back(binary_entry("mul", "Tensor, Tensor", "mul", mul, product_of, true));
  entries.push_back(binary_entry("div", "", "div", ops::div, quotient_of, true));
  const BinaryFunction maximum = ops::maximum, minimum = ops::minimum;
  const NumberFunction maximum_number = ops::maximum, minimum_number = ops::minimum;
  entries.push_back(binary_entry("maximum", "Tensor, Tensor", "maximum", maximum, larger_of, true));
  entries.push_back(
      binary_entry("minimum", "Tensor, Tensor", "minimum", minimum, smaller_of, true));
  entries.push_back(
      number_entry("maximum", "Tensor, double", "maximum", maximum_number, larger_of, true));
  entries.push_back(
      number_entry("minimum", "Tensor, double", "minimum", minimum_number, smaller_of, true));
  const BinaryFunction pow = ops::pow;
  const NumberFunction pow_number = ops::pow;
  entries.push_back(
      of_positive_bases(binary_entry("pow", "Tensor, Tensor", "pow", pow, power_of, true)));
  entries.push_back(
      of_positive_bases(number_entry("pow", "Tensor, double", "pow", pow_number, power_of, true)));
  entries.back().samples[3].args["number"] = 7;  // instead of a large number
  entries.push_back(number_entry(
      "pow", "double, Tensor", "pow", [](const Tensor& a, double b) { return ops::pow(b, a); },
      [](double a, double b) { return std::pow(b, a); }, true));
  for (auto& sample : entries.back().samples) {
    const double number = sample.args["number"];
    sample.args["number"] = number == 1e4 ? 7 : std::abs(number);  // with a derivative
  }
  entries.push_back(clamp_op());
  entries.push_back(number_entry("add", "Tensor, double", "add", add_number, sum_of, false));
  entries.push_back(number_entry("mul", "Tensor, double", "mul", mul_number, product_of, false));
  return entries;
}

}  // namespace moegrad::test
