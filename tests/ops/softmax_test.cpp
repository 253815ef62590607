// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax.h"

#include <cmath>
#include <limits>

#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::softmax_test {
namespace {

using namespace test;

// log softmax over rows of length d, without the shift by the maximum.
Tensor log_softmax_by_definition(const Tensor& x) {
  Tensor y = clone(x);
  auto values = y.mutable_data<double>();
  const auto d = static_cast<std::size_t>(x.dim(-1));
  for (std::size_t row = 0; d > 0 && row < values.size(); row += d) {
    double sum = 0;
    for (std::size_t i = 0; i < d; ++i) sum += std::exp(values[row + i]);
    for (std::size_t i = 0; i < d; ++i) values[row + i] -= std::log(sum);
  }
  return y;
}

Tensor exponential(const Tensor& x) {
  Tensor y = clone(x);
  for (auto& value : y.mutable_data<double>()) value = std::exp(value);
  return y;
}

TEST(Softmax, MatchesItsDefinition) {
  for (const auto& shape : {Shape{1}, Shape{3, 1}, Shape{2, 3, 5}, Shape{4, 16}, Shape{3, 2051},
                            Shape{0, 4}, Shape{3, 0}}) {
    const Tensor x = randn(shape);
    const Tensor expected = log_softmax_by_definition(x);
    EXPECT_TRUE(all_close(log_softmax(x), expected, 1e-13, 1e-13)) << shape;
    EXPECT_TRUE(all_close(softmax(x), exponential(expected), 1e-13, 1e-15)) << shape;
    const Tensor narrow_x = to_dtype(x, Dtype::kFloat32);
    EXPECT_TRUE(all_close(log_softmax(narrow_x), expected, 1e-6, 1e-6)) << shape;
    EXPECT_TRUE(all_close(softmax(narrow_x), exponential(expected), 2e-6, 1e-9)) << shape;
  }
}

TEST(Softmax, GradientsMatchFiniteDifferences) {
  for (const auto& shape : {Shape{1}, Shape{2, 3}, Shape{2, 2, 17}, Shape{2, 0}}) {
    EXPECT_TRUE(gradients_agree([](const TensorList& in) -> TensorList { return {softmax(in[0])}; },
                                {variable(shape)}));
    EXPECT_TRUE(
        gradients_agree([](const TensorList& in) -> TensorList { return {log_softmax(in[0])}; },
                        {variable(shape)}));
  }
}

// Row sums restart every 1024 elements (ops/kernels/row_reduce.h).
TEST(Softmax, GradientsOfLongRowsMatchTheirFormulas) {
  for (const std::int64_t d : {1024, 1025, 2051, 3080}) {
    const Tensor grad = randn({2, d}, 2);
    for (const bool logarithmic : {false, true}) {
      const Tensor x = variable({2, d});
      const Tensor y = logarithmic ? log_softmax(x) : softmax(x);
      y.backward(grad);
      Tensor expected = Tensor::empty({2, d}, Dtype::kFloat64);
      const auto out = expected.mutable_data<double>();
      const auto g = grad.data<double>(), values = y.data<double>();
      for (std::size_t row = 0; row < 2; ++row) {
        const auto first = row * static_cast<std::size_t>(d),
                   last = first + static_cast<std::size_t>(d);
        long double dot = 0;
        for (auto i = first; i < last; ++i) dot += g[i] * (logarithmic ? 1.0 : values[i]);
        const auto total = static_cast<double>(dot);
        for (auto i = first; i < last; ++i) {
          out[i] = logarithmic ? g[i] - std::exp(values[i]) * total : values[i] * (g[i] - total);
        }
      }
      EXPECT_TRUE(all_close(x.grad(), expected, 1e-12, 1e-14)) << d << ' ' << logarithmic;
    }
  }
}

TEST(Softmax, Float32GradientsAreCloseToFloat64) {
  using Op = Tensor (*)(const Tensor&, std::int64_t);
  for (const auto op : {Op{softmax}, Op{log_softmax}}) {
    const Tensor x = variable({3, 37}), grad = randn({3, 37}, 2);
    Tensor y = to_dtype(x, Dtype::kFloat32);
    y.set_requires_grad(true);
    op(x, -1).backward(grad);
    op(y, -1).backward(to_dtype(grad, Dtype::kFloat32));
    EXPECT_TRUE(all_close(y.grad(), x.grad(), 1e-5, 1e-6));
  }
}

TEST(Softmax, StandsLargeAndInfiniteLogits) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from<float>({1000, 1000, -infinity, -1000}, {4});
  EXPECT_TRUE(bitwise_equal(softmax(x), Tensor::from<float>({0.5, 0.5, 0, 0}, {4})));
  const Tensor y = log_softmax(x);
  EXPECT_NEAR(y.data<float>()[0], -std::log(2.0), 1e-7);
  EXPECT_EQ(y.data<float>()[2], -infinity);
}

TEST(Softmax, ARowDoesNotDependOnHowManyThereAreNorOnThreads) {
  const Tensor x = randn({97, 211}, 1, Dtype::kFloat32);
  const Tensor all = softmax(x), all_logs = log_softmax(x);
  RankContext::current().set_threads(3);
  EXPECT_TRUE(bitwise_equal(softmax(x), all));
  EXPECT_TRUE(bitwise_equal(log_softmax(x), all_logs));
  RankContext::current().set_threads(1);
  EXPECT_TRUE(bitwise_equal(softmax(narrow(x, 0, 96, 1)), narrow(all, 0, 96, 1)));
}

TEST(Softmax, ReadsStridedInput) {
  const Tensor x = transpose(randn({3, 4}), 0, 1);
  EXPECT_TRUE(bitwise_equal(softmax(x), softmax(contiguous(x))));
  EXPECT_TRUE(bitwise_equal(log_softmax(x), log_softmax(contiguous(x))));
}

TEST(Softmax, RejectsScalarsAndIntegers) {
  EXPECT_EQ(message_of<ShapeError>([] { softmax(Tensor::ones({})); }),
            "softmax: needs at least one dimension, got []");
  EXPECT_EQ(message_of<DtypeError>([] { log_softmax(Tensor::ones({2}, Dtype::kInt64)); }),
            "log_softmax: needs float32 or float64, got int64");
}

}  // namespace
}  // namespace moegrad::ops::softmax_test
