// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/plain.h"

#include <algorithm>
#include <functional>
#include <string>

#include "models/plain_moe.h"
#include "tests/models/causal_lm/expert_layouts.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::causal_lm_plain_test {
namespace {

using namespace test;

struct Case {
  std::string name;
  std::function<void(CausalLMConfig&)> change;
  std::vector<std::int64_t> lengths = {5, 8};
};

class PlainPath : public ::testing::TestWithParam<Case> {};

TEST_P(PlainPath, AgreesWithTheOptimisedPathInEverything) {
  auto config = toy_config();
  GetParam().change(config);
  const auto batch = toy_batch(config.vocab_size, GetParam().lengths);
  CausalLM model(config, 7), plain(test::hugging_face_oriented(config), 7);
  test::jitter_norms(model);
  test::jitter_norms(plain);
  test::draw_biases(model);
  test::draw_biases(plain);
  const CausalLM::ForwardOptions options = {.output_hidden_states = true};
  const auto optimised = gradients_of(model, batch, options);

  const auto parameters = plain.named_parameters();
  const auto tensors = plain_tensors(plain);
  const auto output = plain_causal_lm(config, tensors, batch.tokens, batch.documents, options);
  const auto loss = plain_causal_lm_loss(output, batch.targets, 12, config.router_aux_loss_coef);
  loss.objective.backward();

  constexpr double kTolerance = 1e-10;
  EXPECT_TRUE(all_close(optimised.output.logits, output.logits, kTolerance, kTolerance));
  ASSERT_EQ(output.router_logits.size(), static_cast<std::size_t>(config.num_moe_layers()));
  ASSERT_EQ(optimised.output.router_logits.size(), output.router_logits.size());
  for (std::size_t i = 0; i < output.router_logits.size(); ++i) {
    EXPECT_TRUE(all_close(optimised.output.router_logits[i], output.router_logits[i], kTolerance,
                          kTolerance));
    EXPECT_TRUE(test::bitwise_equal(optimised.output.expert_indices[i], output.expert_indices[i]));
    EXPECT_TRUE(all_close(optimised.output.routing_weights[i], output.routing_weights[i],
                          kTolerance, kTolerance));
  }
  ASSERT_EQ(output.hidden_states.size(), static_cast<std::size_t>(config.num_hidden_layers + 1));
  for (std::size_t i = 0; i < output.hidden_states.size(); ++i) {
    EXPECT_TRUE(all_close(optimised.output.hidden_states[i], output.hidden_states[i], kTolerance,
                          kTolerance));
  }
  EXPECT_EQ(optimised.output.tokens_per_expert, output.tokens_per_expert);
  EXPECT_NEAR(optimised.loss.ce_sum.item(), loss.ce_sum.item(), kTolerance);
  EXPECT_NEAR(optimised.loss.aux.item(), loss.aux.item(), kTolerance);
  EXPECT_NEAR(optimised.loss.objective.item(), loss.objective.item(), kTolerance);

  const auto slots = model.parameter_slots();
  ASSERT_EQ(optimised.parameters.size(), parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, grad] = optimised.parameters[i];
    ASSERT_EQ(name, parameters[i].name);
    const auto slot = std::ranges::find(slots, name, &nn::ParameterSlot::name);
    EXPECT_TRUE(all_close(test::to_hugging_face(grad, slot->layout), parameters[i].tensor.grad(),
                          kTolerance, kTolerance))
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    CausalLM, PlainPath,
    ::testing::Values(
        Case{"Toy", [](CausalLMConfig& /*config*/) {}},
        Case{"TopOne", [](CausalLMConfig& config) { config.num_experts_per_tok = 1; }},
        Case{"AllExperts", [](CausalLMConfig& config) { config.num_experts_per_tok = 5; }},
        Case{"MultiHead", [](CausalLMConfig& config) { config.num_key_value_heads = 4; }},
        Case{"MultiQuery", [](CausalLMConfig& config) { config.num_key_value_heads = 1; }},
        Case{"MixtureEverySecondLayer",
             [](CausalLMConfig& config) {
               config.num_hidden_layers = 4;
               config.decoder_sparse_step = 2;
             }},
        Case{"DenseFirstLayer", [](CausalLMConfig& config) { config.mlp_only_layers = {0}; }},
        Case{"NoExperts", [](CausalLMConfig& config) { config.num_experts = 0; }},
        Case{"Tied", [](CausalLMConfig& config) { config.tie_word_embeddings = true; }},
        Case{"WeightsNotNormalised", [](CausalLMConfig& config) { config.norm_topk_prob = false; }},
        Case{"MoreExpertsThanRows",
             [](CausalLMConfig& config) {
               config.num_experts = 40;
               config.num_experts_per_tok = 3;
             },
             {0, 3}},
        Case{"LargerSizes",
             [](CausalLMConfig& config) {
               config.hidden_size = 51;
               config.head_dim = 18;
               config.moe_intermediate_size = 35;
               config.rope_theta = 1e6;
               config.rms_norm_eps = 1e-3;
             },
             {0, 33, 34, 34, 70}},
        Case{"Qwen2Moe",
             [](CausalLMConfig& config) { config = toy_config_of(ModelType::kQwen2Moe); }},
        Case{"Mixtral",
             [](CausalLMConfig& config) { config = toy_config_of(ModelType::kMixtral); }},
        Case{"Glm4Moe",
             [](CausalLMConfig& config) { config = toy_config_of(ModelType::kGlm4Moe); }},
        Case{"Glm4MoeWithoutNorms",
             [](CausalLMConfig& config) {
               config = toy_config_of(ModelType::kGlm4Moe);
               config.use_qk_norm = config.qkv_bias = false;
               config.n_shared_experts = 0;
             }},
        Case{"OneToken", [](CausalLMConfig& /*config*/) {}, {0, 1}}),
    [](const ::testing::TestParamInfo<Case>& tested) { return tested.param.name; });

TEST(PlainPath, LeavesExpertsWithoutTokensWithZeroGradients) {
  auto config = test::hugging_face_oriented(toy_config());
  config.num_experts = 12;
  CausalLM model(config, 7);
  const auto batch = toy_batch(config.vocab_size, {3});
  const auto parameters = model.named_parameters();
  const auto output = plain_causal_lm(config, parameters, batch.tokens, batch.documents);
  EXPECT_EQ(std::ranges::count(output.tokens_per_expert[0], 0) >= 6, true);
  plain_causal_lm_loss(output, batch.targets, 2, 0.1).objective.backward();
  for (const auto& [name, parameter] : parameters) EXPECT_TRUE(parameter.grad().defined()) << name;
}

TEST(PlainPath, ReplaysGivenExperts) {
  const auto config = test::hugging_face_oriented(toy_config());
  CausalLM model(config, 7);
  const auto batch = toy_batch(config.vocab_size);
  TensorList chosen;
  for (int layer = 0; layer < 2; ++layer) {
    std::vector<std::int64_t> indices;
    for (std::int64_t t = 0; t < 13; ++t) {
      indices.push_back((t + layer) % 5);
      indices.push_back((t + layer + 2) % 5);
    }
    chosen.push_back(Tensor::from(indices, {13, 2}));
  }
  const CausalLM::ForwardOptions options = {.replay_expert_indices = chosen};
  const auto output =
      plain_causal_lm(config, model.named_parameters(), batch.tokens, batch.documents, options);
  EXPECT_TRUE(
      all_close(output.logits, model(batch.tokens, batch.documents, options).logits, 1e-10, 1e-10));
  EXPECT_TRUE(test::bitwise_equal(output.expert_indices[1], chosen[1]));
}

TEST(PlainPath, NamesAMissingParameter) {
  const auto config = test::hugging_face_oriented(toy_config());
  const auto batch = toy_batch(config.vocab_size);
  EXPECT_EQ(
      message_of<ValueError>([&] { plain_causal_lm(config, {}, batch.tokens, batch.documents); }),
      "plain_causal_lm: parameter 'model.embed_tokens.weight' must be given, got 0 others");
}

TEST(PlainPath, RejectsDocumentsOfOtherTokens) {
  const auto config = test::hugging_face_oriented(toy_config());
  const auto batch = toy_batch(config.vocab_size);
  EXPECT_EQ(message_of<ValueError>(
                [&] { plain_causal_lm(config, {}, batch.tokens, Documents::one(12)); }),
            "plain_causal_lm: documents must have the 13 tokens, got 12");
}

}  // namespace
}  // namespace moegrad::models::causal_lm_plain_test
