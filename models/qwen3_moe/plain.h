// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/documents.h"
#include "framework/tensor/named_tensor.h"
#include "models/qwen3_moe/loss.h"
#include "models/qwen3_moe/model.h"

namespace moegrad::models {

// The baseline: Qwen3-MoE written a second time, with plain tensor operations only (general matrix
// products, run-time transposes of [out, in] weights, elementwise operations, softmax under an
// explicit mask, one expert after the other). It shares no fused operation with Qwen3Moe, and its
// gradients come from the tape of the plain operations.

/// What Qwen3Moe::forward computes, from `parameters` named as Qwen3Moe::named_parameters() with
/// expert weights as in Hugging Face (ExpertWeights::kHuggingFace). ValueError for a missing name
/// and for documents of more or fewer tokens.
Qwen3Moe::Output qwen3_moe_plain(const Qwen3MoeConfig& config, const NamedTensors& parameters,
                                 const Tensor& tokens, const Documents& documents,
                                 const Qwen3Moe::ForwardOptions& options = {});

/// Computes what qwen3_moe_loss computes.
Qwen3MoeLoss qwen3_moe_plain_loss(const Qwen3Moe::Output& output, const Tensor& targets,
                                  std::int64_t global_targets, double router_aux_loss_coef);

}  // namespace moegrad::models
