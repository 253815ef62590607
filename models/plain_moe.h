// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "framework/tensor/named_tensor.h"
#include "nn/moe.h"

namespace moegrad::models {

/// The tensor of this name, such as "gate.weight", "experts.down_proj" or
/// "gate.e_score_correction_bias".
using TensorOfName = std::function<Tensor(const std::string& name)>;

/// What nn::MoE of this configuration computes on x [T, H], written a second time with plain tensor
/// operations only: one expert after the other, run-time transposes of [out, in] weights. It shares
/// no fused operation with nn::MoE, and its gradients come from the tape of the plain operations.
///
/// Parameters and buffers have the names of nn::MoE's; experts are stored as in Hugging Face
/// (ExpertWeights::kHuggingFace). `replay`: int64 [T, K], experts to take instead, or undefined.
/// `weights`: [T, K], routing weights to take in place of the router's, whose gradient reaches the
/// router all the same, or undefined.
nn::MoE::Output plain_moe(const nn::MoE::Config& config, const TensorOfName& tensor,
                          const Tensor& x, const Tensor& replay = {}, const Tensor& weights = {});

/// What the plain functions take of a module by name: its parameters, then its buffers.
NamedTensors plain_tensors(const nn::Module& module);

/// The gated feed-forward layer down (silu(gate x) * up x) from weights [out, in].
Tensor plain_swiglu(const Tensor& x, const Tensor& gate, const Tensor& up, const Tensor& down);
/// x [n, in] times the transpose of weight [out, in], transposed at run time.
Tensor plain_linear(const Tensor& x, const Tensor& weight);

}  // namespace moegrad::models
