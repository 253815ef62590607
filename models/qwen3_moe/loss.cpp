// SPDX-License-Identifier: Apache-2.0
#include "models/qwen3_moe/loss.h"

#include "framework/runtime/error.h"
#include "ops/aux_loss.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"

namespace moegrad::models {

Qwen3MoeLoss qwen3_moe_loss(const Qwen3Moe::Output& output, const Tensor& targets,
                            std::int64_t global_targets, double router_aux_loss_coef) {
  check<ValueError>(global_targets >= 1, "qwen3_moe_loss: global_targets must be >= 1, got ",
                    global_targets);
  const auto total = static_cast<double>(global_targets);
  const Tensor ce_sum = output.ce_sum.defined()
                            ? output.ce_sum
                            : ops::cross_entropy(output.logits, targets, {.denominator = 1.0});
  Tensor objective = ops::mul(ce_sum, 1.0 / total);
  if (output.router_logits.empty()) {
    return {.objective = objective, .ce_sum = ce_sum, .aux = Tensor::zeros({}, ce_sum.dtype())};
  }
  const Tensor aux = ops::load_balancing_loss(output.router_logits, output.expert_indices);
  const double share = static_cast<double>(ops::count_targets(targets)) / total;
  objective = objective + ops::mul(aux, router_aux_loss_coef * share);
  return {.objective = objective, .ce_sum = ce_sum, .aux = aux};
}

}  // namespace moegrad::models
