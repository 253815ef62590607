// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/config_json.h"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/testing.h"

namespace moegrad::models::config_json_test {
namespace {

using test::message_of;

TEST(ModelConfigJson, ReadsHuggingFacesKeys) {
  const auto config = parse_model_config(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 65, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 99,
    "initializer_range": 0.1, "rms_norm_eps": 1e-05, "rope_theta": 1000000,
    "tie_word_embeddings": true, "decoder_sparse_step": 2, "mlp_only_layers": [0, 2],
    "moe_intermediate_size": 17, "num_experts": 9, "num_experts_per_tok": 3,
    "norm_topk_prob": true, "router_aux_loss_coef": 0.5, "attention_bias": false,
    "attention_dropout": 0.0, "rope_scaling": null, "sliding_window": null,
    "expert_weights": "hf", "moegrad_dtype": "float64"})");
  EXPECT_EQ(config.vocab_size, 64);
  EXPECT_EQ(config.hidden_size, 32);
  EXPECT_EQ(config.intermediate_size, 65);
  EXPECT_EQ(config.num_hidden_layers, 3);
  EXPECT_EQ(config.num_attention_heads, 8);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.head_dim, 4);  // absent: hidden_size / num_attention_heads
  EXPECT_EQ(config.max_position_embeddings, 99);
  EXPECT_EQ(config.initializer_range, 0.1);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.decoder_sparse_step, 2);
  EXPECT_THAT(config.mlp_only_layers, ::testing::ElementsAre(0, 2));
  EXPECT_EQ(config.moe_intermediate_size, 17);
  EXPECT_EQ(config.num_experts, 9);
  EXPECT_EQ(config.num_experts_per_tok, 3);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_EQ(config.router_aux_loss_coef, 0.5);
  EXPECT_EQ(config.expert_weights, nn::ExpertWeights::kHuggingFace);
  EXPECT_EQ(config.dtype, Dtype::kFloat64);
}

TEST(ModelConfigJson, KeepsHuggingFacesDefaults) {
  const auto config = parse_model_config("{}");
  EXPECT_EQ(config.vocab_size, 151936);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.num_experts, 128);
  EXPECT_FALSE(config.norm_topk_prob);
  EXPECT_EQ(config.expert_weights, nn::ExpertWeights::kPretransposed);
}

TEST(ModelConfigJson, ReadsWhatTransformers5Writes) {
  const auto config = parse_model_config(R"({
    "model_type": "qwen3_moe", "dtype": "float64", "num_local_experts": 60,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "head_dim": 32, "mlp_only_layers": null, "sliding_window": null, "pad_token_id": null,
    "rope_scaling": null, "attention_dropout": null, "quantization_config": null})");
  EXPECT_EQ(config.other_keys, (std::map<std::string, std::string>{
                                   {"output_router_logits", "false"}, {"pad_token_id", "null"}}));
  EXPECT_EQ(config.num_experts, 60);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.dtype, Dtype::kFloat64);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_TRUE(config.mlp_only_layers.empty());
}

// to_json_string(use_diff=False) of Qwen3MoeConfig, as transformers 4.51 and later write it.
TEST(ModelConfigJson, KeepsWhatChangesNothing) {
  auto config = parse_model_config(R"({
    "return_dict": true, "output_hidden_states": false, "output_attentions": false,
    "torchscript": false, "torch_dtype": null, "dtype": null, "use_bfloat16": false,
    "tf_legacy_loss": false, "pruned_heads": {}, "tie_word_embeddings": false,
    "chunk_size_feed_forward": 0, "is_encoder_decoder": false, "is_decoder": false,
    "cross_attention_hidden_size": null, "add_cross_attention": false,
    "tie_encoder_decoder": false, "max_length": 20, "min_length": 0, "do_sample": false,
    "early_stopping": false, "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0,
    "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0,
    "length_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": null, "num_return_sequences": 1, "output_scores": false,
    "return_dict_in_generate": false, "forced_bos_token_id": null, "forced_eos_token_id": null,
    "remove_invalid_values": false, "exponential_decay_length_penalty": null,
    "suppress_tokens": null, "begin_suppress_tokens": null,
    "architectures": ["Qwen3MoeForCausalLM"], "finetuning_task": null,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "tokenizer_class": null, "prefix": null, "bos_token_id": 151643, "pad_token_id": null,
    "eos_token_id": [151645, 151643], "sep_token_id": null, "decoder_start_token_id": null,
    "task_specific_params": null, "problem_type": null, "_name_or_path": "Qwen/Qwen3-30B-A3B",
    "_attn_implementation_autoset": true, "_experts_implementation": "eager",
    "transformers_version": "5.0.0", "model_type": "qwen3_moe", "attention_bias": false,
    "attention_dropout": 0.0, "hidden_act": "silu", "max_window_layers": 48,
    "output_router_logits": false, "sliding_window": 4096, "use_sliding_window": false,
    "use_cache": true, "num_hidden_layers": 2,
    "layer_types": ["full_attention", "full_attention"]})");
  EXPECT_EQ(parse_model_config(to_json(config)), config);
  const auto written = nlohmann::json::parse(to_json(config));
  EXPECT_EQ(written["eos_token_id"], (nlohmann::json{151645, 151643}));
  EXPECT_EQ(written["bos_token_id"], 151643);
  EXPECT_TRUE(written.contains("pad_token_id") && written["pad_token_id"].is_null());
  EXPECT_EQ(written["output_router_logits"], false);
  EXPECT_EQ(written["sliding_window"], 4096);
  EXPECT_EQ(written["max_window_layers"], 48);
  EXPECT_EQ(written["transformers_version"], "5.0.0");
  config.other_keys = {{"output_router_logits", "false"}};
  EXPECT_EQ(config, parse_model_config(R"({"num_hidden_layers": 2})"));
}

TEST(ModelConfigJson, KeepsKeysOfTools) {
  auto config = parse_model_config(
      R"({"unsloth_version": "2025.3.9", "unsloth_fixed": true, "model_max_length": 32768})");
  EXPECT_EQ(config.other_keys,
            (std::map<std::string, std::string>{{"model_max_length", "32768"},
                                                {"output_router_logits", "false"},
                                                {"unsloth_fixed", "true"},
                                                {"unsloth_version", "\"2025.3.9\""}}));
  config.other_keys.clear();
  EXPECT_EQ(config, CausalLMConfig());
}

TEST(ModelConfigJson, WritesItsOwnKeysWhateverOthersThereAre) {
  CausalLMConfig config;
  config.other_keys = {{"hidden_size", "1"}, {"model_type", "\"gpt2\""}, {"use_cache", "false"}};
  const auto written = nlohmann::json::parse(to_json(config));
  EXPECT_EQ(written["hidden_size"], 2048);
  EXPECT_EQ(written["model_type"], "qwen3_moe");
  EXPECT_EQ(written["use_cache"], false);
  config.other_keys = {{"use_cache", "no"}};
  EXPECT_EQ(message_of<ValueError>([&] { to_json(config); }),
            "CausalLMConfig: other_keys: use_cache: must be JSON, got an error at column 2");
}

// As the file that was read; else as here, where a model has an auxiliary loss.
TEST(ModelConfigJson, AddsTheAuxiliaryLossInTransformersAsBefore) {
  const auto adds = [](const CausalLMConfig& config) {
    return nlohmann::json::parse(to_json(config)).value("output_router_logits", nlohmann::json());
  };
  for (const std::string type : {"qwen3_moe", "qwen2_moe", "mixtral"}) {
    const auto read = [&](const std::string& more) {
      return parse_model_config(R"({"model_type": ")" + type + '"' + more + "}");
    };
    EXPECT_EQ(adds(read("")), false);
    EXPECT_EQ(adds(read(R"(, "output_router_logits": false)")), false);
    EXPECT_EQ(adds(read(R"(, "output_router_logits": true)")), true);
  }
  EXPECT_EQ(adds(CausalLMConfig()), true);
  EXPECT_EQ(adds(CausalLMConfig::preset("tiny-mixtral")), true);
  EXPECT_EQ(adds(CausalLMConfig::preset("tiny-dense")), nlohmann::json());
}

TEST(ModelConfigJson, SaysTheTypeOfTheWeights) {
  const CausalLMConfig config;
  const auto torch_dtype = [](const std::string& text) {
    return nlohmann::json::parse(text)["torch_dtype"];
  };
  EXPECT_EQ(torch_dtype(to_json(config)), "float32");
  EXPECT_EQ(torch_dtype(to_json(config, Dtype::kBFloat16)), "bfloat16");
}

TEST(ModelConfigJson, ReadsRopeThatIsNotScaled) {
  for (const auto* text : {R"({"rope_theta": 5e5, "rope_scaling": {"rope_type": "default"}})",
                           R"({"rope_theta": 5e5, "rope_scaling": {"type": "default"}})",
                           R"({"rope_theta": 5e5, "rope_scaling": {}})",
                           R"({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})"}) {
    EXPECT_EQ(parse_model_config(text).rope_theta, 5e5) << text;
  }
}

TEST(ModelConfigJson, TakesNullWhereTransformersDoes) {
  EXPECT_EQ(parse_model_config(R"({
    "architectures": null, "attention_bias": null, "use_sliding_window": null, "head_dim": null,
    "mlp_only_layers": null, "rope_parameters": null, "rope_scaling": null, "layer_types": null,
    "torch_dtype": null, "dtype": null, "quantization_config": null, "expert_weights": null,
    "moegrad_dtype": null, "a_key_of_others": null})"),
            parse_model_config("{}"));
}

TEST(ModelConfigJson, TakesTwoSpellingsThatAgree) {
  const auto config = parse_model_config(R"({
    "num_experts": 60, "num_local_experts": 60, "rope_theta": 5e5,
    "rope_parameters": {"rope_theta": 500000}, "torch_dtype": "float64", "dtype": "float64"})");
  EXPECT_EQ(config.num_experts, 60);
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_EQ(config.dtype, Dtype::kFloat64);
  const auto nulls = parse_model_config(
      R"({"num_experts": 60, "num_local_experts": null, "dtype": null, "torch_dtype": "float64"})");
  EXPECT_EQ(nulls.num_experts, 60);
  EXPECT_EQ(nulls.dtype, Dtype::kFloat64);
}

TEST(ModelConfigJson, WidensWeightsOf16Bits) {
  for (const auto* dtype : {"float32", "bfloat16", "float16"}) {
    const std::string torch = std::string(R"("torch_dtype": ")") + dtype + '"';
    EXPECT_EQ(parse_model_config("{" + torch + "}").dtype, Dtype::kFloat32);
    EXPECT_EQ(parse_model_config("{" + torch + R"(, "moegrad_dtype": "float64"})").dtype,
              Dtype::kFloat64);
  }
}

TEST(ModelConfigJson, NamesWhatIsWrong) {
  struct Case {
    std::string text, message, subject = "qwen3_moe config: ";
  };
  const std::string kText = "model config: ";  // whose model_type has not been read
  const std::string kDense = "qwen3 config: ", kMixtral = "mixtral config: ",
                    kGlm4 = "glm4_moe config: ";
  const std::string dtypes = R"(must be "float32", "float64", "bfloat16" or "float16", got )";
  const std::string types =
      R"(model_type must be "qwen3_moe", "qwen3", "qwen2_moe", "mixtral" or "glm4_moe", got )";
  const std::string deepseek =
      "\"deepseek_v3\", whose latent attention does not exist here (its mixture does: nn::MoE)";
  const Case cases[] = {
      {"", "must be JSON, got an error at column 1", kText},
      {"[1]", "must be an object, got [1]", kText},
      {"{", "must be JSON, got an error at column 2", kText},
      {R"({"vocab_size": 5, "vocab_size": 5})",
       "keys of an object must differ, got 'vocab_size' twice", kText},
      {R"({"rope_parameters": {"rope_theta": 1, "rope_theta": 2}})",
       "keys of an object must differ, got 'rope_theta' twice", kText},
      {"{}{}", "must be JSON, got an error at column 3", kText},
      {R"({"other": )" + std::string(16, '['), "must be at most 16 levels deep, got more", kText},
      {R"({"num_experts": 8, "num_local_experts": 9})",
       "num_local_experts must be as num_experts (8) where both are given, got 9"},
      {R"({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 10000}})",
       "rope_parameters.rope_theta must be as rope_theta (1000000.0) where both are given, got "
       "10000"},
      {R"({"torch_dtype": "float32", "dtype": "float64"})",
       R"(dtype must be as torch_dtype ("float32") where both are given, got "float64")"},
      {R"({"dtype": "int8"})", "dtype " + dtypes + "\"int8\""},
      {R"({"torch_dtype": ""})", "torch_dtype " + dtypes + "\"\""},
      {R"({"torch_dtype": 32})", "torch_dtype must be a string, got 32"},
      {R"({"num_local_experts": "8"})", "num_local_experts must be an integer, got \"8\""},
      {R"({"num_local_experts": -1})", "num_experts must be in [0, 2147483647], got -1"},
      {R"({"rope_parameters": {"rope_theta": "1"}})",
       "rope_parameters.rope_theta must be a number, got \"1\""},
      {R"({"rope_parameters": {"rope_type": 1}})",
       "rope_parameters.rope_type must be \"default\", got 1"},
      {R"({"rope_parameters": {"rope_type": "default", "factor": 2}})",
       "rope_parameters must have known keys alone, got 'factor'"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor must be 1.0, got 0.5"},
      {R"({"rope_parameters": {"partial_rotary_factor": 0.25}})",
       "rope_parameters.partial_rotary_factor must be 1.0, got 0.25"},
      {R"({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}})",
       "rope_parameters must have known keys alone, got 'full_attention'"},
      {R"({"model_type": "qwen3", "attention_bias": true})",
       "attention_bias must be false, got true", kDense},
      {R"({"model_type": "qwen3", "num_experts": 8})",
       "num_experts must be absent or null, for a qwen3 has no such key, only qwen3_moe, "
       "qwen2_moe or mixtral; got 8",
       kDense},
      {R"({"model_type": "qwen3", "expert_weights": "hf"})",
       "expert_weights must be absent or null, for a qwen3 has no such key, only qwen3_moe, "
       "qwen2_moe, mixtral or glm4_moe; got \"hf\"",
       kDense},
      {R"({"quantization_config": {"quant_method": "fp8"}})",
       R"(quantization_config must be null, got {"quant_method":"fp8"})"},
      {R"({"use_sliding_window": true})", "use_sliding_window must be false, got true"},
      {R"({"hidden_size": 18446744073709551615})",
       "hidden_size must be below 2^63, got 18446744073709551615"},
      {R"({"hidden_size": 8589934592, "head_dim": 2})",
       "hidden_size must be <= 2147483647, got 8589934592"},
      {R"({"hidden_size": 64.0})", "hidden_size must be an integer, got 64.0"},
      {R"({"num_attention_heads": 0})", "num_attention_heads must be >= 1, got 0"},
      {R"({"mlp_only_layers": [18446744073709551615]})",
       "mlp_only_layers[0] must be below 2^63, got 18446744073709551615"},
      {R"({"vocab_size": 2147483647, "hidden_size": 2147483647, "head_dim": 2})",
       "the model must be of at most 2^53 elements, got 9.23859e+18"},
      {R"({"n_shared_experts": 2})", "n_shared_experts must be 0, got 2"},
      {R"({"scoring_func": "sigmoid"})",
       "must have known keys alone, got the unknown key 'scoring_func'"},
      {R"({"hiden_size": 64})",
       "must have known keys alone, got the unknown key 'hiden_size'; the nearest known one is "
       "'hidden_size'"},
      {R"({"num_expert_per_tok": 2})",
       "must have known keys alone, got the unknown key 'num_expert_per_tok'; the nearest known "
       "one is 'num_experts_per_tok'"},
      {R"({"hidden_sizes_now": 64})",
       "must have known keys alone, got the unknown key 'hidden_sizes_now'"},
      {R"({"slothful_version": "1"})",
       "must have known keys alone, got the unknown key 'slothful_version'"},
      {R"({"model_type": null})", "model_type must be a string, got null", kText},
      {R"({"hidden_act": null})", "hidden_act must be \"silu\", got null"},
      {R"({"num_experts_per_tok": null})", "num_experts_per_tok must be an integer, got null"},
      {R"({"rms_norm_eps": null})", "rms_norm_eps must be a number, got null"},
      {R"({"tie_word_embeddings": null})", "tie_word_embeddings must be true or false, got null"},
      {R"({"num_key_value_heads": null})", "num_key_value_heads must be an integer, got null"},
      {R"({"num_local_experts": null})", "num_local_experts must be an integer, got null"},
      {R"({"rope_theta": null})", "rope_theta must be a number, got null"},
      {R"({"rope_parameters": {"rope_theta": null}})",
       "rope_parameters.rope_theta must be a number, got null"},
      {R"({"rope_scaling": {"rope_type": "default", "factor": 2.0}})",
       "rope_scaling must have known keys alone, got 'factor'"},
      {R"({"rope_scaling": {"rope_type": "default"}, "rope_parameters": {}})",
       "rope_scaling must be null beside rope_parameters, got {\"rope_type\":\"default\"}"},
      {R"({"num_hidden_layers": 3, "layer_types": ["full_attention"]})",
       "layer_types must be of num_hidden_layers (3) entries, got 1"},
      {R"({"layer_types": ["full_attention", "sliding_attention"]})",
       "layer_types[1] must be \"full_attention\", got \"sliding_attention\""},
      {R"({"pruned_heads": {"0": [1]}})", "pruned_heads must be {}, got {\"0\":[1]}"},
      {R"({"expert_weights": 1})", "expert_weights must be a string, got 1"},
      {R"({"expert_weights": "zn"})",
       R"(expert_weights must be "pretransposed" or "hf", got "zn")"},
      {R"({"moegrad_dtype": "bfloat16"})",
       R"(moegrad_dtype must be "float32" or "float64", got "bfloat16")"},
      {R"({"model_type": "gpt2"})", types + "\"gpt2\"", kText},
      {R"({"model_type": "llama"})", types + "\"llama\"", kText},
      // By its type, not by the first key that it has and others have not.
      {R"({"a_key": 1, "model_type": "deepseek_v3"})", types + deepseek, kText},
      {R"({"model_type": "deepseek_v3", "q_lora_rank": 4})", types + deepseek, kText},
      {R"({"hidden_size": "big"})", "hidden_size must be an integer, got \"big\""},
      {R"({"rms_norm_eps": true})", "rms_norm_eps must be a number, got true"},
      {R"({"norm_topk_prob": 1})", "norm_topk_prob must be true or false, got 1"},
      {R"({"mlp_only_layers": [1, 0.5]})", "mlp_only_layers[1] must be an integer, got 0.5"},
      {R"({"hidden_act": "gelu"})", "hidden_act must be \"silu\", got \"gelu\""},
      {R"({"rope_scaling": {"type": "yarn"}})",
       "rope_scaling.type must be \"default\", got \"yarn\""},
      {R"({"attention_bias": true})", "attention_bias must be false, got true"},
      {R"({"num_attention_heads": 6, "num_key_value_heads": 4})",
       "num_attention_heads must be a multiple of num_key_value_heads (4), got 6"},
      {R"({"head_dim": 7})", "head_dim must be even and >= 2, got 7"},
      {R"({"num_experts": 4})", "num_experts_per_tok must be in [1, 4] (num_experts), got 8"},
      {R"({"vocab_size": 0})", "vocab_size must be >= 1, got 0"},
      {R"({"mlp_only_layers": [24]})", "mlp_only_layers must be in [0, 24), got 24"},
      {R"({"num_hidden_layers": 2, "mlp_only_layers": [0, 1, 1]})",
       "mlp_only_layers must be of at most num_hidden_layers (2) entries, got 3"},
      {R"({"rope_parameters": 5})", "rope_parameters must be an object, got 5"},
      {R"({"rope_parameters": {"rope_type": "yarn"}})",
       "rope_parameters.rope_type must be \"default\", got \"yarn\""},
      {R"({"model_type": "mixtral", "num_local_experts": 8, "num_experts": 4})",
       "num_experts must be as num_local_experts (8) where both are given, got 4", kMixtral},
      {R"({"model_type": "mixtral", "intermediate_size": 0})",
       "intermediate_size must be >= 1, got 0", kMixtral},
      {R"({"model_type": "mixtral", "num_local_experts": 0})",
       "num_local_experts must be >= 1, got 0", kMixtral},
      {R"({"model_type": "glm4_moe", "head_dim": 8, "partial_rotary_factor": 0.5,
           "rope_parameters": {"partial_rotary_factor": 0.25}})",
       "rope_parameters.partial_rotary_factor must be as partial_rotary_factor (0.5) where both "
       "are given, got 0.25",
       kGlm4},
      {R"({"model_type": "glm4_moe", "qkv_bias": false})",
       "qkv_bias must be absent or null, for a glm4_moe has no such key, only qwen3_moe, qwen3, "
       "qwen2_moe or mixtral; got false",
       kGlm4},
      {R"({"model_type": "glm4_moe", "scoring_func": "softmax"})",
       "must have known keys alone, got the unknown key 'scoring_func'", kGlm4},
  };
  for (const auto& [text, message, subject] : cases) {
    EXPECT_EQ(message_of<ValueError>([&, &text = text] { parse_model_config(text); }),
              subject + message)
        << text;
  }
  EXPECT_EQ(message_of<Error>([] { read_model_config("/no/such/file"); }),
            "model config: /no/such/file: must be a readable regular file, got No such file or "
            "directory");
}

/// Every field away from its default.
CausalLMConfig unusual() {
  return {.vocab_size = 53,
          .hidden_size = 40,
          .intermediate_size = 56,
          .num_hidden_layers = 5,
          .num_attention_heads = 6,
          .num_key_value_heads = 3,
          .head_dim = 14,
          .max_position_embeddings = 77,
          .initializer_range = 0.1,
          .rms_norm_eps = 1.0 / 3.0 * 1e-5,
          .rope_theta = 1234567.875,
          .tie_word_embeddings = true,
          .decoder_sparse_step = 2,
          .mlp_only_layers = {1, 3},
          .moe_intermediate_size = 12,
          .num_experts = 9,
          .num_experts_per_tok = 4,
          .norm_topk_prob = true,
          .router_aux_loss_coef = 0.1 + 0.2,
          .expert_weights = nn::ExpertWeights::kHuggingFace,
          .dtype = Dtype::kFloat64};
}

TEST(ModelConfigJson, ComesBackFromItsJson) {
  EXPECT_EQ(parse_model_config(to_json(unusual())), unusual());
  auto plain = CausalLMConfig();
  EXPECT_EQ(parse_model_config(to_json(plain)), plain);
  EXPECT_FALSE(plain == unusual());
  for (const auto* name : {"tiny", "small", "medium", "tiny-dense", "qwen3-0.6b"}) {
    const auto preset = CausalLMConfig::preset(name);
    EXPECT_EQ(parse_model_config(to_json(preset)), preset);
  }
}

/// As Hugging Face's keys.
constexpr const char* kUnusual = R"({
  "architectures": [
    "Qwen3MoeForCausalLM"
  ],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "decoder_sparse_step": 2,
  "expert_weights": "hf",
  "head_dim": 14,
  "hidden_act": "silu",
  "hidden_size": 40,
  "initializer_range": 0.1,
  "intermediate_size": 56,
  "max_position_embeddings": 77,
  "mlp_only_layers": [
    1,
    3
  ],
  "model_type": "qwen3_moe",
  "moe_intermediate_size": 12,
  "norm_topk_prob": true,
  "num_attention_heads": 6,
  "num_experts": 9,
  "num_experts_per_tok": 4,
  "num_hidden_layers": 5,
  "num_key_value_heads": 3,
  "output_router_logits": true,
  "rms_norm_eps": 3.3333333333333333e-06,
  "rope_scaling": null,
  "rope_theta": 1234567.875,
  "router_aux_loss_coef": 0.30000000000000004,
  "sliding_window": null,
  "tie_word_embeddings": true,
  "torch_dtype": "float64",
  "use_cache": true,
  "use_sliding_window": false,
  "vocab_size": 53
}
)";

TEST(ModelConfigJson, WritesHuggingFacesKeys) { EXPECT_EQ(to_json(unusual()), kUnusual); }

// Without experts.

TEST(Qwen3ConfigJson, KeepsTheDefaultsOfItsOwnClass) {
  const auto config = parse_model_config(R"({"model_type": "qwen3"})");
  EXPECT_EQ(config, (CausalLMConfig{.vocab_size = 151936,
                                    .hidden_size = 4096,
                                    .intermediate_size = 22016,
                                    .num_hidden_layers = 32,
                                    .num_attention_heads = 32,
                                    .num_key_value_heads = 32,
                                    .head_dim = 128,
                                    .max_position_embeddings = 32768,
                                    .initializer_range = 0.02,
                                    .rms_norm_eps = 1e-6,
                                    .rope_theta = 10000.0,
                                    .tie_word_embeddings = false,
                                    .num_experts = 0}));
  EXPECT_EQ(config.num_moe_layers(), 0);
  EXPECT_EQ(parse_model_config(R"({"model_type": "qwen3", "num_attention_heads": 12,
                                       "num_key_value_heads": null})")
                .num_key_value_heads,
            12);
}

/// Every field of a dense model away from its default.
CausalLMConfig unusual_dense() {
  auto config = unusual();
  const CausalLMConfig defaults;
  config.decoder_sparse_step = defaults.decoder_sparse_step;
  config.mlp_only_layers = {};
  config.moe_intermediate_size = defaults.moe_intermediate_size;
  config.num_experts = 0;
  config.num_experts_per_tok = defaults.num_experts_per_tok;
  config.norm_topk_prob = defaults.norm_topk_prob;
  config.router_aux_loss_coef = defaults.router_aux_loss_coef;
  config.expert_weights = defaults.expert_weights;
  return config;
}

TEST(Qwen3ConfigJson, ComesBackFromItsJson) {
  EXPECT_EQ(parse_model_config(to_json(unusual_dense())), unusual_dense());
  auto with_idle_fields = unusual();
  with_idle_fields.num_experts = 0;
  EXPECT_EQ(parse_model_config(to_json(with_idle_fields)), unusual_dense());
}

TEST(Qwen3ConfigJson, WritesHuggingFacesKeysButThoseOfMixtures) {
  auto expected = nlohmann::json::parse(kUnusual);
  expected["architectures"] = {"Qwen3ForCausalLM"};
  expected["model_type"] = "qwen3";
  for (const auto* key : {"decoder_sparse_step", "expert_weights", "mlp_only_layers",
                          "moe_intermediate_size", "norm_topk_prob", "num_experts",
                          "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef"}) {
    EXPECT_EQ(expected.erase(key), 1) << key;
  }
  EXPECT_EQ(to_json(unusual_dense()), expected.dump(2) + "\n");
}

}  // namespace
}  // namespace moegrad::models::config_json_test
