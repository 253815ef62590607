// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::elementwise_test {
namespace {

using namespace test;

struct UnaryCase {
  std::string name;
  Tensor (*op)(const Tensor&);
  double (*reference)(double);
  bool positive;  // defined for positive arguments only
};

const std::vector<UnaryCase>& unary_cases() {
  static const std::vector<UnaryCase> cases{
      {"neg", neg, [](double x) { return -x; }, false},
      {"exp", exp, [](double x) { return std::exp(x); }, false},
      {"log", log, [](double x) { return std::log(x); }, true},
      {"sqrt", sqrt, [](double x) { return std::sqrt(x); }, true},
      {"rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, true},
      {"square", square, [](double x) { return x * x; }, false},
      {"sigmoid", sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, false},
      {"tanh", tanh, [](double x) { return std::tanh(x); }, false},
      {"silu", silu, [](double x) { return x / (1 + std::exp(-x)); }, false},
      {"relu", relu, [](double x) { return std::fmax(x, 0); }, false},
  };
  return cases;
}

TEST(Elementwise, InPlaceOperatorsWriteIntoTheElements) {
  Tensor x = Tensor::from<double>({1, 2, 3, 4}, {2, 2});
  const Tensor same = x;
  x += Tensor::from<double>({10, 20}, {2});  // repeats
  x *= 2;
  EXPECT_TRUE(bitwise_equal(same, Tensor::from<double>({22, 44, 26, 48}, {2, 2})));
  x -= Tensor::full({2, 2}, 2, Dtype::kFloat64);
  x /= Tensor::full({}, 4, Dtype::kFloat64);
  x -= 0.5;
  x += 1;
  x /= 2;
  EXPECT_TRUE(bitwise_equal(same, Tensor::from<double>({2.75, 5.5, 3.25, 6}, {2, 2})));
  x[0] += x[1];  // a view on the left
  x.slice(1, 1, 2) *= 2;
  x.slice(1, 0, 1) /= Tensor::full({2, 1}, 0.5, Dtype::kFloat64);
  EXPECT_TRUE(bitwise_equal(same, Tensor::from<double>({12, 23, 6.5, 12}, {2, 2})));
  (x += x) -= x;
  EXPECT_TRUE(bitwise_equal(same, Tensor::zeros({2, 2}, Dtype::kFloat64)));
}

TEST(Elementwise, InPlaceOperatorsRefuseWhatTheyCannotRecordOrHold) {
  Tensor x = randn({2}), w = variable({2});
  const auto refusal = [](const std::string& op, const std::string& side) {
    return "operator" + op + "=: is not recorded on the tape, but the " + side +
           " side requires a gradient; write a = a " + op + " b, or use a NoGradGuard";
  };
  Tensor result = w * 2.0;
  EXPECT_EQ(message_of<Error>([&] { result += x; }), refusal("+", "left"));
  EXPECT_EQ(message_of<Error>([&] { x -= result; }), refusal("-", "right"));
  EXPECT_EQ(message_of<Error>([&] { w *= x; }), refusal("*", "left"));
  EXPECT_EQ(message_of<Error>([&] { x /= w; }), refusal("/", "right"));
  EXPECT_EQ(message_of<Error>([&] { w += 1; }), refusal("+", "left"));
  EXPECT_EQ(message_of<ShapeError>([&] {
              x += randn({3, 2});
            }),
            "operator+=: the result must have the shape of the left side, [2], got [3, 2]");
  EXPECT_EQ(message_of<DtypeError>([&] { x += randn({2}, 1, Dtype::kFloat32); }),
            "add: dtypes must agree, got float64 and float32");
  const Tensor before = clone(w.detach());
  const NoGradGuard no_grad;
  w -= before;
  EXPECT_TRUE(bitwise_equal(w, Tensor::zeros({2}, Dtype::kFloat64)));
}

Tensor argument_of(const UnaryCase& c, const Shape& shape, Dtype dtype = Dtype::kFloat64) {
  Tensor x = randn(shape, 3, Dtype::kFloat64);
  if (c.positive) {
    for (auto& value : x.mutable_data<double>()) value = std::abs(value) + 0.1;
  }
  return to_dtype(x, dtype);
}

TEST(Elementwise, UnaryOpsMatchTheStandardLibrary) {
  for (const auto& c : unary_cases()) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{3, 7}, Shape{0, 4}, Shape{5, 4099}}) {
      const Tensor x = argument_of(c, shape);
      Tensor expected = clone(x);
      for (auto& value : expected.mutable_data<double>()) value = c.reference(value);
      EXPECT_TRUE(all_close(c.op(x), expected, 1e-14, 1e-15)) << c.name << shape;
      EXPECT_TRUE(all_close(c.op(to_dtype(x, Dtype::kFloat32)), expected, 3e-6, 3e-7))
          << c.name << shape;
    }
  }
}

TEST(Elementwise, UnaryGradientsMatchFiniteDifferences) {
  for (const auto& c : unary_cases()) {
    Tensor x = argument_of(c, {3, 5});
    x.set_requires_grad(true);
    EXPECT_TRUE(
        gradients_agree([&](const TensorList& in) -> TensorList { return {c.op(in[0])}; }, {x}))
        << c.name;
  }
}

TEST(Elementwise, UnaryGradientsInFloat32AreCloseToFloat64) {
  for (const auto& c : unary_cases()) {
    Tensor x = argument_of(c, {3, 5}), y = argument_of(c, {3, 5}, Dtype::kFloat32);
    x.set_requires_grad(true);
    y.set_requires_grad(true);
    c.op(x).backward(Tensor::ones({3, 5}, Dtype::kFloat64));
    c.op(y).backward(Tensor::ones({3, 5}));
    EXPECT_TRUE(all_close(y.grad(), x.grad(), 1e-5, 1e-6)) << c.name;
  }
}

struct BinaryCase {
  std::string name;
  Tensor (*op)(const Tensor&, const Tensor&);
  double (*reference)(double, double);
};

const std::vector<BinaryCase>& binary_cases() {
  static const std::vector<BinaryCase> cases{
      {"add", add, [](double x, double y) { return x + y; }},
      {"sub", sub, [](double x, double y) { return x - y; }},
      {"mul", mul, [](double x, double y) { return x * y; }},
      {"div", div, [](double x, double y) { return x / y; }},
  };
  return cases;
}

const std::vector<std::pair<Shape, Shape>>& broadcasts() {
  static const std::vector<std::pair<Shape, Shape>> pairs{{{}, {}},
                                                          {{3}, {3}},
                                                          {{2, 3}, {2, 3}},
                                                          {{2, 3}, {3}},
                                                          {{2, 3}, {2, 1}},
                                                          {{2, 1}, {1, 3}},
                                                          {{}, {2, 3}},
                                                          {{2, 1, 3}, {4, 1}},
                                                          {{1}, {1, 1}},
                                                          {{0, 3}, {3}},
                                                          {{4, 1}, {4, 0}},
                                                          {{2, 3, 2, 2}, {3, 1, 2}},
                                                          {{1, 3}, {2, 3}},
                                                          {{2, 1, 5}, {2, 3, 5}},
                                                          {{2, 3, 1}, {2, 3, 4}}};
  return pairs;
}

// The element of `x` that stands at flat position `flat` of the wider `shape`.
double element(const Tensor& x, const Shape& shape, std::int64_t flat) {
  std::int64_t at = 0, step = 1;
  for (std::int64_t i = -1; i >= -shape.ndim(); --i) {
    const auto index = flat % shape[i];
    flat /= shape[i];
    if (i < -x.ndim()) continue;
    at += x.dim(i) == 1 ? 0 : index * step;
    step *= x.dim(i);
  }
  return x.data<double>()[static_cast<std::size_t>(at)];
}

Tensor nonzero(const Shape& shape, std::uint64_t seed) {
  Tensor x = randn(shape, seed);
  for (auto& value : x.mutable_data<double>()) value += value < 0 ? -0.5 : 0.5;
  return x;
}

TEST(Elementwise, BinaryOpsBroadcastAsInPyTorch) {
  for (const auto& c : binary_cases()) {
    for (const auto& [a_shape, b_shape] : broadcasts()) {
      const Tensor a = nonzero(a_shape, 1), b = nonzero(b_shape, 2);
      const Tensor y = c.op(a, b);
      Shape shape = a_shape.ndim() >= b_shape.ndim() ? a_shape : b_shape;
      for (std::int64_t i = -std::min(a_shape.ndim(), b_shape.ndim()); i < 0; ++i) {
        shape[i] = a_shape[i] == 1 ? b_shape[i] : a_shape[i];
      }
      ASSERT_EQ(y.shape(), shape) << c.name << a_shape << b_shape;
      for (std::int64_t i = 0; i < y.numel(); ++i) {
        EXPECT_EQ(y.data<double>()[static_cast<std::size_t>(i)],
                  c.reference(element(a, shape, i), element(b, shape, i)))
            << c.name << a_shape << b_shape << i;
      }
    }
  }
}

TEST(Elementwise, BinaryGradientsMatchFiniteDifferences) {
  for (const auto& c : binary_cases()) {
    for (const auto& [a_shape, b_shape] : broadcasts()) {
      Tensor a = nonzero(a_shape, 1), b = nonzero(b_shape, 2);
      a.set_requires_grad(true);
      b.set_requires_grad(true);
      EXPECT_TRUE(gradients_agree(
          [&](const TensorList& in) -> TensorList { return {c.op(in[0], in[1])}; }, {a, b}))
          << c.name << a_shape << b_shape;
    }
  }
}

TEST(Elementwise, OnlyTheAskedGradientIsFormed) {
  for (const auto& c : binary_cases()) {
    const Tensor a = variable({2, 3}, 1), b = nonzero({3}, 2);
    c.op(a, b).backward(Tensor::ones({2, 3}, Dtype::kFloat64));
    EXPECT_TRUE(a.grad().defined());
    EXPECT_FALSE(b.grad().defined());
  }
}

TEST(Elementwise, LargeOperandsDoNotDependOnTheNumberOfThreads) {
  const Tensor a = randn({37, 1999}, 1), b = randn({1999}, 2), c = randn({37, 1}, 3);
  const Tensor one = silu(a * b + c);
  RankContext::current().set_threads(3);
  const Tensor three = silu(a * b + c);
  RankContext::current().set_threads(1);
  EXPECT_TRUE(bitwise_equal(one, three));
}

TEST(Elementwise, OperatorsWithNumbers) {
  const Tensor x = Tensor::from<double>({1, -2, 4}, {3});
  const auto is = [](const Tensor& y, std::vector<double> values) {
    return bitwise_equal(y, Tensor::from(values, {3}));
  };
  EXPECT_TRUE(is(x + 1, {2, -1, 5}));
  EXPECT_TRUE(is(1 + x, {2, -1, 5}));
  EXPECT_TRUE(is(x - 1, {0, -3, 3}));
  EXPECT_TRUE(is(1 - x, {0, 3, -3}));
  EXPECT_TRUE(is(x * 2, {2, -4, 8}));
  EXPECT_TRUE(is(2 * x, {2, -4, 8}));
  EXPECT_TRUE(is(x / 2, {0.5, -1, 2}));
  EXPECT_TRUE(is(2 / x, {2, -1, 0.5}));
  EXPECT_TRUE(is(-x, {-1, 2, -4}));
  EXPECT_TRUE(is(x - x, {0, 0, 0}));
  EXPECT_TRUE(is(x / x, {1, 1, 1}));
}

TEST(Elementwise, ScalarOperatorGradientsMatchFiniteDifferences) {
  Tensor x = nonzero({2, 3}, 1);
  x.set_requires_grad(true);
  EXPECT_TRUE(gradients_agree(
      [](const TensorList& in) -> TensorList {
        const auto& v = in[0];
        return {v + 2, 2 - v, v - 2, v * 3, v / 3, 3 / v, -v};
      },
      {x}));
}

TEST(Elementwise, ReadsStridedOperands) {
  const Tensor a = randn({3, 4}, 1), b = randn({4, 3}, 2);
  const Tensor y = add(transpose(a, 0, 1), b);
  EXPECT_TRUE(bitwise_equal(y, add(contiguous(transpose(a, 0, 1)), b)));
  EXPECT_TRUE(bitwise_equal(exp(transpose(a, 0, 1)), contiguous(transpose(exp(a), 0, 1))));
}

TEST(Elementwise, RejectsShapesThatDoNotBroadcast) {
  EXPECT_EQ(message_of<ShapeError>([] {
              add(randn({2, 3}), randn({4}));
            }),
            "add: shapes [2, 3] and [4] do not broadcast");
}

TEST(Elementwise, RejectsDifferingAndIntegerDtypes) {
  EXPECT_EQ(message_of<DtypeError>([] { mul(randn({2}), Tensor::zeros({2})); }),
            "mul: dtypes must agree, got float64 and float32");
  EXPECT_EQ(message_of<DtypeError>([] { exp(Tensor::zeros({2}, Dtype::kInt64)); }),
            "exp: needs float32 or float64, got int64");
  EXPECT_EQ(message_of<DtypeError>([] { Tensor::zeros({2}, Dtype::kInt64) * 2.0; }),
            "mul: needs float32, float64 or bfloat16, got int64");
}

TEST(Elementwise, AddTakesBFloat16AndFloat32) {
  constexpr auto kWide = Dtype::kFloat32, kNarrow = Dtype::kBFloat16;
  for (const auto& [a_shape, b_shape] : {std::pair{Shape{130, 257}, Shape{257}},
                                         {Shape{2, 1, 5}, Shape{3, 1}},
                                         {Shape{}, Shape{7}},
                                         {Shape{0, 3}, Shape{3}},
                                         {Shape{33}, Shape{33}}}) {
    for (const bool swaps : {false, true}) {
      const Tensor a = randn(a_shape, 1, kNarrow, true), b = randn(b_shape, 2, kWide, true);
      const Tensor c = to_dtype(a.detach(), kWide).set_requires_grad(true);
      const Tensor d = b.detach().set_requires_grad(true);
      const Tensor got = swaps ? b + a : a + b, want = swaps ? d + c : c + d;
      const Tensor grad = randn(want.shape(), 3, kWide);
      got.backward(grad);
      want.backward(grad);
      EXPECT_TRUE(bitwise_equal(got, want));
      EXPECT_TRUE(bitwise_equal(a.grad(), c.grad()));
      EXPECT_TRUE(bitwise_equal(b.grad(), d.grad()));
    }
  }
}

TEST(Elementwise, OtherMixturesWithBFloat16AreRefused) {
  const Tensor narrow = Tensor::zeros({2}, Dtype::kBFloat16), single = Tensor::zeros({2});
  const Tensor wide = Tensor::zeros({2}, Dtype::kFloat64);
  const auto refuses = [](const std::function<void()>& call, const std::string& message) {
    EXPECT_EQ(message_of<DtypeError>(call), message + "; convert it with ops::cast");
  };
  refuses([&] { sub(narrow, single); }, "sub: dtypes must agree, got bfloat16 and float32");
  refuses([&] { sub(single, narrow); }, "sub: dtypes must agree, got float32 and bfloat16");
  refuses([&] { mul(narrow, single); }, "mul: dtypes must agree, got bfloat16 and float32");
  refuses([&] { add(narrow, wide); }, "add: dtypes must agree, got bfloat16 and float64");
  refuses([&] { add(wide, narrow); }, "add: dtypes must agree, got float64 and bfloat16");
  refuses([&] { sub(narrow, narrow); }, "sub: needs float32 or float64, got bfloat16");
  refuses([&] { exp(narrow); }, "exp: needs float32 or float64, got bfloat16");
  refuses([&] { 1.0 - narrow; }, "neg: needs float32 or float64, got bfloat16");
}

TEST(Elementwise, AddInPlaceRoundsToTheDtypeOfTheLeftSide) {
  Tensor narrow = randn({9}, 1, Dtype::kBFloat16);
  const Tensor wide = randn({9}, 2, Dtype::kFloat32);
  const Tensor want = to_dtype(narrow + wide, Dtype::kBFloat16);
  narrow += wide;
  EXPECT_TRUE(bitwise_equal(narrow, want));
}

}  // namespace
}  // namespace moegrad::ops::elementwise_test
