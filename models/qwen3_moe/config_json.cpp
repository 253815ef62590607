// SPDX-License-Identifier: Apache-2.0
#include "models/qwen3_moe/config_json.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "framework/io/input_file.h"
#include "framework/io/json_node.h"
#include "framework/runtime/error.h"

namespace moegrad::models {
namespace {

using nlohmann::json;

void assign(const JsonNode& value, std::int64_t& field) { field = value.integer(); }
void assign(const JsonNode& value, double& field) { field = value.number(); }
void assign(const JsonNode& value, bool& field) { field = value.boolean(); }
void assign(const JsonNode& value, std::string& field) { field = value.text(); }
void assign(const JsonNode& value, std::vector<std::int64_t>& field) {
  field = value.list(&JsonNode::integer);
}

/// Overwrites `field` if the key is there.
template <class Field>
void read(const JsonNode& keys, std::string_view key, Field& field) {
  if (keys.has(key)) assign(keys[key], field);
}

/// Reads a setting with two spellings, which may be in different objects.
template <class Field>
void read_either(const JsonNode& keys, std::string_view key, const JsonNode& other_keys,
                 std::string_view other, Field& field) {
  read(other_keys, other, field);
  if (!keys.has(key)) return;
  Field value{};
  read(keys, key, value);
  if (other_keys.has(other)) {
    other_keys[other].require(field == value, "must be as ", key, " (", value,
                              ") where both are given, got ", field);
  }
  field = value;
}

/// Overwrites `field` by what the key's word means, if the key is there. `listed` is how an error
/// lists the words.
template <class Field>
void read_word(const JsonNode& keys, std::string_view key, std::string_view listed,
               const std::map<std::string_view, Field>& words, Field& field) {
  if (!keys.has(key)) return;
  const auto found = words.find(keys[key].text());
  keys[key].require(found != words.end(), "must be ", listed, ", got ", keys[key]);
  field = found->second;
}

/// A key whose other values this model does not implement.
void require_value(const JsonNode& keys, std::string_view key, const json& implemented) {
  if (!keys.has(key)) return;
  keys[key].require(keys[key].value() == implemented, "must be ", implemented, ", got ", keys[key]);
}

/// transformers 5 stores rope_theta in an object.
void read_rope_theta(const JsonNode& keys, double& rope_theta) {
  require_value(keys, "partial_rotary_factor", 1.0);
  if (!keys.has("rope_parameters")) {
    read(keys, "rope_theta", rope_theta);
    return;
  }
  const auto parameters = keys["rope_parameters"];
  require_value(parameters, "rope_type", "default");
  require_value(parameters, "partial_rotary_factor", 1.0);
  parameters.allow_only({"rope_type", "rope_theta", "partial_rotary_factor"});
  read_either(keys, "rope_theta", parameters, "rope_theta", rope_theta);
}

/// The dtype of the file's weights determines the dtype to compute in, unless another is given.
void read_dtype(const JsonNode& keys, Dtype& dtype) {
  std::string agreed;
  read_either(keys, "torch_dtype", keys, "dtype", agreed);
  for (const auto* key : {"torch_dtype", "dtype"}) {
    read_word<Dtype>(keys, key, R"("float32", "float64", "bfloat16" or "float16")",
                     {{"float32", Dtype::kFloat32},
                      {"float64", Dtype::kFloat64},
                      {"bfloat16", Dtype::kFloat32},
                      {"float16", Dtype::kFloat32}},
                     dtype);
  }
  read_word<Dtype>(keys, "moegrad_dtype", R"("float32" or "float64")",
                   {{"float32", Dtype::kFloat32}, {"float64", Dtype::kFloat64}}, dtype);
}

/// Keys of transformers 4.51 to 5 that are read below.
constexpr std::array kReadKeys = std::to_array<std::string_view>({"attention_bias",
                                                                  "attention_dropout",
                                                                  "decoder_sparse_step",
                                                                  "dtype",
                                                                  "expert_weights",
                                                                  "head_dim",
                                                                  "hidden_act",
                                                                  "hidden_size",
                                                                  "initializer_range",
                                                                  "intermediate_size",
                                                                  "layer_types",
                                                                  "max_position_embeddings",
                                                                  "mlp_only_layers",
                                                                  "model_type",
                                                                  "moe_intermediate_size",
                                                                  "moegrad_dtype",
                                                                  "norm_topk_prob",
                                                                  "num_attention_heads",
                                                                  "num_experts",
                                                                  "num_experts_per_tok",
                                                                  "num_hidden_layers",
                                                                  "num_key_value_heads",
                                                                  "num_local_experts",
                                                                  "partial_rotary_factor",
                                                                  "pruned_heads",
                                                                  "quantization_config",
                                                                  "rms_norm_eps",
                                                                  "rope_parameters",
                                                                  "rope_scaling",
                                                                  "rope_theta",
                                                                  "router_aux_loss_coef",
                                                                  "tie_word_embeddings",
                                                                  "torch_dtype",
                                                                  "use_sliding_window",
                                                                  "vocab_size"});

/// Those of the keys above that Qwen3 does not have.
constexpr std::array kMixtureKeys = std::to_array<std::string_view>(
    {"decoder_sparse_step", "expert_weights", "mlp_only_layers", "moe_intermediate_size",
     "norm_topk_prob", "num_experts", "num_experts_per_tok", "num_local_experts",
     "router_aux_loss_coef"});

/// Keys of transformers that do not change what this model computes: windows that are switched off,
/// what the forward call returns, classes and tasks, token ids, generation. PretrainedConfig writes
/// all of them if it is asked for more than the differences from its defaults.
constexpr std::array kIgnoredKeys =
    std::to_array<std::string_view>({"add_cross_attention",
                                     "architectures",
                                     "attn_implementation",
                                     "auto_map",
                                     "bad_words_ids",
                                     "base_model_pp_plan",
                                     "base_model_tp_plan",
                                     "begin_suppress_tokens",
                                     "bos_token_id",
                                     "cache_implementation",
                                     "chunk_size_feed_forward",
                                     "cross_attention_hidden_size",
                                     "decoder_start_token_id",
                                     "diversity_penalty",
                                     "do_sample",
                                     "early_stopping",
                                     "encoder_no_repeat_ngram_size",
                                     "eos_token_id",
                                     "exponential_decay_length_penalty",
                                     "finetuning_task",
                                     "forced_bos_token_id",
                                     "forced_eos_token_id",
                                     "gathered_layout",
                                     "gradient_checkpointing",
                                     "id2label",
                                     "is_decoder",
                                     "is_encoder_decoder",
                                     "label2id",
                                     "length_penalty",
                                     "max_length",
                                     "max_window_layers",
                                     "min_length",
                                     "name_or_path",
                                     "no_repeat_ngram_size",
                                     "num_beam_groups",
                                     "num_beams",
                                     "num_labels",
                                     "num_return_sequences",
                                     "output_attentions",
                                     "output_hidden_states",
                                     "output_router_logits",
                                     "output_scores",
                                     "pad_token_id",
                                     "prefix",
                                     "pretraining_tp",
                                     "problem_type",
                                     "remove_invalid_values",
                                     "repetition_penalty",
                                     "return_dict",
                                     "return_dict_in_generate",
                                     "sep_token_id",
                                     "sliding_window",
                                     "suppress_tokens",
                                     "task_specific_params",
                                     "temperature",
                                     "tf_legacy_loss",
                                     "tie_encoder_decoder",
                                     "tokenizer_class",
                                     "top_k",
                                     "top_p",
                                     "torchscript",
                                     "transformers_version",
                                     "typical_p",
                                     "use_bfloat16",
                                     "use_cache",
                                     "use_return_dict"});

/// Refuses unknown keys: a key that is not read here, such as n_shared_experts, might change the
/// model.
void refuse_unknown_keys(const JsonNode& keys, bool dense) {
  const auto contains = [](const auto& list, const std::string& key) {
    return std::ranges::find(list, key) != list.end();
  };
  for (const auto& [key, value] : keys.value().items()) {
    const bool is_read = contains(kReadKeys, key) && !(dense && contains(kMixtureKeys, key));
    const bool known =
        key.starts_with('_') || value.is_null() || is_read || contains(kIgnoredKeys, key);
    if (known) continue;
    keys[key].require(false, "must be absent or null, for this model does not implement it, got ",
                      keys[key]);
  }
}

/// The defaults of Hugging Face's Qwen3Config class.
Qwen3MoeConfig dense_defaults() {
  Qwen3MoeConfig config;
  config.hidden_size = 4096;
  config.intermediate_size = 22016;
  config.num_hidden_layers = 32;
  config.num_key_value_heads = 32;
  config.head_dim = 128;
  config.num_experts = 0;
  return config;
}

Qwen3MoeConfig read_config(const JsonNode& keys) {
  keys.require(keys.value().is_object(), "must be an object, got ", keys);
  bool dense = false;
  read_word<bool>(keys, "model_type", R"("qwen3_moe" or "qwen3")",
                  {{"qwen3_moe", false}, {"qwen3", true}}, dense);
  refuse_unknown_keys(keys, dense);
  require_value(keys, "hidden_act", "silu");
  require_value(keys, "attention_bias", false);
  require_value(keys, "attention_dropout", 0.0);
  require_value(keys, "use_sliding_window", false);
  require_value(keys, "rope_scaling", nullptr);
  require_value(keys, "quantization_config", nullptr);
  require_value(keys, "pruned_heads", json::object());
  if (keys.has("layer_types")) {
    for (const auto& type : keys["layer_types"].elements()) {
      type.require(type.text() == "full_attention", "must be \"full_attention\", got ", type);
    }
  }

  auto config = dense ? dense_defaults() : Qwen3MoeConfig();
  read(keys, "vocab_size", config.vocab_size);
  read(keys, "hidden_size", config.hidden_size);
  read(keys, "intermediate_size", config.intermediate_size);
  read(keys, "num_hidden_layers", config.num_hidden_layers);
  read(keys, "num_attention_heads", config.num_attention_heads);
  read(keys, "num_key_value_heads", config.num_key_value_heads);
  if (dense && keys.contains("num_key_value_heads") && !keys.has("num_key_value_heads")) {
    config.num_key_value_heads = config.num_attention_heads;  // what null means to Qwen3
  }
  check<ValueError>(config.num_attention_heads >= 1,
                    "qwen3_moe config: num_attention_heads must be >= 1, got ",
                    config.num_attention_heads);
  if (!dense) config.head_dim = config.hidden_size / config.num_attention_heads;
  read(keys, "head_dim", config.head_dim);
  read(keys, "max_position_embeddings", config.max_position_embeddings);
  read(keys, "initializer_range", config.initializer_range);
  read(keys, "rms_norm_eps", config.rms_norm_eps);
  read_rope_theta(keys, config.rope_theta);
  read(keys, "tie_word_embeddings", config.tie_word_embeddings);
  read(keys, "decoder_sparse_step", config.decoder_sparse_step);
  read(keys, "mlp_only_layers", config.mlp_only_layers);
  read(keys, "moe_intermediate_size", config.moe_intermediate_size);
  read_either(keys, "num_experts", keys, "num_local_experts", config.num_experts);
  read(keys, "num_experts_per_tok", config.num_experts_per_tok);
  read(keys, "norm_topk_prob", config.norm_topk_prob);
  read(keys, "router_aux_loss_coef", config.router_aux_loss_coef);

  read_word<nn::ExpertWeights>(keys, "expert_weights", R"("pretransposed" or "hf")",
                               {{"pretransposed", nn::ExpertWeights::kPretransposed},
                                {"hf", nn::ExpertWeights::kHuggingFace}},
                               config.expert_weights);
  read_dtype(keys, config.dtype);
  config.validate();
  return config;
}

}  // namespace

Qwen3MoeConfig read_qwen3_moe_config(const std::string& path) {
  constexpr std::int64_t kMostBytes = 16 << 20;
  const auto text = read_input_file(path, "qwen3_moe config", kMostBytes);
  try {
    return parse_qwen3_moe_config(text);
  } catch (const Error& error) {
    throw ValueError(path + ": " + error.what());
  }
}

Qwen3MoeConfig parse_qwen3_moe_config(std::string_view text) {
  constexpr int kMaxDepth = 16;  // of what others keep in the file
  return read_config(JsonNode::parse(text, kMaxDepth, "qwen3_moe config"));
}

std::string to_json(const Qwen3MoeConfig& config) {
  const bool dense = config.num_experts == 0;
  json keys = {{"architectures", {dense ? "Qwen3ForCausalLM" : "Qwen3MoeForCausalLM"}},
               {"attention_bias", false},
               {"attention_dropout", 0.0},
               {"head_dim", config.head_dim},
               {"hidden_act", "silu"},
               {"hidden_size", config.hidden_size},
               {"initializer_range", config.initializer_range},
               {"intermediate_size", config.intermediate_size},
               {"max_position_embeddings", config.max_position_embeddings},
               {"model_type", dense ? "qwen3" : "qwen3_moe"},
               {"num_attention_heads", config.num_attention_heads},
               {"num_hidden_layers", config.num_hidden_layers},
               {"num_key_value_heads", config.num_key_value_heads},
               {"rms_norm_eps", config.rms_norm_eps},
               {"rope_scaling", nullptr},
               {"rope_theta", config.rope_theta},
               {"sliding_window", nullptr},
               {"tie_word_embeddings", config.tie_word_embeddings},
               {"torch_dtype", to_string(config.dtype)},
               {"use_cache", true},
               {"use_sliding_window", false},
               {"vocab_size", config.vocab_size}};
  if (!dense) {
    const bool as_there = config.expert_weights == nn::ExpertWeights::kHuggingFace;
    keys.update({{"decoder_sparse_step", config.decoder_sparse_step},
                 {"expert_weights", as_there ? "hf" : "pretransposed"},
                 {"mlp_only_layers", config.mlp_only_layers},
                 {"moe_intermediate_size", config.moe_intermediate_size},
                 {"norm_topk_prob", config.norm_topk_prob},
                 {"num_experts", config.num_experts},
                 {"num_experts_per_tok", config.num_experts_per_tok},
                 {"output_router_logits", true},  // what adds the auxiliary loss there, as here
                 {"router_aux_loss_coef", config.router_aux_loss_coef}});
  }
  return keys.dump(/*indent=*/2) + "\n";
}

}  // namespace moegrad::models
