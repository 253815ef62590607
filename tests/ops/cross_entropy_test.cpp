// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.h"

#include <cmath>
#include <limits>

#include "framework/autograd/function.h"
#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/softmax.h"
#include "ops/views.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"

namespace moegrad::ops::cross_entropy_test {
namespace {

using namespace test;

// Sum over valid rows of -log softmax(logits)[target].
double nll_by_definition(const Tensor& logits, const Tensor& targets) {
  const Tensor logs = log_softmax(to_dtype(logits, Dtype::kFloat64));
  double sum = 0;
  for (std::int64_t t = 0; t < logits.dim(0); ++t) {
    const auto target = targets.data<std::int64_t>()[static_cast<std::size_t>(t)];
    if (target == -100) continue;
    sum -= logs.data<double>()[static_cast<std::size_t>(t * logits.dim(1) + target)];
  }
  return sum;
}

TEST(CrossEntropy, MatchesLogSoftmax) {
  const Tensor targets = indices_of({4, -100, 0, 2});
  for (const std::int64_t v : {5, 16, 2049}) {
    const Tensor logits = randn({4, v});
    const double sum = nll_by_definition(logits, targets);
    EXPECT_NEAR(cross_entropy(logits, targets).item(), sum / 3, 1e-12);
    EXPECT_NEAR(cross_entropy(logits, targets, {.denominator = 12.0}).item(), sum / 12, 1e-12);
    EXPECT_NEAR(cross_entropy(to_dtype(logits, Dtype::kFloat32), targets).item(), sum / 3, 1e-5);
  }
  EXPECT_EQ(cross_entropy(randn({1, 1}), indices_of({0})).item(), 0);
  EXPECT_EQ(cross_entropy(randn({4, 5}), targets).shape(), Shape{});
}

TEST(CrossEntropy, GradientsMatchFiniteDifferences) {
  const Tensor targets = indices_of({4, -100, 0}), others = indices_of({4, 2, 0});
  EXPECT_TRUE(gradients_agree(
      [&](const TensorList& in) -> TensorList {
        return {cross_entropy(in[0], targets), cross_entropy(2 * in[0], targets),
                cross_entropy(in[0], others, {.ignore_index = 2, .denominator = 7.0})};
      },
      {variable({3, 5})}));
}

TEST(CrossEntropy, Float32GradientsAreCloseToFloat64) {
  const Tensor x = variable({4, 77}), targets = indices_of({76, 1, -100, 0});
  Tensor y = to_dtype(x, Dtype::kFloat32);
  y.set_requires_grad(true);
  cross_entropy(x, targets).backward();
  cross_entropy(y, targets).backward();
  EXPECT_TRUE(all_close(y.grad(), x.grad(), 1e-5, 1e-7));
}

TEST(CrossEntropy, KeepsLogitsAndOneNumberPerRow) {
  const Tensor loss = cross_entropy(variable({3, 50}), indices_of({4, -100, 0}));
  EXPECT_EQ(loss.grad_fn()->saved_bytes(), 3 * 50 * 8 + 3 * 8 + 3 * 8);
}

TEST(CrossEntropy, WithoutValidTargetsIsZeroWithZeroGradients) {
  const Tensor x = variable({2, 3});
  const Tensor loss = cross_entropy(x, indices_of({-100, -100}));
  EXPECT_EQ(loss.item(), 0);
  loss.backward();
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::zeros({2, 3}, Dtype::kFloat64)));
  const Tensor nothing = variable({0, 3});
  cross_entropy(nothing, indices_of({})).backward();
  EXPECT_EQ(nothing.grad().shape(), (Shape{0, 3}));
}

TEST(CrossEntropy, TakesClassWeightsThatAreResultsOnTheTape) {
  const Tensor x = variable({2, 3}), weights = square(variable({3}, 2));
  const auto loss = [&](const Tensor& class_weights) {
    return cross_entropy(x, indices_of({0, 2}),
                         {.label_smoothing = 0.1, .class_weights = class_weights});
  };
  EXPECT_EQ(loss(weights).item(), loss(weights.detach()).item());
}

TEST(CrossEntropy, StandsLargeAndInfiniteLogits) {
  const float infinity = std::numeric_limits<float>::infinity();
  Tensor x = Tensor::from<float>({1000, 1000, -infinity, -1000, 2000, 0}, {2, 3});
  x.set_requires_grad(true);
  const Tensor loss = cross_entropy(x, indices_of({1, 1}));
  EXPECT_NEAR(loss.item(), std::log(2.0) / 2, 1e-7);
  loss.backward();
  EXPECT_TRUE(all_close(x.grad(), Tensor::from<float>({0.25, -0.25, 0, 0, 0, 0}, {2, 3}), 0, 1e-4));
}

TEST(CrossEntropy, DoesNotDependOnTheNumberOfThreads) {
  const std::int64_t n = 41;
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(i % 5 == 0 ? -100 : i * 7 % 300);
  const auto run = [&] {
    const Tensor x = randn({n, 300}, 1, Dtype::kFloat32, true);
    const Tensor loss = cross_entropy(x, indices_of(values));
    loss.backward();
    return TensorList{loss.detach(), x.grad()};
  };
  const auto one = run();
  RankContext::current().set_threads(3);
  const auto three = run();
  RankContext::current().set_threads(1);
  EXPECT_TRUE(bitwise_equal(one[0], three[0]));
  EXPECT_TRUE(bitwise_equal(one[1], three[1]));
}

TEST(CrossEntropy, ReadsStridedInputs) {
  const Tensor logits = transpose(randn({5, 3}), 0, 1);
  const Tensor targets =
      squeeze(narrow(Tensor::from<std::int64_t>({1, 9, 0, 9, 4, 9}, {3, 2}), 1, 0, 1), 1);
  EXPECT_EQ(cross_entropy(logits, targets).item(),
            cross_entropy(contiguous(logits), indices_of({1, 0, 4})).item());
}

TEST(CrossEntropy, CountsTargetsThatAreNotIgnored) {
  EXPECT_EQ(count_targets(indices_of({1, -100, 0})), 2);
  EXPECT_EQ(count_targets(indices_of({1, -100, 0}), 0), 2);
  EXPECT_EQ(count_targets(indices_of({})), 0);
}

TEST(CrossEntropy, RejectsBadInputs) {
  const Tensor x = randn({2, 3});
  EXPECT_EQ(message_of<ShapeError>([&] { cross_entropy(randn({3}), indices_of({0})); }),
            "cross_entropy: logits must be [T, V], got [3]");
  EXPECT_EQ(message_of<ShapeError>([&] { cross_entropy(x, indices_of({0})); }),
            "cross_entropy: targets must be [2], one per token, got [1]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              cross_entropy(Tensor::zeros({2, 3}, Dtype::kInt64), indices_of({0, 0}));
            }),
            "cross_entropy: logits must be float32 or float64, got int64");
  EXPECT_EQ(message_of<DtypeError>([&] { cross_entropy(x, randn({2})); }),
            "cross_entropy: targets must be int64, got float64");
  EXPECT_EQ(message_of<ValueError>([&] {
              cross_entropy(x, indices_of({0, 3}));
            }),
            "cross_entropy: target must be in [0, 3) or -100, got 3 at position 1");
  EXPECT_EQ(message_of<ValueError>([&] {
              cross_entropy(x, indices_of({-100, 0}), {.ignore_index = -1});
            }),
            "cross_entropy: target must be in [0, 3) or -1, got -100 at position 0");
  EXPECT_EQ(message_of<ValueError>([&] {
              cross_entropy(x, indices_of({0, 0}), {.denominator = 0});
            }),
            "cross_entropy: denominator must be positive, got 0");
  EXPECT_EQ(message_of<DtypeError>([&] { count_targets(x); }),
            "count_targets: targets must be int64, got float64");
}

}  // namespace
}  // namespace moegrad::ops::cross_entropy_test
