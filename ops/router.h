// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"

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

}  // namespace moegrad::ops
