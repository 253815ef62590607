// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/causal_lm/family.h"

namespace moegrad::models {

/// Qwen3-MoE: norms of queries and keys, a softmax router, no shared expert.
/// Source: transformers' Qwen3MoeConfig and Qwen3MoeForCausalLM.
const ModelFamily& qwen3_moe_family();
/// Qwen3: the same with dense layers alone.
const ModelFamily& qwen3_family();

}  // namespace moegrad::models
