// SPDX-License-Identifier: Apache-2.0
// What is particular to each model_type: keys, defaults, names, and what it refuses.
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>
#include <type_traits>

#include "models/causal_lm/config_json.h"
#include "models/causal_lm/family.h"
#include "models/causal_lm/hf_layout.h"
#include "models/causal_lm/model.h"
#include "tests/models/causal_lm/golden_data.h"
#include "tests/models/causal_lm/random_checkpoint.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::families_test {
namespace {

using namespace test;

std::string message_for(const std::string& json) {
  return message_of<ValueError>([&] { parse_model_config(json); });
}

/// What a small model of a type says if one field of it is another.
template <class T>
void refuses(ModelType type, T CausalLMConfig::*field, const std::type_identity_t<T>& value,
             const std::string& message) {
  auto config = toy_config_of(type);
  config.*field = value;
  EXPECT_EQ(message_of<ValueError>([&] { config.validate(); }),
            std::string(to_string(type)) + " config: " + message);
}

std::string described(const std::string& name, const Shape& shape) {
  std::ostringstream text;
  text << name << ' ' << shape;
  return text.str();
}

class Family : public ::testing::TestWithParam<ModelType> {};
INSTANTIATE_TEST_SUITE_P(ModelTypes, Family, ::testing::ValuesIn(test::kModelTypes));

TEST_P(Family, ComesBackFromItsJson) {
  for (const auto& config : {CausalLMConfig::of(GetParam()), toy_config_of(GetParam())}) {
    auto whole = config;

    EXPECT_EQ(parse_model_config(to_json(whole)), whole);
  }
}

TEST_P(Family, HasTheNamesAndShapesOfItsFiles) {
  auto config = toy_config_of(GetParam());
  const CausalLM model(config);
  std::set<std::string> names;
  for (const auto& slot : model.parameter_slots()) {
    for (const auto& piece :
         hugging_face_pieces(slot.name, slot.layout, slot.tensor->shape(), 0, slot.tensor->dim(0),
                             HfExperts::kPerExpert, family_of(config).names)) {
      names.insert(described(piece.name, piece.shape));
    }
  }
  for (const auto& buffer : model.named_buffers()) {
    names.insert(described(buffer.name, buffer.tensor.shape()));
  }
  std::set<std::string> expected;
  for (const auto& [name, tensor] : test::random_checkpoint(config)) {
    expected.insert(described(name, tensor.shape()));
  }
  EXPECT_EQ(names, expected);
}

TEST_P(Family, CountsItsParameters) {
  for (const bool tied : {false, true}) {
    auto config = toy_config_of(GetParam());
    config.tie_word_embeddings = tied;
    std::int64_t total = 0;
    for (const auto& [name, parameter] : CausalLM(config).named_parameters()) {
      total += parameter.numel();
    }
    EXPECT_EQ(parameter_count(config), total);
    auto active = config;
    const auto unused = config.num_moe_layers() *
                        (config.num_experts - config.num_experts_per_tok) * 3 * config.hidden_size *
                        config.moe_intermediate_size;
    EXPECT_EQ(active_parameter_count(config), total - unused);
  }
}

// Every weight of a matrix that multiplies the token, by a model of a single token's document.
TEST_P(Family, CountsItsOperations) {
  const auto config = toy_config_of(GetParam());
  double weights = 0;
  for (const auto& [name, parameter] : CausalLM(config).named_parameters()) {
    const bool multiplies = parameter.ndim() == 2 && !name.ends_with("embed_tokens.weight");
    const bool of_experts = name.find(".experts.") != name.npos;
    const double share = of_experts ? static_cast<double>(config.num_experts_per_tok) /
                                          static_cast<double>(config.num_experts)
                                    : 1.0;
    if (multiplies) weights += share * static_cast<double>(parameter.numel());
  }
  const auto width = config.num_hidden_layers * config.num_attention_heads * config.head_dim;
  EXPECT_DOUBLE_EQ(flops_per_token(config, 1), 6 * weights + 12.0 * static_cast<double>(width));
}

// By the configurations that transformers 5 wrote.
TEST(Families, ReadTheConfigurationsOfTransformers5) {
  const auto read = [](const char* name) {
    auto config = read_model_config((test::golden_folder() / "v5" / name / "config.json").string());
    EXPECT_EQ(parse_model_config(to_json(config)), config);
    EXPECT_EQ(config.other_keys.at("transformers_version"), "\"5.17.0\"");
    config.other_keys.clear();
    return config;
  };
  const auto of = [](ModelType type) {  // with the sizes that all of them have
    auto config = CausalLMConfig::of(type);
    config.vocab_size = 90;
    config.hidden_size = 40;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.num_key_value_heads = 2;
    config.max_position_embeddings = 256;
    return config;
  };
  auto mixtral = of(ModelType::kMixtral);
  mixtral.head_dim = 10;
  mixtral.moe_intermediate_size = 56;
  mixtral.num_experts = 6;
  EXPECT_EQ(read("mixtral"), mixtral);

  auto qwen2 = of(ModelType::kQwen2Moe);
  qwen2.intermediate_size = 64;
  qwen2.head_dim = 10;
  qwen2.moe_intermediate_size = 24;
  qwen2.shared_expert_intermediate_size = 48;
  qwen2.num_experts = 8;
  qwen2.num_experts_per_tok = 3;
  EXPECT_EQ(read("qwen2_moe"), qwen2);

  auto glm4 = of(ModelType::kGlm4Moe);
  glm4.intermediate_size = 64;
  glm4.head_dim = 12;
  glm4.use_qk_norm = true;
  glm4.moe_intermediate_size = 24;
  glm4.num_experts = 8;
  glm4.num_experts_per_tok = 2;
  glm4.n_group = 4;
  glm4.topk_group = 2;
  glm4.routed_scaling_factor = 1.5;
  glm4.num_nextn_predict_layers = 1;
  EXPECT_EQ(read("glm4_moe"), glm4);
}

TEST(Families, HaveTheDefaultsOfTheirClasses) {
  const auto mixtral =
      parse_model_config(R"({"model_type": "mixtral", "output_router_logits": true})");
  EXPECT_EQ(mixtral, CausalLMConfig::of(ModelType::kMixtral));
  EXPECT_EQ(mixtral.rms_norm_eps, 1e-5);
  EXPECT_EQ(mixtral.rope_theta, 1e6);
  EXPECT_EQ(mixtral.moe_intermediate_size, 14336);
  EXPECT_EQ(mixtral.num_experts, 8);
  EXPECT_EQ(mixtral.num_experts_per_tok, 2);
  EXPECT_EQ(mixtral.head_dim, 128);
  EXPECT_TRUE(mixtral.norm_topk_prob);
  EXPECT_FALSE(mixtral.use_qk_norm);
  EXPECT_EQ(mixtral.router_scores, nn::RouterScores::kSoftmax);
  const auto qwen2 =
      parse_model_config(R"({"model_type": "qwen2_moe", "output_router_logits": true})");
  EXPECT_EQ(qwen2, CausalLMConfig::of(ModelType::kQwen2Moe));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.norm_topk_prob);
  EXPECT_EQ(qwen2.shared_expert_intermediate_size, 5632);
  EXPECT_EQ(qwen2.num_experts, 60);
  EXPECT_EQ(qwen2.num_experts_per_tok, 4);
  EXPECT_EQ(qwen2.num_key_value_heads, 16);
  const auto glm4 = parse_model_config(R"({"model_type": "glm4_moe", "head_dim": 128})");
  EXPECT_EQ(glm4.partial_rotary_factor, 0.5);
  EXPECT_EQ(glm4.rotary_dim(), 64);
  EXPECT_EQ(glm4.router_scores, nn::RouterScores::kSigmoid);
  EXPECT_TRUE(glm4.correction_bias);
  EXPECT_EQ(glm4.n_shared_experts, 1);
  EXPECT_EQ(glm4.first_k_dense_replace, 1);
  EXPECT_EQ(glm4.router_aux_loss_coef, 0.0);
  EXPECT_FALSE(glm4.is_moe_layer(0));
  EXPECT_TRUE(glm4.is_moe_layer(1));
}

TEST(Families, ReadBothSpellings) {
  EXPECT_EQ(parse_model_config(R"({"model_type": "mixtral", "num_experts": 4})").num_experts, 4);
  EXPECT_EQ(parse_model_config(R"({"model_type": "glm4_moe", "head_dim": 8, "num_local_experts": 16,
                                   "rope_parameters": {"rope_theta": 5.0,
                                                       "partial_rotary_factor": 0.25}})")
                .rotary_dim(),
            2);
  EXPECT_EQ(parse_model_config(R"({"model_type": "glm4_moe", "head_dim": 8,
                                   "attention_bias": true})")
                .qkv_bias,
            true);
  EXPECT_EQ(parse_model_config(R"({"model_type": "mixtral", "num_attention_heads": 16,
                                   "num_key_value_heads": null})")
                .num_key_value_heads,
            16);
}

TEST(Families, RefuseKeysThatTheyDoNotHave) {
  const auto refused = [](const std::string& type, const std::string& key,
                          const std::string& wanted, const std::string& value) {
    const auto with = [&](const std::string& it) {
      return R"({"head_dim": 8, "model_type": ")" + type + R"(", ")" + key + "\": " + it + "}";
    };
    EXPECT_EQ(message_for(with(value)),
              type + " config: " + key + " must be " + wanted + ", got " + value);
    EXPECT_NO_THROW(parse_model_config(with(wanted))) << "what it is anyway: " << key;
  };
  refused("mixtral", "n_shared_experts", "0", "1");
  refused("mixtral", "norm_topk_prob", "true", "false");
  refused("mixtral", "sliding_window", "null", "4096");
  refused("mixtral", "shared_expert_intermediate_size", "0", "8");
  refused("mixtral", "mlp_only_layers", "[]", "[1]");
  refused("qwen2_moe", "router_jitter_noise", "0.0", "0.1");
  refused("qwen2_moe", "n_group", "1", "2");
  refused("qwen3_moe", "n_shared_experts", "0", "1");
  refused("qwen3_moe", "routed_scaling_factor", "1.0", "2.5");
  refused("qwen3_moe", "qkv_bias", "false", "true");
  refused("qwen3_moe", "use_qk_norm", "true", "false");
  refused("qwen3_moe", "shared_expert_intermediate_size", "0", "512");
  refused("glm4_moe", "decoder_sparse_step", "1", "2");
  refused("mixtral", "attention_bias", "false", "true");
  refused("qwen2_moe", "partial_rotary_factor", "1.0", "0.5");
  refused("qwen2_moe", "use_sliding_window", "false", "true");
}

TEST(Families, RefuseFilesOfAnotherClass) {
  EXPECT_EQ(message_for(R"({"model_type": "qwen3_moe", "router_jitter_noise": 0.1,
                            "architectures": ["MixtralForCausalLM"]})"),
            "qwen3_moe config: must have model_type \"mixtral\", for architectures has "
            "MixtralForCausalLM, got \"qwen3_moe\"");
  EXPECT_EQ(message_for(R"({"architectures": ["Glm4MoeForCausalLM"], "n_group": 2})"),
            "qwen3_moe config: must have model_type \"glm4_moe\", for architectures has "
            "Glm4MoeForCausalLM, got \"qwen3_moe\"");
  // A class that is none of these may have any of their configurations.
  EXPECT_NO_THROW(parse_model_config(
      R"({"model_type": "mixtral", "architectures": ["MixtralForSequenceClassification"]})"));
}

// The keys of https://huggingface.co/Qwen/Qwen3-Coder-480B-A35B-Instruct and of the model of 30B.
TEST(Families, ReadQwen3Coder) {
  const auto coder = [](const std::string& sizes) {
    return parse_model_config(sizes + R"(, "architectures": ["Qwen3MoeForCausalLM"],
      "attention_bias": false, "attention_dropout": 0.0, "decoder_sparse_step": 1,
      "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "initializer_range": 0.02,
      "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_moe",
      "norm_topk_prob": true, "num_experts_per_tok": 8, "output_router_logits": false,
      "qkv_bias": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000,
      "router_aux_loss_coef": 0.0, "shared_expert_intermediate_size": 0, "sliding_window": null,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.52.3",
      "use_cache": true, "use_qk_norm": true, "use_sliding_window": false,
      "vocab_size": 151936})");
  };
  const auto largest = coder(R"({"hidden_size": 6144, "intermediate_size": 8192,
      "max_window_layers": 62, "moe_intermediate_size": 2560, "num_attention_heads": 96,
      "num_experts": 160, "num_hidden_layers": 62, "num_key_value_heads": 8)");
  EXPECT_EQ(parameter_count(largest), 480'154'875'392);
  const auto small = coder(R"({"hidden_size": 2048, "intermediate_size": 5472,
      "max_window_layers": 28, "moe_intermediate_size": 768, "num_attention_heads": 32,
      "num_experts": 128, "num_hidden_layers": 48, "num_key_value_heads": 4)");
  EXPECT_EQ(parameter_count(small), 30'532'122'624);
  EXPECT_FALSE(largest.qkv_bias);
  EXPECT_TRUE(largest.use_qk_norm);
  EXPECT_EQ(largest.shared_expert_intermediate_size, 0);
}

TEST(Families, RefuseRoutersThatCannotChoose) {
  using Config = CausalLMConfig;
  const auto glm4 = ModelType::kGlm4Moe;
  refuses(glm4, &Config::n_group, 4, "n_group must be a divisor of n_routed_experts (6), got 4");
  refuses(glm4, &Config::n_group, 0, "n_group must be a divisor of n_routed_experts (6), got 0");
  refuses(glm4, &Config::topk_group, 4, "topk_group must be in [1, 3] (n_group), got 4");
  refuses(glm4, &Config::num_experts_per_tok, 5,
          "num_experts_per_tok must be at most the 4 experts of topk_group (2) groups, got 5");
  refuses(glm4, &Config::routed_scaling_factor, 0, "routed_scaling_factor must be > 0, got 0");
  refuses(glm4, &Config::n_shared_experts, -1,
          "n_shared_experts must be in [0, 2147483647], got -1");
  refuses(glm4, &Config::partial_rotary_factor, 0.4,
          "partial_rotary_factor must be such that head_dim (8) times it is even, got 0.4");
  refuses(glm4, &Config::partial_rotary_factor, 1.5,
          "partial_rotary_factor must be in (0, 1], got 1.5");
  refuses(glm4, &Config::num_experts, 0, "n_routed_experts must be >= 1, got 0");
  refuses(glm4, &Config::n_shared_experts, 2147483647,
          "n_shared_experts must be at most 2147483647 / moe_intermediate_size (11), got "
          "2147483647");
  refuses(glm4, &Config::num_attention_heads, 2000000000,
          "num_attention_heads must be at most 2147483647 / head_dim (8), got 2000000000");
  refuses(ModelType::kMixtral, &Config::router_jitter_noise, 1,
          "router_jitter_noise must be in [0, 1), got 1");
}

TEST(Families, RefuseWhatTheirFilesCannotSay) {
  using Config = CausalLMConfig;
  refuses(ModelType::kQwen3Moe, &Config::correction_bias, true,
          "correction_bias must be false (a qwen3_moe has no key for it), got true");
  refuses(ModelType::kQwen3Moe, &Config::router_scores, nn::RouterScores::kSigmoid,
          "router_scores must be kSoftmax (a qwen3_moe has no key for it), got kSigmoid");
  refuses(ModelType::kGlm4Moe, &Config::mlp_only_layers, {0, 2},
          "mlp_only_layers must be [] (a glm4_moe has no key for it), got [0, 2]");
  refuses(ModelType::kMixtral, &Config::norm_topk_prob, false,
          "norm_topk_prob must be true (a mixtral has no key for it), got false");
  refuses(ModelType::kQwen2Moe, &Config::use_qk_norm, true,
          "use_qk_norm must be false (a qwen2_moe has no key for it), got true");
  refuses(ModelType::kMixtral, &Config::partial_rotary_factor, 0.5,
          "partial_rotary_factor must be 1 (a mixtral has no key for it), got 0.5");
}

TEST(Families, PresetsOfEachAreValidAndSmall) {
  for (const auto* name : {"tiny-qwen2-moe", "tiny-mixtral", "tiny-glm4-moe"}) {
    const auto config = CausalLMConfig::preset(name);
    EXPECT_NO_THROW(config.validate()) << name;
    EXPECT_LT(parameter_count(config), 500'000) << name;
    EXPECT_EQ(parse_model_config(to_json(config)), config) << name;
  }
  EXPECT_EQ(std::string(to_string(CausalLMConfig::preset("tiny-mixtral").model_type)), "mixtral");
}

}  // namespace
}  // namespace moegrad::models::families_test
