// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"
#include "ops/expert_choice.h"

namespace moegrad::ops {

struct TopKResult {
  Tensor weights;  // [T, K]
  Tensor indices;  // [T, K] int64; by falling logit, equal logits by rising index
};

/// Token-choice routing: each token t goes to the K experts of largest probability,
///
///     p[t, :] = softmax(logits[t, :])          over all E experts, maximum subtracted
///     weights[t, j] = p[t, indices[t, j]]      divided by their sum over j if `normalize`
///
/// logits: [T, E].   weights: [T, K] in the dtype of logits.   1 <= K <= E
///
/// Experts are chosen by logit: softmax keeps the order and makes no ties between logits that
/// differ. If `replay_indices` [T, K] is defined, its experts are taken instead; each row must have
/// distinct experts in [0, E). A logit of -inf keeps a token from an expert: the weight is 0. A
/// token that has NaN or inf, or -inf for all experts, goes to some K experts with weights NaN.
///
/// The gradient goes to the logits, through the normalisation and the softmax. The choice of
/// experts has no gradient.
/// Reference: Shazeer et al., 2017, https://arxiv.org/abs/1701.06538; Qwen3-MoE's norm_topk_prob.
TopKResult topk_softmax(const Tensor& logits, std::int64_t k, bool normalize,
                        const Tensor& replay_indices = {});

/// Routing by scores that do not depend on each other, s = sigmoid(logits):
///
///     indices[t, :] = choose_experts(s, choice, bias)
///     weights[t, j] = s[t, indices[t, j]]      divided by their sum over j + 1e-20 if `normalize`
///
/// logits: [T, E].   bias: [E] or undefined; it affects the choice alone.   `replay_indices` as
/// above. The gradient goes to the logits of the chosen experts.
/// Reference: DeepSeek-AI, "DeepSeek-V3", 2024, https://arxiv.org/abs/2412.19437, equations 13 to
/// 16; the small term is that of transformers.
TopKResult topk_sigmoid(const Tensor& logits, const ExpertChoice& choice, bool normalize,
                        const Tensor& bias = {}, const Tensor& replay_indices = {});

}  // namespace moegrad::ops
