// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/config.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/testing.h"

namespace moegrad::models::causal_lm_config_test {
namespace {

using test::message_of;

/// The released models, by their config.json.
CausalLMConfig released(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                        std::int64_t moe_intermediate) {
  return {.hidden_size = hidden,
          .num_hidden_layers = layers,
          .num_attention_heads = heads,
          .head_dim = 128,
          .moe_intermediate_size = moe_intermediate};
}

TEST(CausalLMConfig, CountsTheParametersOfTheReleasedModels) {
  const auto small = released(48, 2048, 32, 768);
  EXPECT_EQ(parameter_count(small), 30'532'122'624);
  EXPECT_EQ(active_parameter_count(small), 3'353'032'704);
  const auto large = released(94, 4096, 64, 1536);
  EXPECT_EQ(parameter_count(large), 235'093'634'560);
  EXPECT_EQ(active_parameter_count(large), 22'190'763'520);
  const auto dense = CausalLMConfig::preset("qwen3-0.6b");
  EXPECT_EQ(parameter_count(dense), 596'049'920);
  EXPECT_EQ(active_parameter_count(dense), 596'049'920);
}

TEST(CausalLMConfig, CountsFloatingPointOperationsPerToken) {
  CausalLMConfig config = {.vocab_size = 10,
                           .hidden_size = 4,
                           .intermediate_size = 6,
                           .num_hidden_layers = 2,
                           .num_attention_heads = 2,
                           .num_key_value_heads = 1,
                           .head_dim = 2,
                           .mlp_only_layers = {1},
                           .moe_intermediate_size = 3,
                           .num_experts = 5,
                           .num_experts_per_tok = 2};
  // q, o: 16 each, k, v: 8 each; router 20 and 2 experts of 3 * 12; dense 3 * 24; head 40.
  const double weights = 2 * (16 + 16 + 8 + 8) + (20 + 2 * 36) + 72 + 40;
  // Per layer q k^T and p v over (7 + 1) / 2 tokens: 2 products, 2 operations, width 4, 3 passes.
  const double attention = 2 * (2 * 2 * 4 * 4.0) * 3;
  EXPECT_EQ(flops_per_token(config, 7), 6 * weights + attention);
  config.tie_word_embeddings = true;
  EXPECT_EQ(flops_per_token(config, 7), 6 * weights + attention);
}

TEST(CausalLMConfig, PresetsHaveTheSizesTheyPromise) {
  EXPECT_NEAR(static_cast<double>(parameter_count(CausalLMConfig::preset("tiny"))), 0.3e6, 0.05e6);
  EXPECT_NEAR(static_cast<double>(parameter_count(CausalLMConfig::preset("small"))), 1.85e6,
              0.05e6);
  EXPECT_NEAR(static_cast<double>(parameter_count(CausalLMConfig::preset("medium"))), 26.6e6, 1e6);
  EXPECT_NEAR(static_cast<double>(parameter_count(CausalLMConfig::preset("tiny-dense"))), 0.23e6,
              0.01e6);
  for (const auto* name : {"tiny", "small", "medium", "tiny-dense", "qwen3-0.6b"}) {
    EXPECT_NO_THROW(CausalLMConfig::preset(name).validate());
  }
  EXPECT_EQ(message_of<ValueError>([] { CausalLMConfig::preset("huge"); }),
            "model config: preset must be tiny, small, medium, qwen3-30b-a3b, qwen3-235b-a22b, "
            "qwen3-moe-600b, tiny-dense, qwen3-0.6b, tiny-qwen2-moe, tiny-mixtral or "
            "tiny-glm4-moe, got huge");
}

TEST(CausalLMConfig, FindsTheMixtureLayersAsHuggingFaceDoes) {
  CausalLMConfig config;
  config.num_hidden_layers = 6;
  config.decoder_sparse_step = 2;
  config.mlp_only_layers = {3};
  std::vector<std::int64_t> mixtures;
  for (std::int64_t i = 0; i < 6; ++i) {
    if (config.is_moe_layer(i)) mixtures.push_back(i);
  }
  EXPECT_THAT(mixtures, ::testing::ElementsAre(1, 5));
  EXPECT_EQ(config.num_moe_layers(), 2);
  config.num_experts = 0;
  EXPECT_EQ(config.num_moe_layers(), 0);
}

}  // namespace
}  // namespace moegrad::models::causal_lm_config_test
