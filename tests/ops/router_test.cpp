// SPDX-License-Identifier: Apache-2.0
#include "ops/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/views.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"

namespace moegrad::ops::router_test {
namespace {

using namespace moegrad::test;

struct Result {
  Tensor weights, indices, grad;
};

Result run(const Tensor& logits, std::int64_t k, bool normalize, const Tensor& grad_weights,
           const Tensor& replay = {}) {
  Tensor leaf = logits.detach();
  leaf.set_requires_grad(true);
  const auto result = topk_softmax(leaf, k, normalize, replay);
  result.weights.backward(grad_weights);
  return {result.weights.detach(), result.indices, leaf.grad()};
}

// The definition, step by step, with the Jacobian of every step written out.
Result reference(const Tensor& logits, std::int64_t k, bool normalize, const Tensor& grad_weights) {
  const auto experts = static_cast<std::size_t>(logits.dim(1)), top = static_cast<std::size_t>(k);
  const auto x = logits.data<double>();
  const auto g = grad_weights.data<double>();
  std::vector<double> weights, grad;
  std::vector<std::int64_t> indices;
  for (std::size_t t = 0; t < static_cast<std::size_t>(logits.dim(0)); ++t) {
    const auto row = x.subspan(t * experts, experts);
    std::vector<double> p(experts);
    double total = 0;
    for (std::size_t e = 0; e < experts; ++e) total += p[e] = std::exp(row[e]);
    for (auto& value : p) value /= total;
    std::vector<std::int64_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) {
      return p[static_cast<std::size_t>(a)] > p[static_cast<std::size_t>(b)];
    });
    double chosen_total = 0;
    for (std::size_t j = 0; j < top; ++j) chosen_total += p[static_cast<std::size_t>(order[j])];
    std::vector<double> grad_p(experts);
    for (std::size_t j = 0; j < top; ++j) {
      const auto expert = static_cast<std::size_t>(order[j]);
      indices.push_back(order[j]);
      weights.push_back(normalize ? p[expert] / chosen_total : p[expert]);
      for (std::size_t i = 0; i < top; ++i) {
        const auto other = static_cast<std::size_t>(order[i]);
        const double same = i == j ? 1 : 0;
        const double slope = normalize ? (same - p[expert] / chosen_total) / chosen_total : same;
        grad_p[other] += g[t * top + j] * slope;
      }
    }
    for (std::size_t i = 0; i < experts; ++i) {
      double sum = 0;
      for (std::size_t e = 0; e < experts; ++e) {
        sum += grad_p[e] * p[e] * ((i == e ? 1 : 0) - p[i]);
      }
      grad.push_back(sum);
    }
  }
  return {Tensor::from(weights, {logits.dim(0), k}), Tensor::from(indices, {logits.dim(0), k}),
          Tensor::from(grad, logits.shape())};
}

TEST(TopKSoftmax, EqualsSoftmaxThenTopKThenNormalisation) {
  for (const Shape& shape : {Shape{1, 1}, Shape{1, 6}, Shape{7, 5}, Shape{40, 33}}) {
    for (const std::int64_t k : {std::int64_t{1}, (shape[1] + 1) / 2, shape[1]}) {
      for (const bool normalize : {false, true}) {
        const Tensor logits = randn(shape, 1), grad_weights = randn({shape[0], k}, 2);
        const auto got = run(logits, k, normalize, grad_weights);
        const auto expected = reference(logits, k, normalize, grad_weights);
        EXPECT_TRUE(bitwise_equal(got.indices, expected.indices)) << shape << " k " << k;
        EXPECT_TRUE(all_close(got.weights, expected.weights, 1e-13, 1e-15)) << shape << " k " << k;
        EXPECT_TRUE(all_close(got.grad, expected.grad, 1e-12, 1e-14)) << shape << " k " << k;
      }
    }
  }
}

TEST(TopKSoftmax, GradientsMatchFiniteDifferences) {
  for (const bool normalize : {false, true}) {
    for (const std::int64_t k : {1, 2, 5}) {
      const auto f = [=](const TensorList& in) {
        return TensorList{topk_softmax(in[0], k, normalize).weights};
      };
      EXPECT_TRUE(moegrad::gradients_agree(f, {variable({4, 5})}))
          << "k " << k << " normalize " << normalize;
    }
    const Tensor replay = indices_of({4, 0, 2, 3}, {2, 2});
    const auto f = [=](const TensorList& in) {
      return TensorList{topk_softmax(in[0], 2, normalize, replay).weights};
    };
    EXPECT_TRUE(moegrad::gradients_agree(f, {variable({2, 5})}))
        << "replay, normalize " << normalize;
  }
}

TEST(TopKSoftmax, TiesGoToTheLowestIndex) {
  const Tensor logits = Tensor::from(std::vector<double>{1, 3, 3, 0, 3, 1,  //
                                                         2, 2, 2, 2, 2, 2,  //
                                                         0, 1, 2, 3, 4, 4},
                                     {3, 6});
  EXPECT_TRUE(bitwise_equal(topk_softmax(logits, 4, true).indices, indices_of({1, 2, 4, 0,  //
                                                                               0, 1, 2, 3,  //
                                                                               4, 5, 3, 2},
                                                                              {3, 4})));
}

TEST(TopKSoftmax, OneNormalisedExpertHasWeightOneAndNoGradient) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const auto result = run(randn({9, 7}, 1, dtype), 1, true, randn({9, 1}, 2, dtype));
    EXPECT_TRUE(bitwise_equal(result.weights, Tensor::ones({9, 1}, dtype)));
    EXPECT_TRUE(all_close(result.grad, Tensor::zeros({9, 7}), 0, 0));
  }
}

TEST(TopKSoftmax, ExpertsNotChosenGetAGradientOnlyWithoutNormalisation) {
  const Tensor logits = Tensor::from(std::vector<double>{3, 2, 1, 0}, {1, 4});
  const Tensor grad_weights = randn({1, 2});
  const auto normalised = run(logits, 2, true, grad_weights);
  const auto plain = run(logits, 2, false, grad_weights);
  for (const std::size_t e : {2, 3}) {
    EXPECT_EQ(normalised.grad.data<double>()[e], 0);
    EXPECT_NE(plain.grad.data<double>()[e], 0);
  }
}

TEST(TopKSoftmax, ReplayTakesTheGivenExpertsInTheirOrder) {
  const Tensor logits = randn({6, 8}, 1), grad_weights = randn({6, 3}, 2);
  for (const bool normalize : {false, true}) {
    const auto chosen = run(logits, 3, normalize, grad_weights);
    const auto replayed = run(logits, 3, normalize, grad_weights, chosen.indices);
    EXPECT_TRUE(bitwise_equal(replayed.weights, chosen.weights));
    EXPECT_TRUE(bitwise_equal(replayed.indices, chosen.indices));
    EXPECT_TRUE(bitwise_equal(replayed.grad, chosen.grad));
  }
  const Tensor other = Tensor::from(std::vector<double>{0, 1, 2}, {1, 3});
  const Tensor strided = transpose(indices_of({0, 2}, {2, 1}), 0, 1);
  const auto result = topk_softmax(other, 2, false, strided);
  const double total = 1 + std::exp(1.0) + std::exp(2.0);
  EXPECT_TRUE(all_close(result.weights,
                        Tensor::from(std::vector<double>{1 / total, std::exp(2.0) / total}, {1, 2}),
                        1e-14, 0));
}

TEST(TopKSoftmax, ReplayOfExpertsWithoutProbabilityStaysFinite) {
  const Tensor logits = Tensor::from(std::vector<float>{0, -500, -501}, {1, 3});
  const auto result = run(logits, 2, true, Tensor::ones({1, 2}), indices_of({1, 2}, {1, 2}));
  const auto expected = 1 / (1 + std::exp(-1.0));
  EXPECT_TRUE(all_close(
      result.weights, Tensor::from(std::vector<double>{expected, 1 - expected}, {1, 2}), 1e-6, 0));
}

TEST(TopKSoftmax, LargeLogitsDoNotOverflow) {
  const auto largest = std::numeric_limits<float>::max();
  const Tensor logits = Tensor::from(std::vector<float>{largest, -largest, largest}, {1, 3});
  for (const bool normalize : {false, true}) {
    const auto result = run(logits, 3, normalize, Tensor::ones({1, 3}));
    EXPECT_TRUE(
        all_close(result.weights, Tensor::from(std::vector<float>{0.5F, 0.5F, 0}, {1, 3}), 0, 0));
    EXPECT_TRUE(all_close(result.grad, Tensor::zeros({1, 3}), 0, 0));
  }
}

TEST(TopKSoftmax, Float32IsCloseToFloat64) {
  // The same numbers in both, so that both choose the same experts.
  const Tensor narrow_logits = randn({50, 128}, 1, Dtype::kFloat32);
  const Tensor narrow_grad = randn({50, 8}, 2, Dtype::kFloat32);
  for (const bool normalize : {false, true}) {
    const auto narrow = run(narrow_logits, 8, normalize, narrow_grad);
    const auto wide = run(to_dtype(narrow_logits, Dtype::kFloat64), 8, normalize,
                          to_dtype(narrow_grad, Dtype::kFloat64));
    EXPECT_EQ(narrow.weights.dtype(), Dtype::kFloat32);
    EXPECT_TRUE(bitwise_equal(narrow.indices, wide.indices));
    EXPECT_TRUE(all_close(narrow.weights, wide.weights, 2e-6, 0));
    EXPECT_TRUE(all_close(narrow.grad, wide.grad, 1e-5, 1e-6));
  }
}

TEST(TopKSoftmax, TakesStridedLogitsAndGradients) {
  const Tensor logits = randn({5, 4}, 1), grad_weights = randn({2, 4}, 2);
  const auto strided = run(transpose(logits, 0, 1), 2, false, transpose(grad_weights, 0, 1));
  const auto dense =
      run(contiguous(transpose(logits, 0, 1)), 2, false, contiguous(transpose(grad_weights, 0, 1)));
  EXPECT_TRUE(bitwise_equal(strided.weights, dense.weights));
  EXPECT_TRUE(bitwise_equal(strided.grad, dense.grad));
}

TEST(TopKSoftmax, NoTokensGiveEmptyResults) {
  for (const bool normalize : {false, true}) {
    const auto result = run(Tensor::zeros({0, 4}), 2, normalize, Tensor::zeros({0, 2}));
    EXPECT_EQ(result.weights.shape(), (Shape{0, 2}));
    EXPECT_EQ(result.indices.shape(), (Shape{0, 2}));
    EXPECT_EQ(result.grad.shape(), (Shape{0, 4}));
  }
}

TEST(TopKSoftmax, ARowDependsNeitherOnTheOthersNorOnTheThreads) {
  const Tensor logits = randn({500, 40}, 1, Dtype::kFloat32);
  const Tensor grad_weights = randn({500, 5}, 2, Dtype::kFloat32);
  for (const bool normalize : {false, true}) {
    const auto all = run(logits, 5, normalize, grad_weights);
    const auto some = run(narrow(logits, 0, 321, 3), 5, normalize, narrow(grad_weights, 0, 321, 3));
    EXPECT_TRUE(bitwise_equal(some.weights, narrow(all.weights, 0, 321, 3)));
    EXPECT_TRUE(bitwise_equal(some.indices, narrow(all.indices, 0, 321, 3)));
    EXPECT_TRUE(bitwise_equal(some.grad, narrow(all.grad, 0, 321, 3)));
    RankContext::current().set_threads(3);
    const auto threaded = run(logits, 5, normalize, grad_weights);
    RankContext::current().set_threads(1);
    EXPECT_TRUE(bitwise_equal(threaded.weights, all.weights));
    EXPECT_TRUE(bitwise_equal(threaded.grad, all.grad));
  }
}

TEST(TopKSoftmax, MakesNanOfATokenWithNanOrInfinityAndOfNoOther) {
  constexpr std::int64_t kTokens = 700, kExperts = 3, kChosen = 2;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const bool normalize : {false, true}) {
    for (const double value : {std::nan(""), infinity}) {
      for (const auto bad : {0L, 350L, 699L}) {
        for (std::int64_t expert = 0; expert < kExperts; ++expert) {
          Tensor logits = randn({kTokens, kExperts}, 1, Dtype::kFloat32);
          const auto sound = topk_softmax(logits, kChosen, normalize);
          logits.mutable_data<float>()[static_cast<std::size_t>(bad * kExperts + expert)] =
              static_cast<float>(value);
          logits.set_requires_grad(true);
          const auto result = topk_softmax(logits, kChosen, normalize);
          result.weights.backward(randn({kTokens, kChosen}, 2, Dtype::kFloat32));
          const Tensor grad = logits.grad();
          const auto indices = result.indices.data<std::int64_t>();
          for (std::int64_t token = 0; token < kTokens; ++token) {
            const auto first = static_cast<std::size_t>(token * kChosen);
            ASSERT_NE(indices[first], indices[first + 1]);
            const auto chosen = static_cast<std::size_t>(token * kExperts + indices[first]);
            for (auto slot = first; slot < first + kChosen; ++slot) {
              ASSERT_TRUE(0 <= indices[slot] && indices[slot] < kExperts);
              const float weight = result.weights.data<float>()[slot];
              if (token == bad) {
                ASSERT_TRUE(std::isnan(weight));
              } else {
                ASSERT_EQ(weight, sound.weights.data<float>()[slot]);
              }
            }
            ASSERT_EQ(std::isnan(grad.data<float>()[chosen]), token == bad);
          }
        }
      }
    }
  }
}

TEST(TopKSoftmax, OfMinusInfinityKeepsAnExpertFromAToken) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {
      -infinity, 1,         -infinity, 2,          // two that are allowed
      -infinity, 3,         -infinity, -infinity,  // one for two places
      -infinity, -infinity, -infinity, -infinity};
  for (const bool normalize : {false, true}) {
    const auto result = topk_softmax(Tensor::from(values, {3, 4}), 2, normalize);
    const auto indices = test::integers(result.indices);
    const auto weights = result.weights.data<double>();
    EXPECT_EQ(indices[0], 3);
    EXPECT_EQ(indices[1], 1);
    EXPECT_NEAR(weights[0], 1 / (1 + std::exp(-1.0)), 1e-15);
    EXPECT_NEAR(weights[1], 1 / (1 + std::exp(1.0)), 1e-15);
    EXPECT_EQ(indices[2], 1);
    EXPECT_EQ(weights[2], 1.0);
    EXPECT_EQ(weights[3], 0.0);
    EXPECT_TRUE(std::isnan(weights[4]) && std::isnan(weights[5]));
  }
}

TEST(TopKSoftmax, RejectsOtherShapesTypesAndK) {
  EXPECT_EQ(message_of<ShapeError>([] { topk_softmax(randn({4}), 1, true); }),
            "topk_softmax: logits must be [T, E], got [4]");
  EXPECT_EQ(message_of<ValueError>([] {
              topk_softmax(randn({2, 4}), 5, true);
            }),
            "topk_softmax: k must be in [1, 4] for logits [2, 4], got 5");
  EXPECT_EQ(message_of<ValueError>([] {
              topk_softmax(randn({2, 4}), 0, true);
            }),
            "topk_softmax: k must be in [1, 4] for logits [2, 4], got 0");
  EXPECT_EQ(message_of<DtypeError>([] {
              topk_softmax(Tensor::zeros({2, 4}, Dtype::kInt64), 1, true);
            }),
            "topk_softmax: logits must be float32 or float64, got int64");
}

TEST(TopKSoftmax, RejectsReplayIndicesThatNoRoutingGives) {
  const auto replay = [](const Tensor& indices) { topk_softmax(randn({2, 4}), 2, true, indices); };
  EXPECT_EQ(message_of<ShapeError>([&] {
              replay(indices_of({0, 1, 2}, {1, 3}));
            }),
            "topk_softmax: replay_indices must be [2, 2] for logits [2, 4] and k = 2, got [1, 3]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              replay(Tensor::zeros({2, 2}));
            }),
            "topk_softmax: replay_indices must be int64, got float32");
  EXPECT_EQ(message_of<ValueError>([&] {
              replay(indices_of({0, 1, 2, 4}, {2, 2}));
            }),
            "topk_softmax: replayed expert must be in [0, 4), got 4 at token 1");
  EXPECT_EQ(message_of<ValueError>([&] {
              replay(indices_of({-1, 1, 2, 3}, {2, 2}));
            }),
            "topk_softmax: replayed expert must be in [0, 4), got -1 at token 0");
  EXPECT_EQ(message_of<ValueError>([&] {
              replay(indices_of({0, 1, 3, 3}, {2, 2}));
            }),
            "topk_softmax: replayed experts of a token must be distinct, got 3 twice at token 1");
}

}  // namespace
}  // namespace moegrad::ops::router_test
