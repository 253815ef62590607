// SPDX-License-Identifier: Apache-2.0
#include "train/mesh_shape.h"

#include <vector>

namespace moegrad::training {
namespace {

std::vector<MeshAxis> axes_of(const MeshShape& shape) {
  std::vector<MeshAxis> axes;
  if (shape.replicas > 1) axes.push_back({.name = "replicate", .size = shape.replicas});
  axes.push_back({.name = "shard", .size = shape.shards});
  return axes;
}

}  // namespace

std::string to_string(const MeshShape& shape) {
  const auto shards = std::to_string(shape.shards);
  return shape.replicas > 1 ? std::to_string(shape.replicas) + "x" + shards : shards;
}

DeviceMesh make_mesh(const std::shared_ptr<ProcessGroup>& group, const MeshShape& shape,
                     const std::optional<MeshShape>& experts) {
  if (experts && *experts != shape) return {group, axes_of(shape), axes_of(*experts)};
  return {group, axes_of(shape)};
}

}  // namespace moegrad::training
