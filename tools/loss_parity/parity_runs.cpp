// SPDX-License-Identifier: Apache-2.0
#include "tools/loss_parity/parity_runs.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "framework/autograd/gradient_sum.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/tensor/fill.h"
#include "fsdp/state_dict.h"
#include "models/causal_lm/plain.h"
#include "models/plain_moe.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "train/data/step_loader.h"
#include "train/expert_counts.h"
#include "train/memory_plan.h"
#include "train/train_checkpoints.h"
#include "train/train_step.h"

namespace moegrad::tools {

using namespace training;

namespace {

constexpr std::chrono::microseconds kLongestDelay{200};

models::CausalLMConfig wide_model(bool mixture) {
  auto config = models::CausalLMConfig::preset(mixture ? "tiny-qwen2-moe" : "tiny-dense");
  config.vocab_size = config.hidden_size = config.intermediate_size = 512;
  config.shared_expert_intermediate_size = mixture ? 512 : 0;
  config.num_hidden_layers = 2;
  config.head_dim = 64;
  config.num_attention_heads = config.num_key_value_heads = 8;
  return config;
}

models::CausalLMConfig model_config(const ParityOptions& options, Dtype dtype,
                                    nn::ExpertWeights weights,
                                    ParityModel model = ParityModel::kPreset) {
  auto config = model == ParityModel::kPreset ? models::CausalLMConfig::preset(options.preset)
                                              : parity_config(model);
  config.dtype = dtype;
  config.expert_weights = weights;
  return config;
}

optim::AdamW make_optimizer(const NamedTensors& parameters, double lr) {
  return optim::AdamW(decay_matrices(parameters, lr, 0.1), {.beta1 = 0.9, .beta2 = 0.95});
}

// Takes what `replay` says of this step, if it is given, instead of the routers' choice.
StepForward forward_of(const Choices* replay, std::int64_t step) {
  if (replay == nullptr) return run_model;
  return [&experts = (*replay)[static_cast<std::size_t>(step)]](
             models::CausalLM& model, const auto& turn, const MicroBatch& batch,
             models::CausalLM::ForwardOptions options) {
    if (!turn.idle) options.replay_expert_indices = experts[static_cast<std::size_t>(turn.index)];
    return model(batch.tokens, batch.documents, options);
  };
}

// Whole parameters of all ranks, on rank 0.
std::vector<std::vector<double>> collect(models::CausalLM& model) {
  std::vector<std::vector<double>> parameters;
  for (const auto& [name, whole] : fsdp::full_state_dict(model)) {
    const Tensor values = to_dtype(whole, Dtype::kFloat64);
    const auto all = values.data<double>();
    parameters.emplace_back(all.begin(), all.end());
  }
  return parameters;
}

// "4" for four shards, "2x2" for two replicas of two shards.
std::string grid(const ParallelDims& dims) {
  const auto shards = std::to_string(dims.dp_shard);
  return dims.dp_replicate > 1 ? std::to_string(dims.dp_replicate) + "x" + shards : shards;
}

/// A new folder, removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    auto name = (std::filesystem::temp_directory_path() / "loss_parity.XXXXXX").string();
    check(mkdtemp(name.data()) != nullptr, "cannot create a folder like ", name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

models::CausalLMConfig parity_config(ParityModel model) {
  if (model != ParityModel::kAllLayers) return wide_model(model == ParityModel::kWideMixture);
  auto config = models::CausalLMConfig::preset("tiny-qwen2-moe");
  config.num_hidden_layers = 3;
  config.mlp_only_layers = {0};
  return config;
}

Run run_plain(const ParityOptions& options, const StepData& data, Dtype dtype) {
  const auto config = model_config(options, dtype, nn::ExpertWeights::kHuggingFace);
  models::CausalLM model(config, options.seed);
  const auto parameters = model.named_parameters();
  const auto tensors = models::plain_tensors(model);
  auto optimizer = make_optimizer(parameters, options.lr);
  TensorList leaves;
  for (const auto& parameter : parameters) leaves.push_back(parameter.tensor);

  Run run{.name = std::string(to_string(dtype)) + ", plain"};
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const auto batches = step_batches(data, step);
    std::int64_t targets = 0;
    for (const auto& batch : batches) targets += batch.targets.numel();
    GradientSum gradients(leaves);
    std::vector<double> loss;
    auto& choices = run.choices.emplace_back();
    ExpertCounts counts;
    optimizer.zero_grad();
    for (const auto& batch : batches) {
      const auto output = models::plain_causal_lm(config, tensors, batch.tokens, batch.documents);
      const auto share =
          models::plain_causal_lm_loss(output, batch.targets, targets, config.router_aux_loss_coef);
      share.objective.backward();
      gradients.push();
      loss.push_back(share.objective.item());
      choices.push_back(output.expert_indices);
      add_counts(counts, output.tokens_per_expert);
    }
    gradients.finish();
    run.loss.push_back(fsdp::sum_in_order(std::move(loss), {}));
    run.grad_norm.push_back(optim::clip_grad_norm(parameters, options.max_grad_norm));
    optimizer.step();
    if (config.correction_bias) model.balance(counts, kBiasUpdateRate);
  }
  return run;
}

std::string ParityLayout::name() const {
  std::string name = model == ParityModel::kWideDense     ? "wide, dense, "
                     : model == ParityModel::kWideMixture ? "wide, experts, "
                     : model == ParityModel::kAllLayers   ? "all layers, "
                                                          : "";
  name += bf16_wire ? "bf16 wire, " : std::string(to_string(dtype)) + ", ";
  if (bf16_compute) name += "computes in bfloat16, ";
  name += grid(ranks) + (ranks.ranks() == 1 ? " rank" : " ranks");
  if (experts) name += ", experts on " + grid(*experts);
  if (ranks.tp > 1) name += ", tensor parallel " + std::to_string(ranks.tp);
  if (sequence_parallel) name += ", sequence parallel";
  if (ranks.ep > 1) name += ", expert parallel " + std::to_string(ranks.ep);
  if (token_parts > 1) name += ", " + std::to_string(token_parts) + " token parts";
  if (accumulation == fsdp::Accumulation::kReduceEach) name += ", each micro-batch reduced";
  if (accumulation == fsdp::Accumulation::kScatterEach) name += ", each scattered, one all-reduce";
  if (plan.recompute != "none") name += ", recompute " + plan.recompute;
  if (plan.offload != "none") name += ", offload " + plan.offload;
  if (chunked_loss) name += ", loss in chunks";
  if (resumed_on) {
    name += ", resumed on " + grid(*resumed_on);
    if (resumed_on->ep > 1) name += ", expert parallel " + std::to_string(resumed_on->ep);
  }
  if (reshard_after_forward) name += *reshard_after_forward ? ", resharded" : ", kept gathered";
  return name;
}

Run run_sharded(const ParityOptions& options, const StepData& data, const ParityLayout& layout,
                const Choices* replay) {
  const auto config =
      model_config(options, layout.dtype, nn::ExpertWeights::kPretransposed, layout.model);
  fsdp::Policy policy = {.reshard_after_forward = layout.reshard_after_forward};
  if (layout.bf16_wire) {
    policy.mixed_precision = {.wire_dtype = Dtype::kBFloat16, .reduce_dtype = Dtype::kBFloat16};
  }
  if (layout.bf16_compute) policy.mixed_precision.param_dtype = Dtype::kBFloat16;
  LaunchOptions launch_options;
  launch_options.exit_after = kProgramExitsAfter;
  launch_options.jitter = {.maximum = kLongestDelay, .seed = options.seed};
  Run run{.name = layout.name() + (replay != nullptr ? ", experts replayed" : "")};
  // Steps up to `until`, from the newest checkpoint in `folder` if that is not empty.
  const auto train = [&](RankContext& context, const ParallelDims& ranks, std::int64_t until,
                         const std::string& folder) {
    models::CausalLM model(config, options.seed);
    set_memory_plan(
        model, layout.plan,
        SwapSpace::make({.window = layout.plan.offload_window, .jitter = launch_options.jitter}));
    auto own_policy = policy;
    if (layout.experts) {
      own_policy.expert_mesh = make_meshes(context.group(), *layout.experts).fsdp();
    }
    const auto meshes = make_meshes(context.group(), ranks);
    auto& root = shard_model(
        model, meshes, own_policy,
        {.sequence_parallel = layout.sequence_parallel, .token_parts = layout.token_parts});
    auto optimizer = make_optimizer(model.named_parameters(), options.lr);
    TrainState state{model, optimizer};
    TrainCheckpoints checkpoints(folder, state, {.interval = 0});
    checkpoints.resume();
    fsdp::StepPlan plan(root, data.micro_batches(), layout.accumulation);
    StepLoader loader(data, plan.indices());
    for (; state.step < until; ++state.step) {
      auto result =
          train_step(model, plan, loader.batches(state.step),
                     {.max_grad_norm = options.max_grad_norm,
                      .balance = {.layers = BalancedLayers::kPooled},  // as run_plain
                      .linear_cross_entropy = layout.chunked_loss,
                      .tensor_ranks = meshes.dense.group("tp"),
                      .token_parts = std::max<std::int64_t>(1, layout.token_parts / ranks.tp)},
                     optimizer, forward_of(replay, state.step));
      if (context.rank() != 0) continue;
      run.loss.push_back(result.loss);
      run.grad_norm.push_back(result.grad_norm);
      if (context.world_size() == 1) run.choices.push_back(std::move(result.expert_indices));
    }
    checkpoints.save();
    check(checkpoints.finish(), "the checkpoint in ", folder, " could not be written");
    auto parameters = collect(model);
    if (context.rank() == 0) run.parameters = std::move(parameters);
  };
  const auto launch_on = [&](const ParallelDims& ranks, std::int64_t until,
                             const std::string& folder) {
    launch_ranks(
        ranks.ranks(), [&](RankContext& context) { train(context, ranks, until, folder); },
        launch_options);
  };
  if (!layout.resumed_on) {
    launch_on(layout.ranks, options.steps, "");
    return run;
  }
  const TemporaryFolder folder;
  launch_on(layout.ranks, options.steps / 2, folder.path());
  launch_on(*layout.resumed_on, options.steps, folder.path());
  return run;
}

}  // namespace moegrad::tools
