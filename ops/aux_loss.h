// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Load-balancing loss of Hugging Face's Qwen3-MoE, pooled over all layers and tokens:
///
///     f[j, e] = weighted mean over layers and tokens of [indices[t, j] = e]      (no gradient)
///     P[e]    = weighted mean over layers and tokens of softmax(logits[t, :])[e]
///     loss    = E * sum_j sum_e f[j, e] * P[e]                                    []
///
/// router_logits: per layer [T, E].   indices: per layer [T, K] int64.   token_mask: [T], each
/// token's weight, ones if undefined; it carries no gradient, and tokens of weight zero are not
/// read. Perfect balance gives K. Without tokens, or if all weights are zero, the loss is zero.
///
/// Errors: ShapeError if there is no layer or shapes do not agree, ValueError for an expert outside
/// [0, E) and for a weight that is negative or not finite.
/// Source: `load_balancing_loss_func` of transformers v4.55; Fedus et al., 2021,
/// https://arxiv.org/abs/2101.03961, equations 4 to 6.
Tensor load_balancing_loss(const TensorList& router_logits, const TensorList& indices,
                           const Tensor& token_mask = {});

/// The same loss in parts: it is the sum over the layers of their shares, and the load is the only
/// thing that a share needs of the other layers. So layers may be on several ranks:
///
///     load      = the sum of all ranks' expert_load(own indices, E)
///     objective = ... + coefficient * sum over own layers of balance_share(logits, load, total)
///
/// with total = the sum of all weights: layers * T without a mask.

/// load[e] = sum over layers and tokens, weighted, of how often e was chosen; float64 [E]. A
/// constant. Errors as above; token_mask: floating [T].
Tensor expert_load(const TensorList& indices, std::int64_t num_experts,
                   const Tensor& token_mask = {});
/// E / total_weight^2 * sum_e load[e] * sum_t weight[t] softmax(logits[t, :])[e]      []
///
/// load: float64 [E], of all layers.   Zero if total_weight is. Errors as above; ValueError for a
/// total_weight that is negative or not finite.
Tensor balance_share(const Tensor& router_logits, const Tensor& load, double total_weight,
                     const Tensor& token_mask = {});

/// sum over t of -sum_e p[t, e] log p[t, e],  p = softmax(logits[t, :]), in nats.   logits: [T, E]
///
/// It is T log E if the router does not distinguish the experts, and 0 if it is certain of one. A
/// figure to watch: it has no gradient.
double router_entropy(const Tensor& router_logits);

/// mean over t of (log sum_e exp(logits[t, e]))^2, zero without tokens.   logits: [T, E]
///
/// It keeps the logits of a router small. No model of this library adds it by itself. Add it to the
/// objective with a small factor, 1e-3 in the paper, once per layer of experts. In a step of
/// several micro-batches, weigh each mean by its share of the step's tokens, so that the sum over
/// micro-batches and ranks is the mean over the step:
///
///     const auto output = model(tokens);
///     auto share = models::causal_lm_loss(output, targets, total_targets, balance_coefficient);
///     const double share_of_tokens = double(n) / double(total_tokens);
///     for (const auto& logits : output.router_logits) {
///       share.objective = share.objective + 1e-3 * share_of_tokens * ops::z_loss(logits);
///     }
///     share.objective.backward();
///
/// Reference: Zoph et al., "ST-MoE", 2022, https://arxiv.org/abs/2202.08906, equation 5.
Tensor z_loss(const Tensor& router_logits);

}  // namespace moegrad::ops
