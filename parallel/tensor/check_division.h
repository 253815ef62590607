// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/distributed/device_mesh.h"
#include "nn/module.h"

namespace moegrad::parallel {

// What can be asked of a module that parallelize_module has divided over the ranks of `mesh`, which
// has one axis (ValueError otherwise).

/// What of a divided module has other last bits than on one rank, for micro-batches of so many
/// tokens (Note [Tensor parallelism and the canonical sum]): the paths, each with its sum, such as
/// "layers.0.o_proj: sums over 512 in-features". Experts are not listed: they have the bits of one
/// rank that sums over as many parts of the tokens.
std::vector<std::string> inexact_sums(nn::Module& module, const DeviceMesh& mesh,
                                      std::int64_t tokens);

/// After a backward: Error, and the same on all ranks, if the gradient of a parameter that all
/// ranks of `mesh` have alike is not. Then a module is missing in the plan, or has another style
/// there: one that sees a part of what comes in needs SequenceParallel. A sum too many is not
/// found: all ranks have the same wrong gradient then. Error without any such gradient. Collective.
void check_replicated_gradients(const nn::Module& module, const DeviceMesh& mesh);

}  // namespace moegrad::parallel
