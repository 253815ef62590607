// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens of a row, V vocabulary, H hidden size, E experts, K experts per token.
#include "tools/check_golden/golden_spread.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/fill.h"
#include "fsdp/step_plan.h"
#include "ops/aux_loss.h"
#include "ops/copies.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/routing.h"
#include "ops/softmax.h"
#include "ops/split_cat.h"
#include "ops/tensor_parallel.h"
#include "ops/views.h"
#include "train/train_step.h"

namespace moegrad::tools {

using namespace training;

namespace {

struct Range {
  std::int64_t begin, length;
};

std::int64_t sequences_of(const GoldenRow& row) { return row.documents.count(); }

Range tokens_of(const GoldenRow& row, std::int64_t sequence) {
  const auto& offsets = row.documents.offsets();
  const auto begin = offsets[static_cast<std::size_t>(sequence)];
  return {begin, offsets[static_cast<std::size_t>(sequence) + 1] - begin};
}

Tensor rows_of(const Tensor& whole, Range tokens) {
  return ops::contiguous(ops::narrow(whole, 0, tokens.begin, tokens.length));
}

void put_rows(const Tensor& rows, std::int64_t begin, Tensor& whole) {
  const auto offset = begin * rows.dim(1) * size_of(rows.dtype());
  std::ranges::copy(rows.bytes(), whole.mutable_bytes().begin() + offset);
}

/// What the balance loss is made of.
Tensor probabilities_of(const Tensor& router_logits, nn::RouterScores scores) {
  if (scores == nn::RouterScores::kSoftmax) return ops::softmax(router_logits);
  const Tensor s = ops::sigmoid(router_logits);
  return s / ops::sum(s, -1, /*keepdim=*/true);
}

/// A forward's tensors, one after the other.
TensorList tensors_of(const models::CausalLM::Output& output) {
  TensorList tensors = {output.logits};
  for (const auto* list : {&output.hidden_states, &output.router_logits, &output.expert_indices,
                           &output.routing_weights}) {
    tensors.insert(tensors.end(), list->begin(), list->end());
  }
  return tensors;
}

}  // namespace

// Every rank runs the same number of forwards. On some ranks the last ones are empty.
std::optional<std::int64_t> GoldenSpread::sequence_of(std::int64_t slot,
                                                      const GoldenRow& row) const {
  const auto sequence = slot * group_->size() + group_->rank();
  return sequence < sequences_of(row) ? std::optional(sequence) : std::nullopt;
}

models::CausalLM::Output GoldenSpread::run(const GoldenRow& row, std::int64_t sequence,
                                           const GoldenRouting* replay) {
  const auto tokens = tokens_of(row, sequence);
  // A document of their own makes the tokens a multiple of the ranks.
  const auto ranks = tensor_ranks_->size();
  const auto more = (ranks - tokens.length % ranks) % ranks;
  const auto padded = [&](const Tensor& whole) {
    const Tensor rows = rows_of(whole, tokens);
    Shape shape = rows.shape();
    shape[0] = more;
    return more == 0 ? rows : ops::cat({rows, Tensor::zeros(shape, rows.dtype())}, 0);
  };
  std::optional<TensorList> experts;
  if (replay != nullptr) {
    experts.emplace();
    for (const auto& whole : replay->experts) {
      experts->push_back(ops::scatter_to_ranks(tensor_ranks_, padded(whole), 0));
    }
  }
  const auto documents =
      more == 0 ? Documents::one(tokens.length) : Documents::of_lengths({tokens.length, more});
  auto output = model_(padded(row.tokens), documents,
                       models::CausalLM::ForwardOptions{.replay_expert_indices = experts,
                                                        .positions = padded(row.positions),
                                                        .output_hidden_states = true});
  if (ranks > 1) join_parts(output, tokens.length);
  return output;
}

void GoldenSpread::join_parts(models::CausalLM::Output& output, std::int64_t length) const {
  const auto first_rows = [&](Tensor& whole) { whole = ops::narrow(whole, 0, 0, length); };
  first_rows(output.logits);
  for (auto& hidden : output.hidden_states) first_rows(hidden);
  for (auto* list : {&output.router_logits, &output.routing_weights, &output.expert_indices}) {
    for (auto& part : *list) {
      part = ops::gather_from_ranks(tensor_ranks_, part, 0);
      first_rows(part);
    }
  }
  for (std::size_t i = 0; i < output.expert_indices.size(); ++i) {
    auto& counts = output.tokens_per_expert[i];
    const auto experts = std::ssize(counts);
    counts = ops::plan_routing(output.expert_indices[i], experts).sent.counts();
  }
}

GoldenComputed GoldenSpread::forward(const GoldenRow& row, double aux_coefficient,
                                     const GoldenRouting* replay) {
  const NoGradGuard no_grad;
  const auto sequences = sequences_of(row), length = row.tokens.dim(0);
  std::vector<double> ce(static_cast<std::size_t>(sequences));
  TensorList wholes;
  std::vector<std::vector<std::int64_t>> counts;  // per mixture layer [E]
  std::size_t hidden_states = 0;
  for (std::int64_t slot = 0; slot * group_->size() < sequences; ++slot) {
    const auto sequence = sequence_of(slot, row);
    const auto output = run(row, sequence.value_or(0), replay);
    const auto tensors = tensors_of(output);
    if (slot == 0) {
      for (const auto& tensor : tensors) {
        wholes.push_back(Tensor::zeros({length, tensor.dim(1)}, tensor.dtype()));
      }
      for (const auto& layer : output.tokens_per_expert) counts.emplace_back(layer.size());
    }
    hidden_states = output.hidden_states.size();
    if (!sequence) continue;
    const auto tokens = tokens_of(row, *sequence);
    for (std::size_t i = 0; i < tensors.size(); ++i) put_rows(tensors[i], tokens.begin, wholes[i]);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      std::ranges::transform(output.tokens_per_expert[i], counts[i], counts[i].begin(),
                             std::plus());
    }
    const Tensor targets = rows_of(row.targets, tokens);
    ce[static_cast<std::size_t>(*sequence)] =
        ops::cross_entropy(output.logits, targets, {.denominator = 1.0}).item();
  }
  // Exact: of each element's summands all but one are zero.
  for (auto& whole : wholes) all_reduce(*group_, whole);
  for (auto& layer : counts) all_reduce(*group_, std::span(layer));

  auto cut = [at = wholes.begin() + 1](std::size_t count) mutable {
    TensorList part(at, at + static_cast<std::ptrdiff_t>(count));
    at += static_cast<std::ptrdiff_t>(count);
    return part;
  };
  const auto layers = counts.size();
  GoldenComputed computed{.logits = wholes[0], .hidden = cut(hidden_states)};
  computed.routing.logits = cut(layers);
  computed.routing.experts = cut(layers);
  computed.routing.weights = cut(layers);
  computed.routing.tokens_per_expert = std::move(counts);
  computed.ce = fsdp::sum_in_order(std::move(ce), {group_}) / static_cast<double>(row.num_targets);
  if (layers > 0) {
    auto logits = computed.routing.logits;
    if (model_.config().router_scores == nn::RouterScores::kSigmoid) {
      for (auto& each : logits) each = ops::log(probabilities_of(each, nn::RouterScores::kSigmoid));
    }
    computed.aux = ops::load_balancing_loss(logits, computed.routing.experts).item();
  }
  computed.loss = computed.ce + aux_coefficient * computed.aux;
  return computed;
}

void GoldenSpread::backward(const GoldenRow& row, double aux_coefficient,
                            const GoldenRouting& routing, const GoldenRouting* replay) {
  const auto layers = routing.tokens_per_expert.size();
  const double scale = 1.0 / static_cast<double>(row.tokens.dim(0)) /
                       static_cast<double>(std::max<std::size_t>(layers, 1));
  Tensor load;  // [E]
  if (layers > 0) {
    const auto experts = routing.tokens_per_expert[0].size();
    std::vector<double> loads(experts);
    for (const auto& counts : routing.tokens_per_expert) {
      for (std::size_t e = 0; e < experts; ++e) {
        loads[e] += static_cast<double>(experts) * scale * static_cast<double>(counts[e]);
      }
    }
    load = to_dtype(Tensor::from(loads, {std::ssize(loads)}), model_.config().dtype);
  }
  for (std::int64_t slot = 0; slot * group_->size() < sequences_of(row); ++slot) {
    const auto sequence = sequence_of(slot, row);
    const auto output = run(row, sequence.value_or(0), replay);
    const Tensor targets = rows_of(row.targets, tokens_of(row, sequence.value_or(0)));
    const double weight = sequence ? 1.0 : 0.0;
    Tensor objective = ops::mul(ops::cross_entropy(output.logits, targets, {.denominator = 1.0}),
                                weight / static_cast<double>(row.num_targets));
    for (const auto& logits : output.router_logits) {
      objective = objective +
                  ops::mul(ops::sum(ops::mul(probabilities_of(logits, output.router_scores), load)),
                           weight * aux_coefficient * scale);
    }
    objective.backward();
  }
}

}  // namespace moegrad::tools
