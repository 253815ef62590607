// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, E experts, K experts per token, G groups.
#include "ops/expert_choice.h"

#include <cmath>

#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/kernels/expert_choice.h"

namespace moegrad::ops {

void check_expert_choice(std::string_view what, const ExpertChoice& choice,
                         std::int64_t num_experts) {
  const auto [k, groups, topk_groups] = choice;
  check<ValueError>(groups >= 1 && num_experts % groups == 0, what, ": num_groups must divide the ",
                    num_experts, " experts, got ", groups);
  check<ValueError>(1 <= topk_groups && topk_groups <= groups, what,
                    ": topk_groups must be in [1, ", groups, "] (num_groups), got ", topk_groups);
  const auto candidates = num_experts / groups * topk_groups;
  check<ValueError>(1 <= k && k <= candidates, what, ": k must be in [1, ", candidates,
                    "], the experts of ", topk_groups, " of ", groups, " groups, got ", k);
}

void check_choice_bias(std::string_view what, const Tensor& scores, const Tensor& bias) {
  if (!bias.defined()) return;
  check_operands(what, bias);
  const auto experts = scores.dim(1);
  check<ShapeError>(bias.shape() == Shape{experts}, what, ": bias must be ", Shape{experts},
                    " for ", experts, " experts, got ", bias.shape());
  check<DtypeError>(bias.dtype() == scores.dtype(), what, ": bias must be ", scores.dtype(),
                    " as the scores are, got ", bias.dtype());
  dispatch_floating(bias.dtype(), [&]<class T>() {
    const Tensor values = contiguous(bias.detach());
    for (const T value : values.data<T>()) {
      check<ValueError>(std::isfinite(value), what, ": bias must be finite, got ", value);
    }
  });
}

Tensor choose_experts(const Tensor& scores, const ExpertChoice& choice, const Tensor& bias) {
  check_operands("choose_experts", scores);
  check<ShapeError>(scores.ndim() == 2, "choose_experts: scores must be [T, E], got ",
                    scores.shape());
  check_floating("choose_experts", "scores", scores);
  const auto tokens = scores.dim(0), experts = scores.dim(1);
  check_expert_choice("choose_experts", choice, experts);
  check_choice_bias("choose_experts", scores, bias);
  const Tensor added =  // [E]
      bias.defined() ? contiguous(bias.detach()) : Tensor::zeros({experts}, scores.dtype());
  const Tensor values = contiguous(scores.detach());                                 // [T, E]
  Tensor chosen = Tensor::empty({tokens, choice.k}, Dtype::kInt64);                  // [T, K]
  Tensor work = Tensor::empty({tokens, experts}, scores.dtype());                    // [T, E]
  Tensor group_scores = Tensor::empty({tokens, choice.num_groups}, scores.dtype());  // [T, G]
  Tensor groups = Tensor::empty({tokens, choice.topk_groups}, Dtype::kInt64);
  dispatch_floating(scores.dtype(), [&]<class T>() {
    kernels::choose_experts<T>(values.data<T>().data(), added.data<T>().data(),
                               {.tokens = tokens,
                                .experts = experts,
                                .k = choice.k,
                                .groups = choice.num_groups,
                                .topk_groups = choice.topk_groups},
                               {.choice = work.mutable_data<T>().data(),
                                .group_scores = group_scores.mutable_data<T>().data(),
                                .groups = groups.mutable_data<std::int64_t>().data()},
                               chosen.mutable_data<std::int64_t>().data());
  });
  return chosen;
}

}  // namespace moegrad::ops
