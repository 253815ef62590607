// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_runs.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "framework/distributed/gather_shards.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "models/causal_lm/family.h"
#include "models/causal_lm/hf_layout.h"
#include "models/causal_lm/load_pretrained.h"
#include "models/causal_lm/loss.h"
#include "models/causal_lm/model.h"
#include "models/causal_lm/plain.h"
#include "models/plain_moe.h"
#include "nn/experts.h"
#include "ops/views.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "optim/schedule.h"
#include "tools/check_golden/golden_ranks.h"
#include "tools/check_golden/golden_routing.h"
#include "tools/check_golden/golden_spread.h"
#include "train/train_step.h"

namespace moegrad::tools {

using namespace training;

namespace {

models::CausalLMConfig config_of(const GoldenCase& golden, GoldenPath path, Dtype dtype) {
  auto config = golden.config;
  config.dtype = dtype;
  const bool plain = path == GoldenPath::kPlain;
  config.expert_weights =
      plain ? nn::ExpertWeights::kHuggingFace : nn::ExpertWeights::kPretransposed;
  return config;
}

/// The case's model with its weights, on the current rank of a path.
class Runner {
 public:
  Runner(const GoldenCase& golden, GoldenPath path, Dtype dtype, const ParallelDims& ranks)
      : golden_(golden), path_(path), model_(config_of(golden, path, dtype)) {
    if (path == GoldenPath::kSharded) {
      const auto meshes = make_meshes(RankContext::current().group(), ranks);
      shard_model(model_, meshes, {}, {.loss_parallel = false});
      tensor_ranks_ = meshes.dense.group("tp");
      spread_.emplace(model_, meshes.dense.group("shard"), tensor_ranks_);
    }
    models::load_pretrained(model_, golden.folder / "model.safetensors");
    model_.eval();  // nothing that is expected has random numbers in it
  }

  /// Losses and everything else that forward returns. `reference`: from the float64 run, or null.
  GoldenComputed evaluate(const GoldenRow& row, const GoldenComputed* reference) {
    const NoGradGuard no_grad;
    const double coefficient = model_.config().router_aux_loss_coef;
    auto computed = forward(row, coefficient, nullptr).computed;
    if (!parted_by_rounding(computed.routing, reference)) return computed;
    computed = forward(row, coefficient, &reference->routing).computed;
    computed.replayed = true;
    return computed;
  }

  /// evaluate() with gradients: of the total loss and, with `also_ce`, of the cross-entropy alone.
  GoldenComputed differentiate(const GoldenRow& row, bool also_ce,
                               const GoldenComputed* reference) {
    const double coefficient = model_.config().router_aux_loss_coef;
    auto computed = backward(row, coefficient, nullptr);
    const bool replay = parted_by_rounding(computed.routing, reference);
    const auto* const experts = replay ? &reference->routing : nullptr;
    if (replay) computed = backward(row, coefficient, experts);
    computed.replayed = replay;
    if (also_ce) computed.ce_gradients = backward(row, 0.0, experts).gradients;
    return computed;
  }

  /// Writes as many tokens after the prompt as are expected, each the one with the largest logit.
  GoldenGeneration generate(const GoldenGeneration& expected) {
    const NoGradGuard no_grad;
    GoldenGeneration own{.prompt = expected.prompt,
                         .tokens = {},
                         .smallest_margin = std::numeric_limits<double>::infinity()};
    auto all = expected.prompt;
    while (own.tokens.size() < expected.tokens.size()) {
      const Tensor logits = to_dtype(logits_after(all), Dtype::kFloat64);
      std::vector<double> sorted(logits.data<double>().begin(), logits.data<double>().end());
      const auto best = std::ranges::max_element(sorted) - sorted.begin();
      std::ranges::sort(sorted, std::greater());
      if (sorted.size() > 1) {
        own.smallest_margin = std::min(own.smallest_margin, sorted[0] - sorted[1]);
      }
      own.tokens.push_back(best);
      all.push_back(best);
    }
    return own;
  }

  /// `replay`: take the experts of the reference. Without it, returns nothing if this run differs
  /// from the reference because of a choice that is rounding.
  std::optional<GoldenTrained> train(const GoldenVariant& variant, const GoldenTrained* reference,
                                     bool replay) {
    const auto& spec = variant.optimizer;
    const auto parameters = model_.named_parameters();
    auto optimizer = make_optimizer(spec, parameters);
    const auto steps = std::ssize(golden_.steps);
    const auto schedule = spec.cosine ? optim::cosine_with_warmup(spec.lr, spec.warmup_steps, steps)
                                      : optim::constant(spec.lr);
    const double max_norm = spec.clip.value_or(std::numeric_limits<double>::infinity());

    GoldenTrained trained;
    trained.replayed = replay;
    bool together = reference != nullptr && !replay;  // the same choices as the reference so far
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto at = static_cast<std::size_t>(step);
      optimizer.zero_grad();
      auto [computed, differentiate] =
          forward(golden_.steps[at], model_.config().router_aux_loss_coef,
                  replay ? &reference->routing[at] : nullptr);
      if (together) {
        const auto parting =
            routing_difference(computed.routing, reference->routing[at], model_.config());
        if (parting == RoutingDifference::kRounding) return std::nullopt;
        together = parting == RoutingDifference::kNone;
      }
      differentiate();
      if (spec.skip_missing_grad) mark_experts(optimizer, computed.routing.tokens_per_expert);
      trained.lr.push_back(schedule(step));
      trained.loss.push_back(computed.loss);
      trained.ce.push_back(computed.ce);
      trained.aux.push_back(computed.aux);
      trained.routing.push_back(std::move(computed.routing));
      trained.grad_norm.push_back(optim::clip_grad_norm(parameters, max_norm));
      optimizer.set_lr(schedule(step));
      optimizer.step();
    }
    trained.final_eval =
        evaluate(golden_.batch, reference != nullptr ? &reference->final_eval : nullptr);
    trained.parameters = whole([](const Tensor& parameter) { return parameter.detach(); });
    return trained;
  }

 private:
  bool parted_by_rounding(const GoldenRouting& own, const GoldenComputed* reference) const {
    return reference != nullptr && routing_difference(own, reference->routing, model_.config()) ==
                                       RoutingDifference::kRounding;
  }

  /// Per mixture layer; none if no router has one.
  TensorList router_biases() const {
    TensorList biases;
    if (!model_.config().correction_bias) return biases;
    for (const auto& buffer : model_.named_buffers()) biases.push_back(buffer.tensor);
    return biases;
  }

  optim::AdamW make_optimizer(const GoldenOptimizer& spec, const NamedTensors& parameters) const {
    optim::AdamW::Config config{
        .beta1 = spec.beta1, .beta2 = spec.beta2, .eps = spec.eps, .skip_missing_grad = {}};
    if (spec.skip_missing_grad) config.skip_missing_grad = nn::expert_blocks(model_);
    if (spec.no_decay_1d) {
      return optim::AdamW(decay_matrices(parameters, spec.lr, spec.weight_decay), config);
    }
    config.lr = spec.lr;
    config.weight_decay = spec.weight_decay;
    return optim::AdamW(parameters, config);
  }

  struct Forward {
    GoldenComputed computed;
    std::function<void()> differentiate;  // adds the gradients of the total loss
  };

  /// Takes the experts of `replay` if it is given. `row` must live until the gradients are
  /// computed.
  Forward forward(const GoldenRow& row, double aux_coefficient, const GoldenRouting* replay) {
    if (spread_) {
      auto computed = spread_->forward(row, aux_coefficient, replay);
      computed.routing.biases = router_biases();
      auto differentiate = [this, &row, aux_coefficient, replay, routing = computed.routing] {
        spread_->backward(row, aux_coefficient, routing, replay);
      };
      return {std::move(computed), std::move(differentiate)};
    }
    const auto& config = model_.config();
    const models::CausalLM::ForwardOptions options = {
        .replay_expert_indices = replay != nullptr ? std::optional(replay->experts) : std::nullopt,
        .positions = row.positions,
        .output_hidden_states = true};
    const bool plain = path_ == GoldenPath::kPlain;
    auto output = plain ? models::plain_causal_lm(config, models::plain_tensors(model_), row.tokens,
                                                  row.documents, options)
                        : model_(row.tokens, row.documents, options);
    const auto total = row.num_targets;
    const auto loss =
        plain ? models::plain_causal_lm_loss(output, row.targets, total, aux_coefficient)
              : models::causal_lm_loss(output, row.targets, total, aux_coefficient);
    const auto detached = [](const TensorList& tensors) {
      TensorList result;
      for (const auto& tensor : tensors) result.push_back(tensor.detach());
      return result;
    };
    GoldenComputed computed{.loss = loss.objective.item(),
                            .ce = loss.ce_sum.item() / static_cast<double>(total),
                            .aux = loss.aux.item(),
                            .logits = output.logits.detach(),
                            .hidden = detached(output.hidden_states),
                            .routing = {.logits = detached(output.router_logits),
                                        .experts = detached(output.expert_indices),
                                        .weights = detached(output.routing_weights),
                                        .tokens_per_expert = output.tokens_per_expert,
                                        .biases = router_biases()}};
    return {std::move(computed), [objective = loss.objective] { objective.backward(); }};
  }

  /// The logits of the token after `tokens`, [V].
  Tensor logits_after(const std::vector<std::int64_t>& tokens) {
    const auto length = std::ssize(tokens);
    const auto ranks = tensor_ranks_ == nullptr ? 1 : tensor_ranks_->size();
    auto padded = tokens;  // with what no token before sees
    padded.resize(static_cast<std::size_t>((length + ranks - 1) / ranks * ranks));
    const Tensor row = Tensor::from(padded, {std::ssize(padded)});
    const auto output =
        path_ == GoldenPath::kPlain
            ? models::plain_causal_lm(model_.config(), models::plain_tensors(model_), row,
                                      Documents::one(row.dim(0)))
            : model_(row);
    return ops::reshape(ops::narrow(output.logits, 0, length - 1, 1), {output.logits.dim(1)});
  }

  GoldenComputed backward(const GoldenRow& row, double aux_coefficient,
                          const GoldenRouting* replay) {
    model_.zero_grad();
    auto [computed, differentiate] = forward(row, aux_coefficient, replay);
    differentiate();
    computed.gradients = whole([](const Tensor& parameter) { return parameter.grad(); });
    return computed;
  }

  /// `part` of every parameter, gathered, by Hugging Face name; empty on all ranks except the
  /// first.
  template <class Part>
  NamedTensors whole(const Part& part) {
    NamedTensors tensors;
    const auto slots = model_.parameter_slots();
    const auto experts = golden_.kind == GoldenKind::kPretrained ? models::HfExperts::kFused
                                                                 : models::HfExperts::kPerExpert;
    const auto& names = models::family_of(model_.config()).names;
    for (const auto& [name, parameter] : model_.named_parameters()) {
      Tensor values = part(parameter);
      const auto& spec = parameter.shard_spec();
      if (spec != nullptr) values = gather_shards(values, *spec);
      if (!values.defined()) continue;
      const auto slot = std::ranges::find(slots, name, &nn::ParameterSlot::name);
      for (auto& tensor : models::to_hugging_face(name, slot->layout, values, experts, names)) {
        tensors.push_back(std::move(tensor));
      }
    }
    return tensors;
  }

  /// In Hugging Face, experts without tokens have no gradient. All others have one, even if it is
  /// zero.
  void mark_experts(optim::AdamW& optimizer,
                    const std::vector<std::vector<std::int64_t>>& tokens_per_expert) const {
    auto counts = tokens_per_expert.begin();
    const auto& config = model_.config();
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
      if (!config.is_moe_layer(i)) continue;
      const auto experts = "model.layers." + std::to_string(i) + ".mlp.experts.";
      optimizer.mark_used(experts + "gate_up_proj", *counts);
      optimizer.mark_used(experts + "down_proj", *counts++);
    }
  }

  const GoldenCase& golden_;
  GoldenPath path_;
  models::CausalLM model_;
  std::optional<GoldenSpread> spread_;  // if sharded
  std::shared_ptr<ProcessGroup> tensor_ranks_;
};

GoldenResults run_on_this_rank(const GoldenCase& golden, GoldenPath path, Dtype dtype,
                               const ParallelDims& ranks, const GoldenResults* reference) {
  GoldenResults results;
  Runner runner(golden, path, dtype, ranks);
  const bool ce = !golden.expected.ce_gradient_stats.empty() || golden.expected.ce_gradient_l2;
  results.batch =
      runner.differentiate(golden.batch, ce, reference != nullptr ? &reference->batch : nullptr);
  for (const auto& generation : golden.generations) {
    results.generations.push_back(runner.generate(generation));
  }
  if (golden.packed) {
    results.packed = runner.differentiate(*golden.packed, false,
                                          reference != nullptr ? &*reference->packed : nullptr);
  }
  for (std::size_t i = 0; i < golden.alone.size(); ++i) {
    const bool scored = golden.alone[i].num_targets > 0;
    results.alone.push_back(scored ? runner.evaluate(golden.alone[i], reference != nullptr
                                                                          ? &reference->alone[i]
                                                                          : nullptr)
                                   : GoldenComputed{});
  }
  for (std::size_t i = 0; i < golden.variants.size(); ++i) {
    const auto& variant = golden.variants[i];
    const auto* const trained = reference != nullptr ? &reference->variants[i] : nullptr;
    auto free = Runner(golden, path, dtype, ranks).train(variant, trained, false);
    results.variants.push_back(
        free ? std::move(*free)
             : *Runner(golden, path, dtype, ranks).train(variant, trained, true));
  }
  return results;
}

}  // namespace

std::string_view to_string(GoldenPath path) {
  switch (path) {
    case GoldenPath::kPlain:
      return "plain";
    case GoldenPath::kOptimised:
      return "optimised";
    default:
      return "sharded";
  }
}

GoldenResults run_golden(const GoldenCase& golden, GoldenPath path, Dtype dtype,
                         const ParallelDims& ranks, const GoldenResults* reference) {
  GoldenResults results;
  launch(path == GoldenPath::kSharded ? ranks.ranks() : 1,
         [&](RankContext& context) {
           auto own = run_on_this_rank(golden, path, dtype, ranks, reference);
           check_same_on_all_ranks(*context.group(), own);
           if (context.rank() == 0) results = std::move(own);
         },
         {.exit_after = kProgramExitsAfter});
  return results;
}

}  // namespace moegrad::tools
