// SPDX-License-Identifier: Apache-2.0
// Shapes: B rows of S tokens, V vocabulary.
#include "tools/check_golden/golden_pretrained.h"

#include <string>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/model.h"
#include "ops/views.h"
#include "tools/check_golden/golden_complete.h"
#include "tools/check_golden/golden_files.h"
#include "tools/check_golden/golden_rows.h"

namespace moegrad::tools {
namespace {

/// Hugging Face adds the balance loss only if its configuration asks for the routers' logits.
bool adds_balance_loss(const std::filesystem::path& folder) {
  const auto keys = read_golden_json(folder / "config.json");
  return keys.has("output_router_logits") && keys["output_router_logits"].boolean();
}

/// The values of the run in `precision`, f64 or f32, as float64.
GoldenValues read_values(const GoldenTensors& file, const models::CausalLMConfig& config,
                         const Ids& ids, const std::string& precision) {
  GoldenValues values;
  const auto rows = std::ssize(ids), length = std::ssize(ids[0]), vocabulary = config.vocab_size;
  const Tensor logits = file.find_float("logits_" + precision, {rows, length, vocabulary});
  if (logits.defined()) values.logits = ops::reshape(logits, {rows * length, vocabulary});
  const Tensor loss = file.find_float("loss_" + precision, {1});
  values.losses.emplace_back();
  if (loss.defined()) values.losses[0].loss = loss.item();
  for (auto& [name, gradient] : file.below("grad_" + precision + ".")) {
    const bool second_name = config.tie_word_embeddings && name == "lm_head.weight";
    values.gradients.push_back(
        {second_name ? "model.embed_tokens.weight" : name, to_dtype(gradient, Dtype::kFloat64)});
  }
  return values;
}

/// generate.json: { any name: { prompt, greedy, smallest_margin } }
std::vector<GoldenGeneration> read_generations(const std::filesystem::path& folder,
                                               const models::CausalLMConfig& config) {
  std::vector<GoldenGeneration> generations;
  if (!exists(folder / "generate.json")) return generations;
  const auto tokens_in = [&](const JsonNode& array) {
    const auto tokens = array.list(&JsonNode::integer);
    array.require(!tokens.empty(), "must have a token, got none");
    for (const auto token : tokens) {
      array.require(0 <= token && token < config.vocab_size, "must be in [0, ", config.vocab_size,
                    ") (vocab_size), got ", token);
    }
    return tokens;
  };
  for (const auto& [name, json] : read_golden_json(folder / "generate.json").members()) {
    json.allow_only({"prompt", "greedy", "smallest_margin"});
    generations.push_back({.prompt = tokens_in(json["prompt"]),
                           .tokens = tokens_in(json["greedy"]),
                           .smallest_margin = json["smallest_margin"].number()});
  }
  return generations;
}

/// Parameters have the names that transformers 5 gives them.
std::vector<std::string> parameters_of(const models::CausalLMConfig& config) {
  const MetaGuard without_bytes;
  const models::CausalLM model(config);
  std::vector<std::string> names;
  for (const auto& [name, parameter] : model.named_parameters()) names.push_back(name);
  return names;
}

}  // namespace

GoldenCase read_golden_pretrained(const std::filesystem::path& folder) {
  GoldenCase golden{.folder = folder, .name = name_of(folder), .kind = GoldenKind::kPretrained};
  golden.config = models::read_model_config(folder / "config.json");
  if (!adds_balance_loss(folder)) golden.config.router_aux_loss_coef = 0;

  const GoldenTensors file(folder / "expected.safetensors");
  const auto ids = file.find_ids("input_ids");
  check<ValueError>(ids.has_value(), "expected.safetensors: must have input_ids");
  golden.batch = golden_batch(golden.config, "expected.safetensors", *ids, *ids);
  golden.expected = read_values(file, golden.config, *ids, "f64");
  golden.expected_float32 = read_values(file, golden.config, *ids, "f32");
  file.refuse_unread();

  golden.generations = read_generations(folder, golden.config);
  golden.missing = missing_expectations(golden, parameters_of(golden.config));
  return golden;
}

}  // namespace moegrad::tools
