// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/causal_lm/family.h"

namespace moegrad::models {

/// Qwen2-MoE (Qwen1.5-MoE): biases of queries, keys and values, a softmax router, and a shared
/// expert with a gate.
/// Source: transformers' Qwen2MoeConfig and Qwen2MoeForCausalLM.
const ModelFamily& qwen2_moe_family();

}  // namespace moegrad::models
