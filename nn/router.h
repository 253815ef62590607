// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/module.h"

namespace moegrad::nn {

/// Chooses K of E experts for each token by the largest probability:
///
///     p = softmax(W x) over all experts      x: [T, H]   W: [E, H]   p: [T, E]
///
/// The weights of the chosen experts are their p, divided by the sum of these if `normalize`.
class Router final : public Callable<Router> {
 public:
  struct Config {
    std::int64_t hidden_size = 0;
    std::int64_t num_experts = 0;
    std::int64_t top_k = 0;
    bool normalize = true;  // Hugging Face's norm_topk_prob
    Dtype dtype = Dtype::kFloat32;
  };
  struct Output {
    Tensor logits;   // [T, E]
    Tensor weights;  // [T, K]
    Tensor indices;  // int64 [T, K], by falling probability, ties by lowest index
  };

  explicit Router(const Config& config);

  /// If `replay_indices` [T, K] is given, these experts are taken instead of the best ones. Logits
  /// and weights are computed as usual.
  Output forward(const Tensor& x, const Tensor& replay_indices = {});

 private:
  Config config_;
  Tensor weight_;  // [E, H]
};

void for_each_tensor(Router::Output& output, const TensorVisitor& visit);

}  // namespace moegrad::nn
