// SPDX-License-Identifier: Apache-2.0
#include "ops/aux_loss.h"

#include <cmath>
#include <limits>
#include <vector>

#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/router.h"
#include "ops/views.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"

namespace moegrad::ops::aux_loss_test {
namespace {

using namespace moegrad::test;

Tensor values_of(const std::vector<double>& values) {
  return Tensor::from(values, {std::ssize(values)});
}

// Logits of `layers` layers and the experts that they choose.
struct Routing {
  TensorList logits, indices;
};

Routing random_routing(std::int64_t layers, std::int64_t tokens, std::int64_t experts,
                       std::int64_t top_k, Dtype dtype = Dtype::kFloat64) {
  Routing routing;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto seed = static_cast<std::uint64_t>(layer) + 1;
    // Chosen in float32 for both dtypes.
    const Tensor logits = randn({tokens, experts}, seed, Dtype::kFloat32);
    routing.logits.push_back(to_dtype(logits, dtype));
    routing.indices.push_back(topk_softmax(logits, top_k, true).indices);
  }
  return routing;
}

// Hugging Face's steps, one by one: pool, softmax, one-hot, weighted means, product.
double reference(const Routing& routing, const std::vector<double>& mask) {
  const auto experts = static_cast<std::size_t>(routing.logits[0].dim(1));
  const auto top_k = static_cast<std::size_t>(routing.indices[0].dim(1));
  std::vector<double> fraction(top_k * experts), probability(experts);
  double total_weight = 0;
  for (std::size_t layer = 0; layer < routing.logits.size(); ++layer) {
    const Tensor logits = to_dtype(routing.logits[layer], Dtype::kFloat64);
    const auto x = logits.data<double>();
    const auto chosen = routing.indices[layer].data<std::int64_t>();
    for (std::size_t t = 0; t < mask.size(); ++t) {
      double total = 0;
      for (std::size_t e = 0; e < experts; ++e) total += std::exp(x[t * experts + e]);
      for (std::size_t e = 0; e < experts; ++e) {
        probability[e] += mask[t] * std::exp(x[t * experts + e]) / total;
      }
      for (std::size_t j = 0; j < top_k; ++j) {
        fraction[j * experts + static_cast<std::size_t>(chosen[t * top_k + j])] += mask[t];
      }
      total_weight += mask[t];
    }
  }
  double loss = 0;
  for (std::size_t j = 0; j < top_k; ++j) {
    for (std::size_t e = 0; e < experts; ++e) {
      loss += fraction[j * experts + e] / total_weight * probability[e] / total_weight;
    }
  }
  return loss * static_cast<double>(experts);
}

struct Result {
  Tensor loss;
  TensorList grads;
};

Result run(const Routing& routing, const Tensor& mask = {}) {
  TensorList leaves;
  for (const auto& logits : routing.logits) {
    leaves.push_back(logits.detach());
    leaves.back().set_requires_grad(true);
  }
  const Tensor loss = load_balancing_loss(leaves, routing.indices, mask);
  loss.backward();
  Result result{loss.detach(), {}};
  for (const auto& leaf : leaves) result.grads.push_back(leaf.grad());
  return result;
}

TEST(LoadBalancingLoss, EqualsThePooledFormula) {
  for (const std::int64_t layers : {1, 2, 3}) {
    for (const std::int64_t tokens : {1, 7}) {
      for (const std::int64_t top_k : {1, 2, 5}) {  // 5: every expert
        const auto routing = random_routing(layers, tokens, 5, top_k);
        const std::vector<double> ones(static_cast<std::size_t>(tokens), 1.0);
        const Tensor loss = load_balancing_loss(routing.logits, routing.indices);
        EXPECT_EQ(loss.shape(), Shape{});
        EXPECT_NEAR(loss.item(), reference(routing, ones), 1e-13);
      }
    }
  }
}

// Layers in two stages: each has its own logits, and the load of all.
TEST(BalanceShare, OfStagesGivesTheGradientsOfThePooledLossToTheBit) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const auto routing = random_routing(4, 6, 5, 2, dtype);
    TensorList whole, parts;
    for (const auto& logits : routing.logits) {
      whole.push_back(clone(logits).set_requires_grad(true));
      parts.push_back(clone(logits).set_requires_grad(true));
    }
    const Tensor loss = load_balancing_loss(whole, routing.indices);
    mul(loss, 0.25).backward();
    const auto stage_of = [](const TensorList& all, std::ptrdiff_t stage) {
      return TensorList(all.begin() + 2 * stage, all.begin() + 2 * stage + 2);
    };
    const Tensor load =
        expert_load(stage_of(routing.indices, 0), 5) + expert_load(stage_of(routing.indices, 1), 5);
    double total = 0;
    for (std::ptrdiff_t stage = 0; stage < 2; ++stage) {
      Tensor share;
      for (const auto& logits : stage_of(parts, stage)) {
        const Tensor own = balance_share(logits, load, 4 * 6);
        share = share.defined() ? share + own : own;
      }
      mul(share, 0.25).backward();
      total += share.item();
    }
    EXPECT_NEAR(total, loss.item(), 1e-5);
    for (std::size_t layer = 0; layer < 4; ++layer) {
      EXPECT_TRUE(bitwise_equal(parts[layer].grad(), whole[layer].grad())) << layer;
    }
  }
}

TEST(LoadBalancingLoss, PoolsLayersInsteadOfAveragingTheirLosses) {
  const auto routing = random_routing(2, 6, 4, 2);
  const double pooled = load_balancing_loss(routing.logits, routing.indices).item();
  double mean = 0;
  for (const std::size_t layer : {0, 1}) {
    mean += load_balancing_loss({routing.logits[layer]}, {routing.indices[layer]}).item() / 2;
  }
  EXPECT_GT(std::abs(pooled - mean), 1e-3);
}

TEST(LoadBalancingLoss, PerfectBalanceGivesK) {
  // Four tokens, four experts, each chosen K times; uniform probabilities.
  const Tensor logits = Tensor::zeros({4, 4}, Dtype::kFloat64);
  const Tensor one = indices_of({0, 1, 2, 3}, {4, 1});
  const Tensor two = indices_of({0, 1, 1, 2, 2, 3, 3, 0}, {4, 2});
  EXPECT_DOUBLE_EQ(load_balancing_loss({logits}, {one}).item(), 1);
  EXPECT_DOUBLE_EQ(load_balancing_loss({logits}, {two}).item(), 2);
  EXPECT_DOUBLE_EQ(load_balancing_loss({logits, logits, logits}, {two, two, two}).item(), 2);
  EXPECT_TRUE(all_close(run({{logits}, {two}}).grads[0], Tensor::zeros({4, 4}), 0, 1e-17));
}

TEST(LoadBalancingLoss, OneExpertForAllTokensGivesTheNumberOfExperts) {
  Tensor logits = Tensor::zeros({3, 4}, Dtype::kFloat64);
  for (const std::size_t t : {0, 1, 2}) logits.mutable_data<double>()[t * 4 + 2] = 1000;
  EXPECT_DOUBLE_EQ(load_balancing_loss({logits}, {indices_of({2, 2, 2}, {3, 1})}).item(), 4);
}

TEST(LoadBalancingLoss, EveryExpertChosenGivesKAndNoGradient) {
  const auto routing = random_routing(2, 6, 4, 4);
  const auto result = run(routing);
  EXPECT_NEAR(result.loss.item(), 4, 1e-14);
  for (const auto& grad : result.grads) {
    EXPECT_TRUE(all_close(grad, Tensor::zeros({6, 4}), 0, 1e-15));
  }
}

TEST(LoadBalancingLoss, GradientsMatchFiniteDifferences) {
  const auto routing = random_routing(2, 5, 4, 2);
  for (const Tensor& mask : {Tensor(), values_of({1, 0, 0.25, 2, 1})}) {
    const auto f = [&](const TensorList& in) {
      return TensorList{load_balancing_loss(in, routing.indices, mask)};
    };
    EXPECT_TRUE(moegrad::gradients_agree(f, {variable({5, 4}, 1), variable({5, 4}, 2)}));
    EXPECT_TRUE(moegrad::gradients_agree(f, {randn({5, 4}, 1), variable({5, 4}, 2)}));
  }
}

TEST(LoadBalancingLoss, WeighsTokensByTheMask) {
  const auto routing = random_routing(2, 5, 4, 2);
  const std::vector<double> mask{1, 0, 0.25, 2, 1};
  EXPECT_NEAR(load_balancing_loss(routing.logits, routing.indices, values_of(mask)).item(),
              reference(routing, mask), 1e-14);
  const Tensor ones = Tensor::ones({5}, Dtype::kFloat64);
  EXPECT_TRUE(bitwise_equal(load_balancing_loss(routing.logits, routing.indices, ones),
                            load_balancing_loss(routing.logits, routing.indices)));
}

TEST(LoadBalancingLoss, AMaskedTokenIsAsIfAbsent) {
  auto routing = random_routing(2, 5, 4, 2);
  Routing shorter;
  for (const std::size_t layer : {0, 1}) {
    shorter.logits.push_back(clone(narrow(routing.logits[layer], 0, 0, 4)));
    shorter.indices.push_back(clone(narrow(routing.indices[layer], 0, 0, 4)));
    routing.logits[layer].mutable_data<double>()[4 * 4] = std::nan("");
  }
  const auto masked = run(routing, values_of({1, 1, 1, 1, 0}));
  const auto expected = run(shorter);
  EXPECT_TRUE(bitwise_equal(masked.loss, expected.loss));
  for (const std::size_t layer : {0, 1}) {
    EXPECT_TRUE(bitwise_equal(narrow(masked.grads[layer], 0, 0, 4), expected.grads[layer]));
    EXPECT_TRUE(all_close(narrow(masked.grads[layer], 0, 4, 1), Tensor::zeros({1, 4}), 0, 0));
  }
}

TEST(LoadBalancingLoss, NoTokensOrNoWeightGiveZero) {
  const auto empty = run({{Tensor::zeros({0, 4})}, {Tensor::empty({0, 2}, Dtype::kInt64)}});
  EXPECT_EQ(empty.loss.item(), 0);
  EXPECT_EQ(empty.grads[0].shape(), (Shape{0, 4}));
  const auto masked = run(random_routing(1, 3, 4, 2), Tensor::zeros({3}, Dtype::kFloat64));
  EXPECT_EQ(masked.loss.item(), 0);
  EXPECT_TRUE(all_close(masked.grads[0], Tensor::zeros({3, 4}), 0, 0));
}

TEST(LoadBalancingLoss, HoldsForMoreLayersThanAFunctionHasInputs) {
  const auto routing = random_routing(94, 3, 4, 2);
  const auto result = run(routing);
  EXPECT_NEAR(result.loss.item(), reference(routing, {1, 1, 1}), 1e-12);
  for (const auto& grad : result.grads) EXPECT_TRUE(grad.defined());
}

TEST(LoadBalancingLoss, Float32IsCloseToFloat64) {
  const auto wide = run(random_routing(3, 64, 33, 4));
  const auto narrow = run(random_routing(3, 64, 33, 4, Dtype::kFloat32));
  EXPECT_EQ(narrow.loss.dtype(), Dtype::kFloat32);
  EXPECT_TRUE(all_close(narrow.loss, wide.loss, 1e-6, 0));
  for (const std::size_t layer : {0, 1, 2}) {
    EXPECT_TRUE(all_close(narrow.grads[layer], wide.grads[layer], 1e-5, 1e-8));
  }
}

TEST(LoadBalancingLoss, TakesStridedInputs) {
  const auto routing = random_routing(1, 5, 4, 2);
  const auto strided = [](const Tensor& x) {
    return transpose(contiguous(transpose(x, 0, 1)), 0, 1);
  };
  const Tensor mask = randn({5}, 9);
  Tensor positive = clone(mask);
  for (auto& value : positive.mutable_data<double>()) value = std::abs(value);
  Tensor wide = Tensor::zeros({5, 2}, Dtype::kFloat64);
  for (std::size_t t = 0; t < 5; ++t) {
    wide.mutable_data<double>()[2 * t] = positive.data<double>()[t];
  }
  const auto dense = run(routing, positive);
  const auto got = run({{strided(routing.logits[0])}, {strided(routing.indices[0])}},
                       squeeze(narrow(wide, 1, 0, 1), 1));
  EXPECT_TRUE(bitwise_equal(got.loss, dense.loss));
  EXPECT_TRUE(bitwise_equal(got.grads[0], dense.grads[0]));
}

TEST(LoadBalancingLoss, GivesTheSameBitsWithThreeThreads) {
  const auto routing = random_routing(2, 700, 24, 3, Dtype::kFloat32);
  const auto one = run(routing);
  RankContext::current().set_threads(3);
  const auto three = run(routing);
  RankContext::current().set_threads(1);
  EXPECT_TRUE(bitwise_equal(three.loss, one.loss));
  EXPECT_TRUE(bitwise_equal(three.grads[0], one.grads[0]));
  EXPECT_TRUE(bitwise_equal(three.grads[1], one.grads[1]));
}

TEST(LoadBalancingLoss, RejectsLayersThatDoNotFit) {
  const Tensor logits = randn({3, 4}), indices = indices_of({0, 1, 2, 3, 0, 1}, {3, 2});
  const auto message = [&](const TensorList& all_logits, const TensorList& all_indices,
                           const Tensor& mask = {}) {
    return message_of<ShapeError>([&] { load_balancing_loss(all_logits, all_indices, mask); });
  };
  EXPECT_EQ(message({}, {}),
            "load_balancing_loss: needs logits and indices of at least one layer, got 0 and 0");
  EXPECT_EQ(message({logits, logits}, {indices}),
            "load_balancing_loss: needs logits and indices of at least one layer, got 2 and 1");
  EXPECT_EQ(message({randn({4})}, {indices}),
            "load_balancing_loss: logits must be [T, E], got [4]");
  EXPECT_EQ(message({logits, randn({3, 5})}, {indices, indices}),
            "load_balancing_loss: logits of layer 1 must be [3, 4] as in layer 0, got [3, 5]");
  EXPECT_EQ(message({logits, logits}, {indices, indices_of({0, 1, 2}, {3, 1})}),
            "load_balancing_loss: indices of layer 1 must be [T, K] with T = 3 and one K for all "
            "layers, got [3, 1]");
  EXPECT_EQ(message({logits}, {indices_of({0, 1, 2}, {3})}),
            "load_balancing_loss: indices of layer 0 must be [T, K] with T = 3 and one K for all "
            "layers, got [3]");
  EXPECT_EQ(message({logits}, {indices}, randn({2})),
            "load_balancing_loss: token_mask must be [3], got [2]");
}

TEST(LoadBalancingLoss, RejectsOtherTypes) {
  const Tensor logits = randn({3, 4}), indices = indices_of({0, 1, 2, 3, 0, 1}, {3, 2});
  const auto message = [&](const TensorList& all_logits, const TensorList& all_indices,
                           const Tensor& mask = {}) {
    return message_of<DtypeError>([&] { load_balancing_loss(all_logits, all_indices, mask); });
  };
  EXPECT_EQ(message({Tensor::zeros({3, 4}, Dtype::kInt64)}, {indices}),
            "load_balancing_loss: logits must be float32 or float64, got int64");
  EXPECT_EQ(message({logits, Tensor::zeros({3, 4})}, {indices, indices}),
            "load_balancing_loss: logits of layer 1 must be float64 as in layer 0, got float32");
  EXPECT_EQ(message({logits}, {Tensor::zeros({3, 2})}),
            "load_balancing_loss: indices of layer 0 must be int64, got float32");
  EXPECT_EQ(message({logits}, {indices}, Tensor::ones({3})),
            "load_balancing_loss: logits are float64 but token_mask is float32");
}

TEST(LoadBalancingLoss, RejectsIndicesAndWeightsOutOfRange) {
  const Tensor logits = randn({3, 4}), indices = indices_of({0, 1, 2, 3, 0, 1}, {3, 2});
  const Tensor wrong = indices_of({0, 1, 2, 4, 0, 1}, {3, 2});
  EXPECT_EQ(message_of<ValueError>([&] {
              load_balancing_loss({logits, logits}, {indices, wrong});
            }),
            "load_balancing_loss: expert index must be in [0, 4), got 4 at token 1 of layer 1");
  EXPECT_EQ(message_of<ValueError>([&] {
              load_balancing_loss({logits}, {indices}, values_of({1, 1, -0.5}));
            }),
            "load_balancing_loss: token_mask must be finite and not negative, got -0.5 at token 2");
  EXPECT_EQ(message_of<ValueError>([&] {
              load_balancing_loss({logits}, {indices},
                                  values_of({1, std::numeric_limits<double>::infinity(), 1}));
            }),
            "load_balancing_loss: token_mask must be finite and not negative, got inf at token 1");
}

TEST(ZLoss, IsTheMeanSquareOfLogSumExp) {
  for (const Shape& shape : {Shape{1, 1}, Shape{5, 3}, Shape{9, 40}}) {
    const Tensor logits = randn(shape);
    const auto x = logits.data<double>();
    double expected = 0;
    for (std::size_t t = 0; t < static_cast<std::size_t>(shape[0]); ++t) {
      double total = 0;
      for (std::size_t e = 0; e < static_cast<std::size_t>(shape[1]); ++e) {
        total += std::exp(x[t * static_cast<std::size_t>(shape[1]) + e]);
      }
      expected += std::log(total) * std::log(total) / static_cast<double>(shape[0]);
    }
    const Tensor loss = z_loss(logits);
    EXPECT_EQ(loss.shape(), Shape{});
    EXPECT_NEAR(loss.item(), expected, 1e-13);
    EXPECT_NEAR(z_loss(randn(shape, 1, Dtype::kFloat32)).item(), expected, 1e-5);
  }
}

TEST(ZLoss, GradientsMatchFiniteDifferences) {
  const auto f = [](const TensorList& in) { return TensorList{z_loss(in[0])}; };
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({5, 4})}));
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({1, 1})}));
}

TEST(ZLoss, NoTokensGiveZero) {
  Tensor logits = Tensor::zeros({0, 4});
  logits.set_requires_grad(true);
  const Tensor loss = z_loss(logits);
  loss.backward();
  EXPECT_EQ(loss.item(), 0);
  EXPECT_EQ(logits.grad().shape(), (Shape{0, 4}));
}

TEST(ZLoss, TakesStridedLogits) {
  const Tensor logits = transpose(randn({4, 5}), 0, 1);
  EXPECT_TRUE(bitwise_equal(z_loss(logits), z_loss(contiguous(logits))));
}

TEST(ZLoss, RejectsOtherShapesAndTypes) {
  EXPECT_EQ(message_of<ShapeError>([] { z_loss(randn({4})); }),
            "z_loss: logits must be [T, E], got [4]");
  EXPECT_EQ(message_of<DtypeError>([] {
              z_loss(Tensor::zeros({2, 4}, Dtype::kInt64));
            }),
            "z_loss: logits must be float32 or float64, got int64");
}

TEST(RouterEntropy, AMaskedExpertHasNoShare) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor logits = Tensor::from<float>({2, 1, -infinity, 0}, {1, 4});
  EXPECT_NEAR(router_entropy(logits), 0.832395582, 1e-7);
  const Tensor one_left = Tensor::from<float>({-infinity, -5, -infinity, -infinity}, {1, 4});
  EXPECT_EQ(router_entropy(one_left), 0);
}

}  // namespace
}  // namespace moegrad::ops::aux_loss_test
