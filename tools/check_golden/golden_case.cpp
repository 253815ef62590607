// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_case.h"

#include <utility>

#include "framework/io/safetensors.h"
#include "framework/runtime/error.h"
#include "models/causal_lm/config_json.h"
#include "ops/views.h"
#include "tools/check_golden/golden_complete.h"
#include "tools/check_golden/golden_files.h"
#include "tools/check_golden/golden_rows.h"
#include "tools/check_golden/golden_training.h"

namespace moegrad::tools {
namespace {

Tensor flattened(const Tensor& tensor, std::int64_t columns) {
  return ops::reshape(tensor, {tensor.numel() / columns, columns});
}

/// The values in the safetensors file of a row. `rows` are the leading dimensions.
GoldenValues read_tensors(const GoldenTensors& file, const models::CausalLMConfig& config,
                          const std::vector<std::int64_t>& rows) {
  const auto shape = [&](std::int64_t last) {
    auto dims = rows;
    dims.push_back(last);
    return Shape(dims);
  };
  GoldenValues values;
  values.losses.push_back(file.losses());
  values.logits = file.find("logits_f64", shape(config.vocab_size));
  if (values.logits.defined()) values.logits = flattened(values.logits, config.vocab_size);
  const auto tokens = shape(1).numel();
  for (std::int64_t i = 0; i <= config.num_hidden_layers; ++i) {
    const Tensor hidden = file.find("hidden_f64." + std::to_string(i), shape(config.hidden_size));
    values.hidden.push_back(hidden.defined() ? flattened(hidden, config.hidden_size) : hidden);
  }
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    if (!config.is_moe_layer(i)) continue;
    const auto read = [&](const std::string& name, std::int64_t columns, Dtype dtype, auto& into) {
      const Tensor found = file.find(name + std::to_string(i), {tokens, columns}, dtype);
      if (found.defined()) into.emplace(i, found);
    };
    const auto k = config.num_experts_per_tok;
    read("router_logits_f64.", config.num_experts, Dtype::kFloat64, values.router_logits);
    read("topk_indices.", k, Dtype::kInt64, values.topk_indices);
    read("topk_weights_f64.", k, Dtype::kFloat64, values.topk_weights);
  }
  values.gradients = file.below("grad.");
  return values;
}

/// Adds the values of expected.json, or of `packed` in it.
void read_figures(const JsonNode& json, const models::CausalLMConfig& config,
                  GoldenValues& values) {
  if (json.has("fp64")) values.losses.push_back(losses_in(json["fp64"]));
  values.router_margin = optional_number(json, "min_router_margin");
  values.gradient_stats = stats_in(json, "grad_stats_fp64");
  values.ce_gradient_stats = stats_in(json, "grad_ce_only_stats_fp64");
  values.gradient_l2 = optional_number(json, "grad_global_l2");
  values.ce_gradient_l2 = optional_number(json, "grad_ce_global_l2");
  if (!json.has("tokens_per_expert")) return;
  const auto counts = json["tokens_per_expert"];
  std::size_t known = 0;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto layer = std::to_string(i);
    if (!counts.has(layer)) continue;
    counts[layer].require(config.is_moe_layer(i), "must be of a mixture layer, got ",
                          counts[layer]);
    values.tokens_per_expert[i] = counts[layer].list(&JsonNode::integer);
    ++known;
  }
  counts.require(counts.members().size() == known, "must be by mixture layer, got ", counts);
}

/// Hugging Face's names, without the second name of a tied parameter and without buffers.
std::vector<std::string> parameters_in(const std::filesystem::path& folder,
                                       const models::CausalLMConfig& config) {
  std::vector<std::string> names;
  const SafetensorsFile file(folder / "model.safetensors");
  for (const auto& entry : file.entries()) {
    if (config.tie_word_embeddings && entry.name == "lm_head.weight") continue;
    if (entry.name.ends_with(".e_score_correction_bias")) continue;
    names.push_back(entry.name);
  }
  return names;
}

/// ValueError unless the list under `key`, if there is one, is `counts`.
void check_counts(const JsonNode& json, const std::string& key,
                  const std::vector<std::int64_t>& counts) {
  if (!json.has(key)) return;
  std::string wanted;
  for (const auto count : counts) wanted += (wanted.empty() ? "" : ", ") + std::to_string(count);
  json[key].require(json[key].list(&JsonNode::integer) == counts, "must be [", wanted, "], got ",
                    json[key]);
}

}  // namespace

std::string name_of(const std::filesystem::path& folder) {
  const auto name = folder.filename().string();
  return name.empty() ? folder.parent_path().filename().string() : name;
}

GoldenCase read_golden_case(const std::filesystem::path& folder) {
  GoldenCase golden{.folder = folder, .name = name_of(folder)};
  golden.config = models::read_model_config(folder / "config.json");
  const auto input = read_golden_json(folder / "input.json");
  input.allow_only({"case", "seed", "input_ids", "labels", "position_ids", "seq_lens",
                    "attention_mask", "num_target_tokens", "packed"});
  if (input.has("attention_mask")) {
    input["attention_mask"].require(false, "must be null, got ", input["attention_mask"]);
  }
  const auto ids = rows_in(input["input_ids"]);
  std::optional<Ids> positions;
  if (input.has("position_ids")) positions = rows_in(input["position_ids"]);
  golden.batch = golden_batch(golden.config, "input.json", ids, rows_in(input["labels"]),
                              positions ? &*positions : nullptr);

  std::vector<std::int64_t> lengths;
  for (const auto& row : ids) lengths.push_back(std::ssize(row));
  check_counts(input, "seq_lens", lengths);
  if (input.has("num_target_tokens")) {
    const auto count = input["num_target_tokens"];
    count.require(count.integer() == golden.batch.num_targets, "must be ", golden.batch.num_targets,
                  ", got ", count);
  }

  const GoldenTensors expected(folder / "expected.safetensors");
  golden.expected = read_tensors(expected, golden.config, {std::ssize(ids), std::ssize(ids[0])});
  const bool has_needed = golden.expected.logits.defined() && golden.expected.losses[0].loss;
  check<ValueError>(has_needed, "expected.safetensors: must have logits_f64 and loss_f64");
  expected.refuse_unread();

  std::optional<JsonNode> figures;
  if (exists(folder / "expected.json")) {
    figures = read_golden_json(folder / "expected.json");
    figures->allow_only({"case", "hf_version", "num_params", "fp64", "fp32", "fp64_rope32",
                         "moe_layers", "tokens_per_expert", "min_router_margin",
                         "params_without_grad_in_hf_4.55", "grad_global_l2", "grad_ce_global_l2",
                         "grad_stats_fp64", "grad_ce_only_stats_fp64", "grad_tensors_not_stored",
                         "packed", "checks", "tolerance_measurements"});
    golden.has_figures = true;
    if (figures->has("grad_tensors_not_stored")) {
      golden.gradients_not_stored = (*figures)["grad_tensors_not_stored"].list(&JsonNode::text);
    }
    read_figures(*figures, golden.config, golden.expected);
  }

  const auto packed_path = folder / "expected_packed.safetensors";
  if (input.has("packed") && exists(packed_path)) {
    auto [row, alone_rows] = golden_packed_row(golden.config, "input.json", input["packed"]);
    input["packed"].allow_only({"input_ids", "labels", "position_ids", "seq_lens", "cu_seqlens",
                                "num_target_tokens_per_seq"});
    golden.packed = row;
    golden.alone = alone_rows;
    std::vector<std::int64_t> packed_lengths, packed_targets;
    for (const auto& alone : alone_rows) {
      packed_lengths.push_back(alone.tokens.numel());
      packed_targets.push_back(alone.num_targets);
    }
    check_counts(input["packed"], "seq_lens", packed_lengths);
    check_counts(input["packed"], "num_target_tokens_per_seq", packed_targets);
    const GoldenTensors packed(packed_path);
    golden.expected_packed = read_tensors(packed, golden.config, {golden.packed->tokens.numel()});
    std::vector<JsonNode> alone;
    if (figures && figures->has("packed")) {
      (*figures)["packed"].allow_only(
          {"fp64", "fp32", "seq_fp64", "grad_global_l2", "grad_stats_fp64", "min_router_margin",
           "wrong_loss_if_sequences_attend_to_each_other", "hf_one_row_packed_vs_separate_runs"});
      read_figures((*figures)["packed"], golden.config, golden.expected_packed);
      if ((*figures)["packed"].has("seq_fp64")) {
        alone = (*figures)["packed"]["seq_fp64"].elements();
      }
    }
    for (std::size_t i = 0; i < golden.alone.size(); ++i) {
      auto& values = golden.expected_alone.emplace_back();
      values.losses.push_back(packed.losses("seq" + std::to_string(i + 1) + "."));
      if (i < alone.size()) values.losses.push_back(losses_in(alone[i]));
    }
    packed.refuse_unread();
    if (!alone.empty()) {
      const auto sequences = (*figures)["packed"]["seq_fp64"];
      sequences.require(alone.size() <= golden.alone.size(), "must be of ", golden.alone.size(),
                        " sequences, got ", sequences);
    }
  }
  if (exists(folder / "train.json")) read_golden_training(figures ? &*figures : nullptr, golden);
  golden.missing = missing_expectations(golden, parameters_in(folder, golden.config));
  return golden;
}

}  // namespace moegrad::tools
