// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "framework/tensor/documents.h"
#include "models/qwen3_moe/config.h"
#include "models/qwen3_moe/decoder_layer.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/rms_norm.h"

namespace moegrad::models {

struct Qwen3MoeForwardOptions {
  /// Experts to take instead of the routers' choice, int64 [T, K] per mixture layer.
  const TensorList* replay_expert_indices = nullptr;
  /// int64 [T]; by default each document counts from 0.
  Tensor positions = {};
  /// Whether to return the hidden states. They then live as long as the output.
  bool output_hidden_states = false;
  /// int64 [T], the token after each token, -100 if there is none. If given, forward returns ce_sum
  /// instead of logits, which then never exist as a whole (ops::linear_cross_entropy). Backward
  /// computes the output head's products once more. The loss and all gradients have the same bits.
  Tensor targets = {};
};

/// Qwen3-MoE for causal language modelling, exactly as Hugging Face's Qwen3MoeForCausalLM. Weights
/// have its names. The experts of a layer are stacked into mlp.experts.gate_up_proj and down_proj
/// (Note [Pre-transposed expert weights]).
///
/// Single-device code: sharding and recomputation are applied from outside, by fsdp::fully_shard
/// and nn::recompute.
class Qwen3Moe final : public nn::Callable<Qwen3Moe> {
 public:
  using ForwardOptions = Qwen3MoeForwardOptions;
  /// Lists have one entry per mixture layer, except hidden_states.
  struct Output {
    Tensor logits;               // [T, V], unless targets were given
    Tensor ce_sum;               // [], if targets were given: the sum of -log p(target)
    TensorList router_logits;    // [T, E]
    TensorList routing_weights;  // [T, K]
    TensorList expert_indices;   // int64 [T, K]
    std::vector<std::vector<std::int64_t>> tokens_per_expert;  // [E]
    /// If asked for, tensors [T, H]: the embeddings, then the output of each layer. The last one is
    /// after the final norm.
    TensorList hidden_states;
  };

  /// Validates the configuration and draws the weights. Under a MetaGuard, call to_empty() and
  /// init_weights() later instead.
  explicit Qwen3Moe(const Qwen3MoeConfig& config, std::uint64_t seed = 0);

  /// Draws the weights as the constructor does. Sharded and whole models get the same values (Note
  /// [Initial values by global element]). If a model is made under a MetaGuard, then sharded, then
  /// given bytes by to_empty(), no rank ever holds the whole model.
  void init_weights(std::uint64_t seed);

  /// tokens: int64 [T], one document unless `documents` divides them. Logits at t are for the token
  /// after t. ValueError for token ids outside [0, V) and for documents of more or fewer tokens.
  Output forward(const Tensor& tokens, const std::optional<Documents>& documents = std::nullopt,
                 const ForwardOptions& options = {});

  const Qwen3MoeConfig& config() const { return config_; }
  std::deque<Qwen3MoeDecoderLayer>& layers() { return layers_; }

 private:
  Qwen3MoeConfig config_;
  nn::Embedding embed_tokens_;
  std::deque<Qwen3MoeDecoderLayer> layers_;
  nn::RMSNorm norm_;
  nn::Linear lm_head_;
};

void for_each_tensor(Qwen3Moe::Output& output, const nn::TensorVisitor& visit);

}  // namespace moegrad::models
