// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "models/qwen3_moe/config.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/module.h"
#include "nn/moe.h"
#include "nn/rms_norm.h"

namespace moegrad::models {

/// One layer on T packed tokens:      h += attention(norm(h)),  h += mlp(norm(h))
///
/// where mlp is a mixture of experts or, in the layers that the configuration leaves out, dense.
///
/// For a mixture layer, forward() consists of the four nodes attend | dispatch | experts | combine.
/// A schedule that interleaves micro-batches calls these nodes itself.
class Qwen3MoeDecoderLayer final : public nn::Callable<Qwen3MoeDecoderLayer> {
 public:
  struct Output {
    Tensor hidden;                                     // [T, H]
    Tensor router_logits = {};                         // [T, E]; from here on, mixture layers only
    Tensor routing_weights = {};                       // [T, K]
    Tensor expert_indices = {};                        // int64 [T, K]
    std::vector<std::int64_t> tokens_per_expert = {};  // [E]
  };

  Qwen3MoeDecoderLayer(const Qwen3MoeConfig& config, std::int64_t layer);

  /// `replay_indices`: int64 [T, K], experts to take instead of the router's choice. With
  /// `recompute` it keeps only the input, and backward runs forward again.
  Output forward(const Tensor& hidden, const nn::SequenceContext& context,
                 const Tensor& replay_indices = {}, bool recompute = false);

  // --- the nodes of a mixture layer
  struct Attended {
    Tensor hidden;  // [T, H], the residual stream after attention
    Tensor normed;  // [T, H], the input of the experts
    nn::MoE::Routing routing;
  };
  Attended attend(const Tensor& hidden, const nn::SequenceContext& context,
                  const Tensor& replay_indices = {});
  Tensor dispatch(const Attended& attended);                     // -> [R, H]
  Tensor experts(const Tensor& rows, const Attended& attended);  // [R, H] -> [R, H]
  Output combine(const Tensor& rows, const Attended& attended);  // [R, H] -> hidden [T, H]

  bool is_moe() const { return moe_.has_value(); }

 private:
  Output compute(const Tensor& hidden, const nn::SequenceContext& context,
                 const Tensor& replay_indices);
  /// The residual stream after attention, and its norm.
  nn::RMSNorm::Added add_attention(const Tensor& hidden, const nn::SequenceContext& context);

  nn::RMSNorm input_layernorm_;
  nn::Attention self_attn_;
  nn::RMSNorm post_attention_layernorm_;
  std::optional<nn::MoE> moe_;  // one of these two exists; its name is "mlp"
  std::optional<nn::MLP> mlp_;
};

void for_each_tensor(Qwen3MoeDecoderLayer::Output& output, const nn::TensorVisitor& visit);

struct Qwen3MoeForwardOptions {
  /// Experts to take instead of the routers' choice, int64 [T, K] per mixture layer.
  const TensorList* replay_expert_indices = nullptr;
  /// int64 [T]; by default each document counts from 0.
  Tensor positions = {};
  /// Decoder layers [0, n) keep only their input, and backward runs them again.
  std::int64_t recompute_layers = 0;
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
/// Single-device code: sharding is applied from outside, by fsdp::fully_shard.
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

  /// tokens: int64 [T], documents packed one after the other; document d is tokens
  /// [cu_seqlens[d], cu_seqlens[d + 1]). Logits at t are for the token after t.
  /// ValueError for token ids outside [0, V) and for cu_seqlens that do not cover the tokens.
  Output forward(const Tensor& tokens, const std::vector<std::int64_t>& cu_seqlens,
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

/// The position of each token in its document: int64 [T]. ValueError unless cu_seqlens rises from 0
/// to `tokens`.
Tensor document_positions(const std::vector<std::int64_t>& cu_seqlens, std::int64_t tokens);

}  // namespace moegrad::models
