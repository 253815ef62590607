// SPDX-License-Identifier: Apache-2.0
#include "train/train_step.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "framework/autograd/dropout_ids.h"
#include "framework/distributed/collectives.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/span.h"
#include "models/causal_lm/loss.h"
#include "nn/moe.h"
#include "nn/recompute.h"
#include "nn/token_dispatcher.h"
#include "ops/aux_loss.h"
#include "ops/cross_entropy.h"
#include "optim/clip_grad_norm.h"
#include "parallel/expert/expert_parallel.h"
#include "parallel/tensor/parallelize_module.h"
#include "train/expert_counts.h"

namespace moegrad::training {
namespace {

// The entropy of a token is the mean over layers. This is the sum over tokens.
double mean_entropy(const TensorList& router_logits) {
  const NoGradGuard no_grad;
  double sum = 0;
  for (const auto& logits : router_logits) sum += ops::router_entropy(logits);
  return router_logits.empty() ? 0 : sum / static_cast<double>(router_logits.size());
}

// The sum over parts of the tokens, by halving.
double mean_entropy(const TensorList& router_logits, std::int64_t parts) {
  if (parts == 1 || router_logits.empty()) return mean_entropy(router_logits);
  const NoGradGuard no_grad;
  TensorList left, right;
  for (const auto& logits : router_logits) {
    const auto rows = logits.dim(0) / parts * ((parts + 1) / 2);
    left.push_back(Tensor::narrow(logits, 0, 0, rows));
    right.push_back(Tensor::narrow(logits, 0, rows, logits.dim(0) - rows));
  }
  return mean_entropy(left, (parts + 1) / 2) + mean_entropy(right, parts / 2);
}

// Adds the ranks' counts; each is an exact integer.
void sum_counts(ExpertCounts& counts, const fsdp::GroupRanks& ranks) {
  for (auto& layer : counts) fsdp::sum_over(ranks, std::span(layer));
}

}  // namespace

std::vector<optim::ParamGroup> decay_matrices(const NamedTensors& parameters, double lr,
                                              double weight_decay) {
  std::vector<optim::ParamGroup> groups = {
      {.parameters = {}, .lr = lr, .weight_decay = weight_decay},
      {.parameters = {}, .lr = lr, .weight_decay = 0}};
  for (const auto& parameter : parameters) {
    groups[parameter.tensor.ndim() >= 2 ? 0 : 1].parameters.push_back(parameter);
  }
  return groups;
}

fsdp::State& shard_model(models::CausalLM& model, const DeviceMesh& mesh,
                         const fsdp::Policy& policy) {
  for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh, policy);
  auto whole = policy;
  whole.linear_only_shard = false;  // the root takes what the layers left
  return fsdp::fully_shard(model, mesh, whole);
}

fsdp::State& shard_model(models::CausalLM& model, const ParallelMeshes& meshes, fsdp::Policy policy,
                         TensorPlanOptions plan) {
  const int tensor_ranks = meshes.dense.size("tp");
  divide_tokens(model, plan.token_parts / tensor_ranks);
  plan.expert_parallel = meshes.expert.size("ep") > 1;
  if (plan.expert_parallel) {
    parallel::expert_parallel(model, meshes.expert, /*one_micro_batch=*/tensor_ranks > 1);
    policy.expert_mesh = meshes.expert_fsdp();
  }
  if (tensor_ranks > 1) {
    parallel::parallelize_module(model, meshes.dense["tp"], tensor_plan(model.config(), plan));
  }
  return shard_model(model, meshes.fsdp(), policy);
}

void divide_tokens(models::CausalLM& model, std::int64_t parts) {
  if (parts <= 1) return;
  const auto experts = model.config().num_experts;
  std::vector<nn::MoE*> mixtures;  // first all: what is replaced is among the modules
  for (const auto& [path, module] : model.named_modules()) {
    if (auto* const mixture = dynamic_cast<nn::MoE*>(module)) mixtures.push_back(mixture);
  }
  for (auto* const mixture : mixtures) {
    mixture->set_dispatcher(std::make_shared<nn::LocalTokenDispatcher>(experts, parts));
  }
}

void recompute_layers(models::CausalLM& model, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    nn::recompute(model.layers().at(static_cast<std::size_t>(i)));
  }
}

namespace {

/// Ids for the tokens of one micro-batch, unique within the step. All are below 2^32, as
/// attention's dropout needs them, so each micro-batch has an equal share of these.
DropoutIds ids_of(const fsdp::Turn& turn, const MicroBatch& batch, std::int64_t micro_batches,
                  const StepOptions& options) {
  const auto share = (std::int64_t{1} << 32) / micro_batches;
  const auto tokens = batch.tokens.numel();
  check<ValueError>(tokens <= share, "train_step: a micro-batch must have at most ", share,
                    " tokens, 2^32 divided by the number of micro-batches, got ", tokens);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(tokens));
  std::iota(ids.begin(), ids.end(), turn.index * share);
  return {.seed = options.seed,
          .step = *options.step,
          .token_ids = Tensor::from(ids, {std::ssize(ids)})};
}

/// The loads of the micro-batches that the ranks run in the same turn as this one.
models::RouterLossOptions::Load load_of_ranks(const fsdp::GroupRanks& ranks,
                                              const ExpertCounts& own, std::int64_t tokens,
                                              std::int64_t targets) {
  models::RouterLossOptions::Load load{
      .tokens_per_expert = own, .tokens = tokens, .targets = targets};
  sum_counts(load.tokens_per_expert, ranks);
  fsdp::sum_over(ranks, std::span(&load.tokens, 1));
  fsdp::sum_over(ranks, std::span(&load.targets, 1));
  return load;
}

}  // namespace

models::CausalLM::Output run_model(models::CausalLM& model, const fsdp::Turn& /*turn*/,
                                   const MicroBatch& batch,
                                   models::CausalLM::ForwardOptions options) {
  return model(batch.tokens, batch.documents, std::move(options));
}

StepResult train_step(models::CausalLM& model, fsdp::StepPlan& plan,
                      const std::vector<MicroBatch>& own, const StepOptions& options,
                      optim::Optimizer& optimizer, const StepForward& forward) {
  check<ValueError>(own.size() == plan.turns().size(),
                    "train_step: must be given a micro-batch for each of ", plan.turns().size(),
                    " turns, got ", own.size());
  const auto nothing = no_tokens();
  const auto batch_of = [&](std::size_t i) -> const MicroBatch& {
    return plan.turns()[i].idle ? nothing : own[i];
  };
  const auto& config = model.config();
  const auto& balance = options.balance;
  check<ValueError>(
      config.router_jitter_noise == 0 || options.step.has_value(),
      "train_step: options.step must be given for a model with router_jitter_noise, so "
      "that each step has random numbers of its own");
  check(DropoutIdsGuard::current() == nullptr,
        "train_step: must not be called within a DropoutIdsGuard, since all micro-batches would "
        "have the same ids; give options.seed and options.step instead");
  const double coefficient = balance.aux_loss_coef.value_or(config.router_aux_loss_coef);
  std::vector<std::int64_t> own_targets, own_tokens;
  std::vector<double> own_weights;
  for (std::size_t i = 0; i < own.size(); ++i) {
    own_targets.push_back(ops::count_targets(batch_of(i).targets));
    own_tokens.push_back(batch_of(i).tokens.numel());
    own_weights.push_back(sum_of_target_weights(options.loss_weights, batch_of(i)));
  }
  const auto targets = plan.sum(own_targets);
  const bool weighs = options.loss_weights != LossWeights::kToken;
  const double weight = weighs ? plan.sum(own_weights) : static_cast<double>(targets);

  // Mixtures have counted this rank's part of the tokens.
  const auto& parts = options.tensor_ranks;
  const auto sum_over_parts = [&]<class T>(T of_part) {
    if (parts == nullptr || parts->size() == 1) return of_part;
    if constexpr (std::is_same_v<T, double>) {
      return all_reduce(*parts, of_part);
    } else {
      for (auto& layer : of_part) all_reduce(*parts, std::span(layer));
      return of_part;
    }
  };

  StepResult result;
  result.tokens = plan.sum(own_tokens);
  std::vector<double> ce, loss, entropy, flops;
  optimizer.zero_grad();
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto& turn = plan.turns()[i];
    const auto& batch = batch_of(i);
    models::CausalLM::ForwardOptions given;
    models::TargetWeights weights{.total = weight};
    if (weighs) {
      const auto dtype = arithmetic_dtype(config.dtype);
      weights.of_targets = target_weights(options.loss_weights, batch, dtype);
    }
    if (options.linear_cross_entropy) {
      given.targets = batch.targets;
      given.target_weights = weights.of_targets;
      if (targets > 0) given.grad_ce_sum = 1.0 / weight;
    }
    if (options.step) given.dropout_ids = ids_of(turn, batch, plan.micro_batches(), options);
    auto output = forward(model, turn, batch, std::move(given));
    const auto share = [&] {
      const SpanGuard phase(SpanKind::kPhase, Lane::kCompute, "loss");
      models::RouterLossOptions losses{.per_layer = balance.layers == BalancedLayers::kEach,
                                       .z_loss_coef = balance.z_loss_coef,
                                       .token_ranks = options.tensor_ranks,
                                       .token_parts = options.token_parts};
      if (balance.tokens == BalancedTokens::kRanks && !output.router_logits.empty()) {
        losses.load = load_of_ranks(plan.ranks(), sum_over_parts(output.tokens_per_expert),
                                    own_tokens[i], own_targets[i]);
      }
      return models::causal_lm_loss(output, batch.targets, targets, coefficient, losses, weights);
    }();
    output.logits = Tensor();  // backward frees them when their gradient is there
    plan.backward(turn, share.objective);
    ce.push_back(share.ce_sum.item());
    loss.push_back(share.objective.item());
    entropy.push_back(
        sum_over_parts(mean_entropy(models::balanced_logits(output), options.token_parts)));
    flops.push_back(models::training_flops(model.config(), batch.documents));
    if (!turn.idle) result.expert_indices.push_back(output.expert_indices);
    add_counts(result.tokens_per_expert, sum_over_parts(output.tokens_per_expert));
  }
  sum_counts(result.tokens_per_expert, plan.ranks());
  result.ce = plan.sum(ce) / weight;
  result.loss = plan.sum(loss);
  result.router_entropy = plan.sum(entropy) / static_cast<double>(result.tokens);
  result.model_flops = plan.sum(flops);
  const auto parameters = model.named_parameters();
  const double limit = options.max_grad_norm > 0 ? options.max_grad_norm : HUGE_VAL;
  result.grad_norm = optim::clip_grad_norm(parameters, limit);
  if (!result.is_finite()) return result;
  optimizer.step();
  const double rate = balance.bias_update_rate.value_or(kBiasUpdateRate);
  if (config.correction_bias) model.balance(result.tokens_per_expert, rate);
  return result;
}

}  // namespace moegrad::training
