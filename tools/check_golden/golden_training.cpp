// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_training.h"

#include "framework/runtime/error.h"
#include "tools/check_golden/golden_files.h"
#include "tools/check_golden/golden_rows.h"

namespace moegrad::tools {
namespace {

GoldenOptimizer read_optimizer(const JsonNode& spec) {
  spec.allow_only({"optimizer", "lr", "betas", "eps", "weight_decay", "clip", "schedule",
                   "warmup_steps", "no_decay_1d", "missing_grad"});
  spec["optimizer"].require(spec["optimizer"].text() == "torch.optim.AdamW",
                            "must be torch.optim.AdamW, got ", spec["optimizer"]);
  const auto betas = spec["betas"].list(&JsonNode::number);
  spec["betas"].require(betas.size() == 2, "must be two numbers, got ", spec["betas"]);
  const auto one_of = [&](const std::string& key, const std::string& no, const std::string& yes) {
    const auto word = spec[key];
    word.require(word.text() == no || word.text() == yes, "must be \"", no, "\" or \"", yes,
                 "\", got ", word);
    return word.text() == yes;
  };
  return {.lr = spec["lr"].number(),
          .beta1 = betas[0],
          .beta2 = betas[1],
          .eps = spec["eps"].number(),
          .weight_decay = spec["weight_decay"].number(),
          .clip = optional_number(spec, "clip"),
          .cosine = one_of("schedule", "constant", "cosine"),
          .warmup_steps = spec["warmup_steps"].integer(),
          .no_decay_1d = spec["no_decay_1d"].boolean(),
          .skip_missing_grad = one_of("missing_grad", "zeros", "skip")};
}

GoldenVariant read_variant(const std::string& name, const JsonNode& json, std::size_t steps) {
  const auto per_step = [&](const JsonNode& from, const std::string& key) {
    const auto numbers = from[key].list(&JsonNode::number);
    from[key].require(numbers.size() == steps, "must be one number for each of ", steps,
                      " steps, got ", from[key]);
    return numbers;
  };
  json.allow_only(
      {"spec", "lr", "fp64", "fp32", "fp32_alt_order", "fp64_rope32", "final_param_stats_fp64"});
  const auto fp64 = json["fp64"];
  fp64.allow_only({"loss", "loss_ce", "aux_loss", "grad_norm", "min_router_margin", "final_eval"});
  GoldenVariant variant{.name = name,
                        .optimizer = read_optimizer(json["spec"]),
                        .lr = per_step(json, "lr"),
                        .loss = per_step(fp64, "loss"),
                        .ce = per_step(fp64, "loss_ce"),
                        .aux = per_step(fp64, "aux_loss"),
                        .grad_norm = per_step(fp64, "grad_norm")};
  if (fp64.has("final_eval")) variant.final_eval = losses_in(fp64["final_eval"]);
  variant.final_stats = stats_in(json, "final_param_stats_fp64");
  if (json.has("fp32_alt_order")) {
    variant.other_run.loss = per_step(json["fp32_alt_order"], "loss");
    variant.other_run.grad_norm = per_step(json["fp32_alt_order"], "grad_norm");
  }
  return variant;
}

/// Reads from expected.json the errors of another float32 run of the reference.
void read_other_runs(const JsonNode& figures, GoldenCase& golden) {
  if (!figures.has("tolerance_measurements")) return;
  const auto measured = figures["tolerance_measurements"];
  if (!measured.has("fp32alt_vs_fp64_hf")) return;
  const auto train = measured["fp32alt_vs_fp64_hf"]["train"];
  golden.variant_names.clear();
  for (const auto& [name, value] : train.members()) golden.variant_names.push_back(name);
  for (auto& variant : golden.variants) {
    check<ValueError>(train.has(variant.name), "train.json: variants.", variant.name,
                      " is unknown to tolerance_measurements in expected.json");
    const auto other = train[variant.name];
    variant.other_run.aux_error = other["aux_max_abs"].number();
    variant.other_run.parameters_error = other["final_param_rel_l2"].number();
    variant.other_run.parameter_error = other["final_param_max_abs"].number();
  }
}

}  // namespace

void read_golden_training(const JsonNode* figures, GoldenCase& golden) {
  const auto& folder = golden.folder;
  const auto json = read_golden_json(folder / "train.json");
  json.allow_only({"case", "steps", "input_ids", "labels", "position_ids", "notes", "variants"});
  const auto ids = json["input_ids"].elements(), labels = json["labels"].elements();
  const auto steps = static_cast<std::size_t>(json["steps"].integer());
  check<ValueError>(ids.size() == steps && labels.size() == steps, "train.json",
                    ": input_ids and labels must be batches of ", steps, " steps, got ", ids.size(),
                    " and ", labels.size());
  for (std::size_t step = 0; step < steps; ++step) {
    golden.steps.push_back(
        golden_batch(golden.config, "train.json", rows_in(ids[step]), rows_in(labels[step])));
  }
  for (const auto& [name, variant] : json["variants"].members()) {
    golden.variants.push_back(read_variant(name, variant, steps));
  }
  golden.variant_names = {"adamw_const", "adamw_clip_cosine", "adamw_clip_cosine_nodecay1d",
                          "adamw_const_skip_missing_grad"};
  if (figures != nullptr) read_other_runs(*figures, golden);
  const auto finals = folder / "train_final.safetensors";
  if (!exists(finals)) return;
  const GoldenTensors file(finals);
  for (auto& variant : golden.variants) {
    variant.final_parameters = file.below(variant.name + "/");
  }
  file.refuse_unread();
}

}  // namespace moegrad::tools
