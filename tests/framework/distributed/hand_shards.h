// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shards made by hand, as fully_shard makes them.

#include <algorithm>
#include <memory>

#include "framework/distributed/device_mesh.h"
#include "framework/distributed/shard_runs.h"
#include "framework/tensor/fill.h"

namespace moegrad::test {

/// This rank's part of a tensor of `shape` when dimension `dim` is spread over `group` as
/// torch.chunk cuts: ceil-sized chunks, the last ones shorter or empty.
inline ShardSpec spec_of(const Shape& shape, std::int64_t dim, std::shared_ptr<ProcessGroup> group,
                         std::shared_ptr<ProcessGroup> replicas = nullptr) {
  const auto size = shape[dim];
  const auto chunk = (size + group->size() - 1) / group->size();
  const auto begin = std::min(size, chunk * group->rank());
  return {.global_shape = shape,
          .begin = begin,
          .end = std::min(size, begin + chunk),
          .group = std::move(group),
          .dim = dim,
          .replicas = std::move(replicas)};
}

/// Over the mesh's axis "shard", replicated over its axis "replicate" if it has one.
inline ShardSpec spec_of(const Shape& shape, std::int64_t dim, const DeviceMesh& mesh) {
  return spec_of(shape, dim, mesh.group("shard"),
                 mesh.has("replicate") ? mesh.group("replicate") : nullptr);
}

/// A copy of that part, which says what it is.
inline Tensor shard_of(const Tensor& whole, const ShardSpec& spec) {
  Tensor shard = clone(shard_view(whole.detach(), spec));
  shard.set_shard_spec(std::make_shared<ShardSpec>(spec));
  return shard;
}

}  // namespace moegrad::test
