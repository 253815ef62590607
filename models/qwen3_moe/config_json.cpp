// SPDX-License-Identifier: Apache-2.0
#include "models/qwen3_moe/config_json.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "framework/io/input_file.h"
#include "framework/io/strict_json.h"
#include "framework/runtime/error.h"

namespace moegrad::models {
namespace {

using nlohmann::json;

template <class... Parts>
void require(bool ok, std::string_view key, const Parts&... parts) {
  check<ValueError>(ok, "qwen3_moe config: ", key, " must be ", parts...);
}

bool fits_int64(const json& value) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return !value.is_number_unsigned() || value.get<std::uint64_t>() <= kMax;
}

void assign(const json& value, std::string_view key, std::int64_t& field) {
  require(value.is_number_integer(), key, "an integer, got ", value);
  require(fits_int64(value), key, "below 2^63, got ", value);
  field = value.get<std::int64_t>();
}
void assign(const json& value, std::string_view key, double& field) {
  require(value.is_number(), key, "a number, got ", value);
  field = value.get<double>();
}
void assign(const json& value, std::string_view key, bool& field) {
  require(value.is_boolean(), key, "true or false, got ", value);
  field = value.get<bool>();
}
void assign(const json& value, std::string_view key, std::vector<std::int64_t>& field) {
  const auto is_integer = [](const json& item) {
    return item.is_number_integer() && fits_int64(item);
  };
  require(value.is_array() && std::ranges::all_of(value, is_integer), key,
          "a list of integers, got ", value);
  field = value.get<std::vector<std::int64_t>>();
}
void assign(const json& value, std::string_view key, std::string& field) {
  require(value.is_string(), key, "a string, got ", value);
  field = value.get<std::string>();
}

/// The value of a key; null if it is absent or null.
const json* find(const json& keys, std::string_view key) {
  const auto found = keys.find(key);
  return found == keys.end() || found->is_null() ? nullptr : &*found;
}

/// Overwrites `field` if the key is there.
template <class Field>
void read(const json& keys, std::string_view key, Field& field) {
  if (const auto* const value = find(keys, key)) assign(*value, key, field);
}

/// Reads a setting with two spellings, which may be in different objects.
template <class Field>
void read_either(const json& keys, std::string_view key, const json& other_keys,
                 std::string_view other, Field& field) {
  read(other_keys, other, field);
  if (find(keys, key) == nullptr) return;
  Field value{};
  read(keys, key, value);
  require(find(other_keys, other) == nullptr || field == value, other, "as ", key, " (", value,
          ") where both are given, got ", field);
  field = value;
}

/// A field that is one of several words. `listed` is how an error lists them.
template <class Field>
void assign_word(std::string_view word, std::string_view key, std::string_view listed,
                 const std::map<std::string_view, Field>& words, Field& field) {
  const auto found = words.find(word);
  require(found != words.end(), key, listed, ", got \"", word, '"');
  field = found->second;
}

template <class Field>
void read_word(const json& keys, std::string_view key, std::string_view listed,
               const std::map<std::string_view, Field>& words, Field& field) {
  std::string word;
  read(keys, key, word);
  if (find(keys, key) != nullptr) assign_word(word, key, listed, words, field);
}

/// A key whose other values this model does not implement.
void require_value(const json& keys, std::string_view key, const json& implemented) {
  const auto* const value = find(keys, key);
  if (value != nullptr) require(*value == implemented, key, implemented, ", got ", *value);
}

/// Reads the object in which transformers 5 stores rope_theta.
json read_rope_parameters(const json& keys) {
  const auto* const found = find(keys, "rope_parameters");
  if (found == nullptr) return json::object();
  require(found->is_object(), "rope_parameters", "an object, got ", *found);
  require_value(*found, "rope_type", "default");
  for (const auto& [key, value] : found->items()) {
    require(key == "rope_type" || key == "rope_theta", "rope_parameters",
            "of rope_type and rope_theta alone, got ", key);
  }
  return *found;
}

/// The dtype of the file's weights determines the dtype to compute in, unless another is given.
void read_dtype(const json& keys, Dtype& dtype) {
  std::string word;
  read_either(keys, "torch_dtype", keys, "dtype", word);
  if (find(keys, "torch_dtype") != nullptr || find(keys, "dtype") != nullptr) {
    assign_word<Dtype>(word, "dtype", R"("float32", "float64", "bfloat16" or "float16")",
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
                                                                  "gathered_layout",
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
void refuse_unknown_keys(const json& keys) {
  for (const auto& [key, value] : keys.items()) {
    const bool known = key.starts_with('_') || value.is_null() ||
                       std::ranges::find(kReadKeys, key) != kReadKeys.end() ||
                       std::ranges::find(kIgnoredKeys, key) != kIgnoredKeys.end();
    require(known, key, "absent or null, for this model does not implement it, got ", value);
  }
}

Qwen3MoeConfig read_config(const json& keys) {
  require(keys.is_object(), "the file", "an object of keys, got ", keys);
  refuse_unknown_keys(keys);
  require_value(keys, "model_type", "qwen3_moe");
  require_value(keys, "hidden_act", "silu");
  require_value(keys, "attention_bias", false);
  require_value(keys, "attention_dropout", 0.0);
  require_value(keys, "use_sliding_window", false);
  require_value(keys, "rope_scaling", nullptr);
  require_value(keys, "quantization_config", nullptr);
  require_value(keys, "pruned_heads", json::object());
  if (const auto* const types = find(keys, "layer_types")) {
    const auto is_full = [](const json& type) { return type == "full_attention"; };
    require(types->is_array() && std::ranges::all_of(*types, is_full), "layer_types",
            "a list of \"full_attention\" alone, got ", *types);
  }

  Qwen3MoeConfig config;
  read(keys, "vocab_size", config.vocab_size);
  read(keys, "hidden_size", config.hidden_size);
  read(keys, "intermediate_size", config.intermediate_size);
  read(keys, "num_hidden_layers", config.num_hidden_layers);
  read(keys, "num_attention_heads", config.num_attention_heads);
  read(keys, "num_key_value_heads", config.num_key_value_heads);
  require(config.num_attention_heads >= 1, "num_attention_heads", ">= 1, got ",
          config.num_attention_heads);
  config.head_dim = config.hidden_size / config.num_attention_heads;
  read(keys, "head_dim", config.head_dim);
  read(keys, "max_position_embeddings", config.max_position_embeddings);
  read(keys, "initializer_range", config.initializer_range);
  read(keys, "rms_norm_eps", config.rms_norm_eps);
  read_either(keys, "rope_theta", read_rope_parameters(keys), "rope_theta", config.rope_theta);
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
  read_word<Layout>(keys, "gathered_layout", R"("nz" or "nd")",
                    {{"nz", Layout::kNZ}, {"nd", Layout::kND}}, config.gathered_layout);
  read_dtype(keys, config.dtype);
  config.validate();
  return config;
}

}  // namespace

Qwen3MoeConfig read_qwen3_moe_config(const std::string& path) {
  constexpr std::int64_t kMostBytes = 16 << 20;
  return parse_qwen3_moe_config(read_input_file(path, "qwen3_moe config", kMostBytes));
}

Qwen3MoeConfig parse_qwen3_moe_config(std::string_view text) {
  constexpr int kMaxDepth = 16;  // of what others keep in the file
  return read_config(parse_strict_json(text, kMaxDepth, "qwen3_moe config"));
}

std::string to_json(const Qwen3MoeConfig& config) {
  const json keys = {
      {"architectures", {"Qwen3MoeForCausalLM"}},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"decoder_sparse_step", config.decoder_sparse_step},
      {"expert_weights",
       config.expert_weights == nn::ExpertWeights::kHuggingFace ? "hf" : "pretransposed"},
      {"gathered_layout", config.gathered_layout == Layout::kNZ ? "nz" : "nd"},
      {"head_dim", config.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", config.hidden_size},
      {"initializer_range", config.initializer_range},
      {"intermediate_size", config.intermediate_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"mlp_only_layers", config.mlp_only_layers},
      {"model_type", "qwen3_moe"},
      {"moe_intermediate_size", config.moe_intermediate_size},
      {"norm_topk_prob", config.norm_topk_prob},
      {"num_attention_heads", config.num_attention_heads},
      {"num_experts", config.num_experts},
      {"num_experts_per_tok", config.num_experts_per_tok},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_key_value_heads", config.num_key_value_heads},
      {"output_router_logits", true},  // what adds the auxiliary loss there, as here
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_scaling", nullptr},
      {"rope_theta", config.rope_theta},
      {"router_aux_loss_coef", config.router_aux_loss_coef},
      {"sliding_window", nullptr},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"torch_dtype", to_string(config.dtype)},
      {"use_cache", true},
      {"use_sliding_window", false},
      {"vocab_size", config.vocab_size}};
  return keys.dump(/*indent=*/2) + "\n";
}

}  // namespace moegrad::models
