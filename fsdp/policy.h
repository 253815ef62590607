// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "framework/distributed/device_mesh.h"
#include "framework/tensor/dtype.h"
#include "fsdp/copy_out.h"
#include "nn/module.h"

namespace moegrad::fsdp {

/// What is computed and what travels in another dtype than the parameters are kept in. Optimizer
/// and shards stay in the parameters' own dtype. Values are rounded at every world size, one
/// included, so that the same numbers come out whatever the rank count.
struct MixedPrecisionPolicy {
  /// Of the gathered parameters. float32, float64: they travel and the module computes in it.
  /// bfloat16: they travel in it and are widened in the copy-out; arithmetic stays in the
  /// parameters' own dtype.
  std::optional<Dtype> param_dtype = std::nullopt;
  /// Of gradients while they are summed, over ranks and over micro-batches; by default the dtype
  /// in which backward made them. When each micro-batch is reduced, a dtype wider than the
  /// parameter's is rounded to that at every power of two of micro-batches, since the sum lives in
  /// grad() then; gradients kept without synchronization are not.
  std::optional<Dtype> reduce_dtype = std::nullopt;
  /// float32 or float64: floating-point tensors that the module's forward returns are cast to it.
  std::optional<Dtype> output_dtype = std::nullopt;
  /// Where param_dtype is given, floating-point tensor arguments of the module's forward are cast
  /// to the dtype it computes in.
  bool cast_forward_inputs = true;
};

/// Where one parameter goes.
struct ShardPlacement {
  /// The dimension that is cut. 0 takes any size; others must divide by the ranks. Negative counts
  /// from the last.
  std::int64_t dim = 0;
  /// The mesh it is spread over; null: the view of fully_shard's mesh that suits its role, expert
  /// for stacked experts, else dense. Read during the call alone.
  const DeviceMesh* mesh = nullptr;
};

/// The axes of the mesh that parameters are sharded over, and replicated over (HSDP) where the mesh
/// has such an axis. Without `shard`, parameters stay whole and gradients are summed (DDP).
struct DataParallelMeshDims {
  std::optional<std::string> shard = "shard";
  std::optional<std::string> replicate = "replicate";
};

/// How one fully_shard call treats its module.
struct Policy {
  /// Whether the gathered parameters are freed between forward and backward. By default yes, but
  /// for the root, whose parameters are needed again at once. Without the tape no backward will
  /// come to free them, so then by default the root's are freed as well; an explicit false holds
  /// there too, and then reshard() before a step or load, or the next forward computes with what
  /// was gathered before it.
  std::optional<bool> reshard_after_forward = std::nullopt;
  /// The group holds the module's linear weights alone; norms and the router fall to the root
  /// group. What remains starts at multiples of 512 bytes (one 16x16 bfloat16 fractal) in the
  /// gather buffer, at any world size.
  bool linear_only_shard = false;
  MixedPrecisionPolicy mixed_precision = {};
  /// How many groups ahead to gather during forward, in the order recorded in the last one.
  int forward_prefetch = 1;
  /// Placement of each parameter; by default dimension 0 of the mesh that suits its role.
  /// Parameters on different meshes form groups of their own.
  std::function<ShardPlacement(const nn::ParameterSlot&)> shard_placement = {};
  /// Parameters that stay whole and that nobody reduces.
  TensorList ignored_parameters = {};
  DataParallelMeshDims mesh_dims = {};
  /// How gathered parameters get from the ranks' slices into their tensors. Not null.
  std::shared_ptr<const CopyOut> copy_out = make_split_with_slice_to_nz();
};

}  // namespace moegrad::fsdp
