// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, E experts, K experts per token.
#include "nn/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/fill.h"
#include "nn/layer_size.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/router.h"
#include "ops/softmax.h"

namespace moegrad::nn {
namespace {

ops::ExpertChoice choice_of(const Router::Config& config) {
  return {.k = config.top_k, .num_groups = config.num_groups, .topk_groups = config.topk_groups};
}

ops::TopKResult choose(const Tensor& logits, const Router::Config& config, const Tensor& bias,
                       const Tensor& replay_indices) {
  const auto choice = choice_of(config);
  if (config.scores == RouterScores::kSigmoid) {
    return ops::topk_sigmoid(logits, choice, config.normalize, bias, replay_indices);
  }
  // By their logits, since softmax might make ties of logits that differ.
  const bool by_logits = !bias.defined() && config.num_groups == config.topk_groups;
  if (by_logits || replay_indices.defined()) {
    return ops::topk_softmax(logits, config.top_k, config.normalize, replay_indices);
  }
  const Tensor chosen = ops::choose_experts(ops::softmax(logits.detach()), choice, bias);
  return ops::topk_softmax(logits, config.top_k, config.normalize, chosen);
}

}  // namespace

Router::Router(const Config& config)
    : config_(config),
      weight_(Tensor::zeros({config.num_experts, config.hidden_size}, config.dtype)) {
  detail::layer_size("Router", "hidden_size", config.hidden_size);
  check<ValueError>(1 <= config.top_k && config.top_k <= config.num_experts,
                    "Router: top_k must be in [1, ", config.num_experts, "] (num_experts), got ",
                    config.top_k);
  ops::check_expert_choice("Router", choice_of(config), config.num_experts);
  check<ValueError>(std::isfinite(config.scaling_factor) && config.scaling_factor > 0,
                    "Router: scaling_factor must be positive and finite, got ",
                    config.scaling_factor);
  register_parameter("weight", weight_, InitialValues::normal());
  if (!config.correction_bias) return;
  e_score_correction_bias_ = Tensor::zeros({config.num_experts}, Dtype::kFloat32);
  register_buffer("e_score_correction_bias", e_score_correction_bias_, /*persistent=*/true,
                  InitialValues::zeros());
}

// Not when it is constructed: a model may have many, which are made before they are in its tree.
void Router::warn_of_no_gradient() const {
  const bool all_one = config_.top_k == 1 && config_.normalize && config_.num_experts > 1;
  if (!all_one || !is_training() || !grad_enabled() || !weight_.requires_grad()) return;
  warn_once(WarningOf::kRouterWithoutGradient,
            "Router: with top_k 1 and normalized weights each weight is 1, so auxiliary losses "
            "alone train the router; set normalize (norm_topk_prob) to false, or top_k to 2 or "
            "more, for it to learn from the loss");
}

Router::Output Router::forward(const Tensor& x, const Tensor& replay_indices) {  // [T, H]
  warn_of_no_gradient();
  const Tensor logits = ops::linear(x, weight_, 0, arithmetic_dtype(x.dtype()));  // [T, E]
  const auto& stored = e_score_correction_bias_;
  const Tensor bias = stored.defined() ? to_dtype(stored, logits.dtype()) : Tensor();  // [E]
  auto [weights, indices] = choose(logits, config_, bias, replay_indices);  // [T, K] each
  if (config_.scaling_factor != 1) weights = ops::mul(weights, config_.scaling_factor);
  return {.logits = logits, .weights = weights, .indices = indices};
}

void Router::balance(const std::vector<std::int64_t>& tokens_per_expert, double rate) {
  check(config_.correction_bias, "Router: balance needs correction_bias, got a router without it");
  const auto experts = config_.num_experts;
  check<ValueError>(std::ssize(tokens_per_expert) == experts, "Router: balance needs ", experts,
                    " counts, one per expert, got ", tokens_per_expert.size());
  check<ValueError>(std::ranges::min(tokens_per_expert) >= 0,
                    "Router: counts of tokens must not be negative, got ",
                    std::ranges::min(tokens_per_expert));
  check<ValueError>(std::isfinite(rate) && rate >= 0, "Router: rate must be finite and >= 0, got ",
                    rate);
  const auto total =
      std::accumulate(tokens_per_expert.begin(), tokens_per_expert.end(), std::int64_t{0});
  dispatch_floating(e_score_correction_bias_.dtype(), [&]<class T>() {
    const auto bias = e_score_correction_bias_.mutable_data<T>();
    for (std::size_t e = 0; e < bias.size(); ++e) {
      const auto above = tokens_per_expert[e] * experts - total;  // E (n_e - mean), exactly
      if (above != 0) bias[e] += static_cast<T>(above < 0 ? rate : -rate);
    }
  });
}

void for_each_tensor(Router::Output& output, const TensorVisitor& visit) {
  visit_tensors(visit, output.logits, output.weights, output.indices);
}

}  // namespace moegrad::nn
