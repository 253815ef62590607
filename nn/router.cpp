// SPDX-License-Identifier: Apache-2.0
#include "nn/router.h"

#include "framework/runtime/error.h"
#include "ops/linear.h"
#include "ops/router.h"

namespace moegrad::nn {

Router::Router(const Config& config)
    : config_(config),
      weight_(Tensor::zeros({config.num_experts, config.hidden_size}, config.dtype)) {
  check<ValueError>(1 <= config.top_k && config.top_k <= config.num_experts,
                    "Router: top_k must be in [1, ", config.num_experts, "] (num_experts), got ",
                    config.top_k);
  register_parameter("weight", weight_, InitialValues::normal());
}

Router::Output Router::forward(const Tensor& x, const Tensor& replay_indices) {  // [T, H]
  const Tensor logits = ops::linear(x, weight_);                                 // [T, E]
  const auto [weights, indices] =
      ops::topk_softmax(logits, config_.top_k, config_.normalize, replay_indices);  // [T, K] each
  return {.logits = logits, .weights = weights, .indices = indices};
}

void for_each_tensor(Router::Output& output, const TensorVisitor& visit) {
  visit_tensors(visit, output.logits, output.weights, output.indices);
}

}  // namespace moegrad::nn
