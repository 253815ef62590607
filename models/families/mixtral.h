// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/causal_lm/family.h"

namespace moegrad::models {

/// Mixtral: mixtures in all layers, a softmax router whose weights are normalised.
/// Source: transformers' MixtralConfig and MixtralForCausalLM.
const ModelFamily& mixtral_family();

}  // namespace moegrad::models
