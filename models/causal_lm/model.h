// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "framework/autograd/dropout_ids.h"
#include "framework/distributed/process_group.h"
#include "framework/tensor/documents.h"
#include "models/causal_lm/config.h"
#include "models/causal_lm/decoder_layer.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/rms_norm.h"

namespace moegrad::models {

/// The part of a model that one stage of a pipeline has; by default all of it.
struct CausalLMPart {
  /// Decoder layers [begin, end); by default up to the last one.
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = std::nullopt;
  bool embedding = true;  ///< it begins with token ids; otherwise with hidden states
  bool head = true;       ///< it ends with the final norm and logits; otherwise with hidden states
};

struct CausalLMForwardOptions {
  /// Experts to take instead of the routers' choice, int64 [T, K] per mixture layer of the part.
  std::optional<TensorList> replay_expert_indices = std::nullopt;
  /// int64 [T]; by default each document counts from 0.
  Tensor positions = {};
  /// [T, H], what the part before has computed: for a part without embedding, and only there.
  Tensor hidden = {};
  /// Whether to return the hidden states. They then live as long as the output.
  bool output_hidden_states = false;
  /// int64 [T], the token after each token, -100 if there is none. If given, forward returns ce_sum
  /// instead of logits, which then never exist as a whole (ops::linear_cross_entropy). The loss and
  /// all gradients have the same bits. Backward computes the logits once more, unless the next is
  /// given.
  Tensor targets = {};
  /// With targets: [T] in the dtype of the loss, what each counts in ce_sum; undefined: 1.
  Tensor target_weights = {};
  /// With targets: what the gradient of ce_sum will be. For an objective of causal_lm_loss it is
  /// 1 / global_targets, or 1 / TargetWeights::total. The head's gradients are then made in
  /// forward.
  std::optional<double> grad_ce_sum = std::nullopt;
  /// What dropout and jitter depend on while the model is training, token_ids [T] (Note [Dropout
  /// masks]). By default those of the DropoutIdsGuard around the call, if there is one.
  std::optional<DropoutIds> dropout_ids = std::nullopt;
};

/// A decoder for causal language modelling, exactly as Hugging Face's class for the model_type of
/// its configuration: Qwen3MoeForCausalLM, MixtralForCausalLM and so on. Weights have the names
/// that they have there, in the modules of transformers 5. The experts of a layer are stacked into
/// mlp.experts.gate_up_proj and down_proj (Note [Pre-transposed expert weights]).
///
/// Single-device code: sharding and recomputation are applied from outside, by fsdp::fully_shard
/// and nn::recompute.
class CausalLM final : public nn::Callable<CausalLM> {
 public:
  using ForwardOptions = CausalLMForwardOptions;
  /// Lists have one entry per mixture layer, except hidden_states.
  struct Output {
    Tensor logits;  // [T, V], unless targets were given
    /// The ranks that divide the vocabulary, if logits are this rank's part [T, V / R].
    std::shared_ptr<ProcessGroup> vocabulary;
    Tensor ce_sum;               // [], if targets were given: the (weighed) sum of -log p(target)
    Tensor hidden;               // [T, H], of a part without head, for the part after it
    TensorList router_logits;    // [T, E], of which router_scores make scores
    TensorList routing_weights;  // [T, K]
    TensorList expert_indices;   // int64 [T, K]
    std::vector<std::vector<std::int64_t>> tokens_per_expert;  // [E]
    nn::RouterScores router_scores = nn::RouterScores::kSoftmax;
    /// If asked for, tensors [T, H]: the embeddings, then the output of each layer. The last one is
    /// after the final norm.
    TensorList hidden_states;
  };

  /// Validates the configuration and draws the weights. Under a MetaGuard, call to_empty() and
  /// init_weights() later instead.
  ///
  /// A part has the names, and so the weights, that it has in the whole model: layers keep their
  /// global numbers. Parts that run one after the other compute what the whole model does, to the
  /// bit. ValueError for layers that the model does not have, and for tied word embeddings that are
  /// in two parts.
  explicit CausalLM(const CausalLMConfig& config, std::uint64_t seed = 0,
                    const CausalLMPart& part = {});

  /// Draws the weights as the constructor does. Sharded and whole models get the same values (Note
  /// [Initial values by global element]). If a model is made under a MetaGuard, then sharded, then
  /// given bytes by to_empty(), no rank ever holds the whole model.
  void init_weights(std::uint64_t seed);

  /// tokens: int64 [T], one document unless `documents` divides them. Logits at t are for the token
  /// after t. ValueError for token ids outside [0, V) and for documents of more or fewer tokens.
  Output forward(const Tensor& tokens, const std::optional<Documents>& documents = std::nullopt,
                 const ForwardOptions& options = {});

  /// The whole model's configuration.
  const CausalLMConfig& config() const { return config_; }
  /// Whether this is all of the model, and not a part.
  bool is_whole() const;
  /// The layers of this part.
  std::deque<DecoderLayer>& layers() { return layers_; }
  /// Router::balance() of each mixture layer of the part, in order. Call it after the last backward
  /// of a step: a layer that is recomputed there chooses its experts again. ValueError unless there
  /// are as many lists of counts; Error for routers without a correction bias.
  void balance(const std::vector<std::vector<std::int64_t>>& tokens_per_expert, double rate);
  /// Whether a tensor of this name, as in Hugging Face, belongs to another part of the model, or to
  /// a layer that predicts further tokens (num_nextn_predict_layers).
  bool is_elsewhere(std::string_view name) const;

 private:
  void converted_to(Dtype dtype) override { config_.dtype = dtype; }
  /// The hidden states that the layers begin with, [T, H].
  Tensor embed(const Tensor& tokens, const Tensor& hidden);

  CausalLMConfig config_;
  std::int64_t begin_ = 0;  // number of the part's first layer
  std::optional<nn::Embedding> embed_tokens_;
  std::deque<DecoderLayer> layers_;
  std::optional<nn::RMSNorm> norm_;  // of the head, as lm_head_
  std::optional<nn::Linear> lm_head_;
};

void for_each_tensor(CausalLMForwardOptions& options, const nn::TensorVisitor& visit);
void for_each_tensor(CausalLM::Output& output, const nn::TensorVisitor& visit);

}  // namespace moegrad::models
