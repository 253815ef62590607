// SPDX-License-Identifier: Apache-2.0
#include "ops/reduce.h"

#include <cmath>
#include <limits>
#include <vector>

#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/masks.h"
#include "ops/order.h"
#include "ops/softmax.h"
#include "ops/statistics.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::reduce_test {
namespace {

using namespace test;

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> list{{1},        {7},         {2, 3},   {3, 1, 5},
                                       {2, 33, 4}, {2, 3, 517}, {3, 0, 2}};
  return list;
}

// Reduces dimension `dim` of float64 `x` with a plain loop.
template <class Step>
Tensor reference(const Tensor& x, std::int64_t dim, double start, const Step& step) {
  std::int64_t outer = 1, inner = 1;
  Shape shape;
  for (std::int64_t i = 0; i < x.ndim(); ++i) {
    if (i < dim) outer *= x.dim(i);
    if (i > dim) inner *= x.dim(i);
    if (i != dim) shape.push_back(x.dim(i));
  }
  Tensor y = Tensor::full(shape, start, Dtype::kFloat64);
  const auto in = x.data<double>();
  auto out = y.mutable_data<double>();
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t k = 0; k < x.dim(dim); ++k) {
      for (std::int64_t i = 0; i < inner; ++i) {
        auto& value = out[static_cast<std::size_t>(o * inner + i)];
        value = step(value, in[static_cast<std::size_t>((o * x.dim(dim) + k) * inner + i)]);
      }
    }
  }
  return y;
}

// How many of 15 ops take a T as a dimension. A bool or a real in its place may be meant as
// keepdim, a bound or a temperature.
template <class T>
constexpr int kTakeADimension = (
    requires(const Tensor& x, T dim) { sum(x, dim); } +
    requires(const Tensor& x, T dim) { mean(x, dim); } +
    requires(const Tensor& x, T dim) { max(x, dim); } +
    requires(const Tensor& x, T dim) { min(x, dim); } +
    requires(const Tensor& x, T dim) { argmax(x, dim); } +
    requires(const Tensor& x, T dim) { argmin(x, dim); } +
    requires(const Tensor& x, T dim) { sort(x, dim); } +
    requires(const Tensor& x, T dim) { var(x, dim); } +
    requires(const Tensor& x, T dim) { std(x, dim); } +
    requires(const Tensor& x, T dim) { logsumexp(x, dim); } +
    requires(const Tensor& x, T dim) { cumsum(x, dim); } +
    requires(const Tensor& x, T dim) { softmax(x, dim); } +
    requires(const Tensor& x, T dim) { log_softmax(x, dim); } +
    requires(const Tensor& x, T dim) { any(x, dim); } +
    requires(const Tensor& x, T dim) { all(x, dim); });
static_assert(kTakeADimension<bool> == 0 && kTakeADimension<double> == 0 &&
              kTakeADimension<float> == 0);
static_assert(kTakeADimension<int> == 15 && kTakeADimension<std::int64_t> == 15);

double plus(double a, double b) { return a + b; }

TEST(Reduce, SumAndMeanOverADimensionMatchAPlainLoop) {
  for (const auto& shape : shapes()) {
    const Tensor x = randn(shape);
    for (std::int64_t dim = 0; dim < x.ndim(); ++dim) {
      const Tensor expected = reference(x, dim, 0, plus);
      EXPECT_TRUE(all_close(sum(x, dim), expected, 1e-12, 1e-12)) << shape << dim;
      EXPECT_TRUE(all_close(sum(to_dtype(x, Dtype::kFloat32), dim), expected, 1e-5, 1e-5));
      EXPECT_TRUE(bitwise_equal(sum(x, dim - x.ndim()), sum(x, dim)));
      if (x.dim(dim) == 0) continue;
      Tensor average = clone(expected);
      for (auto& value : average.mutable_data<double>()) {
        value /= static_cast<double>(x.dim(dim));
      }
      EXPECT_TRUE(all_close(mean(x, dim), average, 1e-12, 1e-12)) << shape << dim;
    }
  }
}

TEST(Reduce, MaxOverADimensionMatchesAPlainLoop) {
  for (const auto& shape : shapes()) {
    const Tensor x = randn(shape);
    for (std::int64_t dim = 0; dim < x.ndim(); ++dim) {
      if (x.dim(dim) == 0) continue;
      const Tensor expected = reference(x, dim, -std::numeric_limits<double>::infinity(),
                                        [](double a, double b) { return std::fmax(a, b); });
      EXPECT_TRUE(bitwise_equal(max(x, dim).values, expected)) << shape << dim;
    }
  }
}

TEST(Reduce, OverEverythingGivesAScalar) {
  for (const auto& shape : shapes()) {
    const Tensor x = randn(shape);
    double total = 0;
    for (const auto value : x.data<double>()) total += value;
    EXPECT_EQ(sum(x).shape(), Shape{});
    EXPECT_NEAR(sum(x).item(), total, 1e-11);
    if (x.numel() > 0) {
      EXPECT_NEAR(mean(x).item(), total / static_cast<double>(x.numel()), 1e-12);
    }
  }
  EXPECT_TRUE(std::isnan(mean(Tensor::zeros({0})).item()));
}

TEST(Reduce, KeepdimLeavesASizeOfOne) {
  const Tensor x = randn({2, 3, 4});
  EXPECT_EQ(sum(x, 1, true).shape(), (Shape{2, 1, 4}));
  EXPECT_EQ(mean(x, -1, true).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(max(x, 0, true).values.shape(), (Shape{1, 3, 4}));
}

TEST(Reduce, GradientsMatchFiniteDifferences) {
  for (const auto& shape : {Shape{5}, Shape{2, 3}, Shape{2, 3, 4}, Shape{3, 0, 2}}) {
    const auto check_op = [&](const auto& op) {
      EXPECT_TRUE(gradients_agree([&](const TensorList& in) -> TensorList { return {op(in[0])}; },
                                  {variable(shape)}))
          << shape;
    };
    check_op([](const Tensor& x) { return sum(x); });
    if (shape.numel() > 0) check_op([](const Tensor& x) { return mean(x); });
    for (std::int64_t dim = 0; dim < shape.ndim(); ++dim) {
      check_op([&](const Tensor& x) { return sum(x, dim); });
      check_op([&](const Tensor& x) { return sum(x, dim, true); });
      if (shape[dim] == 0) continue;
      check_op([&](const Tensor& x) { return mean(x, dim); });
      check_op([&](const Tensor& x) { return max(x, dim).values; });
      check_op([&](const Tensor& x) { return max(x, dim, true).values; });
    }
  }
}

TEST(Reduce, MaxGivesItsGradientToTheFirstOfEquals) {
  Tensor x = Tensor::from<double>({1, 3, 3, 2, 2, 0}, {2, 3});
  x.set_requires_grad(true);
  sum(max(x, 1).values).backward();
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::from<double>({0, 1, 0, 1, 0, 0}, {2, 3})));
}

TEST(Reduce, MaxCountsNaNAsTheGreatest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(max(Tensor::from<double>({1, nan, 5}, {3}), 0).values.item()));
  EXPECT_TRUE(std::isnan(max(Tensor::from<double>({nan, 1, 5}, {3}), 0).values.item()));
}

TEST(Reduce, MaxGivesItsGradientToTheFirstNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    Tensor x = to_dtype(Tensor::from<double>({1, nan, nan, 7, 9, nan}, {3, 2}), dtype);
    x.set_requires_grad(true);
    sum(max(x, 0).values).backward();
    EXPECT_TRUE(
        bitwise_equal(x.grad(), to_dtype(Tensor::from<double>({0, 1, 1, 0, 0, 0}, {3, 2}), dtype)));
    x.set_grad({});
    sum(max(x, 1).values).backward();
    EXPECT_TRUE(
        bitwise_equal(x.grad(), to_dtype(Tensor::from<double>({0, 1, 1, 0, 0, 1}, {3, 2}), dtype)));
  }
}

TEST(Reduce, LongFloat32SumsKeepTheirDigits) {
  const std::int64_t n = 1 << 20;
  const Tensor x = Tensor::full({n}, 0.1);
  EXPECT_NEAR(sum(x).item() / (static_cast<double>(n) * 0.1F), 1, 1e-6);
}

TEST(Reduce, DoesNotDependOnTheNumberOfThreads) {
  const Tensor x = randn({129, 700}, 1, Dtype::kFloat32);
  const Tensor rows = sum(x, 1), columns = sum(x, 0), greatest = max(x, 0).values;
  RankContext::current().set_threads(3);
  EXPECT_TRUE(bitwise_equal(sum(x, 1), rows));
  EXPECT_TRUE(bitwise_equal(sum(x, 0), columns));
  EXPECT_TRUE(bitwise_equal(max(x, 0).values, greatest));
  RankContext::current().set_threads(1);
}

TEST(Reduce, ReadsStridedInput) {
  const Tensor x = transpose(randn({3, 5}), 0, 1);
  EXPECT_TRUE(bitwise_equal(sum(x, 0), sum(contiguous(x), 0)));
  EXPECT_TRUE(bitwise_equal(max(x, 1).values, max(contiguous(x), 1).values));
}

TEST(Reduce, RejectsBadDimensionsAndDtypes) {
  EXPECT_EQ(message_of<ShapeError>([] {
              sum(randn({2, 3}), 2);
            }),
            "sum: dimension must be in [-2, 1], got 2");
  EXPECT_EQ(message_of<ShapeError>([] {
              mean(randn({2, 3}), -3);
            }),
            "mean: dimension must be in [-2, 1], got -3");
  EXPECT_EQ(message_of<ShapeError>([] {
              max(randn({2, 0}), 1);
            }),
            "max: dimension 1 of [2, 0] must not be empty");
  EXPECT_EQ(message_of<DtypeError>([] { sum(Tensor::zeros({2}, Dtype::kInt64)); }),
            "sum: needs float32 or float64, got int64");
}

TEST(Reduce, BracesAreDimensions) {
  const Tensor x = randn({2, 3});
  EXPECT_TRUE(bitwise_equal(sum(x, {1}), sum(x, 1)));
  EXPECT_TRUE(bitwise_equal(mean(x, {0, 1}), mean(x, std::vector<std::int64_t>{0, 1})));
  EXPECT_EQ(message_of<ShapeError>([&] { sum(x, {}); }),
            "sum: dims must name at least one dimension");
  EXPECT_EQ(message_of<ShapeError>([&] { mean(x, {}); }),
            "mean: dims must name at least one dimension");
}

}  // namespace
}  // namespace moegrad::ops::reduce_test
