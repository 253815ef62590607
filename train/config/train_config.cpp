// SPDX-License-Identifier: Apache-2.0
#include "train/config/train_config.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "models/causal_lm/config_json.h"
#include "train/config/option.h"
#include "train/config/train_options.h"
#include "train/optimizers.h"

namespace moegrad::training {
namespace {

void check_sizes(const TrainConfig& config) {
  const auto& data = config.data;
  check_product("compute threads (--world-size x --threads-per-rank)", config.parallel.world_size,
                config.parallel.threads_per_rank, kMostThreads);
  check_product("tokens of a micro-batch (--batch x --seq-len)", data.batch, data.sequence_length,
                kMostTokens);
  check_product("tokens of a step (--micro-batches x --batch x --seq-len)", data.micro_batches,
                data.batch * data.sequence_length, kMostTokens);
  check_product("tokens of the run (--steps x tokens of a step)", config.optim.steps,
                config.tokens_per_step(), std::numeric_limits<std::int64_t>::max());
}

void check_schedule(const TrainConfig::Optim& config) {
  const auto steps = config.steps, warmup = warmup_steps(config);
  const bool constant = config.schedule == ScheduleKind::kConstant;
  check<UsageError>(warmup + (constant ? 0 : steps / 5) <= steps, "--warmup: must leave room in ",
                    steps, " steps, got ", warmup);
}

void check_data(const TrainConfig& config, const models::CausalLMConfig& model) {
  const auto& data = config.data;
  const auto* const source = !config.model.hf_model.empty() ? "--hf-model"
                             : !config.model.config.empty() ? "--config"
                                                            : "--preset";
  check<UsageError>(config.output.dry_run || !data.tokens.empty() || model.vocab_size == 256,
                    source,
                    ": a text is read by bytes, which are the ids of a vocab_size of 256, got ",
                    model.vocab_size, "; name a file of the model's own ids with --data");
  check<UsageError>(data.tokens.empty() || data.token_dtype || model.vocab_size <= kMostUInt16Ids,
                    "--data-dtype: must be given for a vocab_size above ", kMostUInt16Ids,
                    ", most of which uint16 does not hold, got none for ", model.vocab_size);
  check<UsageError>(data.tokens.empty() || !data.pack || data.end_of_document,
                    "--pack: the documents of --data need --end-of-document");
  const auto longest = data.pack ? data.batch * data.sequence_length : data.sequence_length;
  check<UsageError>(longest <= model.max_position_embeddings, data.pack ? "--pack" : "--seq-len",
                    ": the model has positions for documents of ", model.max_position_embeddings,
                    " tokens (max_position_embeddings), got ", data.pack ? "packs of " : "",
                    longest);
}

// Requires a dtype that values travel or are exported in to be bf16 or the dtype of the parameters.
void check_narrow(const char* name, std::optional<Dtype> dtype, Dtype arithmetic) {
  const auto name_in_options = [](Dtype one) { return name_of<Dtype>(one, kDtypes); };
  const auto own = arithmetic_dtype(arithmetic);
  check<UsageError>(!dtype || *dtype == Dtype::kBFloat16 || *dtype == own, name,
                    own == arithmetic ? ": must be bf16 or what --dtype is, "
                                      : ": must be bf16 or what the parameters are, ",
                    name_in_options(own), ", got ", name_in_options(dtype.value_or(own)));
}

void check_profile(const TrainConfig& config) {
  const auto& range = config.output.profile_steps;
  check<UsageError>(range || config.output.profile.empty(), "--profile: needs --profile-steps");
  check<UsageError>(!range || range->end <= config.optim.steps, "--profile-steps: must end within ",
                    config.optim.steps, " steps, got ", range ? range->end : 0);
}

models::CausalLMConfig configured_model(const TrainConfig::Model& model) {
  const auto file = model.hf_model.empty() ? model.config : model.hf_model + "/config.json";
  if (file.empty()) return models::CausalLMConfig::preset(model.preset);
  try {
    return models::read_model_config(file);
  } catch (const Error& error) {
    throw ValueError((model.hf_model.empty() ? "--config: " : "--hf-model: ") +
                     std::string(error.what()));
  }
}

void check_balance(const Balance& balance, const models::CausalLMConfig& model) {
  if (model.num_moe_layers() == 0) {
    const auto check_unset = [](bool unset, const char* option) {
      check<UsageError>(unset, option, ": the model has no experts to balance");
    };
    check_unset(balance.aux_loss_coef.value_or(0) == 0, "--aux-loss-coef");
    check_unset(balance.layers == Balance().layers, "--aux-loss-layers");
    check_unset(balance.tokens == Balance().tokens, "--aux-loss-tokens");
    check_unset(balance.z_loss_coef == 0, "--z-loss-coef");
    check_unset(balance.bias_update_rate.value_or(0) == 0, "--bias-update-rate");
  }
  check<UsageError>(model.correction_bias || balance.bias_update_rate.value_or(0) == 0,
                    "--bias-update-rate: needs routers with a correction bias, as a glm4_moe has, "
                    "got a ",
                    to_string(model.model_type));
}

void check_axes(const TrainConfig::Parallel& parallel) {
  check<UsageError>(parallel.replicas >= 1 && parallel.world_size % parallel.replicas == 0,
                    "--replicas: must divide the ranks (--world-size), ", parallel.world_size,
                    ", got ", parallel.replicas);
  const auto must_be_one = [](std::string_view option, int ranks, std::string_view what) {
    check<UsageError>(ranks == 1, option, ": must be 1, because ", what,
                      " cannot be divided over ranks yet, got ", ranks);
  };
  must_be_one("--context-parallel", parallel.context_parallel, "a sequence");
  must_be_one("--pipeline-parallel", parallel.pipeline_parallel, "the order of layers");
}

void check_tensor_parallel(const TrainConfig& config, const models::CausalLMConfig& model) {
  const auto& parallel = config.parallel;
  const int ranks = parallel.tensor_parallel;
  const auto check_divides = [&](std::int64_t number, std::string_view of) {
    check<UsageError>(number % ranks == 0, "--tensor-parallel: must divide ", of, ", ", number,
                      ", got ", ranks);
  };
  check<UsageError>(!parallel.sequence_parallel || ranks > 1,
                    "--sequence-parallel: needs --tensor-parallel");
  check_divides(parallel.world_size / parallel.replicas, "the ranks of a replica");
  const auto parts = parallel.token_parts;
  const auto mixtures = model.num_moe_layers();
  check<UsageError>(parts == 1 || mixtures > 0,
                    "--token-parts: must be 1 for a model without experts, got ", parts);
  check<UsageError>(config.data.sequence_length % parts == 0,
                    "--token-parts: must divide --seq-len, ", config.data.sequence_length, ", got ",
                    parts);
  check<UsageError>(parts == 1 || !config.data.pack,
                    "--pack: micro-batches have any number of tokens, which --token-parts cannot "
                    "divide");
  check<UsageError>(ranks > 1 || parallel.expert_parallel == 1 || parts == 1,
                    "--token-parts: must be 1 with --expert-parallel, unless --tensor-parallel is "
                    "as large, got ",
                    parts);
  if (ranks == 1) return;
  check<UsageError>(parallel.expert_parallel == 1 || parallel.expert_parallel == ranks,
                    "--expert-parallel: must be 1 or what --tensor-parallel is, ", ranks, ", got ",
                    parallel.expert_parallel);
  check<UsageError>(mixtures == 0 || parts % ranks == 0,
                    "--token-parts: must be a multiple of --tensor-parallel, ", ranks,
                    ", for a model with experts, got ", parts);
  check<UsageError>(parallel.expert_parallel == 1 || parts == ranks,
                    "--token-parts: must be what --expert-parallel is, ", parallel.expert_parallel,
                    ", where tokens travel to experts, got ", parts);
  check_divides(model.num_attention_heads, "num_attention_heads");
  const auto kv_heads = model.num_key_value_heads;
  check<UsageError>(kv_heads % ranks == 0 || ranks % kv_heads == 0,
                    "--tensor-parallel: must divide num_key_value_heads, ", kv_heads,
                    ", or be a multiple of it, got ", ranks);
  check_divides(model.vocab_size, "vocab_size");
  if (mixtures < model.num_hidden_layers)
    check_divides(model.intermediate_size, "intermediate_size");
  if (const auto shared = model.mixture().shared_intermediate_size; mixtures > 0 && shared > 0) {
    check_divides(shared, "the inner size of the shared expert");
  }
  if (mixtures > 0 || parallel.sequence_parallel) {
    check<UsageError>(!config.data.pack,
                      "--pack: micro-batches have any number of tokens, which --tensor-parallel "
                      "cannot divide for ",
                      parallel.sequence_parallel ? "--sequence-parallel" : "mixtures of experts");
    const auto tokens = config.data.sequence_length * config.data.batch;
    check<UsageError>(tokens % ranks == 0,
                      parallel.sequence_parallel ? "--sequence-parallel" : "--tensor-parallel",
                      ": the ranks of --tensor-parallel must divide the tokens of a micro-batch, ",
                      tokens, ", got ", ranks);
    check_divides(config.data.sequence_length, "--seq-len");
  }
  check<UsageError>(!parallel.sequence_parallel || model.router_jitter_noise == 0,
                    "--sequence-parallel: router_jitter_noise needs all tokens on each rank, got ",
                    model.router_jitter_noise);
}

void check_expert_parallel(const TrainConfig::Parallel& parallel,
                           const models::CausalLMConfig& model) {
  const int ranks = parallel.expert_parallel;
  check<UsageError>(ranks == 1 || model.num_moe_layers() > 0,
                    "--expert-parallel: must be 1 for a model without experts, got ", ranks);
  check<UsageError>(parallel.world_size % ranks == 0,
                    "--expert-parallel: must divide the ranks (--world-size), ",
                    parallel.world_size, ", got ", ranks);
  check<UsageError>(parallel.world_size / parallel.replicas % ranks == 0,
                    "--expert-parallel: must divide the ranks of a replica, ",
                    parallel.world_size / parallel.replicas, ", got ", ranks);
  check<UsageError>(ranks == 1 || model.num_experts % ranks == 0,
                    "--expert-parallel: must divide the experts of a layer, ", model.num_experts,
                    ", got ", ranks);
}

nn::ExpertWeights storage_of(const TrainConfig::Model& model) {
  return model.expert_weights.value_or(model.grouped_matmul_nz_transpose
                                           ? nn::ExpertWeights::kPretransposed
                                           : nn::ExpertWeights::kHuggingFace);
}

Layout layout_of(const TrainConfig::Model& model) {
  return model.layout.value_or(model.grouped_matmul_nz_transpose ? Layout::kNZ : Layout::kND);
}

}  // namespace

void TrainConfig::validate() const {
  check_sizes(*this);
  const auto shape = model_config();
  check_data(*this, shape);
  check_balance(balance, shape);
  check<UsageError>(parallel.world_size >= 1, "--world-size: must be at least 1, got ",
                    parallel.world_size);
  check<UsageError>(parallel.threads_per_rank >= 1, "--threads-per-rank: must be at least 1, got ",
                    parallel.threads_per_rank);
  check_axes(parallel);
  check_tensor_parallel(*this, shape);
  check_expert_parallel(parallel, shape);
  check_narrow("--wire-dtype", parallel.wire_dtype, model.dtype);
  check_narrow("--reduce-dtype", parallel.reduce_dtype, model.dtype);
  check_narrow("--export-dtype", output.export_dtype, model.dtype);
  check<UsageError>(!checkpoint.resume || !checkpoint.dir.empty(),
                    "--resume: needs --checkpoint-dir");
  check_schedule(optim);
  check_settings(optim);
  check<UsageError>(memory.plan.recompute_layers <= shape.num_hidden_layers,
                    "--recompute-layers: the model has ", shape.num_hidden_layers, " layers, got ",
                    memory.plan.recompute_layers);
  check<UsageError>(output.sample_bytes == 0 || !data.tokens.empty() || !output.prompt.empty(),
                    "--prompt: must not be empty");
  check_profile(*this);
}

TrainConfig TrainConfig::resolved() const {
  auto config = *this;
  config.data.token_dtype = data.token_dtype.value_or(TokenDtype::kUInt16);
  config.optim.settings = all_settings(optim);
  config.optim.warmup = warmup_steps(optim);
  config.model.layout = layout_of(model);
  config.model.expert_weights = storage_of(model);
  config.parallel.wire_dtype = parallel.wire_dtype.value_or(model.dtype);
  config.parallel.reduce_dtype = parallel.reduce_dtype.value_or(arithmetic_dtype(model.dtype));
  return config;
}

void TrainConfig::fill_in_balance() {
  const auto shape = model_config();
  const bool mixtures = shape.num_moe_layers() > 0;
  balance.aux_loss_coef = balance.aux_loss_coef.value_or(mixtures ? shape.router_aux_loss_coef : 0);
  balance.bias_update_rate =
      balance.bias_update_rate.value_or(mixtures && shape.correction_bias ? kBiasUpdateRate : 0);
}

models::CausalLMConfig TrainConfig::model_config() const {
  auto shape = configured_model(model);
  shape.expert_weights = storage_of(model);
  shape.dtype = arithmetic_dtype(model.dtype);  // of the parameters, which are updated
  return shape;
}

fsdp::Policy TrainConfig::policy() const {
  fsdp::Policy policy;
  if (memory.reshard_after_forward) policy.reshard_after_forward = *memory.reshard_after_forward;
  policy.linear_only_shard = parallel.linear_only_shard;
  policy.forward_prefetch = parallel.prefetch;
  policy.gathered_layout = layout_of(model);
  if (model.dtype == Dtype::kBFloat16) policy.mixed_precision.param_dtype = model.dtype;
  if (parallel.wire_dtype && parallel.wire_dtype != model.dtype) {
    policy.mixed_precision.wire_dtype = parallel.wire_dtype;
  }
  if (parallel.reduce_dtype == Dtype::kBFloat16) {
    policy.mixed_precision.reduce_dtype = Dtype::kBFloat16;
  }
  return policy;
}

ParallelDims TrainConfig::parallel_dims() const {
  const auto& p = parallel;
  const int others = p.replicas * p.context_parallel * p.tensor_parallel * p.pipeline_parallel;
  return {.dp_replicate = p.replicas,
          .dp_shard = p.world_size / others,
          .cp = p.context_parallel,
          .tp = p.tensor_parallel,
          .ep = p.expert_parallel,
          .pp = p.pipeline_parallel};
}

std::int64_t TrainConfig::tokens_per_step() const {
  return data.micro_batches * data.batch * data.sequence_length;
}

std::int64_t warmup_steps(const TrainConfig::Optim& config) {
  const bool constant = config.schedule == ScheduleKind::kConstant;
  return config.warmup.value_or(constant ? 0 : std::min<std::int64_t>(40, config.steps / 10));
}

optim::Schedule schedule_of(const TrainConfig::Optim& config) {
  const auto warmup = warmup_steps(config);
  if (config.schedule == ScheduleKind::kCosine) {
    return optim::cosine_with_warmup(config.lr, warmup, config.steps);
  }
  const auto decay = config.schedule == ScheduleKind::kWarmupStableDecay ? config.steps / 5 : 0;
  return optim::warmup_stable_decay(config.lr, warmup, config.steps - warmup - decay, decay);
}

}  // namespace moegrad::training
