// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/tensor/named_tensor.h"

namespace moegrad::optim {

using ProcessGroups = std::vector<std::shared_ptr<ProcessGroup>>;

// Which groups have to meet for what ranks know of their own shards to become what all know. Each
// group stands once, in the order of the parameters, which all ranks share; groups of one rank are
// left out. What a parameter's shards hold is complete after one reduction over its own group, so
// reducing over one group after the other makes it complete for all parameters.

/// Error if fully_shard has put a shard in the place of one of `parameters`: it is not trained any
/// more.
void check_not_replaced(std::string_view op, const NamedTensors& parameters);

/// Error if some of `parameters` with a gradient are spread over ranks and others are whole and
/// nobody said that he adds up their gradients (fsdp::Policy::ignored_parameters): on each rank
/// they would go their own way.
void check_all_spread(std::string_view op, const NamedTensors& parameters);

/// Over which `parameters` are sharded.
ProcessGroups shard_groups(const NamedTensors& parameters);

/// Over which they are sharded or replicated: all ranks of each parameter's mesh.
ProcessGroups mesh_groups(const NamedTensors& parameters);

}  // namespace moegrad::optim
