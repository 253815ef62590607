// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "framework/distributed/device_mesh.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/layout.h"
#include "fsdp/copy_out.h"
#include "nn/module.h"

namespace moegrad::fsdp {

/// Dtypes for computing and for communication, if they differ from the dtype of the parameters.
/// Optimizer and shards stay in the parameters' dtype. Values are rounded at every world size,
/// including one, so the results are the same for every number of ranks.
struct MixedPrecisionPolicy {
  /// The dtype that the module computes in, and in which parameters travel. float32, float64: all
  /// of them, gathered in it. bfloat16: the weights that products read (roles other than kDense),
  /// of float32 parameters, and the layers compute in it (nn::Module::compute_in). Norms, biases,
  /// routers and embeddings, tied ones too, stay float32, also on the way: they form a group of
  /// their own.
  std::optional<Dtype> param_dtype = std::nullopt;
  /// The dtype in which parameters travel, if it is another than that which the module computes
  /// in. bfloat16: the copy-out widens them; values are rounded, arithmetic stays as it is. float32
  /// where param_dtype is bfloat16: the copy-out rounds them.
  std::optional<Dtype> wire_dtype = std::nullopt;
  /// The dtype of gradients while they are summed, over ranks and over micro-batches. By default it
  /// is the dtype in which backward made them. It may be wider than the parameter's dtype. Then, if
  /// each micro-batch is reduced, the sum is rounded to the parameter's dtype at every power of two
  /// of micro-batches, since the sum is stored in grad(). Gradients that are kept without
  /// synchronization are not rounded.
  std::optional<Dtype> reduce_dtype = std::nullopt;
  /// float32 or float64: floating-point tensors that the module's forward returns are cast to it.
  std::optional<Dtype> output_dtype = std::nullopt;
  /// If param_dtype is float32 or float64, floating-point tensor arguments of the module's forward
  /// are cast to it. In bfloat16 the layers round what they read, and the residual stream stays.
  bool cast_forward_inputs = true;
};

/// How one parameter is sharded.
struct ShardPlacement {
  /// The dimension that is cut. Dimension 0 may have any size; the size of another dimension must
  /// be divisible by the number of ranks. Negative values count from the last dimension.
  std::int64_t dim = 0;
  /// The mesh that the parameter is spread over. Null: fully_shard's mesh, or Policy::expert_mesh
  /// for stacked experts. It is read only during the call.
  const DeviceMesh* mesh = nullptr;
};

/// The axes of the mesh that parameters are sharded over and, if the mesh has such an axis,
/// replicated over (HSDP). Without `shard`, parameters stay whole and gradients are summed (DDP).
struct DataParallelMeshDims {
  std::optional<std::string> shard = "shard";
  std::optional<std::string> replicate = "replicate";
};

/// How one fully_shard call treats its module.
struct Policy {
  /// Whether the gathered parameters are freed between forward and backward. By default they are,
  /// except those of the root, which are needed again at once. Without the tape no backward will
  /// free them, so then by default the root's are freed, too.
  ///
  /// An explicit false also applies without the tape. Then call reshard() before a step or load;
  /// otherwise the next forward computes with what was gathered before it.
  std::optional<bool> reshard_after_forward = std::nullopt;
  /// The group contains only the module's linear weights; norms, biases and the router go to the
  /// root group. The linear weights start at multiples of 512 bytes (one 16x16 bfloat16 fractal) in
  /// the gather buffer, at any world size.
  bool linear_only_shard = false;
  MixedPrecisionPolicy mixed_precision = {};
  /// How many groups ahead to gather during forward, in the order of the last forward.
  int forward_prefetch = 1;
  /// The mesh that stacked experts are spread over, if it is another than fully_shard's.
  std::optional<DeviceMesh> expert_mesh = std::nullopt;
  /// The placement of each parameter. By default dimension 0 is cut over the mesh that suits the
  /// parameter's role. Parameters on different meshes form separate groups.
  std::function<ShardPlacement(const nn::ParameterSlot&)> shard_placement = {};
  /// Parameters that stay whole and whose gradients fully_shard does not reduce.
  TensorList ignored_parameters = {};
  DataParallelMeshDims mesh_dims = {};
  /// The layout in which stacked experts are gathered, and in bfloat16 all weights of products:
  /// FRACTAL_NZ is what products read. All else is gathered row-major, and so are shards.
  Layout gathered_layout = Layout::kNZ;
  /// How gathered parameters get from the ranks' slices into their tensors. Not null.
  std::shared_ptr<const CopyOut> copy_out = make_split_with_slice_to_nz();
};

}  // namespace moegrad::fsdp
