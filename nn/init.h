// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "nn/module.h"

namespace moegrad::nn {

/// Note [Initial values by global element]
/// Element i of a parameter is a pure function of (seed, the parameter's full name, i), where i is
/// its position in the global tensor in Hugging Face's orientation: stacked experts count as
/// [E, out, in] however they are stored. So neither the number of ranks nor the storage
/// orientation changes a weight.

/// Fills the parameter with normal(0, std); a shard gets its part of the whole.
void init_normal(const ParameterSlot& slot, std::uint64_t seed, double std);

/// As Hugging Face initialises: matrices and stacked experts normal(0, std), vectors (the weights
/// of norms) one; a tied parameter once, under its first name. Reshards the module first. Error for
/// a parameter without bytes (Module::to_empty).
void init_weights(Module& module, std::uint64_t seed, double std);

}  // namespace moegrad::nn
