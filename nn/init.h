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

/// Note [Who initialises a parameter]
/// The layer that registers it says what init_weights writes: InitialValues::normal(), ones() or
/// zeros(). The layers of this library do as Hugging Face's: weights of linear layers, embeddings,
/// routers and experts are normal, weights of norms one. Where a layer declares nothing, a
/// parameter of two dimensions or more is taken for a weight, normal(0, std). One of fewer
/// dimensions may be a bias, a norm's weight or a scale: as in PyTorch it keeps the values that it
/// has, at first those that its constructor gave it. On the meta device a constructor gives none,
/// so there it must be declared.

/// Initialises all parameters (Note [Who initialises a parameter]); `std` where normal() has none
/// of its own; a tied parameter once, as its first name declares it. Reshards the module first.
/// Error for a parameter without bytes (Module::to_empty), and for one that was made on the meta
/// device with fewer than two dimensions and no declaration; nothing has been written then.
void init_weights(Module& module, std::uint64_t seed, double std);

}  // namespace moegrad::nn
