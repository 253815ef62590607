// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shards made by hand, as fully_shard makes them.

#include <memory>
#include <utility>

#include "framework/distributed/device_mesh.h"
#include "framework/distributed/shard_runs.h"
#include "framework/tensor/fill.h"

namespace moegrad::test {

/// Indices [begin, end) of dimension `dim` of a tensor of `shape`, which is spread over `group`.
inline ShardSpec range_spec(const Shape& shape, std::int64_t begin, std::int64_t end,
                            std::shared_ptr<ProcessGroup> group = nullptr, std::int64_t dim = 0) {
  auto spec = whole_spec(shape);
  spec.box.begin[dim] = begin;
  spec.box.shape[dim] = end - begin;
  spec.placements = {{.group = std::move(group), .dim = dim}};
  return spec;
}

/// This rank's part of a tensor of `shape` when dimension `dim` is spread over `group` as
/// torch.chunk cuts: ceil-sized chunks, the last ones shorter or empty.
inline ShardSpec spec_of(const Shape& shape, std::int64_t dim, std::shared_ptr<ProcessGroup> group,
                         std::shared_ptr<ProcessGroup> replicas = nullptr) {
  auto spec = divided(whole_spec(shape), std::move(group), dim);
  return replicas != nullptr ? replicated(std::move(spec), std::move(replicas)) : spec;
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
