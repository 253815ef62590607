// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/causal_lm/family.h"

namespace moegrad::models {

/// GLM-4.5: rope on a part of each head, dense first layers, then mixtures with a sigmoid router,
/// groups of experts, a correction bias and shared experts.
/// Source: transformers' Glm4MoeConfig and Glm4MoeForCausalLM.
const ModelFamily& glm4_moe_family();

}  // namespace moegrad::models
