// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "framework/tensor/documents.h"
#include "nn/any_module.h"
#include "nn/module.h"
#include "nn/rms_norm.h"
#include "ops/rope.h"

namespace moegrad::nn {

/// What attention must know about a row of T packed tokens. Computed once for all layers.
struct SequenceContext {
  Documents documents;
  ops::RopeTable rope;  // of each token's position in its document
};
void for_each_tensor(SequenceContext& context, const TensorVisitor& visit);

/// Grouped-query attention within each document, causal unless `causal` is false, as in Qwen3:
///
///     q = rope(norm_q(W_q x + b_q)),  k = rope(norm_k(W_k x + b_k)),  v = W_v x + b_v
///     y = W_o softmax(q k^T / sqrt(D)) v          x, y: [T, H]
///
/// with RMSNorm over head_dim D, the same weight for every head, before the rotation; without
/// `qk_norm` there are no norms, as in Mixtral. The biases b exist with `qkv_bias`, as in Qwen2;
/// W_o has none. With a table for fewer than D channels, rope is ops::partial_rope. With `dropout`,
/// weights are dropped before they weigh the values (Note [Dropout masks]). replace() takes other
/// modules as q_proj, k_proj, v_proj and o_proj.
class Attention final : public Callable<Attention> {
 public:
  struct Config {
    std::int64_t hidden_size = 0;
    std::int64_t num_heads = 0;
    std::int64_t num_key_value_heads = 0;  // divides num_heads
    std::int64_t head_dim = 0;             // need not be hidden_size / num_heads
    bool qkv_bias = false;
    bool qk_norm = true;
    bool causal = true;  // false: each token attends to all of its document, as in an encoder
    double dropout = 0;  // of weights, in training (nn::Dropout)
    double rms_norm_eps = 1e-6;
    Dtype dtype = Dtype::kFloat32;
  };

  explicit Attention(const Config& config);

  Tensor forward(const Tensor& x, const SequenceContext& context);

 private:
  Config config_;
  TensorModule q_proj_, k_proj_, v_proj_, o_proj_;
  std::optional<RMSNorm> q_norm_, k_norm_;
};

}  // namespace moegrad::nn
