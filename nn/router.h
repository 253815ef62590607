// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "nn/module.h"
#include "ops/expert_choice.h"

namespace moegrad::nn {

/// What a router makes of its logits: probabilities that sum to one over the experts, as in
/// Qwen-MoE and Mixtral, or scores that do not depend on each other, as in DeepSeek-V3 and GLM-4.5.
enum class RouterScores : std::uint8_t { kSoftmax, kSigmoid };

/// Chooses K of E experts for each token:      x: [T, H]   W: [E, H]   s, b: [T, E], [E]
///
///     s = softmax(W x) over all experts, or sigmoid(W x)
///     indices = ops::choose_experts(s, ..., b)      the K largest of s + b, of some groups alone
///     weights = s at the indices                    divided by their sum if `normalize`
///               times scaling_factor
///
/// With K = 1 and `normalize` each weight is 1, so no gradient reaches W but that of auxiliary
/// losses. A model in training warns of that once. It is what Hugging Face computes for
/// num_experts_per_tok = 1; `normalize` = false keeps the score as the weight, as Switch does.
///
/// The bias b, e_score_correction_bias, affects the choice alone. It is a buffer of float32, as in
/// Hugging Face, and zeros at first: no optimizer trains it, but balance() moves it.
class Router final : public Callable<Router> {
 public:
  struct Config {
    std::int64_t hidden_size = 0;
    std::int64_t num_experts = 0;
    std::int64_t top_k = 0;
    RouterScores scores = RouterScores::kSoftmax;
    bool normalize = true;         // Hugging Face's norm_topk_prob
    std::int64_t num_groups = 1;   // n_group
    std::int64_t topk_groups = 1;  // topk_group
    double scaling_factor = 1;     // routed_scaling_factor
    bool correction_bias = false;  // whether there is a b, zeros at first
    Dtype dtype = Dtype::kFloat32;
  };
  struct Output {
    Tensor logits;   // [T, E]
    Tensor weights;  // [T, K]
    Tensor indices;  // int64 [T, K], by falling s + b, ties by lowest index
  };

  /// ValueError for choices that ops::check_expert_choice() refuses, for a hidden_size that is left
  /// out, and for a scaling factor that is not positive and finite.
  explicit Router(const Config& config);

  /// If `replay_indices` [T, K] is given, these experts are taken instead of the best ones. Logits
  /// and weights are computed as usual.
  Output forward(const Tensor& x, const Tensor& replay_indices = {});

  /// Balancing without a loss: b_e += rate sign(mean(n) - n_e), where n_e tokens chose expert e
  /// since the last call. Call it once per optimizer step with the counts of the whole step, of all
  /// micro-batches and ranks, after its last backward: then b is the same on any number of ranks,
  /// to the bit, and a router recomputed in backward chooses as it did in forward. With counts of
  /// one rank alone the ranks' b drift apart; only a checkpoint notices. 1e-3 is the paper's rate.
  ///
  /// Error without correction_bias; ValueError unless there are E counts, none negative, and the
  /// rate is finite and not negative.
  /// Reference: Wang et al., "Auxiliary-Loss-Free Load Balancing", 2024,
  /// https://arxiv.org/abs/2408.15664.
  void balance(const std::vector<std::int64_t>& tokens_per_expert, double rate);

 private:
  void warn_of_no_gradient() const;

  Config config_;
  Tensor weight_;                   // [E, H]
  Tensor e_score_correction_bias_;  // float32 [E]; undefined without correction_bias
};

void for_each_tensor(Router::Output& output, const TensorVisitor& visit);

}  // namespace moegrad::nn
