// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, E experts.
#include "models/causal_lm/loss.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

#include "framework/distributed/collectives.h"
#include "framework/runtime/error.h"
#include "ops/aux_loss.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/tensor_parallel.h"
#include "ops/views.h"

namespace moegrad::models {
namespace {

Tensor sum_of_terms(const TensorList& terms) {
  Tensor sum = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) sum = sum + terms[i];
  return sum;
}

Tensor balance_of_own_load(const TensorList& logits, const TensorList& indices, bool per_layer) {
  if (!per_layer) return ops::load_balancing_loss(logits, indices);
  TensorList layers;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    layers.push_back(ops::load_balancing_loss({logits[i]}, {indices[i]}));
  }
  return ops::mul(sum_of_terms(layers), 1.0 / static_cast<double>(layers.size()));
}

Tensor balance_of_load(const TensorList& logits, const RouterLossOptions::Load& load,
                       std::int64_t top_k, bool per_layer) {
  const auto layers = logits.size();
  const auto& counts = load.tokens_per_expert;
  check<ValueError>(counts.size() == layers, "causal_lm_loss: load must be of ", layers,
                    " mixture layers, got ", counts.size());
  std::vector<std::vector<double>> loads;
  for (const auto& layer : counts) {
    check<ValueError>(std::ssize(layer) == logits[0].dim(1), "causal_lm_loss: load must be of ",
                      logits[0].dim(1), " experts, got ", layer.size());
    const auto rows = std::accumulate(layer.begin(), layer.end(), std::int64_t{0});
    check<ValueError>(rows == load.tokens * top_k && std::ranges::min(layer) >= 0,
                      "causal_lm_loss: load must count ", top_k, " experts for each of its ",
                      load.tokens, " tokens, got ", rows);
    loads.emplace_back(layer.begin(), layer.end());
  }
  auto total = static_cast<double>(load.tokens);
  if (!per_layer) {
    std::vector<double> pooled(loads[0].size());
    for (const auto& layer : loads) {
      std::ranges::transform(pooled, layer, pooled.begin(), std::plus<>());
    }
    std::ranges::fill(loads, pooled);
    total *= static_cast<double>(layers);
  }
  TensorList shares;
  for (std::size_t i = 0; i < layers; ++i) {
    const Tensor of_layer = Tensor::from(loads[i], {std::ssize(loads[i])});
    shares.push_back(ops::balance_share(logits[i], of_layer, total));
  }
  return ops::mul(sum_of_terms(shares), per_layer ? 1.0 / static_cast<double>(layers) : 1.0);
}

// The load of a micro-batch, of whose tokens each rank has a part, if there are several.
RouterLossOptions::Load load_of_micro_batch(const CausalLM::Output& output, ProcessGroup* ranks,
                                            const Tensor& targets) {
  RouterLossOptions::Load load{.tokens_per_expert = output.tokens_per_expert,
                               .tokens = targets.dim(0),
                               .targets = ops::count_targets(targets)};
  if (ranks == nullptr) return load;
  for (auto& layer : load.tokens_per_expert) all_reduce(*ranks, std::span(layer));
  return load;
}

// Part `p` of the rows of each.
TensorList part_of_rows(const TensorList& tensors, std::int64_t parts, std::int64_t p) {
  if (parts == 1) return tensors;
  TensorList of_part;
  for (const auto& each : tensors) {
    const auto rows = each.dim(0) / parts;
    of_part.push_back(ops::narrow(each, 0, p * rows, rows));
  }
  return of_part;
}

Tensor halved_sum(std::int64_t begin, std::int64_t count,
                  const std::function<Tensor(std::int64_t)>& term) {
  if (count == 1) return term(begin);
  const auto left = (count + 1) / 2;
  return halved_sum(begin, left, term) + halved_sum(begin + left, count - left, term);
}

}  // namespace

TensorList balanced_logits(const CausalLM::Output& output) {
  if (output.router_scores == nn::RouterScores::kSoftmax) return output.router_logits;
  TensorList logits;
  for (const auto& each : output.router_logits) {
    logits.push_back(-ops::softplus(-each));  // log(sigmoid)
  }
  return logits;
}

CausalLMLoss causal_lm_loss(const CausalLM::Output& output, const Tensor& targets,
                            std::int64_t global_targets, double router_aux_loss_coef,
                            const RouterLossOptions& options, const TargetWeights& weights) {
  check<ValueError>(global_targets >= 1, "causal_lm_loss: global_targets must be >= 1, got ",
                    global_targets);
  const auto total = static_cast<double>(global_targets);
  const double weight = weights.of_targets.defined() ? weights.total : total;
  check<ValueError>(weight > 0, "causal_lm_loss: weights.total must be positive, got ", weight);
  const Tensor ce_sum = output.ce_sum.defined()
                            ? output.ce_sum
                            : ops::cross_entropy(output.logits, targets,
                                                 {.denominator = 1.0,
                                                  .token_weights = weights.of_targets,
                                                  .vocabulary = output.vocabulary});
  Tensor objective = ops::mul(ce_sum, 1.0 / weight);
  if (output.router_logits.empty()) {
    return {.objective = objective, .ce_sum = ce_sum, .aux = Tensor::zeros({}, ce_sum.dtype())};
  }
  const auto logits = balanced_logits(output);
  const auto& parts = options.token_ranks;
  const int ranks = parts == nullptr ? 1 : parts->size();
  check<ValueError>(logits[0].dim(0) * ranks == targets.dim(0),
                    "causal_lm_loss: router logits must be of all tokens, ", targets.dim(0),
                    ", divided over the ranks of options.token_ranks, ", ranks, ", got ",
                    logits[0].dim(0));
  check<ValueError>(options.token_parts >= 1 && logits[0].dim(0) % options.token_parts == 0,
                    "causal_lm_loss: token_parts must divide the ", logits[0].dim(0),
                    " tokens of this rank, got ", options.token_parts);
  const auto own_targets = static_cast<double>(ops::count_targets(targets));
  auto load = options.load;
  const auto token_parts = options.token_parts;
  const bool divided = ranks * token_parts > 1;
  if (divided && !load) load = load_of_micro_batch(output, parts.get(), targets);
  // The sum of of_part(p), which is of an equal share of the tokens.
  const auto over_parts = [&](const std::function<Tensor(std::int64_t)>& of_part) {
    const Tensor own = halved_sum(0, token_parts, of_part);
    return ranks == 1 ? own : ops::reduce_from_ranks(parts, own);
  };
  const Tensor aux = load ? over_parts([&](std::int64_t p) {
    return balance_of_load(part_of_rows(logits, token_parts, p), *load,
                           output.expert_indices[0].dim(1), options.per_layer);
  })
                          : balance_of_own_load(logits, output.expert_indices, options.per_layer);
  const double balanced = load ? static_cast<double>(load->targets) : own_targets;
  objective = objective + ops::mul(aux, router_aux_loss_coef * (balanced / total));
  if (options.z_loss_coef != 0) {
    for (const auto& each : output.router_logits) {
      const Tensor z = over_parts([&](std::int64_t p) {
        const Tensor mean = ops::z_loss(part_of_rows({each}, token_parts, p)[0]);
        return divided ? ops::mul(mean, 1.0 / static_cast<double>(ranks * token_parts)) : mean;
      });
      objective = objective + ops::mul(z, options.z_loss_coef * (own_targets / total));
    }
  }
  return {.objective = objective, .ce_sum = ce_sum, .aux = aux};
}

}  // namespace moegrad::models
