// SPDX-License-Identifier: Apache-2.0
#include "train/tensor_plan.h"

#include <cstdint>
#include <string>

namespace moegrad::training {

using namespace parallel;

ParallelPlan tensor_plan(const models::CausalLMConfig& config, const TensorPlanOptions& options) {
  const auto whole = Replicate(), rows = Shard(0);
  const auto between = options.sequence_parallel ? rows : whole;
  const RowwiseParallel sums{.output_layouts = between};
  ParallelPlan plan;
  const auto add_mlp = [&](const std::string& path, const TensorLayout& outside) {
    plan.push_back({path + ".gate_proj", ColwiseParallel{.input_layouts = outside}});
    plan.push_back({path + ".up_proj", ColwiseParallel{.input_layouts = outside}});
    plan.push_back({path + ".down_proj", RowwiseParallel{.output_layouts = outside}});
  };
  plan.push_back(
      {"model.embed_tokens", RowwiseParallel{.input_layouts = whole, .output_layouts = between}});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto layer = "model.layers." + std::to_string(i), attention = layer + ".self_attn";
    const auto kv_heads = config.num_key_value_heads;
    plan.push_back({attention + ".q_proj", ColwiseParallel{.input_layouts = between,
                                                           .blocks = config.num_attention_heads}});
    for (const auto* const projection : {".k_proj", ".v_proj"}) {
      plan.push_back(
          {attention + projection, ColwiseParallel{.input_layouts = between, .blocks = kv_heads}});
    }
    plan.push_back({attention + ".o_proj", sums});
    if (config.use_qk_norm) plan.push_back({attention + ".?_norm", SequenceParallel{1}});
    if (options.sequence_parallel) plan.push_back({layer + ".*_layernorm", SequenceParallel{}});
    const auto mlp = layer + ".mlp";
    if (!config.is_moe_layer(i)) {
      add_mlp(mlp, between);
      continue;
    }
    if (!options.sequence_parallel) {
      plan.push_back({mlp, PrepareModuleInput{{whole}, {rows}}});
      plan.push_back({mlp, PrepareModuleOutput{{rows}, {whole}}});
    }
    plan.push_back({mlp + ".gate", SequenceParallel{}});
    if (!options.expert_parallel) plan.push_back({mlp + ".experts", SequenceParallel{}});
    if (config.n_shared_experts > 0) add_mlp(mlp + ".shared_experts", rows);
    if (config.shared_expert_intermediate_size > 0) {
      add_mlp(mlp + ".shared_expert", rows);
      plan.push_back({mlp + ".shared_expert_gate", SequenceParallel{}});
    }
  }
  if (options.sequence_parallel) plan.push_back({"model.norm", SequenceParallel{}});
  plan.push_back(
      {"lm_head", ColwiseParallel{.input_layouts = between,
                                  .output_layouts = options.loss_parallel ? Shard(-1) : whole}});
  return plan;
}

}  // namespace moegrad::training
