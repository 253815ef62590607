// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/causal_lm/config.h"
#include "nn/any_module.h"
#include "nn/attention.h"
#include "nn/jitter.h"
#include "nn/module.h"
#include "nn/moe.h"
#include "nn/rms_norm.h"

namespace moegrad::models {

/// One layer on T packed tokens:      h += attention(norm(h)),  h += mlp(norm(h))
///
/// where mlp is a mixture of experts or, in the layers that the configuration leaves out, dense.
/// replace() takes another module as self_attn, and any TensorModule as mlp; the layer is dense
/// from then on.
///
/// forward() is, for a mixture layer, the four nodes attend | dispatch | experts | combine, and a
/// fifth, shared, if it has a shared expert; a schedule that interleaves micro-batches calls these
/// itself. If the layer has hooks of its own, as under fully_shard, it calls them through
/// call_method:
///
///     layer.call_method(&DecoderLayer::attend, hidden, context, Tensor());
///
/// With router_jitter_noise, what the mixture sees is varied in training (nn::Jitter): that needs a
/// DropoutIdsGuard, or eval(). The random numbers depend on the path of the layer, so the nodes of
/// such a layer must be called through call_method.
class DecoderLayer final : public nn::Callable<DecoderLayer> {
 public:
  struct Output {
    Tensor hidden;                                     // [T, H]
    Tensor router_logits = {};                         // [T, E]; the rest is a mixture layer's
    Tensor routing_weights = {};                       // [T, K]
    Tensor expert_indices = {};                        // int64 [T, K]
    std::vector<std::int64_t> tokens_per_expert = {};  // [E]
  };

  /// Layer `layer` of the model of this configuration.
  DecoderLayer(const CausalLMConfig& config, std::int64_t layer);

  /// `replay_indices`: int64 [T, K], experts to take instead of the router's choice.
  Output forward(const Tensor& hidden, const nn::SequenceContext& context,
                 const Tensor& replay_indices = {});

  // --- the nodes of a mixture layer, each given what those before it have returned; Error for a
  // dense layer, and for a node called too early
  struct AttentionOutput {
    Tensor hidden;  // [T, H], the residual stream after attention
    Tensor normed;  // [T, H], what the router and all experts see
    nn::Router::Output routed;
    Tensor shared_input = {};  // [T, H], normed for the shared expert, if there is one
    Tensor shared = {};        // [T, H], what shared() has returned, if it has been called
  };
  AttentionOutput attend(const Tensor& hidden, const nn::SequenceContext& context,
                         const Tensor& replay_indices);
  nn::DispatchedRows dispatch(const AttentionOutput& attended);
  Tensor experts(const nn::DispatchedRows& dispatched);  // -> [R, H]
  /// The shared expert's share, [T, H]. It needs nothing of dispatch() and experts(), so it can run
  /// while tokens travel: keep the result in attended.shared. Error without a shared expert.
  Tensor shared(const AttentionOutput& attended);
  /// [R, H] -> hidden [T, H]. Calls shared(), if there is a shared expert and it has not run.
  Output combine(const Tensor& rows, const nn::DispatchedRows& dispatched,
                 const AttentionOutput& attended);

  bool has_shared_expert() const { return is_moe() && moe_->has_shared_expert(); }
  bool is_moe() const { return moe_.has_value(); }
  /// nn::MoE::balance() of the mixture. Error for a dense layer.
  void balance(const std::vector<std::int64_t>& tokens_per_expert, double rate);

 private:
  nn::MoE& mixture();
  /// The residual stream after attention, and its norm.
  nn::RMSNorm::Added add_attention(const Tensor& hidden, const nn::SequenceContext& context);

  nn::RMSNorm input_layernorm_;
  nn::AnyModule<Tensor(const Tensor&, const nn::SequenceContext&)> self_attn_;
  nn::RMSNorm post_attention_layernorm_;
  std::optional<nn::Jitter> jitter_;
  std::optional<nn::MoE> moe_;  // one of the two, named "mlp"
  nn::TensorModule mlp_;
};

void for_each_tensor(DecoderLayer::Output& output, const nn::TensorVisitor& visit);
void for_each_tensor(DecoderLayer::AttentionOutput& attended, const nn::TensorVisitor& visit);

}  // namespace moegrad::models
