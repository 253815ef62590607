// SPDX-License-Identifier: Apache-2.0
#include "models/matrix_parameters.h"

#include "models/causal_lm/model.h"
#include "nn/embedding.h"
#include "optim/muon.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::matrix_parameters_test {
namespace {

using Names = std::vector<std::string>;

CausalLMConfig config_with(nn::ExpertWeights weights) {
  CausalLMConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.intermediate_size = 6;
  config.moe_intermediate_size = 3;
  config.num_experts = 5;
  config.num_experts_per_tok = 2;
  config.expert_weights = weights;
  return config;
}

Names names_of(const NamedTensors& parameters) {
  Names names;
  for (const auto& [name, tensor] : parameters) names.push_back(name);
  return names;
}

TEST(MatrixParameters, AreSortedByHuggingFacesNames) {
  const CausalLM model(config_with(nn::ExpertWeights::kPretransposed), 1);
  const auto sorted = matrix_parameters(model);
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(names_of(sorted.embedding), Names{"model.embed_tokens.weight"});
  EXPECT_EQ(names_of(sorted.head), Names{"lm_head.weight"});
  EXPECT_EQ(names_of(sorted.router), Names{layer + "mlp.gate.weight"});
  EXPECT_EQ(names_of(sorted.matrices),
            (Names{layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight",
                   layer + "self_attn.v_proj.weight", layer + "self_attn.o_proj.weight",
                   layer + "mlp.experts.gate_up_proj", layer + "mlp.experts.down_proj"}));
  EXPECT_EQ(sorted.vectors.size(), 5U);  // norms
  const auto all = sorted.matrices.size() + sorted.vectors.size() + 3;
  EXPECT_EQ(all, model.named_parameters().size());
}

TEST(MatrixParameters, OfEveryModelTypeAreAllSorted) {
  for (const auto type : test::kModelTypes) {
    const CausalLM model(test::toy_config_of(type));
    const auto sorted = matrix_parameters(model);
    EXPECT_EQ(sorted.matrices.size() + sorted.embedding.size() + sorted.head.size() +
                  sorted.router.size() + sorted.vectors.size(),
              model.named_parameters().size());
    for (const auto& name : names_of(sorted.matrices)) {
      EXPECT_TRUE(name.ends_with("_proj.weight") || name.ends_with("_proj")) << name;
    }
    for (const auto& [name, tensor] : sorted.vectors) {
      EXPECT_TRUE(name.ends_with(".bias") || name.ends_with("norm.weight")) << name;
    }
    const auto gates = type == ModelType::kQwen2Moe ? 2U : 1U;  // with that of the shared expert
    EXPECT_EQ(sorted.router.size(),
              gates * static_cast<std::size_t>(model.config().num_moe_layers()));
  }
}

TEST(MatrixParameters, DescribeTheExpertsInEitherOrientation) {
  for (const bool transposed : {false, true}) {
    const CausalLM model(config_with(transposed ? nn::ExpertWeights::kPretransposed
                                                : nn::ExpertWeights::kHuggingFace),
                         1);
    const auto stacked = stacked_matrices(model);
    ASSERT_EQ(stacked.size(), 2U);
    const auto expect = [&](const std::string& projection, std::int64_t parts) {
      const auto& found = stacked.at("model.layers.0.mlp.experts." + projection);
      EXPECT_EQ(found.blocks, 5);
      EXPECT_EQ(found.parts, parts);
      EXPECT_EQ(found.transposed, transposed);
      const auto same =
          matrix_parameters(model).stacked.at("model.layers.0.mlp.experts." + projection);
      EXPECT_EQ(same.count(), found.count());
    };
    expect("gate_up_proj", 2);
    expect("down_proj", 1);
  }
}

/// A linear layer whose name ends as that of a router does.
class Aggregating final : public nn::Module {
 public:
  Aggregating() : aggregate_({.in_features = 2, .out_features = 3}) {
    register_module("aggregate", aggregate_);
  }

 private:
  nn::Linear aggregate_;
};

TEST(MatrixParameters, TakeNamesAsWholes) {
  const Aggregating module;
  const auto sorted = matrix_parameters(module);
  EXPECT_TRUE(sorted.router.empty());
  EXPECT_EQ(names_of(sorted.matrices), std::vector<std::string>{"aggregate.weight"});
}

TEST(MatrixParameters, RefuseAMatrixOfUnknownUse) {
  const nn::Embedding table({.num_embeddings = 3, .embedding_dim = 2});
  EXPECT_EQ(
      test::message_of<ValueError>([&] { matrix_parameters(table); }),
      "matrix_parameters: 'weight' must be the weight of a linear layer, an embedding, a head "
      "or a router");
  EXPECT_TRUE(stacked_matrices(table).empty());
}

}  // namespace
}  // namespace moegrad::models::matrix_parameters_test
