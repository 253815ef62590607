// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, I intermediate size, E experts, K experts per token, G groups.
#include "models/plain_moe.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/indexing.h"
#include "ops/matmul_reference.h"
#include "ops/reduce.h"
#include "ops/softmax.h"
#include "ops/split_cat.h"
#include "ops/views.h"

namespace moegrad::models {
namespace {

Tensor indices_of(const std::vector<std::int64_t>& values) {
  return Tensor::from(values, {std::ssize(values)});
}

/// 0, 1, ... by falling value, equal ones by rising index.
std::vector<std::size_t> by_falling(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  return order;
}

/// Whether each expert is in one of the best groups: those whose best two have the largest sum.
std::vector<bool> within_reach(const std::vector<double>& choice, const nn::MoE::Config& config) {
  const auto groups = static_cast<std::size_t>(config.num_groups);
  const auto in_group = choice.size() / groups;
  std::vector<double> sums;
  for (std::size_t g = 0; g < groups; ++g) {
    const auto begin = choice.begin() + static_cast<std::ptrdiff_t>(g * in_group);
    std::vector<double> own(begin, begin + static_cast<std::ptrdiff_t>(in_group));
    std::ranges::sort(own, std::greater<>());
    sums.push_back(own.size() > 1 ? own[0] + own[1] : own[0]);
  }
  std::vector<bool> reach(choice.size());
  const auto order = by_falling(sums);
  for (std::size_t i = 0; i < static_cast<std::size_t>(config.topk_groups); ++i) {
    for (std::size_t j = 0; j < in_group; ++j) reach[order[i] * in_group + j] = true;
  }
  return reach;
}

/// The experts of each token by its scores [T, E] and the bias [E], if there is one: int64 [T, K].
Tensor choose(const Tensor& scores, const Tensor& bias, const nn::MoE::Config& config) {
  const auto experts = static_cast<std::size_t>(config.num_experts);
  Tensor choices = scores.detach();
  if (bias.defined()) choices = choices + ops::cast(bias.detach(), choices.dtype());
  const Tensor values = ops::cast(choices, Dtype::kFloat64);
  std::vector<std::int64_t> chosen;
  for (std::int64_t t = 0; t < scores.dim(0); ++t) {
    const auto row = values.data<double>().subspan(static_cast<std::size_t>(t) * experts, experts);
    const std::vector<double> choice(row.begin(), row.end());
    const auto reach = within_reach(choice, config);
    std::int64_t left = config.top_k;
    for (const auto e : by_falling(choice)) {
      if (left == 0) break;
      if (!reach[e]) continue;
      chosen.push_back(static_cast<std::int64_t>(e));
      --left;
    }
  }
  return Tensor::from(chosen, {scores.dim(0), config.top_k});
}

}  // namespace

NamedTensors plain_tensors(const nn::Module& module) {
  auto tensors = module.named_parameters();
  for (auto& buffer : module.named_buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

Tensor plain_linear(const Tensor& x, const Tensor& weight) {
  return ops::matmul_reference(x, ops::contiguous(ops::transpose(weight, 0, 1)));
}

Tensor plain_swiglu(const Tensor& x, const Tensor& gate, const Tensor& up, const Tensor& down) {
  return plain_linear(ops::silu(plain_linear(x, gate)) * plain_linear(x, up), down);
}

nn::MoE::Output plain_moe(const nn::MoE::Config& config, const TensorOfName& tensor,
                          const Tensor& x, const Tensor& replay, const Tensor& given_weights) {
  const auto tokens = x.dim(0), hidden = config.hidden_size;
  const auto experts = config.num_experts, k = config.top_k;
  const bool sigmoid = config.scores == nn::RouterScores::kSigmoid;
  const Tensor logits = plain_linear(x, tensor("gate.weight"));                 // [T, E]
  const Tensor scores = sigmoid ? ops::sigmoid(logits) : ops::softmax(logits);  // [T, E]
  const Tensor bias = config.correction_bias ? tensor("gate.e_score_correction_bias") : Tensor();
  const Tensor chosen = replay.defined() ? replay : choose(scores, bias, config);

  // Slot t * K + j is token t's j-th expert. Rows are ordered by expert, then by slot.
  std::vector<std::int64_t> elements;  // of the scores, by slot
  std::vector<std::vector<std::int64_t>> slots_of(static_cast<std::size_t>(experts));
  const auto choices = chosen.data<std::int64_t>();
  for (std::int64_t slot = 0; slot < tokens * k; ++slot) {
    const auto expert = choices[static_cast<std::size_t>(slot)];
    elements.push_back(slot / k * experts + expert);
    slots_of[static_cast<std::size_t>(expert)].push_back(slot);
  }
  Tensor weights = ops::reshape(
      ops::index_select(ops::reshape(scores, {tokens * experts}), 0, indices_of(elements)),
      {tokens, k});
  if (config.norm_topk_prob) {
    const Tensor total = ops::sum(weights, -1, /*keepdim=*/true);
    weights = weights / (sigmoid ? total + 1e-20 : total);
  }
  if (config.routed_scaling_factor != 1) weights = weights * config.routed_scaling_factor;
  if (given_weights.defined()) weights = weights + (given_weights - weights.detach());

  const auto inner = config.intermediate_size;
  const auto gate_up = ops::split(tensor("experts.gate_up_proj"), inner, 0);
  const auto down = ops::split(tensor("experts.down_proj"), hidden, 0);
  TensorList rows;
  std::vector<std::int64_t> row_of_slot(static_cast<std::size_t>(tokens * k)), counts;
  std::int64_t next = 0;
  for (std::size_t e = 0; e < slots_of.size(); ++e) {
    std::vector<std::int64_t> tokens_of_expert;
    for (const auto slot : slots_of[e]) {
      tokens_of_expert.push_back(slot / k);
      row_of_slot[static_cast<std::size_t>(slot)] = next++;
    }
    counts.push_back(std::ssize(tokens_of_expert));
    if (tokens_of_expert.empty()) continue;
    rows.push_back(plain_swiglu(ops::index_select(x, 0, indices_of(tokens_of_expert)),
                                gate_up[2 * e], gate_up[2 * e + 1], down[e]));
  }
  const Tensor by_slot = ops::index_select(ops::cat(rows, 0), 0, indices_of(row_of_slot));
  const Tensor weighted =
      ops::reshape(by_slot, {tokens, k, hidden}) * ops::unsqueeze(weights, -1);  // [T, K, H]
  Tensor y = ops::sum(weighted, 1);                                              // [T, H]
  if (config.shared_intermediate_size > 0) {
    const std::string shared = config.shared_expert_gate ? "shared_expert" : "shared_experts";
    const auto weight = [&](const char* name) { return tensor(shared + name + ".weight"); };
    Tensor added = plain_swiglu(x, weight(".gate_proj"), weight(".up_proj"), weight(".down_proj"));
    if (config.shared_expert_gate) {
      added = ops::sigmoid(plain_linear(x, tensor("shared_expert_gate.weight"))) * added;
    }
    y = y + added;
  }
  return {.hidden = y,
          .router_logits = logits,
          .routing_weights = weights,
          .expert_indices = chosen,
          .tokens_per_expert = counts};
}

}  // namespace moegrad::models
