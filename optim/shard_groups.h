// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/tensor/named_tensor.h"

namespace moegrad::optim {

using ProcessGroups = std::vector<std::shared_ptr<ProcessGroup>>;

// The groups to reduce over so that all ranks know what each rank knows about its own shards. Each
// group appears once, in the order of the parameters, which is the same on all ranks. Groups of one
// rank are left out. Reductions over a parameter's groups, one after the other, cover all its
// shards, so reductions over the groups of all parameters cover all of them.

/// Error if fully_shard or expert_parallel has replaced one of `parameters` by a part: then it is
/// no longer trained.
void check_not_replaced(std::string_view op, const NamedTensors& parameters);

/// Error if some of `parameters` with a gradient are spread over ranks and others are whole without
/// being in fsdp::Policy::ignored_parameters. No rank would sum the gradients of these, so they
/// would become different on each rank.
void check_all_spread(std::string_view op, const NamedTensors& parameters);

/// The groups over which a parameter is sharded, the outermost first.
ProcessGroups shard_groups(const Tensor& parameter);

/// The groups over which `parameters` are sharded or replicated: all ranks of each parameter's
/// mesh.
ProcessGroups mesh_groups(const NamedTensors& parameters);

}  // namespace moegrad::optim
