// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/causal_lm/family.h"

namespace moegrad::models {

// Each family with the classes of transformers that it follows.

/// GLM-4.5: rope on a part of each head, dense first layers, then mixtures with a sigmoid router,
/// groups of experts, a correction bias and shared experts. Glm4MoeConfig, Glm4MoeForCausalLM.
const ModelFamily& glm4_moe_family();

/// Mixtral: mixtures in all layers, a softmax router whose weights are normalised. MixtralConfig,
/// MixtralForCausalLM.
const ModelFamily& mixtral_family();

/// Qwen2-MoE (Qwen1.5-MoE): biases of queries, keys and values, a softmax router, and a shared
/// expert with a gate. Qwen2MoeConfig, Qwen2MoeForCausalLM.
const ModelFamily& qwen2_moe_family();

/// Qwen3-MoE: norms of queries and keys, a softmax router, no shared expert. Qwen3MoeConfig,
/// Qwen3MoeForCausalLM.
const ModelFamily& qwen3_moe_family();
/// Qwen3: the same with dense layers alone.
const ModelFamily& qwen3_family();

}  // namespace moegrad::models
