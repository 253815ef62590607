// SPDX-License-Identifier: Apache-2.0
// What each layer rounds in compute_in(bfloat16): the bits of ops on operands that are cast.
#include "framework/autograd/dropout_ids.h"
#include "framework/runtime/rank_context.h"
#include "nn/experts.h"
#include "nn/init.h"
#include "nn/jitter.h"
#include "nn/linear.h"
#include "nn/moe.h"
#include "nn/rms_norm.h"
#include "nn/router.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/grouped_matmul.h"
#include "ops/linear.h"
#include "ops/npu_gmm.h"
#include "ops/swiglu.h"
#include "tests/testing.h"

namespace moegrad::nn::compute_in_test {
namespace {

using namespace test;

constexpr auto kNarrow = Dtype::kBFloat16, kWide = Dtype::kFloat32;

Tensor rows(const Shape& shape, std::uint64_t seed = 1) { return randn(shape, seed, kWide, true); }
Tensor narrow(const Tensor& x) { return ops::cast(x, kNarrow); }

TEST(ComputeIn, LinearRoundsItsOperandsTheProductAndTheSumWithTheBias) {
  for (const bool bias : {false, true}) {
    Linear linear({.in_features = 40, .out_features = 9, .bias = bias});
    init_weights(linear, 1, 1.0);
    if (bias) init_parameter(linear, "bias", InitialValues::normal(1.0), 2);
    linear.compute_in(kNarrow);
    const Tensor x = rows({5, 40}), y = linear(x), cotangent = narrow(randn({5, 9}, 3, kWide));
    Tensor expected = ops::linear(narrow(x), narrow(linear.weight()));
    if (bias) expected = narrow(ops::widened(expected) + linear.bias());
    EXPECT_TRUE(bitwise_equal(y, expected));
    const auto grads_of = [&](const Tensor& result) {
      TensorList inputs{x};
      for (const auto& [name, parameter] : linear.named_parameters()) inputs.push_back(parameter);
      for (const auto& input : inputs) input.set_grad({});
      result.backward(cotangent);
      TensorList grads;
      for (const auto& input : inputs) grads.push_back(input.grad());
      return grads;
    };
    const auto got = grads_of(y), wanted = grads_of(expected);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(bitwise_equal(got[i], wanted[i])) << i;
  }
}

TEST(ComputeIn, NormsRoundTheirResultsAndNotTheSumOfTheResidualStream) {
  RMSNorm norm({.dim = 8});
  init_parameter(norm, "weight", InitialValues::normal(1.0), 2);
  const Tensor x = rows({6, 8}), residual = rows({6, 8}, 2), heads = rows({3, 2, 8}, 3);
  const auto add = [](RMSNorm& self, const Tensor& a, const Tensor& b) { return self.add(a, b); };
  const auto by_heads = [](RMSNorm& self, const Tensor& a) { return self.by_heads(a); };
  const Tensor wide = norm(x), wide_heads = norm.call_method(by_heads, heads);
  const auto wide_sum = norm.call_method(add, ops::widened(narrow(x)), residual);
  norm.compute_in(kNarrow);
  EXPECT_TRUE(bitwise_equal(norm(x), narrow(wide)));
  EXPECT_TRUE(bitwise_equal(norm.call_method(by_heads, heads), narrow(wide_heads)));
  const auto sum = norm.call_method(add, narrow(x), residual);
  EXPECT_TRUE(bitwise_equal(sum.sum, wide_sum.sum));
  EXPECT_TRUE(bitwise_equal(sum.normed, narrow(wide_sum.normed)));
}

// Logits that are rounded would choose other experts.
TEST(ComputeIn, ARouterComputesInFloat32) {
  for (const bool correction : {false, true}) {
    Router router({.hidden_size = 40, .num_experts = 6, .top_k = 2, .correction_bias = correction});
    init_weights(router, 1, 1.0);
    const Tensor x = narrow(rows({7, 40}));
    const auto wide = router(ops::widened(x));
    router.compute_in(kNarrow);
    for (const auto& given : {x, ops::widened(x)}) {
      const auto output = router(given);
      EXPECT_TRUE(bitwise_equal(output.logits, wide.logits));
      EXPECT_TRUE(bitwise_equal(output.weights, wide.weights));
      EXPECT_TRUE(bitwise_equal(output.indices, wide.indices));
    }
  }
}

// And pack each weight for their forward product, which then packs none.
TEST(ComputeIn, ExpertsRoundOperandsAndResultsInEitherOrientation) {
  RankContext context{RankContext::Options{}};
  const RankContextGuard guard(context);
  const ops::RowGroups groups(1, {4, 5});
  for (const auto weights : {ExpertWeights::kPretransposed, ExpertWeights::kHuggingFace}) {
    GroupedExperts experts(
        {.hidden_size = 20, .intermediate_size = 12, .num_experts = 2, .weights = weights});
    init_weights(experts, 1, 0.5);
    experts.compute_in(kNarrow);
    const Tensor x = rows({9, 20}), p = rows({9}, 2);
    const auto packs = [&] {
      return context.counters().packed_panels + context.counters().transposed_packs;
    };
    const auto before = packs();
    const Tensor y = experts(x, p, groups);
    EXPECT_EQ(packs(), before);
    const auto project = [&](const Tensor& in, std::size_t i) {
      const Tensor weight = narrow(experts.named_parameters()[i].tensor);
      if (weights == ExpertWeights::kHuggingFace) {
        return ops::grouped_matmul(narrow(in), weight, groups, /*transpose_weight=*/true);
      }
      return ops::npu_gmm(weight, narrow(in), groups);
    };
    EXPECT_TRUE(bitwise_equal(y, project(ops::swiglu(project(x, 0), p), 1)));
  }
}

TEST(ComputeIn, TheGateOfASharedExpertIsASigmoidOfFloat32AndRounded) {
  MoE moe({.hidden_size = 6,
           .intermediate_size = 5,
           .num_experts = 4,
           .top_k = 2,
           .shared_intermediate_size = 7,
           .shared_expert_gate = true});
  init_weights(moe, 2, 0.7);
  moe.compute_in(kNarrow);
  const Tensor x = rows({4, 6});
  const auto parameters = moe.named_parameters();
  const auto project = [&](const Tensor& in, std::size_t i) {
    return ops::linear(narrow(in), narrow(parameters[i].tensor));
  };
  const Tensor y = project(ops::silu(project(x, 3)) * project(x, 4), 5);
  const Tensor gate = ops::sigmoid(ops::widened(project(x, 6)));
  EXPECT_TRUE(bitwise_equal(moe.shared(x), narrow(gate) * y));
}

TEST(ComputeIn, JitterIsComputedInFloat32AndRounded) {
  const Jitter::Config config{.noise = 0.1};
  Jitter jitter(config);
  const Tensor x = narrow(rows({4, 6}));
  const auto varied = [&](const Tensor& given) {
    const DropoutIdsGuard guard({.seed = 1, .step = 3, .token_ids = Tensor::arange(4)});
    return jitter(given);
  };
  EXPECT_TRUE(bitwise_equal(varied(x), narrow(varied(ops::widened(x)))));
}

}  // namespace
}  // namespace moegrad::nn::compute_in_test
