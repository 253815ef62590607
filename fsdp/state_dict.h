// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/named_tensor.h"
#include "nn/module.h"

namespace moegrad::fsdp {

// The state of a sharded module in one place. Module::state_dict() is the sharded form: the live
// shards, without communication, for the same mesh. These two functions work between any two meshes
// and numbers of ranks. Both are collective over the world and reshard the module first. They
// contain what Module::state_dict() contains: all parameters, of which a tied one appears once, and
// the persistent buffers, which every rank has whole.

/// Copies of all whole parameters and buffers on rank 0 of the world; an empty list on the other
/// ranks. Beyond the result, rank 0 needs memory for at most one whole parameter.
NamedTensors full_state_dict(nn::Module& module);

/// Fills all parameters, sharded and whole, and buffers of every rank from rank 0's `state`. Other
/// ranks' `state` is not read. Values are converted to the module's dtypes. Beyond `state`, rank 0
/// needs memory for one whole parameter.
///
/// Throws on every rank, and then nothing has been written: Error unless the names are the
/// module's, ShapeError unless the shapes are those of its whole parameters.
void load_full_state_dict(nn::Module& module, const NamedTensors& state);

}  // namespace moegrad::fsdp
