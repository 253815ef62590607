// SPDX-License-Identifier: Apache-2.0
#include "models/plain_moe.h"

#include <algorithm>
#include <string>

#include "nn/init.h"
#include "tests/testing.h"

namespace moegrad::models::plain_moe_test {
namespace {

using namespace test;

constexpr std::int64_t kHidden = 6, kTokens = 9;

struct Results {
  nn::MoE::Output output;
  NamedTensors gradients;
};

/// Outputs, and the gradients of x and of all parameters, from the same cotangent.
template <class Forward>
Results run(nn::MoE& moe, const Forward& forward) {
  moe.zero_grad();
  const Tensor x = variable({kTokens, kHidden}, 3);
  Results results{.output = forward(x), .gradients = {}};
  results.output.hidden.backward(randn({kTokens, kHidden}, 4));
  results.gradients.push_back({"x", x.grad()});
  for (const auto& [name, parameter] : moe.named_parameters()) {
    results.gradients.push_back({name, parameter.grad()});
  }
  return results;
}

void expect_alike(const nn::MoE::Config& config, const std::string& what) {
  nn::MoE moe(config);
  nn::init_weights(moe, 2, 0.7);
  auto tensors = moe.named_parameters();
  for (const auto& [name, buffer] : moe.named_buffers()) {
    Tensor bias = buffer.detach();
    copy_(bias, randn(bias.shape(), 7, bias.dtype()));
    tensors.push_back({name, buffer});
  }
  const auto named = [&](const std::string& name) {
    return std::ranges::find(tensors, name, &NamedTensor::name)->tensor;
  };
  const auto fused = run(moe, [&](const Tensor& x) { return moe(x); });
  const auto plain = run(moe, [&](const Tensor& x) { return plain_moe(config, named, x); });
  EXPECT_TRUE(bitwise_equal(plain.output.expert_indices, fused.output.expert_indices)) << what;
  EXPECT_EQ(plain.output.tokens_per_expert, fused.output.tokens_per_expert) << what;
  EXPECT_TRUE(all_close(plain.output.hidden, fused.output.hidden, 1e-12, 1e-13)) << what;
  EXPECT_TRUE(all_close(plain.output.router_logits, fused.output.router_logits, 1e-12, 1e-13));
  EXPECT_TRUE(all_close(plain.output.routing_weights, fused.output.routing_weights, 1e-12, 1e-13));
  for (std::size_t i = 0; i < fused.gradients.size(); ++i) {
    EXPECT_TRUE(all_close(plain.gradients[i].tensor, fused.gradients[i].tensor, 1e-11, 1e-12))
        << what << ", gradient of " << fused.gradients[i].name;
  }
}

TEST(PlainMoE, ComputesWhatTheMixtureDoesForEveryKindOfRouterAndSharedExpert) {
  for (const auto scores : {nn::RouterScores::kSoftmax, nn::RouterScores::kSigmoid}) {
    for (const std::int64_t topk_groups : {1, 3}) {
      for (const bool normalize : {false, true}) {
        for (const std::int64_t shared : {0, 4}) {
          for (const bool more : {false, true}) {
            expect_alike({.hidden_size = kHidden,
                          .intermediate_size = 5,
                          .num_experts = 12,
                          .top_k = 3,
                          .norm_topk_prob = normalize,
                          .scores = scores,
                          .num_groups = 3,
                          .topk_groups = topk_groups,
                          .routed_scaling_factor = more ? 2.5 : 1,
                          .correction_bias = more,
                          .shared_intermediate_size = shared,
                          .shared_expert_gate = more && shared > 0,
                          .expert_weights = nn::ExpertWeights::kHuggingFace,
                          .dtype = Dtype::kFloat64},
                         "scores " + std::to_string(static_cast<int>(scores)) + ", groups " +
                             std::to_string(topk_groups) + ", normalize " +
                             std::to_string(normalize) + ", shared " + std::to_string(shared) +
                             ", bias " + std::to_string(more));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace moegrad::models::plain_moe_test
