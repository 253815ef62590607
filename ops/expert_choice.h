// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// How many experts a token goes to, and among which.
struct ExpertChoice {
  std::int64_t k = 1;
  /// Group-limited: the experts form this many groups of neighbours, of which a token goes to
  /// topk_groups. Then its messages reach as many nodes, if a node has the experts of one group.
  std::int64_t num_groups = 1;
  std::int64_t topk_groups = 1;
};

/// ValueError, with `what` in front, unless experts can be chosen in this way: 1 <= topk_groups <=
/// num_groups, which divides num_experts, and the groups that are chosen have at least k >= 1.
void check_expert_choice(std::string_view what, const ExpertChoice& choice,
                         std::int64_t num_experts);

/// ShapeError, DtypeError and ValueError, with `what` in front, unless `bias` is undefined or
/// finite [E] in the dtype of scores [T, E].
void check_choice_bias(std::string_view what, const Tensor& scores, const Tensor& bias);

/// The K experts of each token t that have the largest
///
///     choice[t, e] = scores[t, e] + bias[e]
///
/// int64 [T, K], by falling choice, equal ones by rising index. If there are more groups than
/// topk_groups, they are the best of the topk_groups groups with the largest sum of their best two
/// choices; of groups that are equal, the lowest. A NaN counts as infinity, so that it is chosen
/// and noticed.
///
/// scores: [T, E].   bias: [E], finite, in the dtype of scores; zeros if undefined. The result has
/// no gradient. Errors as of the two checks above.
///
/// Reference: DeepSeek-AI, "DeepSeek-V3", 2024, https://arxiv.org/abs/2412.19437, section 2.1.2. As
/// in its own code, an expert of another group is never chosen. transformers does the same for
/// DeepSeek-V3 since April 2026; before, it gave these the choice 0 and might take one in the place
/// of an expert whose choice is negative.
Tensor choose_experts(const Tensor& scores, const ExpertChoice& choice, const Tensor& bias = {});

}  // namespace moegrad::ops
