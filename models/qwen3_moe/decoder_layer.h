// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/qwen3_moe/config.h"
#include "nn/any_module.h"
#include "nn/attention.h"
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
/// forward() is, for a mixture layer, the four nodes attend | dispatch | experts | combine; a
/// schedule that interleaves micro-batches calls these itself. If the layer has hooks of its own,
/// as under fully_shard, it calls them through call_method:
///
///     layer.call_method(&Qwen3MoeDecoderLayer::attend, hidden, context, Tensor());
class Qwen3MoeDecoderLayer final : public nn::Callable<Qwen3MoeDecoderLayer> {
 public:
  struct Output {
    Tensor hidden;                                     // [T, H]
    Tensor router_logits = {};                         // [T, E]; the rest is a mixture layer's
    Tensor routing_weights = {};                       // [T, K]
    Tensor expert_indices = {};                        // int64 [T, K]
    std::vector<std::int64_t> tokens_per_expert = {};  // [E]
  };

  Qwen3MoeDecoderLayer(const Qwen3MoeConfig& config, std::int64_t layer);

  /// `replay_indices`: int64 [T, K], experts to take instead of the router's choice.
  Output forward(const Tensor& hidden, const nn::SequenceContext& context,
                 const Tensor& replay_indices = {});

  // --- the nodes of a mixture layer, each given what those before it have returned; Error for a
  // dense layer, and for a node called too early
  struct Attended {
    Tensor hidden;  // [T, H], the residual stream after attention
    Tensor normed;  // [T, H], what the experts see
    nn::Router::Output routed;
  };
  Attended attend(const Tensor& hidden, const nn::SequenceContext& context,
                  const Tensor& replay_indices);
  nn::DispatchedRows dispatch(const Attended& attended);
  Tensor experts(const nn::DispatchedRows& dispatched);  // -> [R, H]
  Output combine(const Tensor& rows, const nn::DispatchedRows& dispatched,
                 const Attended& attended);  // [R, H] -> hidden [T, H]

  bool is_moe() const { return moe_.has_value(); }

 private:
  nn::MoE& mixture();
  /// The residual stream after attention, and its norm.
  nn::RMSNorm::Added add_attention(const Tensor& hidden, const nn::SequenceContext& context);

  nn::RMSNorm input_layernorm_;
  nn::AnyModule<Tensor(const Tensor&, const nn::SequenceContext&)> self_attn_;
  nn::RMSNorm post_attention_layernorm_;
  std::optional<nn::MoE> moe_;  // one of the two, named "mlp"
  nn::TensorModule mlp_;
};

void for_each_tensor(Qwen3MoeDecoderLayer::Output& output, const nn::TensorVisitor& visit);
void for_each_tensor(Qwen3MoeDecoderLayer::Attended& attended, const nn::TensorVisitor& visit);

}  // namespace moegrad::models
