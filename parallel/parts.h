// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "framework/distributed/device_mesh.h"
#include "framework/distributed/shard_spec.h"
#include "framework/tensor/tensor.h"

namespace moegrad::parallel {

/// ValueError, which begins with `op`, unless the mesh has one axis.
void check_one_axis(std::string_view op, const DeviceMesh& mesh);

/// Error, which begins with `op`, if the parameter has hooks, which the part that takes its place
/// would not run.
void check_no_hooks(std::string_view op, const std::string& name, const Tensor& whole);

/// This rank's part of a parameter, a new one, as `spec` says.
Tensor part_of(const Tensor& whole, ShardSpec spec);

/// Says that `part` has taken the place of `whole`, which an optimizer might hold.
void mark_replaced(const Tensor& whole, const Tensor& part);

}  // namespace moegrad::parallel
