// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/named_tensor.h"
#include "nn/module.h"

namespace moegrad::fsdp {

// The state of a sharded module in one place. Module::state_dict() is the sharded form: the live
// shards, without communication, for the same mesh. These two go between any two meshes and numbers
// of ranks. Both are collective over the world, reshard the module first, and name parameters as
// Module::named_parameters() does, a tied one once.

/// Copies of all parameters, whole, on rank 0 of the world; an empty list on the others. Beyond the
/// result, rank 0 needs room for at most one whole parameter.
NamedTensors full_state_dict(nn::Module& module);

/// Fills all parameters, sharded and whole, of every rank from what rank 0 gives; `state` is not
/// read on other ranks. Values are converted to the parameters' dtypes. Beyond `state`, rank 0
/// needs room for one whole parameter.
///
/// Throws on every rank, and nothing has been written then: Error unless the names are the
/// module's, ShapeError unless the shapes are those of its whole parameters.
void load_full_state_dict(nn::Module& module, const NamedTensors& state);

}  // namespace moegrad::fsdp
