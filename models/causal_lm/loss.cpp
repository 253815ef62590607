// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, E experts.
#include "models/causal_lm/loss.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "framework/runtime/error.h"
#include "ops/aux_loss.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"

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
                            const RouterLossOptions& options) {
  check<ValueError>(global_targets >= 1, "causal_lm_loss: global_targets must be >= 1, got ",
                    global_targets);
  const auto total = static_cast<double>(global_targets);
  const Tensor ce_sum = output.ce_sum.defined()
                            ? output.ce_sum
                            : ops::cross_entropy(output.logits, targets, {.denominator = 1.0});
  Tensor objective = ops::mul(ce_sum, 1.0 / total);
  if (output.router_logits.empty()) {
    return {.objective = objective, .ce_sum = ce_sum, .aux = Tensor::zeros({}, ce_sum.dtype())};
  }
  const auto logits = balanced_logits(output);
  const Tensor aux = options.load
                         ? balance_of_load(logits, *options.load, output.expert_indices[0].dim(1),
                                           options.per_layer)
                         : balance_of_own_load(logits, output.expert_indices, options.per_layer);
  const auto own_targets = static_cast<double>(ops::count_targets(targets));
  const double balanced = options.load ? static_cast<double>(options.load->targets) : own_targets;
  objective = objective + ops::mul(aux, router_aux_loss_coef * (balanced / total));
  if (options.z_loss_coef != 0) {
    for (const auto& each : output.router_logits) {
      objective =
          objective + ops::mul(ops::z_loss(each), options.z_loss_coef * (own_targets / total));
    }
  }
  return {.objective = objective, .ce_sum = ce_sum, .aux = aux};
}

}  // namespace moegrad::models
