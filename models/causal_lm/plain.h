// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/documents.h"
#include "framework/tensor/named_tensor.h"
#include "models/causal_lm/loss.h"
#include "models/causal_lm/model.h"

namespace moegrad::models {

// The baseline: the model written a second time, with plain tensor operations only (general matrix
// products, run-time transposes of [out, in] weights, elementwise operations, softmax under an
// explicit mask, one expert after the other). It shares no fused operation with CausalLM, and its
// gradients come from the tape of the plain operations.

/// What CausalLM::forward computes, from `parameters` named as CausalLM::named_parameters() and, if
/// there are any, named_buffers(), with expert weights as in Hugging Face
/// (ExpertWeights::kHuggingFace). ValueError for a missing name and for documents of more or fewer
/// tokens.
CausalLM::Output plain_causal_lm(const CausalLMConfig& config, const NamedTensors& parameters,
                                 const Tensor& tokens, const Documents& documents,
                                 const CausalLM::ForwardOptions& options = {});

/// Computes what causal_lm_loss computes.
CausalLMLoss plain_causal_lm_loss(const CausalLM::Output& output, const Tensor& targets,
                                  std::int64_t global_targets, double router_aux_loss_coef);

}  // namespace moegrad::models
